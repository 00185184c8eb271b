//! The buckets that may hold unsent reservations: every bucket of every version whose keys still
//! live, also of closed and superseded ones (a reservation accepted in the last second of a sale
//! is sent after its end).
//!
//! The list comes from PostgreSQL. While PostgreSQL is away the last one is kept: the backlog of a
//! sale that is going on must not wait for a database that resending does not need.

use std::sync::Arc;

use seckill_order_store::{Error, Store};
use seckill_state_machine::BucketScope;
use tokio::sync::watch;

/// The current list, shared by whoever needs it.
#[derive(Debug)]
pub struct OpenBuckets {
    buckets: watch::Sender<Arc<[BucketScope]>>,
}

impl Default for OpenBuckets {
    fn default() -> Self {
        Self {
            buckets: watch::Sender::new(Arc::from(Vec::new())),
        }
    }
}

impl OpenBuckets {
    /// Reads the list again; on an error the old one stays.
    ///
    /// # Errors
    /// Whatever the store met.
    pub async fn refresh(&self, store: &Store) -> Result<(), Error> {
        let activities = store.open_scopes().await?;
        let buckets: Vec<BucketScope> = activities
            .iter()
            .flat_map(|activity| {
                let settings = &activity.settings;
                settings
                    .bucket_count
                    .buckets()
                    .map(|bucket_id| settings.scope.bucket(bucket_id))
            })
            .collect();
        self.buckets.send_if_modified(|current| {
            let changed = **current != *buckets;
            if changed {
                tracing::info!(
                    activities = activities.len(),
                    buckets = buckets.len(),
                    "the list of open buckets changed"
                );
                *current = Arc::from(buckets);
            }
            changed
        });
        Ok(())
    }

    /// The list as it was last read.
    #[must_use]
    pub fn current(&self) -> Arc<[BucketScope]> {
        Arc::clone(&self.buckets.borrow())
    }
}
