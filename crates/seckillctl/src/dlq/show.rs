//! `seckillctl dlq show`.

use std::collections::BTreeMap;

use seckill_service_kit::PostgresArgs;
use serde::Serialize;

use super::body::Body;
use super::list::Head;
use crate::connect::{self, PatienceArgs};
use crate::exit::Verdict;
use crate::output::Output;

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The number of the message
    #[arg(long, value_name = "N")]
    id: i64,

    #[command(flatten)]
    postgres: PostgresArgs,
    #[command(flatten)]
    patience: PatienceArgs,
}

#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    head: Head,
    broker_message_id: String,
    queue_id: i32,
    queue_offset: i64,
    born_at_ms: Option<i64>,
    properties: BTreeMap<String, String>,
    body: Body,
}

/// Runs the command.
///
/// # Errors
/// When there is no such message, or PostgreSQL is away.
pub async fn run(args: Args, output: Output) -> anyhow::Result<Verdict> {
    let store = connect::store(&args.postgres, args.patience).await?;
    let letter = store.letter(args.id).await?;
    let letter = letter.ok_or_else(|| anyhow::anyhow!("there is no letter {}", args.id))?;
    let kept = &letter.letter;
    let shown = Shown {
        head: Head::from(&letter.parked),
        broker_message_id: kept.broker_message_id.clone(),
        queue_id: kept.queue_id,
        queue_offset: kept.queue_offset,
        born_at_ms: kept.born_at_ms.map(|at| at.get()),
        properties: kept.properties.clone(),
        body: Body::of(&seckill_dead_letters::as_message(&letter)),
    };
    output.print(&shown, || describe(&shown))?;
    Ok(Verdict::Fine)
}

fn describe(shown: &Shown) -> String {
    let mut text = format!(
        "{}\nbroker    {} in queue {} at {}, born {} (ms)\nproperties",
        shown.head.describe(),
        shown.broker_message_id,
        shown.queue_id,
        shown.queue_offset,
        crate::output::or_none(shown.born_at_ms),
    );
    for (name, value) in &shown.properties {
        text.push_str(&format!("\n  {name}: {value}"));
    }
    text.push_str(&format!("\nbody\n{}", shown.body.describe()));
    text
}
