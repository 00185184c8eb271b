//! Sends what is due in `send_pending`, bucket by bucket and page by page.
//!
//! What a crash leaves, step by step:
//!
//! | crash after | is left | who repairs it |
//! | --- | --- | --- |
//! | the page was read | nothing | the next pass, of any replica |
//! | a member was claimed | its score at the lease's end | it is due again then |
//! | its message was sent | the same, and a message | resent under the same id; the inbox drops it |
//! | `ENQUEUED` was recorded | nothing | — |
//!
//! Claims make two replicas share a bucket without sending the same reservation at once. Pages go by
//! (score, member), so that members that cannot be sent never hide those behind them.

mod page;
mod report;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Error, Index, Redis};
use seckill_message_bus::Producer;
use seckill_service_kit::Backoff;
use seckill_state_machine::BucketScope;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::ServerClock;
use crate::pace::Pace;

pub use report::Report;

/// Most members of one page: four batches of the bus's 64 messages, which go out side by side. They
/// take some ten milliseconds and, when the broker hangs, two send time limits of the lease's three.
const PAGE_MAX: usize = 256;

/// Pages of one bucket in one pass. A bucket with a long backlog then waits for the others' turn;
/// 8 full pages are 2,048 members, under half a second's worth of the default rate.
const PAGES_PER_PASS: usize = 8;

/// How the resending is bounded.
#[derive(Debug, Clone, Copy)]
pub struct ResendLimits {
    /// How long a claimed reservation is left alone by others.
    pub lease: Duration,
    /// When a failed attempt is repeated.
    pub backoff: Backoff,
    /// Most reservations a second.
    pub per_second: usize,
    /// Buckets worked on at once.
    pub buckets_at_once: usize,
}

/// Resends reservations.
pub struct Resender {
    redis: Redis,
    producer: Producer,
    limits: ResendLimits,
    page_size: usize,
    pace: Pace,
    /// Where the next pass begins, counted in buckets visited, so that a pass that ran out of time
    /// does not always leave out the same ones.
    visited: AtomicUsize,
}

/// Members of one page. The pages that may begin at once are together at most a second's worth, as
/// far as that is one member each: a lower rate has shorter waits and not longer ones.
fn page_size(limits: &ResendLimits) -> usize {
    let share = limits.per_second / limits.buckets_at_once.max(1);
    share.clamp(1, PAGE_MAX)
}

impl Resender {
    /// Connects the two sides.
    #[must_use]
    pub fn new(redis: Redis, producer: Producer, limits: ResendLimits) -> Self {
        Self {
            redis,
            producer,
            limits,
            page_size: page_size(&limits),
            pace: Pace::new(limits.per_second),
            visited: AtomicUsize::new(0),
        }
    }

    /// Visits every bucket once and says what was done. Stops between two pages when told to, or when
    /// the pace would have it wait beyond `until`.
    pub async fn pass(
        &self,
        buckets: &[BucketScope],
        until: Instant,
        stop: &CancellationToken,
    ) -> Report {
        let visited = self.visited.load(Ordering::Relaxed);
        let (last, first) = buckets.split_at(visited.checked_rem(buckets.len()).unwrap_or(0));
        let in_turn: Vec<BucketScope> = first.iter().chain(last).cloned().collect();
        futures::stream::iter(in_turn)
            .map(|bucket| self.bucket(bucket, until, stop))
            .buffer_unordered(self.limits.buckets_at_once)
            .fold(Report::default(), async |sum, report| sum + report)
            .await
    }

    async fn bucket(
        &self,
        bucket: BucketScope,
        until: Instant,
        stop: &CancellationToken,
    ) -> Report {
        let mut report = Report::default();
        if !self.pace.turn(until, stop).await {
            report.more = true;
            return report;
        }
        self.visited.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.pages(&bucket, until, stop, &mut report).await {
            report.note_unreadable(&bucket, &error);
        }
        report.log(&bucket);
        report
    }

    async fn pages(
        &self,
        bucket: &BucketScope,
        until: Instant,
        stop: &CancellationToken,
        report: &mut Report,
    ) -> Result<(), Error> {
        let keys = BucketKeys::new(bucket);
        let clock = ServerClock::read(&self.redis, &keys).await?;
        let mut after = None;
        for _ in 0..PAGES_PER_PASS {
            // The page is read after the wait, so that it is not out of date when it is sent.
            if !self.pace.turn(until, stop).await {
                break;
            }
            let members = self
                .redis
                .due(
                    &keys,
                    Index::SendPending,
                    clock.now(),
                    after.as_ref(),
                    self.page_size,
                )
                .await?;
            let full = members.len() == self.page_size;
            after = members.last().cloned();
            if !members.is_empty() {
                self.pace.begin(members.len());
                self.page(&keys, &clock, members, report).await;
            }
            if !full || report.got_nowhere() {
                return Ok(());
            }
        }
        report.more = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::schedule;

    #[test]
    fn the_pages_that_begin_at_once_are_a_seconds_worth() {
        let size = |per_second, buckets_at_once| {
            page_size(&ResendLimits {
                lease: Duration::from_secs(15),
                backoff: schedule(Duration::from_secs(5), Duration::from_secs(60)),
                per_second,
                buckets_at_once,
            })
        };
        assert_eq!(size(5_000, 8), PAGE_MAX);
        assert_eq!(size(100, 8), 12);
        assert_eq!(size(1, 8), 1);
    }
}
