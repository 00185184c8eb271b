//! The slow pass: adds up, key by key, what the reservations of a bucket hold, and compares the sum
//! with the bucket's counter (I3). The counters alone would not show a double release.
//!
//! It is the one place of this service that scans keys. One step looks at 500 keys, steps are a pause
//! apart, and one bucket is walked after the other, so a sale does not feel it. A crash or a failed
//! step loses no more than the walk.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::{BucketKeys, KeyKind};
use seckill_lua_scripts::{Error as RedisError, ErrorKind, Redis, SCAN_STEP, ScanCursor, Stock};
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
    grace: Duration,
    /// A bucket's round of the rule ends when it was judged: one that could not be is no proof.
    rules: HashMap<BucketScope, Persistence<String>>,
}

/// What a walk over one bucket came to.
#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    /// The counter is the sum.
    Agrees,
    /// It is not.
    Differs(String),
    /// The bucket moved during the walk, which cannot judge it therefore.
    Moved,
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
            grace,
            rules: HashMap::new(),
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
        let done = match walk.step(&self.redis).await {
            Ok(false) => {
                self.walk = Some(walk);
                return Ok(());
            }
            Ok(true) => self.redis.stock(&walk.keys).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(after) => {
                self.end(&walk, after);
                Ok(())
            }
            Err(error) => Err(self.drop_bucket(walk.keys.scope(), error)),
        }
    }

    /// A bucket that is not walked to the end leaves its version's round incomplete.
    fn drop_bucket(&mut self, bucket: &BucketScope, error: RedisError) -> Error {
        self.incomplete(format!("bucket {}: {error}", bucket.bucket_id));
        error.into()
    }

    fn incomplete(&mut self, why: String) {
        if let Some((_, round)) = &mut self.version {
            round.error.get_or_insert(why);
        }
    }

    async fn begin(&mut self) -> Result<(), Error> {
        if let Some(bucket) = self.queue.front().cloned() {
            // It stays in the queue if the version before it cannot be put on record.
            self.change_version(&bucket.scope).await?;
            self.queue.pop_front();
            let keys = BucketKeys::new(&bucket);
            match self.redis.stock(&keys).await {
                Ok(before) => self.walk = Some(Walk::new(keys, before)),
                Err(error) => return Err(self.drop_bucket(&bucket, error)),
            }
            return Ok(());
        }
        self.finish_version().await?;
        if Instant::now() >= self.next_pass {
            self.next_pass = Instant::now() + self.interval;
            self.queue = self.open_buckets().await?;
            let open: HashSet<&BucketScope> = self.queue.iter().collect();
            self.rules.retain(|bucket, _| open.contains(bucket));
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

    fn end(&mut self, walk: &Walk, after: Option<Stock>) {
        let bucket = walk.keys.scope();
        let mut round = Round::begin();
        round.checked = walk.counted.len().try_into().unwrap_or(u64::MAX);
        match walk.judge(after) {
            Judgement::Moved => {
                let id = bucket.bucket_id;
                round.error = Some(format!("bucket {id} moved while it was added up"));
            }
            Judgement::Agrees => {
                self.rules.remove(bucket);
            }
            Judgement::Differs(detail) => self.differs(bucket, detail, &mut round),
        }
        if let Some((_, of_version)) = &mut self.version {
            of_version.add(round);
        }
    }

    fn differs(&mut self, bucket: &BucketScope, detail: String, round: &mut Round) {
        let rule = self
            .rules
            .entry(bucket.clone())
            .or_insert_with(|| Persistence::new(self.grace));
        let seen = rule.see(detail.clone(), Instant::now());
        rule.end_round();
        if seen == Seen::Waiting {
            round.waiting = true;
            return;
        }
        let discrepancy = Discrepancy::new(findings::HOLDERS_DIFFER, bucket.clone(), None, detail);
        if seen == Seen::Confirmed {
            alert(&discrepancy);
        }
        round.found.push(discrepancy);
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
        self.version = Some((scope.clone(), Round::begin()));
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
                Err(error) if error.kind() == ErrorKind::Broken => self.unreadable += 1,
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

    fn judge(&self, after: Option<Stock>) -> Judgement {
        if after != self.before {
            return Judgement::Moved;
        }
        let Some(stock) = after else {
            // That there are no counters is told with the totals.
            return Judgement::Agrees;
        };
        let reserved = stock.counters.reserved;
        if reserved == self.held && self.unreadable == 0 {
            return Judgement::Agrees;
        }
        Judgement::Differs(format!(
            "reserved {reserved}, held by reservations {}, unreadable reservations {}",
            self.held, self.unreadable
        ))
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
    fn a_double_release_shows_and_a_bucket_that_moved_is_not_judged() {
        let judge = |before, held, after| walk(before, held).judge(after);
        let (two, three) = (Some(stock(2)), Some(stock(3)));
        assert_eq!(judge(three, 3, three), Judgement::Agrees);
        assert!(matches!(judge(two, 3, two), Judgement::Differs(_)));
        assert_eq!(judge(two, 3, three), Judgement::Moved);
        assert_eq!(judge(None, 0, None), Judgement::Agrees);
    }
}
