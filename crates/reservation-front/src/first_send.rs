//! The first send of accepted reservations: a bounded queue, and tasks that send what is in it in
//! batches.
//!
//! Everything here may fail or be skipped at any point: the reservation is a member of `send_pending`
//! from the moment it was accepted, and the outbox scanner sends what the front did not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use rand::Rng;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    Error as RedisError, Redis, ReservationRecord, Transition, TransitionReply,
};
use seckill_message_bus::{BATCH_COUNT_MAX, OutgoingMessage, Producer, SendOutcome};
use seckill_state_machine::{
    MessageId, ReservationId, ReservationStatus, TimestampMs, TransitionCode,
};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::counters::Counters;
use crate::log_limit::LogLimit;
use crate::settings::FrontSettings;

/// The most reservations of one batch: what the bus client sends at once.
const BATCH_MAX: usize = BATCH_COUNT_MAX;

/// An accepted reservation.
#[derive(Debug)]
pub(crate) struct FirstSend {
    keys: BucketKeys,
    reservation_id: ReservationId,
    accepted: Instant,
}

impl FirstSend {
    pub(crate) fn new(keys: BucketKeys, reservation_id: ReservationId) -> Self {
        Self {
            keys,
            reservation_id,
            accepted: Instant::now(),
        }
    }
}

/// The queue's entrance; cheap to clone.
#[derive(Clone)]
pub(crate) struct FirstSends {
    queue: mpsc::Sender<FirstSend>,
    counters: Arc<Counters>,
    full: Arc<LogLimit>,
}

impl FirstSends {
    /// Queues a reservation, or leaves it to the scanner when there is no room. Never waits: the
    /// caller's answer does not depend on the broker.
    pub(crate) fn offer(&self, first_send: FirstSend) {
        if self.queue.try_send(first_send).is_ok() {
            return;
        }
        Counters::add(&self.counters.queue_full, 1);
        if let Some(left_out) = self.full.allow() {
            warn!(
                left_out,
                "the send queue is full or closed; the scanner will send"
            );
        }
    }
}

/// What the sender tasks share.
pub(crate) struct Senders {
    queue: Mutex<mpsc::Receiver<FirstSend>>,
    /// Cancelled when nothing more will be offered.
    closing: CancellationToken,
    redis: Redis,
    producer: Producer,
    age_max: Duration,
    retry: Duration,
    counters: Arc<Counters>,
    trouble: LogLimit,
}

impl Senders {
    /// The queue and its tasks' shared part.
    pub(crate) fn new(
        redis: Redis,
        producer: Producer,
        counters: Arc<Counters>,
        settings: &FrontSettings,
    ) -> (FirstSends, Arc<Self>) {
        let (queue, receiver) = mpsc::channel(settings.send_queue);
        let entrance = FirstSends {
            queue,
            counters: Arc::clone(&counters),
            full: Arc::new(LogLimit::new()),
        };
        let senders = Self {
            queue: Mutex::new(receiver),
            closing: CancellationToken::new(),
            redis,
            producer,
            age_max: settings.send_age_max_ms,
            retry: settings.send_retry_ms,
            counters,
            trouble: LogLimit::new(),
        };
        (entrance, Arc::new(senders))
    }

    /// Says that nothing more will be offered: the tasks send what is left and end.
    pub(crate) fn close(&self) {
        self.closing.cancel();
    }

    /// One sender task.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let batch = self.next_batch().await;
            if batch.is_empty() {
                return;
            }
            self.send(batch).await;
        }
    }

    /// What waits, up to one batch; empty when the queue is closed and drained.
    async fn next_batch(&self) -> Vec<FirstSend> {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let mut queue = self.queue.lock().await;
        tokio::select! {
            biased;
            _ = queue.recv_many(&mut batch, BATCH_MAX) => return batch,
            () = self.closing.cancelled() => queue.close(),
        }
        queue.recv_many(&mut batch, BATCH_MAX).await;
        batch
    }

    async fn send(&self, batch: Vec<FirstSend>) {
        let waiting = batch.len();
        let fresh: Vec<FirstSend> = batch
            .into_iter()
            .filter(|first_send| first_send.accepted.elapsed() < self.age_max)
            .collect();
        Counters::add(&self.counters.too_old, waiting - fresh.len());
        let due = self.read(fresh).await;
        if due.is_empty() {
            return;
        }
        let messages = due
            .iter()
            .map(|(_, record)| OutgoingMessage::order_request(&record.order_request()))
            .collect();
        let outcomes = self.producer.send_batch(messages).await;
        self.report(&due, &outcomes).await;
    }

    /// Reads what is to be sent from the reservation itself, in one pipelined batch, and leaves out
    /// what needs no sending any more.
    async fn read(&self, batch: Vec<FirstSend>) -> Vec<(BucketKeys, ReservationRecord)> {
        let reads = batch
            .iter()
            .map(|first| self.redis.reservation(&first.keys, &first.reservation_id));
        let records = join_all(reads).await;
        let mut due = Vec::with_capacity(batch.len());
        for (first, record) in batch.into_iter().zip(records) {
            match record {
                Ok(Some(record)) if record.status.awaits_send() => due.push((first.keys, record)),
                Ok(Some(_)) => Counters::add(&self.counters.already_further, 1),
                Ok(None) => self.note_trouble("an accepted reservation is gone"),
                Err(error) => self.note_trouble(&error.to_string()),
            }
        }
        due
    }

    /// Records what became of the sends, in one pipelined batch.
    async fn report(&self, due: &[(BucketKeys, ReservationRecord)], outcomes: &[SendOutcome]) {
        let reason = outcomes.iter().find_map(|outcome| match outcome {
            SendOutcome::Sent => None,
            SendOutcome::Unknown(reason) => Some(reason),
        });
        let retry_at = match (reason, due.first()) {
            (Some(reason), Some((keys, _))) => {
                self.note_trouble(&format!("a send's outcome is unknown: {reason}"));
                self.retry_at(keys).await
            }
            _ => None,
        };
        let reports = due
            .iter()
            .zip(outcomes)
            .filter_map(|((keys, record), outcome)| {
                let target = match outcome {
                    SendOutcome::Sent => ReservationStatus::Enqueued,
                    SendOutcome::Unknown(_) => ReservationStatus::SendUnknown,
                };
                // Without a retry time nothing is reported; the member's own score brings the scanner.
                let reported = outcome.is_sent() || retry_at.is_some();
                reported.then(|| self.transition(keys, record, target, retry_at))
            });
        for (target, reply) in join_all(reports).await {
            self.note_report(target, reply);
        }
        let sent = outcomes.iter().filter(|outcome| outcome.is_sent()).count();
        Counters::add(&self.counters.sent, sent);
        Counters::add(&self.counters.send_unknown, outcomes.len() - sent);
    }

    /// When the scanner shall repeat a send of unknown outcome, by Redis' clock; with jitter, so that
    /// a broker's recovery does not meet all of them at once.
    async fn retry_at(&self, keys: &BucketKeys) -> Option<TimestampMs> {
        let jitter = rand::rng().random_range(1.0..1.25);
        let pause = i64::try_from(self.retry.mul_f64(jitter).as_millis()).ok()?;
        match self.redis.server_time(keys).await {
            Ok(now) => Some(now + pause),
            Err(error) => {
                self.note_trouble(&error.to_string());
                None
            }
        }
    }

    async fn transition(
        &self,
        keys: &BucketKeys,
        record: &ReservationRecord,
        target: ReservationStatus,
        retry_at: Option<TimestampMs>,
    ) -> (ReservationStatus, Result<TransitionReply, RedisError>) {
        let message_id = MessageId::of(&record.reservation_id);
        let next_retry_at_ms = match target {
            ReservationStatus::SendUnknown => retry_at,
            _ => None,
        };
        let call = Transition {
            keys,
            reservation_id: &record.reservation_id,
            target,
            next_retry_at_ms,
            message_id: Some(&message_id),
            order_id: None,
            error_code: None,
            now_override: None,
        };
        (target, self.redis.transition(&call).await)
    }

    fn note_report(&self, target: ReservationStatus, reply: Result<TransitionReply, RedisError>) {
        match reply.as_ref().map(|reply| (reply.code, reply.status)) {
            Ok((TransitionCode::Updated | TransitionCode::Idempotent, _)) => {}
            Ok((TransitionCode::IllegalTransition, Some(status))) if is_further(status, target) => {
                Counters::add(&self.counters.already_further, 1);
            }
            Ok((code, status)) => {
                self.note_trouble(&format!("{target} was refused: {code}, it is {status:?}"));
            }
            Err(error) => self.note_trouble(&error.to_string()),
        }
    }

    fn note_trouble(&self, what: &str) {
        Counters::add(&self.counters.left_to_scanner, 1);
        if let Some(left_out) = self.trouble.allow() {
            warn!(left_out, "a first send is left to the scanner: {what}");
        }
    }
}

/// Whether a report comes late, after the consumer or the compensation worker has moved on. That the
/// scanner has sent meanwhile is one such case: `ENQUEUED` is further than `SEND_UNKNOWN`.
fn is_further(status: ReservationStatus, target: ReservationStatus) -> bool {
    status == target || status.is_beyond(target)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use seckill_state_machine::{ActivityId, ActivityVersion, BucketId, Scope, SkuId};

    use super::*;

    fn first_send() -> FirstSend {
        let scope = Scope {
            activity_id: ActivityId::parse("a").unwrap(),
            sku_id: SkuId::parse("s").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        };
        FirstSend::new(
            BucketKeys::new(&scope.bucket(BucketId::ZERO)),
            ReservationId::parse("a".repeat(26)).unwrap(),
        )
    }

    #[test]
    fn a_full_queue_leaves_the_reservation_to_the_scanner() {
        let (queue, mut receiver) = mpsc::channel(2);
        let counters = Arc::new(Counters::default());
        let entrance = FirstSends {
            queue,
            counters: Arc::clone(&counters),
            full: Arc::new(LogLimit::new()),
        };
        for _ in 0..5 {
            entrance.offer(first_send());
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(count(&counters.queue_full), 3);
        assert!(receiver.try_recv().is_ok());
        entrance.offer(first_send());
        assert_eq!(count(&counters.queue_full), 3);
    }

    #[test]
    fn late_reports_are_benign_and_only_those() {
        use ReservationStatus as S;
        assert!(is_further(S::OrderCreated, S::Enqueued));
        assert!(is_further(S::Enqueued, S::SendUnknown));
        assert!(is_further(S::Released, S::SendUnknown));
        assert!(!is_further(S::Reserved, S::Enqueued));
    }
}
