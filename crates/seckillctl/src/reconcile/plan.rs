//! `seckillctl reconcile plan`.

use seckill_service_kit::PostgresArgs;
use serde::Serialize;

use super::pick::{Difference, Selection};
use crate::connect::{self, PatienceArgs};
use crate::exit::Verdict;
use crate::output::{Output, or_none, table};

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    postgres: PostgresArgs,
    #[command(flatten)]
    patience: PatienceArgs,
}

#[derive(Debug, Serialize)]
struct Plan {
    differences: Vec<Difference>,
    more: bool,
}

/// Runs the command.
///
/// # Errors
/// When PostgreSQL is away.
pub async fn run(args: Args, output: Output) -> anyhow::Result<Verdict> {
    let store = connect::store(&args.postgres, args.patience).await?;
    let picked = args.selection.pick(&store).await?;
    let plan = Plan {
        differences: picked.found.iter().map(Difference::from).collect(),
        more: picked.more,
    };
    output.print(&plan, || describe(&plan))?;
    let is_open = |one: &Difference| one.resolved_at_ms.is_none();
    Ok(Verdict::of(!plan.differences.iter().any(is_open)))
}

fn describe(plan: &Plan) -> String {
    if plan.differences.is_empty() {
        return "no difference is on record".to_owned();
    }
    let heading = [
        "ID",
        "CLASS",
        "SEEN",
        "WHERE",
        "RESERVATION",
        "REDIS",
        "POSTGRESQL",
        "BY",
        "REPAIR",
    ];
    let rows = plan.differences.iter().map(|found| {
        [
            found.id.to_string(),
            found.class.clone(),
            found.times_seen.to_string(),
            found.bucket.clone(),
            or_none(found.reservation_id.as_ref()),
            found.redis.clone(),
            found.postgres.clone(),
            found.repaired_by.to_owned(),
            found.repair.clone(),
        ]
    });
    let mut text = table(heading, rows);
    text.push_str(&format!(
        "\n\n{} differences; `seckillctl reconcile apply` mends those that have a repair",
        plan.differences.len()
    ));
    if plan.more {
        text.push_str("\nmore are on record; raise --limit to see them");
    }
    text
}
