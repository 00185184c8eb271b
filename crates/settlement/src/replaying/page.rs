//! Replay of whole buckets, page by page, with a bounded number of decisions in flight.
//!
//! One walk over a version's decisions serves all of its buckets: PostgreSQL finds them by version and
//! reservation, so that a walk of its own for each bucket would read the whole version each time. What
//! happens to one bucket is no matter of the others: one that is gone, or whose server does not answer,
//! drops out of the walk.
//!
//! A page is read from PostgreSQL by the reservations' ids, so a walk that a crash or an error cuts
//! short begins again: what agrees already costs two reads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_order_store::DecisionRecord;
use seckill_state_machine::{BucketId, BucketScope, ReservationId, Scope, TimestampMs};
use tokio::time::Instant;

use super::{Replayed, Replayer};
use crate::tally::Tally;
use crate::{Error, Facts};

/// Decisions of one bucket's share of a page: eight rounds of those in flight, about a third of a
/// megabyte.
pub const PAGE_SIZE: i64 = 512;

/// Decisions of one bucket replayed at once. Each has at most two calls of Redis in flight, and fred
/// writes those of all into one pipeline; 128 stay far below the handle's limit of 2,000. At a round trip
/// of 5 ms, three a decision, that is 4,000 decisions a second.
const IN_FLIGHT: usize = 64;

/// Buckets that add to a page and to what is in flight: four fill both stores, with 512 calls.
const SHARES_MAX: usize = 4;

/// How long a decision may take to reach Redis by the usual way. A settlement takes milliseconds and a
/// release one claim of tasks; a consumer that is restarted reads the same messages again within this.
const USUALLY_DONE_WITHIN: Duration = Duration::from_secs(30);

/// The replay of one bucket, as part of a walk.
struct Share {
    keys: BucketKeys,
    tally: Tally,
    failure: Option<Error>,
    /// Its failure is known, while a page is under way: the rest of it would only wait for the same.
    is_broken: AtomicBool,
}

impl Share {
    fn of(bucket: &BucketScope) -> Self {
        Self {
            keys: BucketKeys::new(bucket),
            tally: Tally::default(),
            failure: None,
            is_broken: AtomicBool::new(false),
        }
    }

    /// Whether there is any use in its further decisions.
    const fn goes_on(&self) -> bool {
        self.failure.is_none() && self.tally.bucket_gone == 0
    }
}

/// How the decisions of a page ended, bucket by bucket.
type Endings = BTreeMap<BucketId, Vec<(TimestampMs, Replayed)>>;

impl Replayer {
    /// Replays every decision of a bucket. `report` hears how each one ended.
    ///
    /// # Errors
    /// Whatever a store met, after the decisions before it. Repeating it is safe.
    pub async fn replay_bucket(
        &self,
        bucket: &BucketScope,
        report: impl FnMut(&DecisionRecord, &Replayed),
    ) -> Result<Tally, Error> {
        let mut ended = self
            .replay_buckets(&bucket.scope, &[bucket.bucket_id], report)
            .await?;
        ended
            .remove(&bucket.bucket_id)
            .unwrap_or_else(|| Ok(Tally::default()))
    }

    /// Replays every decision of these buckets of a version, in one walk over it; says for each bucket
    /// what it came to. `report` hears how each decision ended.
    ///
    /// # Errors
    /// Whatever PostgreSQL met while it was asked for decisions, after those before it. Repeating it is
    /// safe.
    pub async fn replay_buckets(
        &self,
        scope: &Scope,
        buckets: &[BucketId],
        mut report: impl FnMut(&DecisionRecord, &Replayed),
    ) -> Result<BTreeMap<BucketId, Result<Tally, Error>>, Error> {
        let mut shares: BTreeMap<BucketId, Share> = buckets
            .iter()
            .map(|id| (*id, Share::of(&scope.bucket(*id))))
            .collect();
        let mut after = None;
        loop {
            let open: Vec<BucketId> = shares
                .iter()
                .filter(|(_, share)| share.goes_on())
                .map(|(id, _)| *id)
                .collect();
            let next = self
                .replay_page(scope, &open, after.as_ref(), &mut shares, &mut report)
                .await?;
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let ended = shares.into_iter().map(|(id, share)| match share.failure {
            None => (id, Ok(share.tally)),
            Some(error) => (id, Err(error)),
        });
        Ok(ended.collect())
    }

    /// One page of the decisions of the buckets that are still open; where the next one begins, unless
    /// it was the last.
    async fn replay_page(
        &self,
        scope: &Scope,
        open: &[BucketId],
        after: Option<&ReservationId>,
        shares: &mut BTreeMap<BucketId, Share>,
        report: &mut impl FnMut(&DecisionRecord, &Replayed),
    ) -> Result<Option<ReservationId>, Error> {
        let width = open.len().min(SHARES_MAX);
        let size = PAGE_SIZE.saturating_mul(i64::try_from(width).unwrap_or(1));
        if open.is_empty() {
            return Ok(None);
        }
        let began = Instant::now();
        let decisions = self
            .store
            .decisions_of_buckets_page(scope, open, after, size)
            .await?;
        let (ended, failed) = self
            .replay_each(&decisions, IN_FLIGHT * width, shares, report)
            .await;
        for (id, error) in failed {
            if let Some(share) = shares.get_mut(&id) {
                share.failure.get_or_insert(error);
            }
        }
        self.count(ended, began, shares).await?;
        let is_full = i64::try_from(decisions.len()).is_ok_and(|count| count >= size);
        let last = decisions.last().filter(|_| is_full);
        Ok(last.map(|decision| decision.reservation_id.clone()))
    }

    /// Replays decisions of several buckets; of a bucket whose store fails, not those behind.
    async fn replay_each(
        &self,
        decisions: &[DecisionRecord],
        in_flight: usize,
        shares: &BTreeMap<BucketId, Share>,
        report: &mut impl FnMut(&DecisionRecord, &Replayed),
    ) -> (Endings, Vec<(BucketId, Error)>) {
        let (mut ended, mut failed) = (Endings::new(), Vec::new());
        // Collected first: as a closure over the stream they would not be `Send` for every lifetime.
        let replays: Vec<_> = decisions
            .iter()
            .filter_map(|decision| {
                let share = shares.get(&decision.bucket.bucket_id)?;
                Some(self.one_of_page(share, decision))
            })
            .collect();
        let mut replays = futures::stream::iter(replays).buffer_unordered(in_flight);
        while let Some((decision, replayed)) = replays.next().await {
            let bucket_id = decision.bucket.bucket_id;
            match replayed {
                Some(Ok(replayed)) => {
                    report(decision, &replayed);
                    let of_bucket = ended.entry(bucket_id).or_default();
                    of_bucket.push((decision.decided_at_ms, replayed));
                }
                Some(Err(error)) => failed.push((bucket_id, error)),
                None => {}
            }
        }
        (ended, failed)
    }

    async fn one_of_page<'a>(
        &self,
        share: &Share,
        decision: &'a DecisionRecord,
    ) -> (&'a DecisionRecord, Option<Result<Replayed, Error>>) {
        if share.is_broken.load(Ordering::Relaxed) {
            return (decision, None);
        }
        let replayed = self.quietly(&share.keys, &Facts::from(decision)).await;
        if replayed.is_err() {
            share.is_broken.store(true, Ordering::Relaxed);
        }
        (decision, Some(replayed))
    }

    /// Counts the endings of a page; those of decisions that were just made apart from the others.
    async fn count(
        &self,
        ended: Endings,
        began: Instant,
        shares: &mut BTreeMap<BucketId, Share>,
    ) -> Result<(), Error> {
        let mut of_all = ended.values().flatten();
        let just_made_since = if of_all.any(|(_, replayed)| replayed.is_usual_at_first()) {
            // Decisions carry PostgreSQL's time, so its clock says when the page began.
            let before = began.elapsed() + USUALLY_DONE_WITHIN;
            let before = i64::try_from(before.as_millis()).unwrap_or(i64::MAX);
            self.store.clock().await?.get().saturating_sub(before)
        } else {
            i64::MAX
        };
        for (bucket_id, ended) in ended {
            let mut tally = Tally::default();
            for (decided_at, replayed) in &ended {
                if replayed.is_usual_at_first() && decided_at.get() >= just_made_since {
                    tally.in_progress += 1;
                } else {
                    tally.note(replayed);
                }
            }
            let Some(share) = shares.get_mut(&bucket_id) else {
                continue;
            };
            share.tally.add(&tally);
            if tally.cancelled + tally.rebuilt > 0 {
                self.tell_fronts(&share.keys).await;
            }
        }
        Ok(())
    }
}
