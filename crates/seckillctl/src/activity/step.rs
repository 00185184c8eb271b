//! `seckillctl activity open`, `pause`, `resume` and `close`: one step each, by somebody, for a reason.

use seckill_activity_control::{Moved, Order};
use seckill_state_machine::Scope;
use serde::Serialize;

use crate::connect::StoreArgs;
use crate::exit::Verdict;
use crate::output::Output;
use crate::scope::ScopeArgs;
use crate::values::remark;

/// Settings of the commands.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    scope: ScopeArgs,

    /// Who does it; kept with the change
    #[arg(long, env = "USER", default_value = "unknown", hide_env_values = true,
          value_name = "NAME", value_parser = remark)]
    actor: String,

    /// Why; kept with the change
    #[arg(long, default_value = "none given", value_name = "TEXT", value_parser = remark)]
    reason: String,

    #[command(flatten)]
    stores: StoreArgs,
}

/// Which step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// On sale for the first time.
    Open,
    /// Off sale for a while.
    Pause,
    /// On sale again.
    Resume,
    /// Off sale for good.
    Close,
}

#[derive(Debug, Serialize)]
struct Result {
    #[serde(flatten)]
    scope: Scope,
    #[serde(flatten)]
    moved: Moved,
}

/// Runs a step.
///
/// # Errors
/// When the activity's state forbids the step, when both sides differ, or when a store is away.
pub async fn run(step: Step, args: Args, output: Output) -> anyhow::Result<Verdict> {
    let control = args.stores.control().await?;
    let scope = match step {
        Step::Open => args.scope.one(&control).await?,
        Step::Pause | Step::Resume | Step::Close => args.scope.one_on_sale(&control).await?,
    };
    let order = Order {
        actor: args.actor,
        reason: args.reason,
    };
    let moved = match step {
        Step::Open => control.open(&scope, &order).await?,
        Step::Pause => control.pause(&scope, &order).await?,
        Step::Resume => control.resume(&scope, &order).await?,
        Step::Close => control.close(&scope, &order).await?,
    };
    let result = Result { scope, moved };
    output.print(&result, || sentence(&result))?;
    Ok(Verdict::Fine)
}

fn sentence(result: &Result) -> String {
    let Moved {
        from,
        to,
        written,
        unchanged,
        missing,
    } = result.moved;
    let mut text = if from == to {
        format!("{} was {to} already", result.scope)
    } else {
        format!("{} went from {from} to {to}", result.scope)
    };
    text.push_str(&format!(": {written} buckets written, {unchanged} had it"));
    if missing > 0 {
        text.push_str(&format!(", {missing} are missing in Redis"));
    }
    text
}
