//! The handle that all steps hang on.

use futures::{StreamExt as _, TryStreamExt as _};
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::Redis;
use seckill_order_store::Store;
use seckill_state_machine::{Activity, ActivityId, BucketId, Scope, TimestampMs};

use crate::Error;
use crate::compare::{Sides, row_of};

/// Buckets that are read or written at once. Each takes a few commands; 16 keep a round trip's
/// time filled and stay far below the handle's limit of commands in flight.
pub(crate) const BUCKETS_AT_ONCE: usize = 16;

/// Moves and audits activities. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Control {
    pub(crate) store: Store,
    pub(crate) redis: Redis,
}

impl Control {
    /// With these stores.
    #[must_use]
    pub const fn new(store: Store, redis: Redis) -> Self {
        Self { store, redis }
    }

    /// An activity version as PostgreSQL holds it.
    ///
    /// # Errors
    /// [`Error::Unknown`] when it does not exist, and store errors.
    pub async fn activity(&self, scope: &Scope) -> Result<Activity, Error> {
        let activity = self.store.activity(scope).await?;
        activity.ok_or_else(|| Error::Unknown(scope.clone()))
    }

    /// Every version of an activity, newest first.
    ///
    /// # Errors
    /// Store errors.
    pub async fn activities(&self, activity_id: &ActivityId) -> Result<Vec<Activity>, Error> {
        Ok(self.store.activities(Some(activity_id)).await?)
    }

    /// Every bucket of a version as both stores hold it, in order.
    ///
    /// # Errors
    /// Store errors, and damaged records.
    pub async fn sides(&self, activity: &Activity) -> Result<Vec<Sides>, Error> {
        let scope = &activity.settings.scope;
        let rows = self.store.stock_rows(scope).await?;
        let buckets = activity.settings.bucket_count.buckets().map(|bucket_id| {
            let row = row_of(&rows, bucket_id);
            async move {
                let bucket = scope.bucket(bucket_id);
                let keys = BucketKeys::new(&bucket);
                let meta = self.redis.meta(&keys).await?;
                let stock = self.redis.stock(&keys).await?;
                Ok::<_, Error>(Sides {
                    bucket,
                    row,
                    meta,
                    stock,
                })
            }
        });
        futures::stream::iter(buckets)
            .buffered(BUCKETS_AT_ONCE)
            .try_collect()
            .await
    }

    /// The clock that the scripts go by.
    pub(crate) async fn now(&self, scope: &Scope) -> Result<TimestampMs, Error> {
        let keys = BucketKeys::new(&scope.bucket(BucketId::ZERO));
        Ok(self.redis.server_time(&keys).await?)
    }
}
