//! Compares each bucket's counters in Redis with its row and its orders in PostgreSQL.

mod compare;

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Error as RedisError, ErrorKind, Index, Redis};
use seckill_order_store::{BucketTotals, Discrepancy, Error as StoreError, Store};
use seckill_state_machine::{Activity, BucketId, BucketScope, Scope};
use tokio::time::Instant;

use crate::persistence::{Persistence, Seen};
use crate::rounds::{Round, Rounds, alert};
use compare::{Difference, InRedis, Sight, compare, unreadable};

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
}

/// The rounds over all open versions.
pub struct Totals {
    redis: Redis,
    store: Store,
    rounds: Rounds,
    grace: Duration,
    versions: HashMap<Scope, Version>,
}

/// What the rounds over one version have seen.
struct Version {
    rule: Persistence<(BucketScope, &'static str, String)>,
    /// Whether differences may be open on record.
    dirty: bool,
}

/// What a read of one bucket came to; of a damaged one, what is wrong with it.
type Read = Result<InRedis, String>;

impl Totals {
    /// `grace` is how long something may be on its way before it counts as a difference.
    #[must_use]
    pub fn new(redis: Redis, store: Store, rounds: Rounds, grace: Duration) -> Self {
        Self {
            redis,
            store,
            rounds,
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
            if let Err(error) = self.version(activity, &mut version).await {
                failure.get_or_insert(error);
            }
            self.versions.insert(scope.clone(), version);
        }
        failure.map_or(Ok(()), Err)
    }

    async fn version(&self, activity: &Activity, version: &mut Version) -> Result<(), Error> {
        let scope = &activity.settings.scope;
        let mut round = Round::begin();
        let before = self.in_redis(activity).await?;
        let totals = self.store.bucket_totals(scope).await?;
        let after = self.in_redis(activity).await?;
        for bucket in totals {
            round.checked += 1;
            let (Some(before), Some(after)) =
                (before.get(&bucket.bucket_id), after.get(&bucket.bucket_id))
            else {
                continue;
            };
            for difference in differences(activity, bucket, before, after) {
                version.see(scope.bucket(bucket.bucket_id), difference, &mut round);
            }
        }
        version.rule.end_round();
        if round.found.is_empty() && !version.dirty {
            return Ok(());
        }
        version.dirty = true;
        let nothing_open = self.rounds.record(scope, &round).await?;
        version.dirty = !nothing_open;
        Ok(())
    }

    async fn in_redis(&self, activity: &Activity) -> Result<HashMap<BucketId, Read>, RedisError> {
        let settings = &activity.settings;
        let mut reads = futures::stream::iter(settings.bucket_count.buckets())
            .map(|bucket_id| async move {
                let keys = BucketKeys::new(&settings.scope.bucket(bucket_id));
                (bucket_id, self.bucket(&keys).await)
            })
            .buffer_unordered(BUCKETS_AT_ONCE);
        let mut found = HashMap::new();
        while let Some((bucket_id, read)) = reads.next().await {
            let read = match read {
                Ok(in_redis) => Ok(in_redis),
                // Damage is a difference of this bucket; silence ends the round.
                Err(error) if error.kind() == ErrorKind::Broken => Err(error.to_string()),
                Err(error) => return Err(error),
            };
            found.insert(bucket_id, read);
        }
        Ok(found)
    }

    async fn bucket(&self, keys: &BucketKeys) -> Result<InRedis, RedisError> {
        let stock = self.redis.stock(keys).await?;
        let open = self.redis.index_len(keys, Index::ReservationExpiry).await?;
        Ok(InRedis { stock, open })
    }
}

impl Version {
    fn see(&mut self, bucket: BucketScope, difference: Difference, round: &mut Round) {
        let (kind, values) = difference.lasting();
        let key = (bucket.clone(), kind, values);
        let seen = self.rule.see(key, Instant::now());
        if seen == Seen::Waiting {
            return;
        }
        let found = Discrepancy::new(kind, bucket, None, difference.detail);
        if seen == Seen::Confirmed {
            alert(&found);
        }
        round.found.push(found);
    }
}

fn differences(
    activity: &Activity,
    totals: BucketTotals,
    before: &Read,
    after: &Read,
) -> Vec<Difference> {
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
