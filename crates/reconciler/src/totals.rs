//! Compares each bucket's counters in Redis with its row and its orders in PostgreSQL.

mod compare;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Error as RedisError, Index, Redis};
use seckill_order_store::{BucketTotals, Discrepancy, Error as StoreError, Store};
use seckill_state_machine::{Activity, BucketId, BucketScope, Scope};
use tokio::time::Instant;

use crate::persistence::{Persistence, Seen};
use crate::rounds::{Round, Rounds, alert};
use compare::{Difference, InRedis, Sight, compare};

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
    rule: Persistence<(BucketScope, &'static str, String)>,
    /// Versions whose last recorded round may have left differences open.
    dirty: HashSet<Scope>,
    /// Versions that had a round since the start.
    visited: HashSet<Scope>,
}

impl Totals {
    /// `grace` is how long something may be on its way before it counts as a difference.
    #[must_use]
    pub fn new(redis: Redis, store: Store, rounds: Rounds, grace: Duration) -> Self {
        Self {
            redis,
            store,
            rounds,
            rule: Persistence::new(grace),
            dirty: HashSet::new(),
            visited: HashSet::new(),
        }
    }

    /// One round over every open version.
    ///
    /// # Errors
    /// The first failure, after every version had its turn. The round then proves nothing about what
    /// it did not see, so it is not ended.
    pub async fn round(&mut self) -> Result<(), Error> {
        let open = self.store.open_scopes().await?;
        let mut failure = None;
        for activity in &open {
            if let Err(error) = self.version(activity).await {
                failure.get_or_insert(error);
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        self.rule.end_round();
        let still_open = |scope: &Scope| open.iter().any(|a| a.settings.scope == *scope);
        self.dirty.retain(still_open);
        self.visited.retain(still_open);
        Ok(())
    }

    async fn version(&mut self, activity: &Activity) -> Result<(), Error> {
        let scope = &activity.settings.scope;
        let before = self.in_redis(activity).await?;
        let totals = self.store.bucket_totals(scope).await?;
        let after = self.in_redis(activity).await?;
        let mut round = Round::default();
        for bucket in totals {
            round.checked += 1;
            let (Some(before), Some(after)) =
                (before.get(&bucket.bucket_id), after.get(&bucket.bucket_id))
            else {
                continue;
            };
            let sight = sight(activity, bucket, *before, *after);
            for difference in compare(&sight) {
                self.see(scope.bucket(bucket.bucket_id), difference, &mut round);
            }
        }
        self.record(scope, &round).await
    }

    async fn in_redis(
        &self,
        activity: &Activity,
    ) -> Result<HashMap<BucketId, InRedis>, RedisError> {
        let settings = &activity.settings;
        let mut reads = futures::stream::iter(settings.bucket_count.buckets())
            .map(|bucket_id| async move {
                let keys = BucketKeys::new(&settings.scope.bucket(bucket_id));
                let stock = self.redis.stock(&keys).await?;
                let open = self
                    .redis
                    .index_len(&keys, Index::ReservationExpiry)
                    .await?;
                Ok((bucket_id, InRedis { stock, open }))
            })
            .buffer_unordered(BUCKETS_AT_ONCE);
        let mut found = HashMap::new();
        while let Some(read) = reads.next().await {
            let (bucket_id, in_redis) = read?;
            found.insert(bucket_id, in_redis);
        }
        Ok(found)
    }

    fn see(&mut self, bucket: BucketScope, difference: Difference, round: &mut Round) {
        let (kind, values) = difference.lasting();
        let key = (bucket.clone(), kind, values);
        let seen = self.rule.see(key, Instant::now());
        if seen == Seen::Waiting {
            return;
        }
        let found = Discrepancy {
            kind: kind.to_owned(),
            bucket,
            reservation_id: None,
            detail: difference.detail,
        };
        if seen == Seen::Confirmed {
            alert(&found);
        }
        round.found.push(found);
    }

    async fn record(&mut self, scope: &Scope, round: &Round) -> Result<(), Error> {
        let tells = !round.found.is_empty();
        // Another process may have left some.
        let first_visit = self.visited.insert(scope.clone());
        if tells || first_visit {
            self.dirty.insert(scope.clone());
        }
        if !self.dirty.contains(scope) {
            return Ok(());
        }
        let proves = !tells && self.rounds.is_trusted();
        self.rounds.record(scope, round).await?;
        if proves {
            self.dirty.remove(scope);
        }
        Ok(())
    }
}

fn sight(activity: &Activity, totals: BucketTotals, before: InRedis, after: InRedis) -> Sight {
    Sight {
        state: activity.state,
        max_quantity: u64::from(activity.settings.max_quantity.get()),
        before,
        totals,
        after,
    }
}
