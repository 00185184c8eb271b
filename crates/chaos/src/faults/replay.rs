//! Copies of old messages: what a restored broker or a careless operator may bring back.

use std::time::Duration;

use anyhow::{Context, ensure};
use seckill_test_support::broker_addr;
use seckill_test_support::remoting::{RemotingCommand, call};
use tokio::time::{Instant, sleep};

use super::Seen;
use crate::installation::Installation;
use crate::recorder::{Copy, Recorder};

/// A message is old when its first delivery is over.
const AGE_MS: u64 = 3_000;

/// How far a group has read a queue.
const QUERY_CONSUMER_OFFSET: i32 = 14;

/// A broker restarts in five seconds, or twice as many on a busy machine.
const SEND_LIMIT: Duration = Duration::from_secs(12);

/// Between two questions to the broker.
const PAUSE: Duration = Duration::from_millis(200);

/// Who reads which topic.
const GROUPS: [(&str, &str); 2] = [
    ("seckill-order-request", "order-consumer"),
    ("seckill-order-event", "compensation-worker"),
];

/// Where a copy lies. That its group has read beyond it is looked at when all has settled: consumers
/// that have lost their broker may take longer than the next fault can wait.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    group: String,
    topic: String,
    queue: String,
    offset: i64,
}

pub(super) async fn make(
    installation: &Installation,
    recorder: &Recorder,
    pick: u64,
) -> Result<Place, String> {
    let copy = || recorder.copy(installation.clock.now().saturating_sub(AGE_MS), pick);
    let mut found = copy();
    if found.is_none() {
        // The run has only just begun.
        sleep(Duration::from_millis(2 * AGE_MS)).await;
        found = copy();
    }
    let copy = found.ok_or_else(|| "no message is old enough".to_owned())?;
    let group = GROUPS
        .into_iter()
        .find(|(topic, _)| copy.topic.ends_with(topic));
    let (_, group) = group.ok_or_else(|| format!("nobody reads {}", copy.topic))?;
    let group = installation.namespace().full_name(group);
    send(copy, group)
        .await
        .map_err(|error| format!("{error:#}"))
}

/// Sends the copy; a broker that has only just started is waited for.
async fn send(copy: Copy, group: String) -> anyhow::Result<Place> {
    let end = Instant::now() + SEND_LIMIT;
    let answer = loop {
        match ask(copy.request.clone()).await {
            Ok(answer) if answer.code == 0 => break answer,
            Ok(answer) => ensure!(Instant::now() < end, "refused with {}", answer.code),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => {}
        }
        sleep(PAUSE).await;
    };
    let field = |name: &str| {
        let value = answer.ext_fields.get(name).context("no place in a queue")?;
        anyhow::Ok(value.clone())
    };
    Ok(Place {
        group,
        topic: copy.topic,
        queue: field("queueId")?,
        offset: field("queueOffset")?.parse()?,
    })
}

impl Place {
    /// Whether the copy was delivered, now that there is no hurry.
    pub(super) async fn seen(&self) -> Seen {
        let Self {
            group,
            topic,
            queue,
            offset,
        } = self;
        let place = format!("{topic} {queue}/{offset}");
        if has_read(group, topic, queue, *offset).await {
            Ok(format!("{place} was delivered again"))
        } else {
            Err(format!("{place} was not read"))
        }
    }
}

/// Whether a group has read a queue beyond an offset; a broker that does not answer has not said so.
async fn has_read(group: &str, topic: &str, queue: &str, offset: i64) -> bool {
    let fields = [
        ("consumerGroup", group),
        ("topic", topic),
        ("queueId", queue),
    ];
    let answer = ask(RemotingCommand::request(QUERY_CONSUMER_OFFSET, &fields)).await;
    let reached = answer.ok().and_then(|answer| {
        let text = answer.ext_fields.get("offset")?;
        text.parse::<i64>().ok()
    });
    reached.is_some_and(|reached| reached > offset)
}

/// Asks the broker past all proxies.
async fn ask(request: RemotingCommand) -> anyhow::Result<RemotingCommand> {
    tokio::task::spawn_blocking(move || call(broker_addr()?, &request)).await?
}
