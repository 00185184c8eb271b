//! Whether any work is left anywhere, by queries of this crate's own.

use std::time::Duration;

use seckill_integration_tests::checks::{buckets, is_final};
use seckill_integration_tests::lag;
use seckill_test_support::{Content, Dump};
use tokio::time::{Instant, sleep};

use crate::installation::Installation;
use crate::load::Load;
use crate::oracle::queries;

/// How long everything may take to settle once the last fault has ended.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// Between two looks.
const EVERY: Duration = Duration::from_millis(500);

/// Topic and group of every queue that must be empty.
const QUEUES: [(&str, &str); 2] = [
    ("seckill-order-request", "order-consumer"),
    ("seckill-order-event", "compensation-worker"),
];

/// How the waiting ended.
#[derive(Debug, Clone)]
pub(crate) struct Settled {
    /// From the end of the last fault.
    pub(crate) after: Duration,
    /// What was left at the bound; nothing when all is settled.
    pub(crate) left: Vec<String>,
}

/// Waits until nothing is left, or until the bound.
pub(crate) async fn settle(installation: &Installation, load: &Load) -> anyhow::Result<Settled> {
    let began = Instant::now();
    loop {
        let left = left(installation, load).await?;
        let after = began.elapsed();
        if left.is_empty() || after >= BOUND {
            return Ok(Settled { after, left });
        }
        sleep(EVERY).await;
    }
}

/// What is left: buyers who do not know yet, work of a service, reservations that are not final.
async fn left(installation: &Installation, load: &Load) -> anyhow::Result<Vec<String>> {
    let mut left = Vec::new();
    if !load.is_quiet() {
        left.push("buyers who do not know yet".to_owned());
    }
    for (what, query) in queries::OPEN_WORK {
        let rows = queries::texts(installation.database().url(), query).await?;
        if !rows.is_empty() {
            let names: Vec<String> = rows.iter().take(5).map(|row| row.join("/")).collect();
            left.push(format!("{} {what}: {}", rows.len(), names.join(", ")));
        }
    }
    for (topic, group) in QUEUES {
        let lag = lag(installation.namespace(), topic, group)?;
        if lag > 0 {
            left.push(format!("{lag} messages of {topic} not acknowledged"));
        }
    }
    // The dearest look comes last, and only when the others find nothing.
    if left.is_empty() {
        left = unsettled(&installation.redis.primary().dump().await);
    }
    Ok(left)
}

/// Members of indices, and reservations that are not final.
pub(crate) fn unsettled(dump: &Dump) -> Vec<String> {
    let mut left = Vec::new();
    for (key, entry) in &dump.0 {
        let is_index = key.ends_with(":send_pending") || key.ends_with(":reservation_expiry");
        if let (true, Content::SortedSet(members)) = (is_index, &entry.content) {
            let names: Vec<&str> = members.keys().take(5).map(String::as_str).collect();
            left.push(format!(
                "{} members of {key}: {}",
                members.len(),
                names.join(", ")
            ));
        }
    }
    for bucket in buckets(dump) {
        for (id, fields) in &bucket.reservations {
            if !is_final(fields) {
                let status = fields.get("status").map_or("", String::as_str);
                left.push(format!("reservation {id} of {} is {status}", bucket.tag));
            }
        }
    }
    left
}
