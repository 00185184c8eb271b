//! `seckillctl reconcile resolve`: closes differences by an operator's word.

use seckill_service_kit::PostgresArgs;
use serde::Serialize;

use crate::by::NamedArgs;
use crate::connect::{self, PatienceArgs};
use crate::exit::Verdict;
use crate::output::Output;

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of differences, as `reconcile plan` shows them
    #[arg(long = "id", value_name = "N", value_delimiter = ',', required = true)]
    ids: Vec<i64>,

    #[command(flatten)]
    by: NamedArgs,
    #[command(flatten)]
    postgres: PostgresArgs,
    #[command(flatten)]
    patience: PatienceArgs,
}

#[derive(Debug, Serialize)]
struct Line {
    id: i64,
    outcome: &'static str,
}

/// Runs the command.
///
/// # Errors
/// When one of them does not exist, or PostgreSQL is away; those before it are closed.
pub async fn run(args: Args, output: Output) -> anyhow::Result<Verdict> {
    let store = connect::store(&args.postgres, args.patience).await?;
    let mut lines = Vec::new();
    for id in args.ids {
        let (actor, reason) = (&args.by.actor, &args.by.reason);
        let closed = store.resolve_discrepancy(id, actor, reason).await?;
        let outcome = if closed { "resolved" } else { "already_gone" };
        lines.push(Line { id, outcome });
    }
    output.print(&lines, || {
        let texts: Vec<String> = lines
            .iter()
            .map(|line| format!("{}  {}", line.id, line.outcome))
            .collect();
        texts.join("\n")
    })?;
    Ok(Verdict::Fine)
}
