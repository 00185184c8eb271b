//! `seckillctl reconcile`: what the reconciler found, what would mend it, and what was done.

mod apply;
mod equation;
mod pick;
mod plan;
mod report;
mod resolve;

use clap::Subcommand;

use crate::exit::Verdict;
use crate::output::Output;

/// What to do about differences.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the differences that the reconciler has confirmed, and what would mend each
    ///
    /// Reads only. It ends with 1 while there are any.
    Plan(Box<plan::Args>),
    /// Mend differences, each by the guarded script or transaction of its class
    ///
    /// Nothing is taken from the record but what it is about: both sides are read again, and what is
    /// gone meanwhile is left alone. Repeating the command is safe.
    Apply(Box<apply::Args>),
    /// Close differences by an operator's word, when somebody has looked and set them right by hand
    ///
    /// One that is still there is found again by the next rounds, as a new one.
    Resolve(Box<resolve::Args>),
    /// Tell rounds, differences by class, what was done about them, and the sum of each version
    ///
    /// The sum is: what is left in Redis and the units of active orders are the units that it started
    /// with. It ends with 1 when they are not.
    Report(Box<report::Args>),
}

/// Runs the command.
///
/// # Errors
/// Whatever kept it from its end.
pub async fn run(command: Command, output: Output) -> anyhow::Result<Verdict> {
    match command {
        Command::Plan(args) => plan::run(*args, output).await,
        Command::Apply(args) => apply::run(*args, output).await,
        Command::Resolve(args) => resolve::run(*args, output).await,
        Command::Report(args) => report::run(*args, output).await,
    }
}
