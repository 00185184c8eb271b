//! Watches whether an undecided reservation could be decided at all: whether the broker answers and
//! somebody consumes order requests. Patience counts only while it could.
//!
//! Every replica watches and notes what it saw; PostgreSQL puts the notes together. A note that is
//! lost, and a watcher that dies, only make patience longer.

use std::sync::Arc;
use std::time::Duration;

use seckill_message_bus::{Admin, Group};
use seckill_order_store::{Error, Store, WatchNote};
use tokio::time::timeout;

/// How many looks may be lost before the time between two sightings of health stops to count.
const LOOKS_PER_GAP: u32 = 5;

/// The watcher of one process.
pub struct Watch {
    admin: Arc<Admin>,
    store: Store,
    limit: Duration,
    max_gap: Duration,
    healthy: Option<bool>,
}

impl Watch {
    /// Looks every `interval`, and takes a broker that needs longer than `limit` for down.
    #[must_use]
    pub fn new(admin: Arc<Admin>, store: Store, interval: Duration, limit: Duration) -> Self {
        Self {
            admin,
            store,
            limit,
            max_gap: (interval + limit) * LOOKS_PER_GAP,
            healthy: None,
        }
    }

    /// One look.
    ///
    /// # Errors
    /// When it could not be noted.
    pub async fn look(&mut self) -> Result<(), Error> {
        let cause = self.ailment().await;
        let healthy = cause.is_none();
        if self.healthy.replace(healthy) != Some(healthy) {
            match &cause {
                None => tracing::info!("order requests can be consumed: patience counts"),
                Some(cause) => {
                    tracing::warn!(
                        cause,
                        "order requests cannot be consumed: patience stands still"
                    );
                }
            }
        }
        self.store
            .note_watch(&WatchNote {
                healthy,
                cause: cause.as_deref().unwrap_or_default(),
                max_gap: self.max_gap,
            })
            .await
    }

    async fn ailment(&self) -> Option<String> {
        let alive = self.admin.consumers_alive(Group::OrderConsumer);
        match timeout(self.limit, Box::pin(alive)).await {
            Ok(Ok(0)) => Some("no order consumer is connected".to_owned()),
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(format!("the broker does not answer: {error}")),
            // A broker that hangs is as good as none.
            Err(_) => Some("the broker does not answer in time".to_owned()),
        }
    }
}
