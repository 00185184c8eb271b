//! Replay of a whole bucket, page by page, with a bounded number of decisions in flight.
//!
//! A page is read from PostgreSQL by the reservations' ids, so a walk that a crash or an error cuts
//! short goes on from the last page that was finished, or begins again: what agrees already costs two
//! reads.

use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_order_store::DecisionRecord;
use seckill_state_machine::{BucketScope, ReservationId, TimestampMs};
use tokio::time::Instant;

use super::{Replayed, Replayer};
use crate::tally::Tally;
use crate::{Error, Facts};

/// Decisions of one page: eight rounds of those in flight, about a third of a megabyte.
pub const PAGE_SIZE: i64 = 512;

/// Decisions replayed at once. Each has at most two calls of Redis in flight, and fred writes those of
/// all into one pipeline; 128 stay far below the handle's limit of 2,000. At a round trip of 5 ms, three
/// a decision, that is 4,000 decisions a second.
const IN_FLIGHT: usize = 64;

/// How long a decision may take to reach Redis by the usual way. A settlement takes milliseconds and a
/// release one claim of tasks; a consumer that is restarted reads the same messages again within this.
const USUALLY_DONE_WITHIN: Duration = Duration::from_secs(30);

/// A page that was replayed to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// How its decisions ended.
    pub tally: Tally,
    /// Where the next one begins; `None` at the end, or when the bucket is gone.
    pub next: Option<ReservationId>,
}

impl Replayer {
    /// Replays every decision of a bucket. `report` hears how each one ended.
    ///
    /// # Errors
    /// Whatever a store met, after the decisions before it. Repeating it is safe.
    pub async fn replay_bucket(
        &self,
        bucket: &BucketScope,
        mut report: impl FnMut(&DecisionRecord, &Replayed),
    ) -> Result<Tally, Error> {
        let mut tally = Tally::default();
        let mut after = None;
        loop {
            let page = self
                .replay_page(bucket, after.as_ref(), &mut report)
                .await?;
            tally.add(&page.tally);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(tally),
            }
        }
    }

    /// Replays the decisions of a bucket that follow a reservation, one page of them.
    ///
    /// # Errors
    /// Whatever a store met. Repeating it is safe.
    pub async fn replay_page(
        &self,
        bucket: &BucketScope,
        after: Option<&ReservationId>,
        mut report: impl FnMut(&DecisionRecord, &Replayed),
    ) -> Result<Page, Error> {
        let began = Instant::now();
        let decisions = self
            .store
            .decisions_of_bucket_page(bucket, after, PAGE_SIZE)
            .await?;
        let keys = BucketKeys::new(bucket);
        let mut ended = Vec::with_capacity(decisions.len());
        // Collected first: as a closure over the stream they would not be `Send` for every lifetime.
        let endings: Vec<_> = decisions
            .iter()
            .map(|decision| self.one_of_page(&keys, decision))
            .collect();
        let mut endings = futures::stream::iter(endings).buffer_unordered(IN_FLIGHT);
        while let Some(ending) = endings.next().await {
            let (decision, replayed) = ending?;
            report(decision, &replayed);
            ended.push((decision.decided_at_ms, replayed));
        }
        drop(endings);
        let tally = self.tally(&ended, began).await?;
        if tally.cancelled + tally.rebuilt > 0 {
            self.tell_fronts(&keys).await;
        }
        let is_full = i64::try_from(decisions.len()).is_ok_and(|count| count >= PAGE_SIZE);
        let goes_on = is_full && tally.bucket_gone == 0;
        let last = decisions.last().filter(|_| goes_on);
        Ok(Page {
            tally,
            next: last.map(|decision| decision.reservation_id.clone()),
        })
    }

    /// Counts the endings; those of decisions that were just made apart from the others.
    async fn tally(
        &self,
        ended: &[(TimestampMs, Replayed)],
        began: Instant,
    ) -> Result<Tally, Error> {
        let usual = |replayed: &Replayed| replayed.is_usual_at_first();
        let just_made_since = if ended.iter().any(|(_, replayed)| usual(replayed)) {
            // Decisions carry PostgreSQL's time, so its clock says when the page began.
            let before = began.elapsed() + USUALLY_DONE_WITHIN;
            let before = i64::try_from(before.as_millis()).unwrap_or(i64::MAX);
            self.store.clock().await?.get().saturating_sub(before)
        } else {
            i64::MAX
        };
        let mut tally = Tally::default();
        for (decided_at, replayed) in ended {
            if usual(replayed) && decided_at.get() >= just_made_since {
                tally.in_progress += 1;
            } else {
                tally.note(replayed);
            }
        }
        Ok(tally)
    }

    async fn one_of_page<'a>(
        &self,
        keys: &BucketKeys,
        decision: &'a DecisionRecord,
    ) -> Result<(&'a DecisionRecord, Replayed), Error> {
        let replayed = self.quietly(keys, &Facts::from(decision)).await?;
        Ok((decision, replayed))
    }
}
