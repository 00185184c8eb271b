//! Which stock rows were locked by somebody else a moment ago.
//!
//! A batch that holds one request for a locked row waits for the lock's time limit before it can be
//! split. Remembering the row for a while lets the next batches leave such requests out from the
//! start, so that one hot SKU costs the others a single wait and not one a batch. And one handler at a
//! time asks for such a row; the next ones wait for their turn, since a message that is sent back costs
//! ten seconds at first, more every time, and counts against the message. Never do all handlers wait:
//! one is left for the others' requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use seckill_state_machine::BucketScope;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::work::{Work, by_bucket};

/// How long a row counts as contended after its last lock time-out. Twice the default lock time
/// limit, so that a row that stays locked is remembered from one time-out to the next.
const REMEMBERED: Duration = Duration::from_secs(10);

/// How long the last free handler waits for room among those that wait for contended rows. It bounds
/// both how fast that handler sends batches for such rows back and how long it keeps the others
/// waiting.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// A batch, with the requests for contended rows taken out.
#[derive(Debug)]
pub struct Parted {
    /// Requests that go in together.
    pub free: Vec<Work>,
    /// Requests for contended rows, one group a row.
    pub contended: Vec<Vec<Work>>,
}

/// The contended rows. There are at most as many as rows that were locked within [`REMEMBERED`].
#[derive(Debug)]
pub struct Contention {
    until: Mutex<BTreeMap<BucketScope, Instant>>,
    awaited: Mutex<BTreeSet<BucketScope>>,
    turn_ended: Notify,
    /// Handlers that may be busy with contended rows, waiting for their turn or having it.
    room: Semaphore,
}

/// The right to ask for a contended row; ends when it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    contention: &'a Contention,
    bucket: BucketScope,
    _room: SemaphorePermit<'a>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let awaited = self.contention.awaited.lock();
        let mut awaited = awaited.unwrap_or_else(PoisonError::into_inner);
        awaited.remove(&self.bucket);
        drop(awaited);
        self.contention.turn_ended.notify_waiters();
    }
}

impl Contention {
    /// For so many handlers. A single one has nobody to leave free.
    #[must_use]
    pub fn new(handlers: usize) -> Self {
        Self {
            until: Mutex::default(),
            awaited: Mutex::default(),
            turn_ended: Notify::new(),
            room: Semaphore::new(handlers.saturating_sub(1).max(1)),
        }
    }

    /// Notes that a row could not be locked.
    pub fn note(&self, bucket: &BucketScope) {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.insert(bucket.clone(), Instant::now() + REMEMBERED);
    }

    /// Forgets a row that could be locked.
    pub fn forget(&self, bucket: &BucketScope) {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.remove(bucket);
    }

    /// Waits for the turn to ask for a contended row. There is none before the deadline, after a stop,
    /// or while all handlers but one wait already.
    pub async fn turn(
        &self,
        bucket: &BucketScope,
        deadline: Instant,
        stop: &CancellationToken,
    ) -> Option<Turn<'_>> {
        let room_until = deadline.min(Instant::now() + ROOM_WAIT);
        let room = tokio::select! {
            biased;
            room = self.room.acquire() => room.ok()?,
            () = sleep_until(room_until) => return None,
            () = stop.cancelled() => return None,
        };
        loop {
            let turn_ended = self.turn_ended.notified();
            tokio::pin!(turn_ended);
            // From here on no end is missed, so the look that follows cannot be out of date.
            turn_ended.as_mut().enable();
            if self.take(bucket) {
                return Some(Turn {
                    contention: self,
                    bucket: bucket.clone(),
                    _room: room,
                });
            }
            tokio::select! {
                () = turn_ended => {}
                () = sleep_until(deadline) => return None,
                () = stop.cancelled() => return None,
            }
        }
    }

    fn take(&self, bucket: &BucketScope) -> bool {
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.insert(bucket.clone())
    }

    /// Takes the requests for contended rows out of a batch.
    #[must_use]
    pub fn part(&self, batch: Vec<Work>) -> Parted {
        let now = Instant::now();
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.retain(|_, until| *until > now);
        let (contended, free): (Vec<Work>, Vec<Work>) = batch
            .into_iter()
            .partition(|work| until.contains_key(&work.request.bucket));
        drop(until);
        Parted {
            free,
            contended: by_bucket(contended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::tests::{bucket, work};

    #[tokio::test(start_paused = true)]
    async fn a_contended_row_is_left_out_until_it_is_forgotten() {
        let contention = Contention::new(4);
        let batch = || vec![work(0, 'a'), work(1, 'b'), work(0, 'c')];
        assert_eq!(contention.part(batch()).free.len(), 3);
        contention.note(&bucket(0));
        let parted = contention.part(batch());
        assert_eq!(parted.free.len(), 1);
        assert_eq!(parted.contended.len(), 1);
        assert_eq!(parted.contended[0].len(), 2);
        tokio::time::advance(REMEMBERED).await;
        assert_eq!(contention.part(batch()).free.len(), 3);
    }

    /// The turn if it can be had at once.
    async fn at_once(contention: &Contention, id: u32) -> Option<Turn<'_>> {
        let stop = CancellationToken::new();
        contention.turn(&bucket(id), Instant::now(), &stop).await
    }

    #[tokio::test(start_paused = true)]
    async fn one_handler_at_a_time_asks_for_a_contended_row_and_the_next_one_waits() {
        let contention = Contention::new(4);
        let (hot, stop) = (bucket(0), CancellationToken::new());
        let turn = at_once(&contention, 0).await;
        assert!(turn.is_some());
        assert!(at_once(&contention, 0).await.is_none());
        assert!(at_once(&contention, 1).await.is_some());

        let started = Instant::now();
        let far = started + Duration::from_secs(20);
        let next = contention.turn(&hot, far, &stop);
        let ends = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            drop(turn);
        };
        let (next, ()) = tokio::join!(next, ends);
        assert!(next.is_some());
        assert_eq!(started.elapsed().as_secs(), 5);

        stop.cancel();
        assert!(contention.turn(&hot, far, &stop).await.is_none());
        assert_eq!(started.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn all_handlers_but_one_wait() {
        let contention = Contention::new(3);
        let (hot, stop) = (bucket(0), CancellationToken::new());
        let started = Instant::now();
        let far = started + Duration::from_secs(20);
        let turn = contention.turn(&hot, far, &stop).await;
        assert!(turn.is_some());
        let second = contention.turn(&hot, far, &stop);
        let third = async {
            let third = contention.turn(&hot, far, &stop).await;
            assert!(third.is_none());
            assert_eq!(started.elapsed().as_secs(), ROOM_WAIT.as_secs());
        };
        let (second, ()) = tokio::join!(second, third);
        assert!(second.is_none());
        assert!(Instant::now() >= far);
        drop(turn);
        assert!(
            contention
                .turn(&hot, far + ROOM_WAIT, &stop)
                .await
                .is_some()
        );
        assert!(at_once(&Contention::new(1), 0).await.is_some());
    }
}
