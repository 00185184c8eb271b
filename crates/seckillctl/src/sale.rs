//! `seckillctl sale`: a whole sale against the running fronts, from the first call to the audit.

mod answers;
mod caller;
mod crash;
mod load;
mod plan;
mod progress;
mod report;
mod run;
mod summary;

use clap::Subcommand;
use seckill_message_bus::BusRuntime;

use crate::exit::Verdict;
use crate::output::Output;

/// What to do with a sale.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create an activity, sell it out through the fronts, and prove that every unit is accounted for
    ///
    /// Every figure comes from the answers of the calls and from queries of the stores. It ends with 0
    /// only if each accepted reservation became exactly one order, every repeat was told the same as
    /// its first attempt, everything is settled and the audit finds no difference.
    Run(Box<run::Args>),
}

/// Runs the command.
///
/// # Errors
/// Whatever kept it from its end.
pub async fn run(
    command: Command,
    output: Output,
    bus: Option<&BusRuntime>,
) -> anyhow::Result<Verdict> {
    match command {
        Command::Run(args) => run::run(*args, output, bus).await,
    }
}
