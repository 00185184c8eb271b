//! `seckillctl dlq replay` and `dlq discard`: one letter after the other, each with an outcome.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::time::Duration;

use seckill_dead_letters::{
    Fate, Operator, discard as give_up, discardable, replay as send, replayable,
};
use seckill_message_bus::{BusRuntime, Producer};
use seckill_order_store::{KeptLetter, ParkedLetter, Store};
use seckill_service_kit::{BrokerArgs, PostgresArgs};
use serde::Serialize;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::pick::Selection;
use crate::by::ByArgs;
use crate::connect::{self, PatienceArgs};
use crate::exit::Verdict;
use crate::output::{NONE, Output};

/// Settings of `replay`.
#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// Most messages a second, so that a mended consumer is not buried at once
    #[arg(long, value_name = "COUNT", default_value = "50")]
    per_second: NonZeroU32,

    /// Send also those that were replayed before
    #[arg(long)]
    again: bool,

    #[command(flatten)]
    broker: BrokerArgs,
}

impl ReplayArgs {
    /// Whether it sends anything.
    #[must_use]
    pub const fn is_applied(&self) -> bool {
        self.common.apply
    }
}

/// Settings of `discard`.
#[derive(Debug, clap::Args)]
pub struct DiscardArgs {
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct CommonArgs {
    #[command(flatten)]
    selection: Selection,

    /// Every open message
    #[arg(long)]
    all: bool,

    /// Do it; without this, only what would be done is shown
    #[arg(long, requires_all = ["actor", "reason"])]
    apply: bool,

    #[command(flatten)]
    by: ByArgs,
    #[command(flatten)]
    postgres: PostgresArgs,
    #[command(flatten)]
    patience: PatienceArgs,
}

/// What became of one letter, or would.
#[derive(Debug, Serialize)]
struct Line {
    id: i64,
    topic: String,
    message_id: Option<String>,
    reservation_id: Option<String>,
    outcome: &'static str,
    detail: String,
}

#[derive(Debug, Serialize)]
struct Report {
    applied: bool,
    letters: Vec<Line>,
    outcomes: BTreeMap<&'static str, u64>,
    more: bool,
}

impl Report {
    /// Tells an outcome as soon as it stands: whoever stops the command half way knows what was done.
    fn add(&mut self, output: Output, letter: &ParkedLetter, word: &'static str, detail: &str) {
        let line = Line {
            id: letter.id,
            topic: letter.topic.clone(),
            message_id: letter.message_key.clone(),
            reservation_id: letter.reservation_id.as_ref().map(ToString::to_string),
            outcome: word,
            detail: detail.to_owned(),
        };
        if output == Output::Table {
            let id = line.message_id.as_deref().unwrap_or(NONE);
            let colon = if detail.is_empty() { "" } else { ": " };
            // Output that nobody takes must not stop a half-done command.
            let _ = writeln!(
                std::io::stdout(),
                "{}  {id}  {word}{colon}{detail}",
                line.id
            );
        }
        *self.outcomes.entry(word).or_default() += 1;
        self.letters.push(line);
    }

    fn summary(&self) -> String {
        let counts: Vec<String> = self
            .outcomes
            .iter()
            .map(|(word, count)| format!("{count} {word}"))
            .collect();
        let mut text = match counts.as_slice() {
            [] => "no parked message fits".to_owned(),
            counts => counts.join(", "),
        };
        if !self.applied && !self.letters.is_empty() {
            text.push_str("; nothing was done: add --apply, --actor and --reason");
        }
        if self.more {
            text.push_str("; more messages fit, run it again for them or raise --limit");
        }
        text
    }
}

/// Runs `replay`.
///
/// # Errors
/// When a dependency is away; what was told until then stands.
pub async fn replay(
    args: ReplayArgs,
    output: Output,
    bus: Option<&BusRuntime>,
) -> anyhow::Result<Verdict> {
    let namespace = args.broker.rocketmq_namespace.clone();
    let producer = match (args.is_applied(), bus) {
        (false, _) => None,
        (true, None) => anyhow::bail!("this command was started without the bus"),
        (true, Some(bus)) => Some(Producer::start(bus, &args.broker.config("seckillctl")).await?),
    };
    let mut pace = interval(Duration::from_secs(1) / args.per_second.get());
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let again = args.again;
    let sender = producer.as_ref().map(|producer| Sender { producer, pace });
    let result = act(
        &args.common,
        output,
        Replay {
            sender,
            namespace,
            again,
        },
    )
    .await;
    if let Some(producer) = producer {
        producer.shutdown().await;
    }
    result
}

/// Runs `discard`.
///
/// # Errors
/// As [`replay`].
pub async fn discard(args: DiscardArgs, output: Output) -> anyhow::Result<Verdict> {
    let apply = args.common.apply;
    act(&args.common, output, Discard { apply }).await
}

/// What is done about each letter.
trait Deed {
    /// The fate of a letter, or what it would be.
    async fn about(
        &mut self,
        store: &Store,
        letter: &KeptLetter,
        by: Operator<'_>,
    ) -> anyhow::Result<Told>;
}

/// An outcome or a plan.
enum Told {
    Did(Fate),
    Would(&'static str),
}

struct Sender<'a> {
    producer: &'a Producer,
    pace: Interval,
}

struct Replay<'a> {
    sender: Option<Sender<'a>>,
    namespace: String,
    again: bool,
}

impl Deed for Replay<'_> {
    async fn about(
        &mut self,
        store: &Store,
        letter: &KeptLetter,
        by: Operator<'_>,
    ) -> anyhow::Result<Told> {
        let message = match replayable(letter, &self.namespace, self.again) {
            Ok(message) => message,
            Err(fate) => return Ok(Told::Did(fate)),
        };
        let Some(sender) = &mut self.sender else {
            return Ok(Told::Would("would_replay"));
        };
        sender.pace.tick().await;
        let fate = send(store, sender.producer, letter, message, by).await?;
        Ok(Told::Did(fate))
    }
}

struct Discard {
    apply: bool,
}

impl Deed for Discard {
    async fn about(
        &mut self,
        store: &Store,
        letter: &KeptLetter,
        by: Operator<'_>,
    ) -> anyhow::Result<Told> {
        match discardable(letter) {
            Err(fate) => Ok(Told::Did(fate)),
            Ok(()) if !self.apply => Ok(Told::Would("would_discard")),
            Ok(()) => Ok(Told::Did(give_up(store, letter.parked.id, by).await?)),
        }
    }
}

async fn act(args: &CommonArgs, output: Output, mut deed: impl Deed) -> anyhow::Result<Verdict> {
    args.selection.require_narrow(args.all)?;
    let store = connect::store(&args.postgres, args.patience).await?;
    let picked = args.selection.pick(&store).await?;
    let mut report = Report {
        applied: args.apply,
        letters: Vec::new(),
        outcomes: BTreeMap::new(),
        more: picked.more,
    };
    let by = Operator {
        actor: args.by.actor(),
        reason: args.by.reason(),
    };
    let mut all_done = true;
    for head in &picked.letters {
        // Read again: another operator may be at it, and the mark counts what is read here.
        let Some(letter) = store.letter(head.id).await? else {
            continue;
        };
        match deed.about(&store, &letter, by).await? {
            Told::Would(word) => report.add(output, head, word, ""),
            Told::Did(fate) => {
                all_done &= fate.is_done();
                report.add(output, head, fate.word(), fate.detail());
            }
        }
    }
    output.print(&report, || report.summary())?;
    Ok(Verdict::of(all_done))
}
