//! Whether any work is left anywhere.

use seckill_test_support::Content;

use crate::broker;
use crate::checks::{buckets, is_final};
use crate::sandbox::Sandbox;

/// Rows that a worker would still act on.
const OPEN_WORK: [(&str, &str); 2] = [
    (
        "unpublished outbox rows",
        "SELECT count(*) FROM outbox WHERE published_at IS NULL",
    ),
    (
        "open compensation tasks",
        "SELECT count(*) FROM compensation_task WHERE closed_at IS NULL",
    ),
];

/// Topic and group of every queue that must be empty.
const QUEUES: [(&str, &str); 2] = [
    ("seckill-order-request", "order-consumer"),
    ("seckill-order-event", "compensation-worker"),
];

/// What is left; nothing when all is settled.
pub(crate) async fn unsettled(sandbox: &Sandbox) -> Result<Vec<String>, String> {
    let mut left = Vec::new();
    let dump = sandbox.dump().await;
    for (key, entry) in &dump.0 {
        let is_index = key.ends_with(":send_pending") || key.ends_with(":reservation_expiry");
        if let (true, Content::SortedSet(members)) = (is_index, &entry.content) {
            left.push(format!("{key} has {} members", members.len()));
        }
    }
    for bucket in buckets(&dump) {
        let open = bucket
            .reservations
            .values()
            .filter(|fields| !is_final(fields))
            .count();
        if open > 0 {
            left.push(format!("{open} open reservations in {}", bucket.tag));
        }
    }
    for (what, query) in OPEN_WORK {
        let count = sandbox.database().number(query).await;
        if count > 0 {
            left.push(format!("{count} {what}"));
        }
    }
    for (topic, group) in QUEUES {
        let lag =
            broker::lag(sandbox.namespace(), topic, group).map_err(|error| format!("{error:#}"))?;
        if lag > 0 {
            left.push(format!("{lag} messages of {topic} not acknowledged"));
        }
    }
    Ok(left)
}
