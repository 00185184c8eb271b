//! `seckillctl activity preheat`.

use seckill_activity_control::Preheated;
use seckill_state_machine::Scope;
use serde::Serialize;

use crate::connect::StoreArgs;
use crate::exit::Verdict;
use crate::output::Output;
use crate::scope::ScopeArgs;

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    scope: ScopeArgs,
    #[command(flatten)]
    stores: StoreArgs,
}

#[derive(Debug, Serialize)]
struct Result {
    #[serde(flatten)]
    scope: Scope,
    #[serde(flatten)]
    preheated: Preheated,
}

/// Runs the command.
///
/// # Errors
/// When the activity is past its preparation, when both sides differ, or when a store is away.
pub async fn run(args: Args, output: Output) -> anyhow::Result<Verdict> {
    let control = args.stores.control().await?;
    let scope = args.scope.one(&control).await?;
    let preheated = control.preheat(&scope).await?;
    let result = Result { scope, preheated };
    output.print(&result, || {
        let Preheated {
            buckets,
            meta_written,
            stock_written,
        } = result.preheated;
        format!(
            "{} preheated: {buckets} buckets compared, {meta_written} metas and {stock_written} \
             stocks written; open it next",
            result.scope
        )
    })?;
    Ok(Verdict::Fine)
}
