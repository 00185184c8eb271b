//! Sends what PostgreSQL's outbox holds: the events of orders and refusals.
//!
//! Rows are found by their state (`published_at IS NULL`), never by a high-water mark, so a row that
//! commits late is not skipped.
//!
//! | crash after | is left | who repairs it |
//! | --- | --- | --- |
//! | rows were claimed | their lease | claimable again when it ends |
//! | their messages were sent | the same, and messages | sent again; every handler is idempotent |
//! | they were marked published | nothing | — |

use std::collections::BTreeMap;
use std::time::Duration;

use seckill_message_bus::{OutgoingMessage, Producer, SendOutcome};
use seckill_order_store::{Error, OutboxRow, Store};
use seckill_service_kit::Backoff;

/// Rows of one claim: four of the bus's batches, side by side, which even a broker that hangs ends
/// within two of the lease's three send time limits. At a sale's 2,000 orders a second that is eight
/// claims a second.
const CLAIM_SIZE: i64 = 256;

/// How the relaying is bounded.
#[derive(Debug, Clone, Copy)]
pub struct RelayLimits {
    /// How long claimed rows are left alone by others.
    pub lease: Duration,
    /// When a failed attempt is repeated.
    pub backoff: Backoff,
}

/// What one claim became.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Sent and marked.
    pub published: u64,
    /// Sent with an unknown outcome; they come again.
    pub postponed: u64,
    /// Whether the claim was full, so that more may wait.
    pub more: bool,
}

impl Relayed {
    /// Whether the next claim should follow at once: only after progress, else a broker that is away
    /// would turn the loop hot.
    #[must_use]
    pub const fn wants_another_claim(self) -> bool {
        self.more && self.published > 0
    }
}

/// Relays the outbox.
pub struct Relay {
    store: Store,
    producer: Producer,
    limits: RelayLimits,
}

impl Relay {
    /// Connects the two sides.
    #[must_use]
    pub const fn new(store: Store, producer: Producer, limits: RelayLimits) -> Self {
        Self {
            store,
            producer,
            limits,
        }
    }

    /// Claims once, sends what was claimed, records the outcome.
    ///
    /// # Errors
    /// Whatever the store met; the rows then wait for their lease's end.
    pub async fn claim(&self) -> Result<Relayed, Error> {
        let rows = self
            .store
            .claim_outbox(CLAIM_SIZE, self.limits.lease)
            .await?;
        if rows.is_empty() {
            return Ok(Relayed::default());
        }
        let more = i64::try_from(rows.len()).is_ok_and(|claimed| claimed == CLAIM_SIZE);
        let messages = rows
            .iter()
            .map(|row| OutgoingMessage::order_event(&row.event_id, &row.event))
            .collect();
        let outcomes = self.producer.send_batch(messages).await;
        let (sent, unsent) = split(rows, &outcomes);
        let published = self.store.mark_published(&sent).await?;
        let postponed = u64::try_from(unsent.len()).unwrap_or(u64::MAX);
        self.postpone(unsent).await?;
        let relayed = Relayed {
            published,
            postponed,
            more,
        };
        tracing::debug!(
            published = relayed.published,
            postponed = relayed.postponed,
            "relayed outbox rows"
        );
        Ok(relayed)
    }

    /// Moves each row on by the backoff that its own attempts have earned.
    async fn postpone(&self, rows: Vec<OutboxRow>) -> Result<(), Error> {
        let mut by_attempts: BTreeMap<u32, Vec<OutboxRow>> = BTreeMap::new();
        for row in rows {
            by_attempts.entry(row.attempts).or_default().push(row);
        }
        for (attempts, rows) in by_attempts {
            let delay = self.limits.backoff.draw(attempts);
            self.store.postpone_outbox(&rows, delay).await?;
            tracing::warn!(
                rows = rows.len(),
                attempts,
                delay_ms = delay.as_millis(),
                "events were not acknowledged by the broker and will be sent again"
            );
        }
        Ok(())
    }
}

fn split(rows: Vec<OutboxRow>, outcomes: &[SendOutcome]) -> (Vec<OutboxRow>, Vec<OutboxRow>) {
    let mut sent = Vec::new();
    let mut unsent = Vec::new();
    for (row, outcome) in rows.into_iter().zip(outcomes) {
        match outcome {
            SendOutcome::Sent => sent.push(row),
            SendOutcome::Unknown(_) => unsent.push(row),
        }
    }
    (sent, unsent)
}
