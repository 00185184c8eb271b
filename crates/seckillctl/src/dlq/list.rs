//! `seckillctl dlq list`.

use std::time::{SystemTime, UNIX_EPOCH};

use seckill_order_store::ParkedLetter;
use seckill_service_kit::PostgresArgs;
use serde::Serialize;

use super::pick::Selection;
use crate::connect::{self, PatienceArgs};
use crate::exit::Verdict;
use crate::output::{NONE, Output, or_none, table};

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    postgres: PostgresArgs,
    #[command(flatten)]
    patience: PatienceArgs,
}

/// A letter's head. The error is the services' own text, which never holds a user id.
#[derive(Debug, Serialize)]
pub struct Head {
    id: i64,
    status: &'static str,
    topic: String,
    group: String,
    message_id: Option<String>,
    reservation_id: Option<String>,
    bucket: Option<String>,
    parked_reason: String,
    error: String,
    attempts: u32,
    body_bytes: u64,
    parked_at_ms: i64,
    last_parked_at_ms: i64,
    times_parked: u32,
    last_action: Option<Action>,
}

/// What was last done about a letter.
#[derive(Debug, Serialize)]
struct Action {
    outcome: String,
    actor: String,
    reason: String,
    at_ms: i64,
}

impl From<&ParkedLetter> for Head {
    fn from(letter: &ParkedLetter) -> Self {
        Self {
            id: letter.id,
            status: letter.status.as_str(),
            topic: letter.topic.clone(),
            group: letter.consumer_group.clone(),
            message_id: letter.message_key.clone(),
            reservation_id: letter.reservation_id.as_ref().map(ToString::to_string),
            bucket: letter.bucket.as_ref().map(ToString::to_string),
            parked_reason: letter.reason.clone(),
            error: letter.error.clone(),
            attempts: letter.attempts,
            body_bytes: letter.body_bytes,
            parked_at_ms: letter.parked_at_ms.get(),
            last_parked_at_ms: letter.last_parked_at_ms.get(),
            times_parked: letter.times_parked,
            last_action: letter.action.as_ref().map(|action| Action {
                outcome: action.outcome.clone(),
                actor: action.actor.clone(),
                reason: action.reason.clone(),
                at_ms: action.at_ms.get(),
            }),
        }
    }
}

impl Head {
    /// The head in sentences.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!(
            "letter {id}  {status}\n\
             message   {message}, {bytes} bytes, from {topic} by {group}\n\
             about     reservation {reservation}, bucket {bucket}\n\
             parked    {times} times, first {first}, last {last} (ms), after {attempts} attempts\n\
             because   {because}: {error}",
            id = self.id,
            status = self.status,
            message = or_none(self.message_id.as_ref()),
            bytes = self.body_bytes,
            topic = self.topic,
            group = self.group,
            reservation = or_none(self.reservation_id.as_ref()),
            bucket = or_none(self.bucket.as_ref()),
            times = self.times_parked,
            first = self.parked_at_ms,
            last = self.last_parked_at_ms,
            attempts = self.attempts,
            because = self.parked_reason,
            error = self.error,
        );
        if let Some(action) = &self.last_action {
            text.push_str(&format!(
                "\nlast      {} by {} at {} (ms): {}",
                action.outcome, action.actor, action.at_ms, action.reason
            ));
        }
        text
    }
}

#[derive(Debug, Serialize)]
struct Listed {
    letters: Vec<Head>,
    more: bool,
}

/// Runs the command.
///
/// # Errors
/// When PostgreSQL is away.
pub async fn run(args: Args, output: Output) -> anyhow::Result<Verdict> {
    let store = connect::store(&args.postgres, args.patience).await?;
    let picked = args.selection.pick(&store).await?;
    let listed = Listed {
        letters: picked.letters.iter().map(Head::from).collect(),
        more: picked.more,
    };
    output.print(&listed, || describe(&listed))?;
    Ok(Verdict::Fine)
}

fn describe(listed: &Listed) -> String {
    if listed.letters.is_empty() {
        return "no parked message fits".to_owned();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX));
    let heading = [
        "ID",
        "STATUS",
        "AGE S",
        "TIMES",
        "TOPIC",
        "REASON",
        "RESERVATION",
        "MESSAGE",
    ];
    let rows = listed.letters.iter().map(|letter| {
        let age_s = (now_ms - letter.last_parked_at_ms).max(0) / 1_000;
        [
            letter.id.to_string(),
            letter.status.to_owned(),
            age_s.to_string(),
            letter.times_parked.to_string(),
            letter.topic.clone(),
            letter.parked_reason.clone(),
            letter
                .reservation_id
                .clone()
                .unwrap_or_else(|| NONE.to_owned()),
            letter.message_id.clone().unwrap_or_else(|| NONE.to_owned()),
        ]
    });
    let mut text = table(heading, rows);
    if listed.more {
        text.push_str("\n\nmore messages fit; raise --limit to see them");
    }
    text
}
