//! Compares each bucket's counters in Redis with its row and its orders in PostgreSQL.

mod compare;
mod metas;

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Error as RedisError, ErrorKind, Index, Meta, Redis};
use seckill_order_store::{BucketTotals, Error as StoreError, Store};
use seckill_settlement::Error as SettlementError;
use seckill_state_machine::{Activity, BucketId, BucketScope, Scope};
use tokio::time::Instant;

use crate::apply::Applier;
use crate::finding::{Finding, FindingKey};
use crate::persistence::{Persistence, Seen};
use crate::rounds::{Round, Rounds, alert};
use compare::{InRedis, Sight, compare, unreadable};

/// Buckets read at once: two commands each.
const BUCKETS_AT_ONCE: usize = 32;

/// Why a round did not get through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis did not answer.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// PostgreSQL did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A repair did not get through.
    #[error(transparent)]
    Settlement(#[from] SettlementError),
}

/// The rounds over all open versions.
pub struct Totals {
    redis: Redis,
    store: Store,
    rounds: Rounds,
    applier: Applier,
    grace: Duration,
    versions: HashMap<Scope, Version>,
}

/// What the rounds over one version have seen.
struct Version {
    rule: Persistence<(BucketScope, FindingKey)>,
    /// Whether differences may be open on record.
    dirty: bool,
}

/// What a read came to; of something damaged, what is wrong with it.
type Read<T> = Result<T, String>;

impl Totals {
    /// `grace` is how long something may be on its way before it counts as a difference.
    #[must_use]
    pub fn new(
        redis: Redis,
        store: Store,
        rounds: Rounds,
        applier: Applier,
        grace: Duration,
    ) -> Self {
        Self {
            redis,
            store,
            rounds,
            applier,
            grace,
            versions: HashMap::new(),
        }
    }

    /// One round over every open version.
    ///
    /// # Errors
    /// The first failure, after every version had its turn. The failed version's round proves nothing
    /// about what it did not see, so it is not ended.
    pub async fn round(&mut self) -> Result<(), Error> {
        let open = self.store.open_scopes().await?;
        self.versions
            .retain(|scope, _| open.iter().any(|a| a.settings.scope == *scope));
        let mut failure = None;
        for activity in &open {
            let scope = &activity.settings.scope;
            let mut version = self.versions.remove(scope).unwrap_or_else(|| Version {
                rule: Persistence::new(self.grace),
                // Another process may have left some.
                dirty: true,
            });
            let end = self.version(activity, &mut version).await;
            if let Err(error) = end {
                failure.get_or_insert(error);
            }
            self.versions.insert(scope.clone(), version);
        }
        failure.map_or(Ok(()), Err)
    }

    async fn version(&mut self, activity: &Activity, version: &mut Version) -> Result<(), Error> {
        let scope = &activity.settings.scope;
        let mut round = Round::begin();
        let before = self.in_redis(activity).await?;
        let totals = self.store.bucket_totals(scope).await?;
        let after = self.in_redis(activity).await?;
        for bucket in totals {
            round.checked += 1;
            let (Some((before, _)), Some((after, meta))) =
                (before.get(&bucket.bucket_id), after.get(&bucket.bucket_id))
            else {
                continue;
            };
            let bucket_scope = scope.bucket(bucket.bucket_id);
            let mut found = differences(activity, bucket, before, after);
            found.extend(metas::meta(activity, &bucket_scope, &bucket, meta));
            for finding in found {
                version.see(&bucket_scope, finding, &mut round);
            }
        }
        let current = told(self.redis.current_version(&scope.activity_id).await)?;
        if let Some(finding) = metas::pointer(activity, &current) {
            version.see(&scope.bucket(BucketId::ZERO), finding, &mut round);
        }
        version.rule.end_round();
        if round.is_quiet() && !version.dirty {
            return Ok(());
        }
        version.dirty = true;
        let nothing_open = self.rounds.record(scope, &round).await?;
        version.dirty = !nothing_open;
        if !nothing_open {
            self.applier.apply(scope, self.rounds.kind()).await?;
        }
        Ok(())
    }

    async fn in_redis(
        &self,
        activity: &Activity,
    ) -> Result<HashMap<BucketId, (Read<InRedis>, Read<Option<Meta>>)>, RedisError> {
        let settings = &activity.settings;
        let mut reads = futures::stream::iter(settings.bucket_count.buckets())
            .map(|bucket_id| async move {
                let keys = BucketKeys::new(&settings.scope.bucket(bucket_id));
                let (bucket, meta) = tokio::join!(self.bucket(&keys), self.redis.meta(&keys));
                (bucket_id, told(bucket), told(meta))
            })
            .buffer_unordered(BUCKETS_AT_ONCE);
        let mut found = HashMap::new();
        while let Some((bucket_id, bucket, meta)) = reads.next().await {
            found.insert(bucket_id, (bucket?, meta?));
        }
        Ok(found)
    }

    async fn bucket(&self, keys: &BucketKeys) -> Result<InRedis, RedisError> {
        let stock = self.redis.stock(keys).await?;
        let open = self.redis.index_len(keys, Index::ReservationExpiry).await?;
        Ok(InRedis { stock, open })
    }
}

/// Damage is a difference of what was read; silence ends the round.
fn told<T>(read: Result<T, RedisError>) -> Result<Read<T>, RedisError> {
    match read {
        Ok(read) => Ok(Ok(read)),
        Err(error) if error.kind() == ErrorKind::Broken => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

impl Version {
    fn see(&mut self, bucket: &BucketScope, finding: Finding, round: &mut Round) {
        let class = finding.class;
        let key = (bucket.clone(), finding.key());
        let seen = self.rule.see(key, Instant::now());
        let found = finding.in_bucket(bucket);
        if seen == Seen::Waiting {
            // No more than a handful a bucket.
            round.waiting.push(found);
            return;
        }
        if seen == Seen::Confirmed {
            alert(&found, class);
        }
        round.found.push(found);
    }
}

fn differences(
    activity: &Activity,
    totals: BucketTotals,
    before: &Read<InRedis>,
    after: &Read<InRedis>,
) -> Vec<Finding> {
    match (before, after) {
        (Ok(before), Ok(after)) => compare(&Sight {
            state: activity.state,
            max_quantity: u64::from(activity.settings.max_quantity.get()),
            before: *before,
            totals,
            after: *after,
        }),
        (_, Err(damage)) | (Err(damage), Ok(_)) => unreadable(&totals, damage),
    }
}
