//! Replay of a whole bucket, page by page, with a bounded number of decisions in flight.
//!
//! A page is read from PostgreSQL by the reservations' ids, so a walk that a crash or an error cuts
//! short goes on from the last page that was finished, or begins again: what agrees already costs two
//! reads.

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_order_store::DecisionRecord;
use seckill_state_machine::{BucketScope, ReservationId};

use super::{Replayed, Replayer};
use crate::tally::Tally;
use crate::{Error, Facts};

/// Decisions of one page: eight rounds of those in flight, about a third of a megabyte.
pub const PAGE_SIZE: i64 = 512;

/// Decisions replayed at once. Each has at most two calls of Redis in flight, and fred writes those of
/// all into one pipeline; 128 stay far below the handle's limit of 2,000. At a round trip of 5 ms, three
/// a decision, that is 4,000 decisions a second.
const IN_FLIGHT: usize = 64;

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
        let decisions = self
            .store
            .decisions_of_bucket_page(bucket, after, PAGE_SIZE)
            .await?;
        let keys = BucketKeys::new(bucket);
        let mut tally = Tally::default();
        let mut endings = futures::stream::iter(&decisions)
            .map(|decision| self.one_of_page(&keys, decision))
            .buffer_unordered(IN_FLIGHT);
        while let Some(ending) = endings.next().await {
            let (decision, replayed) = ending?;
            tally.note(&replayed);
            report(decision, &replayed);
        }
        drop(endings);
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

    async fn one_of_page<'a>(
        &self,
        keys: &BucketKeys,
        decision: &'a DecisionRecord,
    ) -> Result<(&'a DecisionRecord, Replayed), Error> {
        let replayed = self.quietly(keys, &Facts::from(decision)).await?;
        Ok((decision, replayed))
    }
}
