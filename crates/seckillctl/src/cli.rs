//! The commands and the settings that all of them share.

use clap::{Parser, Subcommand};
use seckill_message_bus::BusRuntime;

use crate::exit::Verdict;
use crate::output::Output;
use crate::{activity, audit, dlq, doctor, migrate, order, reconcile, reservation, sale};

/// Operates a flash sale: schema, activities, inspection, audit, repair, load
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
    /// Create, preheat, open, pause, resume, close or show an activity
    #[command(subcommand)]
    Activity(activity::Command),
    /// Look at single reservations
    #[command(subcommand)]
    Reservation(reservation::Command),
    /// Cancel orders
    #[command(subcommand)]
    Order(order::Command),
    /// Prove that every unit of an activity is accounted for on both sides
    Audit(Box<audit::Args>),
    /// List, show, replay or discard messages that could not be processed
    #[command(subcommand)]
    Dlq(dlq::Command),
    /// Plan, apply or report what brings Redis and PostgreSQL back together
    #[command(subcommand)]
    Reconcile(reconcile::Command),
    /// Check a running installation and say what to change
    ///
    /// Reads only. A dependency that is down is a line of the report; it ends with 1 when a line is
    /// wrong, and with 0 when nothing is, however much is worth a look.
    Doctor(Box<doctor::Args>),
    /// Run a sale against the running fronts
    #[command(subcommand)]
    Sale(sale::Command),
}

impl Command {
    /// Whether it talks to the message bus.
    #[must_use]
    pub const fn needs_bus(&self) -> bool {
        match self {
            Self::Migrate(_) | Self::Sale(_) | Self::Doctor(_) => true,
            Self::Audit(args) => args.asks_broker(),
            Self::Dlq(command) => command.needs_bus(),
            Self::Activity(_) | Self::Reservation(_) | Self::Order(_) | Self::Reconcile(_) => false,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Whatever kept it from its end.
    pub async fn run(self, output: Output, bus: Option<&BusRuntime>) -> anyhow::Result<Verdict> {
        match self {
            Self::Migrate(args) => migrate::run(*args, output, bus).await,
            Self::Activity(command) => activity::run(command, output).await,
            Self::Reservation(command) => reservation::run(command, output).await,
            Self::Order(command) => order::run(command, output).await,
            Self::Audit(args) => audit::run(*args, output, bus).await,
            Self::Reconcile(command) => Box::pin(reconcile::run(command, output)).await,
            Self::Dlq(command) => dlq::run(command, output, bus).await,
            Self::Doctor(args) => Box::pin(doctor::run(*args, output, bus)).await,
            Self::Sale(command) => sale::run(command, output, bus).await,
        }
    }
}
