//! `seckillctl dlq`: messages that could not be processed, one file a command.

mod act;
mod body;
mod list;
mod pick;
mod show;

use clap::Subcommand;
use seckill_message_bus::BusRuntime;

use crate::exit::Verdict;
use crate::output::Output;

/// What to do with parked messages.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List parked messages, the open ones when nothing else is said
    List(Box<list::Args>),
    /// Show one parked message whole; the buyer inside appears as a hash
    Show(Box<show::Args>),
    /// Send parked messages to their topics again, under their own ids
    ///
    /// Only shows what it would do unless `--apply` is given. A message is marked as replayed when
    /// the broker has it; one that its consumers fail at again is parked again and open again.
    /// Repeating the command is safe: what was replayed is left alone, and consumers drop what they
    /// have done already.
    Replay(Box<act::ReplayArgs>),
    /// Give parked messages up
    ///
    /// Only shows what it would do unless `--apply` is given. The message stays on record, and a
    /// reservation behind it is still released by its compensation task.
    Discard(Box<act::DiscardArgs>),
}

impl Command {
    /// Whether it talks to the message bus.
    #[must_use]
    pub const fn needs_bus(&self) -> bool {
        match self {
            Self::Replay(args) => args.is_applied(),
            Self::List(_) | Self::Show(_) | Self::Discard(_) => false,
        }
    }
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
        Command::List(args) => list::run(*args, output).await,
        Command::Show(args) => show::run(*args, output).await,
        Command::Replay(args) => act::replay(*args, output, bus).await,
        Command::Discard(args) => act::discard(*args, output).await,
    }
}
