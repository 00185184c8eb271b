//! Order events: each repeats a settlement that its consumer may not have got through to Redis.
//!
//! The effect of an event is that settlement, so an event is acknowledged once Redis has answered,
//! whatever the answer was, or once it is parked. A crash before that leaves the event, which comes
//! again and is then a no-op. Where Redis has lost the reservation, its decision is read back and
//! replayed: the event alone does not tell what must be written.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use seckill_dead_letters::{Parker, Reason};
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{ErrorKind, Redis};
use seckill_message_bus::{BatchHandler, BatchVerdict, IncomingMessage, decode_order_event};
use seckill_order_store::Discrepancy;
use seckill_service_kit::Backoff;
use seckill_settlement::{
    Discrepancies, Error as ReplayError, ErrorKind as ReplayErrorKind, Replayed, Replayer, Settled,
    kind, settle_ordered, settle_rejected,
};
use seckill_state_machine::{OrderEvent, OrderEventKind, ReservationStatus};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Settlements of one batch in flight: a batch of 256 takes four rounds.
const CALLS_IN_FLIGHT: usize = 64;

/// The pauses before Redis is asked again for what it did not answer. A batch of 256 that a full Redis
/// refuses costs it 512 scripts in the first second, and 52 a second from the sixth on.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// Handles order events.
pub struct EventHandler {
    redis: Redis,
    replayer: Replayer,
    parker: Parker,
    discrepancies: Discrepancies,
    nudge: Arc<Notify>,
    patience: Duration,
    stop: CancellationToken,
}

/// What one settlement came to.
enum Outcome {
    Agreed,
    /// Written again, after it was lost or changed: a difference on record about it is gone.
    Repaired,
    Differs(Discrepancy),
    Unanswered(String),
}

impl EventHandler {
    /// `nudge` wakes whoever works on tasks; `patience` bounds how long a batch waits for Redis before
    /// it is left to a redelivery.
    #[must_use]
    pub const fn new(
        redis: Redis,
        replayer: Replayer,
        parker: Parker,
        discrepancies: Discrepancies,
        nudge: Arc<Notify>,
        patience: Duration,
        stop: CancellationToken,
    ) -> Self {
        Self {
            redis,
            replayer,
            parker,
            discrepancies,
            nudge,
            patience,
            stop,
        }
    }

    /// Decodes what can be decoded and parks the rest; says whether all of the rest is parked.
    async fn sort(&self, batch: Vec<IncomingMessage>) -> (Vec<OrderEvent>, bool) {
        let mut events = Vec::with_capacity(batch.len());
        let mut all_parked = true;
        for message in batch {
            match decode_order_event(&message) {
                Ok(event) => events.push(event),
                Err(error) => {
                    let reason = Reason::Undecodable(error);
                    all_parked &= self.parker.park(&message, &reason).await;
                }
            }
        }
        (events, all_parked)
    }

    /// Settles until Redis has answered for every event, or the deadline; says which of both.
    async fn settle_all(&self, mut events: Vec<OrderEvent>, deadline: Instant) -> bool {
        let mut attempt = 0;
        loop {
            events = self.settle(events).await;
            if events.is_empty() {
                return true;
            }
            attempt += 1;
            let resume = Instant::now() + PAUSES.draw(attempt);
            let stopped = tokio::time::timeout_at(resume, self.stop.cancelled()).await;
            if stopped.is_ok() || resume >= deadline {
                return false;
            }
        }
    }

    /// Settles each event once and returns those for which no answer came.
    async fn settle(&self, events: Vec<OrderEvent>) -> Vec<OrderEvent> {
        let mut outcomes = futures::stream::iter(events)
            .map(|event| async move {
                let outcome = self.one(&event).await;
                (event, outcome)
            })
            .buffer_unordered(CALLS_IN_FLIGHT);
        let mut found = Vec::new();
        let mut unanswered = Vec::new();
        let mut last_error = None;
        while let Some((event, outcome)) = outcomes.next().await {
            match outcome {
                Outcome::Agreed => {}
                Outcome::Repaired => {
                    let id = &event.reservation_id;
                    self.discrepancies.agreed(&event.bucket, id).await;
                }
                Outcome::Differs(discrepancy) => found.push(discrepancy),
                Outcome::Unanswered(error) => {
                    last_error = Some(error);
                    unanswered.push(event);
                }
            }
        }
        if let Some(error) = last_error {
            let events = unanswered.len();
            tracing::warn!(events, error, "order events could not be settled yet");
        }
        self.discrepancies.report(found).await;
        unanswered
    }

    async fn one(&self, event: &OrderEvent) -> Outcome {
        let keys = BucketKeys::new(&event.bucket);
        let id = &event.reservation_id;
        let settled = match &event.kind {
            OrderEventKind::OrderCreated { order_id } => {
                settle_ordered(&self.redis, &keys, id, order_id).await
            }
            OrderEventKind::Rejected { reason } => {
                settle_rejected(&self.redis, &keys, id, *reason).await
            }
            // The task that was opened with the cancellation gives the units back.
            OrderEventKind::OrderCancelled { .. } => return Outcome::Agreed,
        };
        match settled {
            Ok(Settled::Missing) => self.replay(event).await,
            Ok(settled) => read(event, &settled),
            // Damage does not heal by waiting, and must not hold back the other events.
            Err(error) if error.kind() == ErrorKind::Broken => {
                differs(event, kind::UNREADABLE, error.to_string())
            }
            Err(error) => Outcome::Unanswered(error.to_string()),
        }
    }

    /// Redis has lost the reservation, or PostgreSQL has changed what it stands for.
    async fn replay(&self, event: &OrderEvent) -> Outcome {
        match self.replayer.replay_by_id(&event.reservation_id).await {
            Ok(Some(replayed)) => read_replay(event, &replayed),
            // Archived since: nothing is left to agree on.
            Ok(None) => Outcome::Agreed,
            Err(error) => failed(event, &error),
        }
    }
}

#[async_trait]
impl BatchHandler for EventHandler {
    async fn handle(&self, batch: Vec<IncomingMessage>) -> BatchVerdict {
        let deadline = Instant::now() + self.patience;
        let (events, all_parked) = self.sort(batch).await;
        if events.iter().any(opens_task) {
            // A nudge carries no data: the worker finds the task in PostgreSQL.
            self.nudge.notify_one();
        }
        if self.settle_all(events, deadline).await && all_parked {
            BatchVerdict::Acknowledge
        } else {
            BatchVerdict::Redeliver
        }
    }
}

/// Whether a task was opened in the transaction that the event tells of.
const fn opens_task(event: &OrderEvent) -> bool {
    matches!(
        event.kind,
        OrderEventKind::Rejected { .. } | OrderEventKind::OrderCancelled { .. }
    )
}

fn read(event: &OrderEvent, settled: &Settled) -> Outcome {
    match settled {
        Settled::Agreed { .. } | Settled::BucketGone | Settled::Missing => Outcome::Agreed,
        Settled::Contradiction { code, status } => {
            let found = status.map_or("unknown", ReservationStatus::as_str);
            let detail = format!("postgresql: {}; redis: {found} ({code})", word(event));
            differs(event, kind::CONTRADICTION, detail)
        }
    }
}

/// One that waits for units, or whose release is due, has an open task that goes on.
fn read_replay(event: &OrderEvent, replayed: &Replayed) -> Outcome {
    match replayed.difference() {
        Some((kind, detail)) => differs(event, kind, detail.to_owned()),
        None if replayed.agrees() => Outcome::Repaired,
        None => Outcome::Agreed,
    }
}

/// What no repeat would cure must not hold back the other events.
fn failed(event: &OrderEvent, error: &ReplayError) -> Outcome {
    match error.kind() {
        ReplayErrorKind::Retryable => Outcome::Unanswered(error.to_string()),
        ReplayErrorKind::Fatal => differs(event, kind::UNREADABLE, error.to_string()),
    }
}

fn differs(event: &OrderEvent, kind: &'static str, detail: String) -> Outcome {
    let (bucket, id) = (&event.bucket, &event.reservation_id);
    Outcome::Differs(Discrepancies::of(kind, bucket, id, detail))
}

const fn word(event: &OrderEvent) -> &'static str {
    match event.kind {
        OrderEventKind::OrderCreated { .. } => "ordered",
        OrderEventKind::Rejected { .. } => "rejected",
        OrderEventKind::OrderCancelled { .. } => "cancelled",
    }
}
