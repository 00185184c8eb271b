//! `seckillctl activity`: one file a command.

mod create;
mod preheat;
mod rebuild;
mod show;
mod step;

use clap::Subcommand;

use crate::exit::Verdict;
use crate::output::Output;

pub use create::Terms;

/// What to do with an activity.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create an activity, or its next version, in PostgreSQL
    ///
    /// Creating the very same version again changes nothing.
    Create(Box<create::Args>),
    /// Write settings and stock to Redis and compare both sides field by field
    ///
    /// Writes only what is absent, only before the sale was opened; run again it changes nothing.
    Preheat(Box<preheat::Args>),
    /// Put a preheated activity on sale
    ///
    /// Both sides must agree in every field, and no other version may be on sale. Run again after a
    /// crash, it finishes what was begun.
    Open(Box<step::Args>),
    /// Stop a sale for a while
    Pause(Box<step::Args>),
    /// Go on with a paused sale
    Resume(Box<step::Args>),
    /// End a sale for good
    Close(Box<step::Args>),
    /// Restore a version in Redis from PostgreSQL after Redis has lost it
    ///
    /// Takes it off sale, writes settings and stock where they are missing, brings every reservation
    /// back and compares both sides; with a difference it ends with 1 and the buckets stay closed to
    /// buyers. It may be run again from wherever it stopped, beside running services. `resume` puts
    /// the version back on sale.
    Rebuild(Box<rebuild::Args>),
    /// Show an activity on both sides
    Show(Box<show::Args>),
}

/// Runs the command.
///
/// # Errors
/// Whatever kept it from its end.
pub async fn run(command: Command, output: Output) -> anyhow::Result<Verdict> {
    match command {
        Command::Create(args) => create::run(*args, output).await,
        Command::Preheat(args) => preheat::run(*args, output).await,
        Command::Open(args) => step::run(step::Step::Open, *args, output).await,
        Command::Pause(args) => step::run(step::Step::Pause, *args, output).await,
        Command::Resume(args) => step::run(step::Step::Resume, *args, output).await,
        Command::Close(args) => step::run(step::Step::Close, *args, output).await,
        Command::Rebuild(args) => rebuild::run(*args, output).await,
        Command::Show(args) => show::run(*args, output).await,
    }
}
