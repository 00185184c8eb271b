//! A Redis server's clock, read once a pass.
//!
//! Due times are compared with scores that scripts wrote by Redis `TIME`. A local clock that is a
//! minute behind would leave members waiting, one that is ahead would steal the front's first send.

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Error, Redis};
use seckill_state_machine::TimestampMs;
use tokio::time::Instant;

/// The server's time at one moment, carried on by the local monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct ServerClock {
    read: TimestampMs,
    at: Instant,
}

impl ServerClock {
    /// Asks the server that owns the bucket.
    ///
    /// # Errors
    /// Whatever the command met.
    pub async fn read(redis: &Redis, keys: &BucketKeys) -> Result<Self, Error> {
        let read = redis.server_time(keys).await?;
        Ok(Self {
            read,
            at: Instant::now(),
        })
    }

    /// The server's time now.
    #[must_use]
    pub fn now(&self) -> TimestampMs {
        let since = i64::try_from(self.at.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.read + since
    }
}
