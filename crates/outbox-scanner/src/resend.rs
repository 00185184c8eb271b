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

use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Error, Index, Redis};
use seckill_message_bus::Producer;
use seckill_state_machine::BucketScope;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::clock::ServerClock;
use crate::pace::Pace;

pub use report::Report;

/// Members of one page: four batches of the bus's 64 messages, which go out side by side. They take
/// some ten milliseconds and, when the broker hangs, two send time limits of the lease's three.
const PAGE_SIZE: usize = 256;

/// Pages of one bucket in one pass. A bucket with a long backlog then waits for the others' turn;
/// 8 pages are 2,048 members, under half a second's worth of the default rate.
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
    pace: Pace,
}

impl Resender {
    /// Connects the two sides.
    #[must_use]
    pub fn new(redis: Redis, producer: Producer, limits: ResendLimits) -> Self {
        Self {
            redis,
            producer,
            limits,
            pace: Pace::new(limits.per_second),
        }
    }

    /// Visits every bucket once and says what was done. Stops between two pages when told to.
    pub async fn pass(&self, buckets: &[BucketScope], stop: &CancellationToken) -> Report {
        futures::stream::iter(buckets.iter().cloned())
            .map(|bucket| self.bucket(bucket, stop))
            .buffer_unordered(self.limits.buckets_at_once)
            .fold(Report::default(), async |sum, report| sum + report)
            .await
    }

    async fn bucket(&self, bucket: BucketScope, stop: &CancellationToken) -> Report {
        let mut report = Report::default();
        if let Err(error) = self.pages(&bucket, stop, &mut report).await {
            report.note_unreadable(&bucket, &error);
        }
        report.log(&bucket);
        report
    }

    async fn pages(
        &self,
        bucket: &BucketScope,
        stop: &CancellationToken,
        report: &mut Report,
    ) -> Result<(), Error> {
        let keys = BucketKeys::new(bucket);
        let clock = ServerClock::read(&self.redis, &keys).await?;
        let mut after = None;
        for _ in 0..PAGES_PER_PASS {
            if stop.is_cancelled() {
                return Ok(());
            }
            let members = self
                .redis
                .due(
                    &keys,
                    Index::SendPending,
                    clock.now(),
                    after.as_ref(),
                    PAGE_SIZE,
                )
                .await?;
            let full = members.len() == PAGE_SIZE;
            after = members.last().cloned();
            if !members.is_empty() {
                self.pace.book(members.len()).await;
                self.page(&keys, &clock, members, report).await;
            }
            if !full {
                return Ok(());
            }
        }
        report.more = true;
        Ok(())
    }
}
