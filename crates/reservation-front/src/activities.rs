//! What the front knows of activities, for a second at a time.
//!
//! Both caches read through one at a time per key, so that a hot activity costs two reads a second
//! however many buyers there are. What is not there is remembered too: a flood of calls for activities
//! that do not exist costs one read an id and a second, and never more memory than the capacity.
//! Nothing is served longer than that: while Redis is away nothing is known, and nothing is sold.

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Error, Meta, Redis};
use seckill_state_machine::{ActivityId, ActivityVersion, BucketId, Scope};
use tokio::sync::Semaphore;

/// Entries of each cache. An entry takes about 1 KiB, so both stay below 32 MiB; ten thousand
/// activities at once are far more than are ever on sale.
const CAPACITY: u64 = 16_384;

/// Reads in flight at once: misses of invented ids must not fill the queue that the scripts use.
const LOOKUPS_MAX: usize = 64;

/// Of these, reads for queries: invented ids in queries must not keep calls that reserve waiting.
const QUERY_LOOKUPS_MAX: usize = LOOKUPS_MAX / 4;

/// The cached view of all activities.
pub(crate) struct Activities {
    redis: Redis,
    versions: Cache<ActivityId, Option<ActivityVersion>>,
    metas: Cache<Scope, Option<Arc<Meta>>>,
    lookups: Semaphore,
    query_lookups: Semaphore,
}

impl Activities {
    pub(crate) fn new(redis: Redis, kept: Duration) -> Self {
        Self {
            redis,
            versions: Cache::builder()
                .max_capacity(CAPACITY)
                .time_to_live(kept)
                .build(),
            metas: Cache::builder()
                .max_capacity(CAPACITY)
                .time_to_live(kept)
                .build(),
            lookups: Semaphore::new(LOOKUPS_MAX),
            query_lookups: Semaphore::new(QUERY_LOOKUPS_MAX),
        }
    }

    /// The version that is on sale, if any.
    pub(crate) async fn current_version(
        &self,
        activity_id: &ActivityId,
    ) -> Result<Option<ActivityVersion>, Arc<Error>> {
        let read = async {
            let _room = self.lookups.acquire().await;
            self.redis.current_version(activity_id).await
        };
        self.versions.try_get_with_by_ref(activity_id, read).await
    }

    /// The settings of a version, from its first bucket.
    pub(crate) async fn meta(&self, scope: &Scope) -> Result<Option<Arc<Meta>>, Arc<Error>> {
        let read = async {
            let _room = self.lookups.acquire().await;
            let keys = BucketKeys::new(&scope.bucket(BucketId::ZERO));
            Ok(self.redis.meta(&keys).await?.map(Arc::new))
        };
        self.metas.try_get_with_by_ref(scope, read).await
    }

    /// The same for a query. It waits for its turn before it takes the scope's read upon itself, so
    /// that no call that reserves ever waits behind the queue of the queries.
    pub(crate) async fn meta_for_query(
        &self,
        scope: &Scope,
    ) -> Result<Option<Arc<Meta>>, Arc<Error>> {
        if let Some(known) = self.metas.get(scope).await {
            return Ok(known);
        }
        let _turn = self.query_lookups.acquire().await;
        self.meta(scope).await
    }
}
