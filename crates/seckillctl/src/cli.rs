//! The commands and the settings that all of them share.

use clap::{Parser, Subcommand};
use seckill_message_bus::BusRuntime;

use crate::exit::Verdict;
use crate::migrate;
use crate::output::Output;

/// Operates a flash sale: schema, activities, inspection, audit, load
#[derive(Debug, Parser)]
#[command(name = "seckillctl", version, propagate_version = true)]
pub struct Cli {
    /// Form of the result: a table for people or JSON for machines
    #[arg(
        long,
        global = true,
        env = "SECKILL_OUTPUT",
        value_enum,
        default_value_t
    )]
    pub output: Output,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring schema and topics to this program's version, and wait until they can be used
    Migrate(Box<migrate::Args>),
}

impl Command {
    /// Whether it talks to the message bus.
    #[must_use]
    pub const fn needs_bus(&self) -> bool {
        match self {
            Self::Migrate(_) => true,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Whatever kept it from its end.
    pub async fn run(self, output: Output, bus: Option<&BusRuntime>) -> anyhow::Result<Verdict> {
        match self {
            Self::Migrate(args) => migrate::run(*args, output, bus).await,
        }
    }
}
