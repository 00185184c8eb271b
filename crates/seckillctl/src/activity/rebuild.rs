//! `seckillctl activity rebuild`: from PostgreSQL back to Redis after a total loss.

use std::time::{Duration, Instant};

use seckill_activity_control::{Order, Rebuilt};
use seckill_service_kit::values::millis;
use seckill_state_machine::Scope;
use serde::Serialize;

use crate::by::NamedArgs;
use crate::connect::StoreArgs;
use crate::exit::Verdict;
use crate::output::{NONE, Output, table};
use crate::scope::ScopeArgs;

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    scope: ScopeArgs,
    #[command(flatten)]
    by: NamedArgs,

    /// Wait before the second look at what the comparison found, in milliseconds
    #[arg(long, value_name = "MS", default_value = "2000", value_parser = millis)]
    recheck_ms: Duration,

    #[command(flatten)]
    stores: StoreArgs,
}

#[derive(Debug, Serialize)]
struct Result {
    #[serde(flatten)]
    scope: Scope,
    ok: bool,
    took_ms: u128,
    #[serde(flatten)]
    rebuilt: Rebuilt,
}

/// Runs the command.
///
/// # Errors
/// When the version cannot be rebuilt, or a store is away; it may be run again from anywhere.
pub async fn run(args: Args, output: Output) -> anyhow::Result<Verdict> {
    let control = args.stores.control().await?;
    let scope = args.scope.one_on_sale(&control).await?;
    let order = Order {
        actor: args.by.actor,
        reason: args.by.reason,
    };
    let started = Instant::now();
    let rebuilt = control.rebuild(&scope, &order, args.recheck_ms).await?;
    let result = Result {
        ok: rebuilt.is_ok(),
        took_ms: started.elapsed().as_millis(),
        scope,
        rebuilt,
    };
    output.print(&result, || describe(&result))?;
    Ok(Verdict::of(result.ok))
}

fn describe(result: &Result) -> String {
    let Result {
        scope,
        ok,
        took_ms,
        rebuilt,
    } = result;
    let mut text = format!(
        "{scope} {state}: {buckets} buckets, {meta} metas and {stock} stocks written\n\
         {decisions} decisions in {rounds} rounds: {reservations} reservations brought back, \
         {tombstones} ended ones put on record, {settled} other steps, {open} left open\n\
         {took_ms} ms in all\n\n",
        state = rebuilt.state,
        buckets = rebuilt.buckets,
        meta = rebuilt.meta_written,
        stock = rebuilt.stock_written,
        decisions = rebuilt.decisions,
        rounds = rebuilt.rounds,
        reservations = rebuilt.reservations,
        tombstones = rebuilt.tombstones,
        settled = rebuilt.settled,
        open = rebuilt.open,
    );
    if *ok {
        text.push_str("both sides agree; `seckillctl activity resume` puts it back on sale");
        return text;
    }
    let rows = rebuilt.differences.iter().map(|found| {
        let id = found.reservation_id.as_ref();
        [
            found.bucket.bucket_id.to_string(),
            found.kind.to_string(),
            id.map_or_else(|| NONE.to_owned(), ToString::to_string),
            found.detail.clone(),
        ]
    });
    text.push_str(&format!(
        "{} DIFFERENCES; its buckets stay closed to buyers\n\n{}",
        rebuilt.differences.len(),
        table(["BUCKET", "DIFFERENCE", "RESERVATION", "DETAIL"], rows)
    ));
    text
}
