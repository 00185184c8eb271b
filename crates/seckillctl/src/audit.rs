//! `seckillctl audit`: the ledger check.

use std::time::Duration;

use seckill_activity_control::{
    AuditOptions, AuditReport, BucketFigures, Control, Error as ControlError, Settledness,
};
use seckill_message_bus::{Admin, BusRuntime};
use seckill_service_kit::BrokerArgs;
use seckill_service_kit::values::millis;
use serde::Serialize;

use crate::connect::{self, StoreArgs};
use crate::exit::Verdict;
use crate::output::{NONE, Output, or_none, table};
use crate::scope::ScopeArgs;

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    scope: ScopeArgs,

    /// Wait before the second look at what the first one found, in milliseconds
    ///
    /// A purchase in flight is not a difference: only what two looks find is.
    #[arg(long, value_name = "MS", default_value = "2000", value_parser = millis)]
    recheck_ms: Duration,

    /// Also fail when work is still on its way
    #[arg(long)]
    require_settled: bool,

    /// Do not ask the broker; whether its messages are finished then stays unknown
    #[arg(long, conflicts_with = "require_settled")]
    without_broker: bool,

    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    stores: StoreArgs,
}

impl Args {
    /// Whether the broker is asked for the consumers' lag.
    #[must_use]
    pub const fn asks_broker(&self) -> bool {
        !self.without_broker
    }
}

/// One version's audit and what is still on its way.
#[derive(Debug, Serialize)]
struct Audited {
    #[serde(flatten)]
    report: AuditReport,
    ok: bool,
    settled: bool,
    on_its_way: Settledness,
}

/// Runs the command over every version that is meant.
///
/// # Errors
/// When the activity does not exist, or something could not be read: nothing is proved then.
pub async fn run(args: Args, output: Output, bus: Option<&BusRuntime>) -> anyhow::Result<Verdict> {
    let control = args.stores.control().await?;
    let admin = match args.asks_broker() {
        true => Some(connect::admin(&args.broker, bus).await?),
        false => None,
    };
    let result = audit_all(&args, &control, admin.as_ref()).await;
    if let Some(admin) = admin {
        admin.shutdown().await;
    }
    let audited = result?;
    output.print(&audited, || {
        let texts: Vec<String> = audited.iter().map(describe).collect();
        texts.join("\n\n")
    })?;
    let is_fine = |one: &Audited| one.ok && (one.settled || !args.require_settled);
    Ok(Verdict::of(audited.iter().all(is_fine)))
}

async fn audit_all(
    args: &Args,
    control: &Control,
    admin: Option<&Admin>,
) -> anyhow::Result<Vec<Audited>> {
    let options = AuditOptions {
        recheck_after: args.recheck_ms,
    };
    let mut audited = Vec::new();
    for activity in args.scope.all(control).await? {
        let scope = &activity.settings.scope;
        let report = control.audit(scope, options).await?;
        let on_its_way = match control.settledness(scope, admin).await {
            // The ledger stands without the broker; whether it is settled is then unknown.
            Err(ControlError::Bus(error)) if !args.require_settled => {
                eprintln!("warning: the broker could not be asked: {error}");
                control.settledness(scope, None).await?
            }
            other => other?,
        };
        audited.push(Audited {
            ok: report.is_ok(),
            settled: on_its_way.is_settled(),
            report,
            on_its_way,
        });
    }
    Ok(audited)
}

fn describe(audited: &Audited) -> String {
    let Audited {
        report,
        ok,
        on_its_way,
        ..
    } = audited;
    let verdict = match (ok, report.redis_expired) {
        (true, false) => "audit ok".to_owned(),
        (true, true) => "audit ok; its keys in Redis have expired as planned".to_owned(),
        (false, _) => format!("{} DIFFERENCES", report.differences.len()),
    };
    let mut text = format!(
        "{} {}: {verdict}, {} decisions matched\n\n{}\n\n{}",
        report.scope,
        report.state,
        report.decisions,
        buckets(&report.buckets),
        settled_words(on_its_way)
    );
    if !ok {
        text.push_str("\n\n");
        text.push_str(&differences(report));
    }
    text
}

fn buckets(buckets: &[BucketFigures]) -> String {
    let heading = [
        "BUCKET",
        "INITIAL",
        "AVAILABLE",
        "OPEN",
        "ORDERED",
        "PG TOTAL",
        "PG LEFT",
        "PG ORDERED",
    ];
    let rows = buckets.iter().map(|bucket| {
        let (redis, book) = (bucket.redis, bucket.postgres);
        [
            bucket.bucket_id.to_string(),
            or_none(redis.map(|r| r.initial)),
            or_none(redis.map(|r| r.available)),
            or_none(redis.map(|r| r.open)),
            or_none(redis.map(|r| r.ordered)),
            or_none(book.map(|b| b.total)),
            or_none(book.map(|b| b.available)),
            or_none(book.map(|b| b.ordered)),
        ]
    });
    table(heading, rows)
}

fn settled_words(open: &Settledness) -> String {
    let word = if open.is_settled() {
        "settled"
    } else {
        "on its way"
    };
    format!("{word}: {}", open.words())
}

fn differences(report: &AuditReport) -> String {
    let rows = report.differences.iter().map(|found| {
        [
            found.bucket.bucket_id.to_string(),
            found.kind.to_string(),
            found
                .reservation_id
                .as_ref()
                .map_or_else(|| NONE.to_owned(), ToString::to_string),
            found.detail.clone(),
        ]
    });
    table(["BUCKET", "DIFFERENCE", "RESERVATION", "DETAIL"], rows)
}
