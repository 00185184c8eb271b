//! `seckillctl reservation show`: one purchase on both sides.

use clap::{ArgGroup, Subcommand};
use seckill_activity_control::{ReservationName, ReservationView};
use seckill_lua_scripts::ReservationRecord;
use seckill_order_store::DecisionRecord;
use seckill_state_machine::{RequestId, ReservationId, Scope, UserId};
use seckill_telemetry::user_id_hash;
use serde::Serialize;

use crate::connect::StoreArgs;
use crate::exit::Verdict;
use crate::output::{Output, or_none};
use crate::scope::ScopeArgs;

/// What to do with a reservation.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a reservation on both sides, by its id, its buyer, or its buyer and request
    Show(Box<Args>),
}

/// Settings of `show`.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("name").required(true).multiple(true).args(["reservation_id", "user_id"]))]
pub struct Args {
    #[command(flatten)]
    scope: ScopeArgs,

    /// The reservation
    #[arg(long, value_name = "ID", conflicts_with_all = ["user_id", "request_id"])]
    reservation_id: Option<ReservationId>,

    /// The buyer
    #[arg(long, value_name = "ID")]
    user_id: Option<UserId>,

    /// The request that made it
    #[arg(long, value_name = "ID", requires = "user_id")]
    request_id: Option<RequestId>,

    #[command(flatten)]
    stores: StoreArgs,
}

impl Args {
    fn name(&self) -> Option<ReservationName> {
        match (&self.reservation_id, &self.user_id, &self.request_id) {
            (Some(id), _, _) => Some(ReservationName::Id(id.clone())),
            (None, Some(user), None) => Some(ReservationName::User(user.clone())),
            (None, Some(user), Some(request)) => {
                Some(ReservationName::Request(user.clone(), request.clone()))
            }
            (None, None, _) => None,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// When the activity does not exist or a store is away.
pub async fn run(command: Command, output: Output) -> anyhow::Result<Verdict> {
    let Command::Show(args) = command;
    let name = args
        .name()
        .ok_or_else(|| anyhow::anyhow!("no reservation is named"))?;
    let control = args.stores.control().await?;
    let scope = args.scope.one(&control).await?;
    let found = control.reservation(&scope, &name).await?;
    let Some(view) = found else {
        let nothing = Shown {
            scope,
            redis: None,
            postgres: None,
            cached_code: None,
        };
        output.print(&nothing, || {
            format!("{}: neither side knows it", nothing.scope)
        })?;
        return Ok(Verdict::Differs);
    };
    let shown = Shown::new(scope, &view);
    output.print(&shown, || shown.describe())?;
    Ok(Verdict::Fine)
}

/// A reservation for people and machines. The buyer appears as a hash: output ends up in logs.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    scope: Scope,
    redis: Option<InRedis>,
    postgres: Option<InPostgres>,
    cached_code: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct InRedis {
    reservation_id: String,
    request_id: String,
    user_id_hash: String,
    bucket_id: u32,
    quantity: u32,
    status: &'static str,
    reserved_at_ms: i64,
    expires_at_ms: i64,
    updated_at_ms: i64,
    send_attempts: u64,
    order_id: Option<String>,
    error_code: Option<String>,
    release_reason: Option<String>,
    trace_id: Option<String>,
}

#[derive(Debug, Serialize)]
struct InPostgres {
    reservation_id: String,
    request_id: String,
    user_id_hash: String,
    bucket_id: u32,
    quantity: u32,
    decision: &'static str,
    reason: Option<String>,
    order_id: Option<String>,
    order_state: Option<&'static str>,
    decided_at_ms: i64,
}

impl From<&ReservationRecord> for InRedis {
    fn from(record: &ReservationRecord) -> Self {
        Self {
            reservation_id: record.reservation_id.to_string(),
            request_id: record.request_id.to_string(),
            user_id_hash: user_id_hash(&record.user_id),
            bucket_id: record.bucket.bucket_id.get(),
            quantity: record.quantity.get(),
            status: record.status.as_str(),
            reserved_at_ms: record.reserved_at_ms.get(),
            expires_at_ms: record.expires_at_ms.get(),
            updated_at_ms: record.updated_at_ms.get(),
            send_attempts: record.send_attempts,
            order_id: record.order_id.as_ref().map(ToString::to_string),
            error_code: record.error_code.clone(),
            release_reason: record.release_reason.clone(),
            trace_id: record
                .traceparent
                .as_ref()
                .map(|trace| trace.trace_id().to_owned()),
        }
    }
}

impl From<&DecisionRecord> for InPostgres {
    fn from(record: &DecisionRecord) -> Self {
        let order = record.order.as_ref();
        Self {
            reservation_id: record.reservation_id.to_string(),
            request_id: record.request_id.to_string(),
            user_id_hash: user_id_hash(&record.user_id),
            bucket_id: record.bucket.bucket_id.get(),
            quantity: record.quantity.get(),
            decision: record.kind.as_str(),
            reason: record.reason.clone(),
            order_id: order.map(|(id, _)| id.to_string()),
            order_state: order.map(|(_, state)| match state {
                seckill_state_machine::OrderState::Active => "ACTIVE",
                seckill_state_machine::OrderState::Cancelled => "CANCELLED",
            }),
            decided_at_ms: record.decided_at_ms.get(),
        }
    }
}

impl Shown {
    fn new(scope: Scope, view: &ReservationView) -> Self {
        Self {
            scope,
            redis: view.redis.as_ref().map(InRedis::from),
            postgres: view.decision.as_ref().map(InPostgres::from),
            cached_code: view.cached.as_ref().map(|cached| cached.code.as_str()),
        }
    }

    fn describe(&self) -> String {
        let redis = self.redis.as_ref().map_or_else(
            || "nothing".to_owned(),
            |r| {
                format!(
                    "{id}  {status}\n          request {request}, user {user}, bucket {bucket}, \
                     quantity {quantity}\n          reserved {reserved}, expires {expires}, updated \
                     {updated} (ms), claimed for sending {attempts} times\n          order {order}, \
                     error {error}, release {release}, trace {trace}",
                    id = r.reservation_id,
                    status = r.status,
                    request = r.request_id,
                    user = r.user_id_hash,
                    bucket = r.bucket_id,
                    quantity = r.quantity,
                    reserved = r.reserved_at_ms,
                    expires = r.expires_at_ms,
                    updated = r.updated_at_ms,
                    attempts = r.send_attempts,
                    order = or_none(r.order_id.as_ref()),
                    error = or_none(r.error_code.as_ref()),
                    release = or_none(r.release_reason.as_ref()),
                    trace = or_none(r.trace_id.as_ref()),
                )
            },
        );
        let postgres = self.postgres.as_ref().map_or_else(
            || "no decision".to_owned(),
            |p| {
                format!(
                    "{id}  {decision}\n          reason {reason}, order {order} {state}, decided \
                     {decided} (ms)",
                    id = p.reservation_id,
                    decision = p.decision,
                    reason = or_none(p.reason.as_ref()),
                    order = or_none(p.order_id.as_ref()),
                    state = p.order_state.unwrap_or_default(),
                    decided = p.decided_at_ms,
                )
            },
        );
        let mut text = format!("{}\nRedis     {redis}\nPostgreSQL {postgres}", self.scope);
        if let Some(code) = self.cached_code {
            text.push_str(&format!("\nanswered  {code}"));
        }
        text
    }
}
