//! Which keys would live for ever.
//!
//! The services' handle has no such question, since no service asks it. The audit asks it for every
//! key, so it does so on a connection of its own, a page in one round trip.

use std::fmt;

use fred::clients::Client;
use fred::error::Error as ClientError;
use fred::interfaces::{ClientLike as _, KeysInterface as _};
use fred::types::Builder;
use fred::types::config::{Config, ConnectionConfig, PerformanceConfig};
use seckill_lua_scripts::{Error as RedisError, RedisConfig};
use secrecy::ExposeSecret as _;

use crate::Error;

/// What the server answers for a key without an expiry.
const NEVER: i64 = -1;

const CALL: &str = "pttl";

/// Asks for the expiry of keys.
#[derive(Clone)]
pub struct Expiries {
    client: Client,
}

impl fmt::Debug for Expiries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expiries").finish_non_exhaustive()
    }
}

impl Expiries {
    /// Opens the connection.
    ///
    /// # Errors
    /// When the URL is none or the server cannot be reached.
    pub async fn connect(config: &RedisConfig) -> Result<Self, Error> {
        let parsed = Config::from_url(config.url.expose_secret())
            .map_err(|_| RedisError::Config("the url cannot be read".to_owned()))?;
        let client = Builder::from_config(parsed)
            .with_connection_config(|connection: &mut ConnectionConfig| {
                connection.connection_timeout = config.connect_timeout;
                connection.internal_command_timeout = config.connect_timeout;
            })
            .with_performance_config(|performance: &mut PerformanceConfig| {
                performance.default_command_timeout = config.command_timeout;
            })
            .build()
            .map_err(|error| RedisError::Config(error.to_string()))?;
        let connected = client.init().await;
        connected.map_err(|error| RedisError::NotConnected(error.to_string()))?;
        Ok(Self { client })
    }

    /// For each key, whether it never expires.
    pub(super) async fn immortal(&self, names: &[String]) -> Result<Vec<bool>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let pipeline = self.client.pipeline();
        for name in names {
            // Only queues the command; the answers come together.
            pipeline.pttl::<(), _>(name).await.map_err(unanswered)?;
        }
        let answers: Vec<i64> = pipeline.all().await.map_err(unanswered)?;
        if answers.len() != names.len() {
            let reason = format!("{} answers to {} questions", answers.len(), names.len());
            return Err(RedisError::Malformed { what: CALL, reason }.into());
        }
        Ok(answers.into_iter().map(|answer| answer == NEVER).collect())
    }

    /// Closes the connection.
    pub async fn quit(&self) {
        // A connection that is gone already needs no farewell.
        let _ = self.client.quit().await;
    }
}

/// A read has no effect, so that whatever went wrong, it may simply be asked again.
fn unanswered(error: ClientError) -> Error {
    RedisError::OutcomeUnknown {
        call: CALL,
        reason: error.to_string(),
    }
    .into()
}
