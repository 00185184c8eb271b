//! `seckillctl order cancel`: ends an order and puts its units back on sale.
//!
//! The command needs PostgreSQL alone. What it leaves to do in Redis is a task, which the compensation
//! worker finds whether or not it runs at the moment.

use clap::{ArgGroup, Subcommand};
use seckill_activity_control::{OrderName, cancel_order};
use seckill_order_store::{CancelOutcome, DecisionRecord};
use seckill_service_kit::PostgresArgs;
use seckill_state_machine::{OrderId, ReservationId, Scope};
use seckill_telemetry::user_id_hash;
use serde::Serialize;

use crate::connect::{self, PatienceArgs};
use crate::exit::Verdict;
use crate::output::{Output, or_none};
use crate::values::remark;

/// What to do with an order.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Cancel an order; its units go back on sale
    Cancel(Box<CancelArgs>),
}

/// Settings of `cancel`.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("name").required(true).args(["order_id", "reservation_id"]))]
pub struct CancelArgs {
    /// The order
    #[arg(long, value_name = "ID")]
    order_id: Option<OrderId>,

    /// The reservation that it was made from
    #[arg(long, value_name = "ID")]
    reservation_id: Option<ReservationId>,

    /// Who does it; kept with the order
    #[arg(long, env = "USER", hide_env_values = true, value_name = "NAME", value_parser = remark)]
    actor: String,

    /// Why; kept with the order
    #[arg(long, value_name = "TEXT", value_parser = remark)]
    reason: String,

    #[command(flatten)]
    postgres: PostgresArgs,

    #[command(flatten)]
    patience: PatienceArgs,
}

impl CancelArgs {
    fn name(&self) -> Option<OrderName> {
        match (&self.order_id, &self.reservation_id) {
            (Some(id), _) => Some(OrderName::Order(id.clone())),
            (None, Some(id)) => Some(OrderName::Reservation(id.clone())),
            (None, None) => None,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// When PostgreSQL is away or the order's version is archived.
pub async fn run(command: Command, output: Output) -> anyhow::Result<Verdict> {
    let Command::Cancel(args) = command;
    let name = args
        .name()
        .ok_or_else(|| anyhow::anyhow!("no order is named"))?;
    let store = connect::store(&args.postgres, args.patience).await?;
    let outcome = cancel_order(&store, &name, &args.actor, &args.reason).await?;
    let done = Done::new(&name, &outcome);
    output.print(&done, || done.describe())?;
    Ok(Verdict::of(done.order.is_some()))
}

/// What was done, for people and machines.
#[derive(Debug, Serialize)]
struct Done {
    /// `cancelled`, `already_cancelled` or `not_found`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_for: Option<String>,
    #[serde(flatten)]
    order: Option<Ended>,
}

/// The order as it stands. The buyer appears as a hash: output ends up in logs.
#[derive(Debug, Serialize)]
struct Ended {
    order_id: Option<String>,
    reservation_id: String,
    #[serde(flatten)]
    scope: Scope,
    bucket_id: u32,
    user_id_hash: String,
    quantity: u32,
    order_state: &'static str,
    /// Units that this very call put back on sale.
    units_given_back: u32,
}

impl Ended {
    fn new(decision: &DecisionRecord, by_this_call: bool) -> Self {
        let quantity = decision.quantity.get();
        let order = decision.order.as_ref();
        Self {
            order_id: order.map(|(id, _)| id.to_string()),
            reservation_id: decision.reservation_id.to_string(),
            scope: decision.bucket.scope.clone(),
            bucket_id: decision.bucket.bucket_id.get(),
            user_id_hash: user_id_hash(&decision.user_id),
            quantity,
            order_state: "CANCELLED",
            units_given_back: if by_this_call { quantity } else { 0 },
        }
    }
}

impl Done {
    fn new(name: &OrderName, outcome: &CancelOutcome) -> Self {
        let (outcome, order) = match outcome {
            CancelOutcome::Cancelled(decision) => ("cancelled", Some(Ended::new(decision, true))),
            CancelOutcome::AlreadyCancelled(decision) => {
                ("already_cancelled", Some(Ended::new(decision, false)))
            }
            CancelOutcome::NotFound => ("not_found", None),
        };
        let asked_for = match name {
            OrderName::Order(id) => format!("order {id}"),
            OrderName::Reservation(id) => format!("the order of reservation {id}"),
        };
        Self {
            outcome,
            asked_for: order.is_none().then_some(asked_for),
            order,
        }
    }

    fn describe(&self) -> String {
        let Some(order) = &self.order else {
            return format!("{} does not exist", or_none(self.asked_for.as_ref()));
        };
        let Ended {
            reservation_id,
            scope,
            bucket_id,
            user_id_hash,
            quantity,
            ..
        } = order;
        let order_id = or_none(order.order_id.as_ref());
        let result = if order.units_given_back > 0 {
            format!(
                "cancelled; {quantity} back on sale in PostgreSQL, and in Redis as soon as the \
                 compensation worker has its task"
            )
        } else {
            "was cancelled before; nothing was changed".to_owned()
        };
        format!(
            "order {order_id}  {result}\n          reservation {reservation_id}, user \
             {user_id_hash}, quantity {quantity}\n          {scope}, bucket {bucket_id}"
        )
    }
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::{
        ActivityId, ActivityVersion, BucketId, DecisionKind, OrderState, Quantity, RequestId,
        SkuId, TimestampMs, UserId,
    };

    use super::*;

    fn decision() -> DecisionRecord {
        let scope = Scope {
            activity_id: ActivityId::parse("a1").unwrap(),
            sku_id: SkuId::parse("s1").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        };
        DecisionRecord {
            reservation_id: ReservationId::parse("a".repeat(26)).unwrap(),
            request_id: RequestId::parse("q1").unwrap(),
            user_id: UserId::parse("a-user").unwrap(),
            bucket: scope.bucket(BucketId::ZERO),
            quantity: Quantity::new(2).unwrap(),
            kind: DecisionKind::Ordered,
            reason: None,
            order: Some((OrderId::parse("o1").unwrap(), OrderState::Cancelled)),
            reserved_at_ms: TimestampMs::new(1),
            decided_at_ms: TimestampMs::new(1),
            traceparent: None,
        }
    }

    fn named() -> OrderName {
        OrderName::Order(OrderId::parse("o1").unwrap())
    }

    #[test]
    fn the_first_call_gives_units_back_and_the_second_says_that_it_does_not() {
        let first = Done::new(&named(), &CancelOutcome::Cancelled(decision()));
        let second = Done::new(&named(), &CancelOutcome::AlreadyCancelled(decision()));
        let json = |done: &Done| serde_json::to_value(done).unwrap();
        assert_eq!(json(&first)["units_given_back"], 2);
        assert_eq!(json(&first)["outcome"], "cancelled");
        assert_eq!(json(&second)["units_given_back"], 0);
        assert_eq!(json(&second)["outcome"], "already_cancelled");
        assert!(first.describe().contains("2 back on sale"));
        assert!(second.describe().contains("nothing was changed"));
        for done in [first, second] {
            let told = format!("{}{}", done.describe(), json(&done));
            assert!(!told.contains("a-user"), "{told}");
        }
    }

    #[test]
    fn an_order_that_does_not_exist_is_named_as_it_was_asked_for() {
        let id = ReservationId::parse("a".repeat(26)).unwrap();
        let done = Done::new(&OrderName::Reservation(id), &CancelOutcome::NotFound);
        let text = done.describe();
        assert_eq!(
            text,
            format!("the order of reservation {} does not exist", "a".repeat(26))
        );
        assert!(done.order.is_none());
    }
}
