//! Which stock rows were locked by somebody else a moment ago.
//!
//! A batch that holds one request for a locked row waits for the lock's time limit before it can be
//! split. Remembering the row for a while lets the next batches leave such requests out from the
//! start, so that one hot SKU costs the others a single wait and not one a batch. And one handler at a
//! time waits for such a row: if all did, none would be left for the others' requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use seckill_state_machine::BucketScope;
use tokio::time::Instant;

use crate::work::{Work, by_bucket};

/// How long a row counts as contended after its last lock time-out. Twice the default lock time
/// limit, so that a row that stays locked is remembered from one time-out to the next.
const REMEMBERED: Duration = Duration::from_secs(10);

/// A batch, with the requests for contended rows taken out.
#[derive(Debug)]
pub struct Parted {
    /// Requests that go in together.
    pub free: Vec<Work>,
    /// Requests for contended rows, one group a row.
    pub contended: Vec<Vec<Work>>,
}

/// The contended rows. There are at most as many as rows that were locked within [`REMEMBERED`].
#[derive(Debug, Default)]
pub struct Contention {
    until: Mutex<BTreeMap<BucketScope, Instant>>,
    awaited: Mutex<BTreeSet<BucketScope>>,
}

/// The right to wait for a contended row; ends when it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    contention: &'a Contention,
    bucket: BucketScope,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let awaited = self.contention.awaited.lock();
        let mut awaited = awaited.unwrap_or_else(PoisonError::into_inner);
        awaited.remove(&self.bucket);
    }
}

impl Contention {
    /// Notes that a row could not be locked.
    pub fn note(&self, bucket: &BucketScope) {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.insert(bucket.clone(), Instant::now() + REMEMBERED);
    }

    /// Lets one handler at a time wait for a contended row.
    #[must_use]
    pub fn turn(&self, bucket: &BucketScope) -> Option<Turn<'_>> {
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.insert(bucket.clone()).then(|| Turn {
            contention: self,
            bucket: bucket.clone(),
        })
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
        let contention = Contention::default();
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
    #[test]
    fn one_handler_at_a_time_waits_for_a_contended_row() {
        let contention = Contention::default();
        let turn = contention.turn(&bucket(0));
        assert!(turn.is_some());
        assert!(contention.turn(&bucket(0)).is_none());
        assert!(contention.turn(&bucket(1)).is_some());
        drop(turn);
        assert!(contention.turn(&bucket(0)).is_some());
    }
}
