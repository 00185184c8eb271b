//! The slow pass: adds up, key by key, what the reservations of a bucket hold, and compares the sum
//! with the bucket's counter (I3). The counters alone would not show a double release.
//!
//! It is the one place of this service that scans keys. One step looks at 500 keys, steps are a pause
//! apart, and one bucket is walked after the other, so a sale does not feel it. A crash or a failed
//! step loses no more than the walk.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::{BucketKeys, KeyKind};
use seckill_lua_scripts::{Error as RedisError, Redis, SCAN_STEP, ScanCursor, Stock};
use seckill_order_store::{Discrepancy, Error as StoreError, Store};
use seckill_state_machine::{BucketScope, ReservationId, Scope};
use tokio::time::Instant;

use crate::findings;
use crate::persistence::{Persistence, Seen};
use crate::rounds::{Round, Rounds, alert};

/// Reservations of one step that are read at a time.
const CALLS_IN_FLIGHT: usize = 16;

/// Why a step did not get through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis did not answer.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// PostgreSQL did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The slow pass over all open buckets, one step at a time.
pub struct Holders {
    redis: Redis,
    store: Store,
    rounds: Rounds,
    interval: Duration,
    next_pass: Instant,
    queue: VecDeque<BucketScope>,
    walk: Option<Walk>,
    version: Option<(Scope, Round)>,
    rule: Persistence<(BucketScope, String)>,
}

/// The walk over one bucket's keys.
struct Walk {
    keys: BucketKeys,
    cursor: ScanCursor,
    before: Option<Stock>,
    /// A scan may show a key twice. A million ids are some 80 MB, for as long as the walk takes.
    counted: HashSet<ReservationId>,
    held: u64,
    unreadable: u64,
}

impl Holders {
    /// A pass begins every `interval`; `grace` is how long a sum may be wrong because it moves.
    #[must_use]
    pub fn new(
        redis: Redis,
        store: Store,
        rounds: Rounds,
        interval: Duration,
        grace: Duration,
    ) -> Self {
        Self {
            redis,
            store,
            rounds,
            interval,
            next_pass: Instant::now() + interval,
            queue: VecDeque::new(),
            walk: None,
            version: None,
            rule: Persistence::new(grace),
        }
    }

    /// One step: of the walk under way, else the beginning of the next one, else nothing.
    ///
    /// # Errors
    /// Whatever the step met; the walk is then begun again in the next pass.
    pub async fn step(&mut self) -> Result<(), Error> {
        let Some(mut walk) = self.walk.take() else {
            return self.begin().await;
        };
        if walk.step(&self.redis).await? {
            self.end(walk).await
        } else {
            self.walk = Some(walk);
            Ok(())
        }
    }

    async fn begin(&mut self) -> Result<(), Error> {
        if let Some(bucket) = self.queue.pop_front() {
            self.change_version(&bucket.scope).await?;
            let keys = BucketKeys::new(&bucket);
            let before = self.redis.stock(&keys).await?;
            self.walk = Some(Walk::new(keys, before));
            return Ok(());
        }
        self.finish_version().await?;
        if Instant::now() >= self.next_pass {
            self.rule.end_round();
            self.next_pass = Instant::now() + self.interval;
            self.queue = self.open_buckets().await?;
        }
        Ok(())
    }

    async fn open_buckets(&self) -> Result<VecDeque<BucketScope>, StoreError> {
        let open = self.store.open_scopes().await?;
        let buckets = open.iter().flat_map(|activity| {
            let settings = &activity.settings;
            let buckets = settings.bucket_count.buckets();
            buckets.map(|bucket_id| settings.scope.bucket(bucket_id))
        });
        Ok(buckets.collect())
    }

    async fn end(&mut self, walk: Walk) -> Result<(), Error> {
        let after = self.redis.stock(&walk.keys).await?;
        let bucket = walk.keys.scope().clone();
        let mut found = Vec::new();
        if let Some(detail) = walk.difference(after) {
            let seen = self
                .rule
                .see((bucket.clone(), detail.clone()), Instant::now());
            if seen != Seen::Waiting {
                let discrepancy = Discrepancy {
                    kind: findings::HOLDERS_DIFFER.to_owned(),
                    bucket,
                    reservation_id: None,
                    detail,
                };
                if seen == Seen::Confirmed {
                    alert(&discrepancy);
                }
                found.push(discrepancy);
            }
        }
        if let Some((_, round)) = &mut self.version {
            round.add(Round {
                checked: walk.counted.len().try_into().unwrap_or(u64::MAX),
                settled: 0,
                found,
            });
        }
        Ok(())
    }

    /// Buckets come version by version; a version's round is recorded when its last bucket is done.
    async fn change_version(&mut self, scope: &Scope) -> Result<(), Error> {
        if self
            .version
            .as_ref()
            .is_some_and(|(current, _)| current == scope)
        {
            return Ok(());
        }
        self.finish_version().await?;
        self.version = Some((scope.clone(), Round::default()));
        Ok(())
    }

    async fn finish_version(&mut self) -> Result<(), Error> {
        if let Some((scope, round)) = self.version.take() {
            self.rounds.record(&scope, &round).await?;
        }
        Ok(())
    }
}

impl Walk {
    fn new(keys: BucketKeys, before: Option<Stock>) -> Self {
        Self {
            keys,
            cursor: ScanCursor::start(),
            before,
            counted: HashSet::new(),
            held: 0,
            unreadable: 0,
        }
    }

    /// One step of the scan; says whether it was the last.
    async fn step(&mut self, redis: &Redis) -> Result<bool, RedisError> {
        let cursor = self.cursor.clone();
        let page = redis.scan_bucket(&self.keys, cursor, SCAN_STEP).await?;
        let new: Vec<ReservationId> = page
            .keys
            .iter()
            .filter_map(|key| match self.keys.kind_of(key) {
                Some(KeyKind::Reservation(id)) => Some(id),
                _ => None,
            })
            .filter(|id| self.counted.insert(id.clone()))
            .collect();
        let keys = &self.keys;
        let mut reads = futures::stream::iter(new)
            .map(|id| async move { redis.reservation(keys, &id).await })
            .buffer_unordered(CALLS_IN_FLIGHT);
        while let Some(read) = reads.next().await {
            match read {
                Ok(Some(record)) if record.status.holds_units() => {
                    self.held += u64::from(record.quantity.get());
                }
                Ok(_) => {}
                Err(RedisError::Malformed { .. }) => self.unreadable += 1,
                Err(error) => return Err(error),
            }
        }
        drop(reads);
        match page.next {
            Some(next) => self.cursor = next,
            None => return Ok(true),
        }
        Ok(false)
    }

    /// What differs. A bucket that moved during the walk cannot be judged by it.
    fn difference(&self, after: Option<Stock>) -> Option<String> {
        let stock = after.filter(|_| after == self.before)?;
        let reserved = stock.counters.reserved;
        (reserved != self.held || self.unreadable > 0).then(|| {
            format!(
                "reserved {reserved}, held by reservations {}, unreadable reservations {}",
                self.held, self.unreadable
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::invariants::StockCounters;
    use seckill_state_machine::{ActivityId, ActivityVersion, BucketId, SkuId};

    use super::*;

    fn stock(reserved: u64) -> Stock {
        Stock {
            counters: StockCounters {
                initial: 10,
                available: 10 - reserved,
                reserved,
            },
            released_total: 0,
        }
    }

    fn walk(before: Option<Stock>, held: u64) -> Walk {
        let scope = Scope {
            activity_id: ActivityId::parse("a1").unwrap(),
            sku_id: SkuId::parse("s1").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        };
        let keys = BucketKeys::new(&scope.bucket(BucketId::ZERO));
        Walk {
            held,
            ..Walk::new(keys, before)
        }
    }

    #[test]
    fn a_double_release_shows_and_a_bucket_that_moved_does_not() {
        assert!(walk(Some(stock(3)), 3).difference(Some(stock(3))).is_none());
        assert!(walk(Some(stock(2)), 3).difference(Some(stock(2))).is_some());
        assert!(walk(Some(stock(2)), 3).difference(Some(stock(3))).is_none());
        assert!(walk(None, 0).difference(None).is_none());
    }
}
