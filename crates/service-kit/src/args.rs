//! The settings that services share, as groups to be flattened into each service's own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use seckill_key_layout::{HmacSecrets, SecretsError};
use seckill_lua_scripts::{Redis, RedisConfig};
use seckill_message_bus::BusConfig;
use seckill_order_store::{Store, StoreConfig};
use seckill_telemetry::LogFormat;
use secrecy::SecretString;

use crate::Error;
use crate::values::{
    count, millis, millis_between, name_servers, namespace, positive_millis, postgres_url,
    redis_url,
};

/// Most connections of one process to one server: a hundred processes still fit into the ten
/// thousand clients that a Redis server accepts.
const CONNECTIONS_MAX: u64 = 64;

/// Most commands that may wait for Redis at once: what the client itself accepts.
const BUFFER_MAX: u64 = 65_536;

/// Where Redis is and how long it is waited for.
#[derive(Debug, Clone, Args)]
pub struct RedisArgs {
    /// URL of Redis; redis-cluster:// stands for a Cluster
    #[arg(long, env = "SECKILL_REDIS_URL", hide_env_values = true, value_parser = redis_url)]
    pub redis_url: SecretString,

    /// Time limit of one command, scripts included, in milliseconds
    #[arg(long, env = "SECKILL_REDIS_COMMAND_TIMEOUT_MS", default_value = "40",
          value_name = "MS", value_parser = positive_millis)]
    pub redis_command_timeout_ms: Duration,

    /// Time limit of one attempt to connect, in milliseconds
    #[arg(long, env = "SECKILL_REDIS_CONNECT_TIMEOUT_MS", default_value = "2000",
          value_name = "MS", value_parser = positive_millis)]
    pub redis_connect_timeout_ms: Duration,

    /// Connections to each Redis server
    #[arg(long, env = "SECKILL_REDIS_CONNECTIONS", default_value = "1",
          value_name = "COUNT", value_parser = count::<CONNECTIONS_MAX>)]
    pub redis_connections: usize,

    /// Commands that may wait for a connection; further ones are refused at once
    #[arg(long, env = "SECKILL_REDIS_BUFFER_LIMIT", default_value = "2000",
          value_name = "COUNT", value_parser = count::<BUFFER_MAX>)]
    pub redis_buffer_limit: usize,
}

impl RedisArgs {
    /// The settings in the form that the scripts' crate takes.
    #[must_use]
    pub fn config(&self) -> RedisConfig {
        RedisConfig {
            url: self.redis_url.clone(),
            command_timeout: self.redis_command_timeout_ms,
            connect_timeout: self.redis_connect_timeout_ms,
            connections: self.redis_connections,
            buffer_limit: self.redis_buffer_limit,
        }
    }

    /// Begins to connect, for ever and in the background.
    ///
    /// # Errors
    /// [`Error::Setting`] when the URL is none.
    pub async fn connect(&self) -> Result<Redis, Error> {
        Redis::connect(&self.config())
            .await
            .map_err(|error| Error::setting("--redis-url (SECKILL_REDIS_URL)", error))
    }
}

/// Where PostgreSQL is and how long it is waited for.
#[derive(Debug, Clone, Args)]
pub struct PostgresArgs {
    /// URL of the database
    #[arg(long, env = "SECKILL_DATABASE_URL", hide_env_values = true, value_parser = postgres_url)]
    pub database_url: SecretString,

    /// Connections in the pool
    #[arg(long, env = "SECKILL_DATABASE_POOL_SIZE", default_value = "8",
          value_name = "COUNT", value_parser = count::<CONNECTIONS_MAX>)]
    pub database_pool_size: usize,

    /// Longest wait for a connection of the pool, in milliseconds
    #[arg(long, env = "SECKILL_DATABASE_ACQUIRE_TIMEOUT_MS", default_value = "2000",
          value_name = "MS", value_parser = positive_millis)]
    pub database_acquire_timeout_ms: Duration,

    /// Longest run of one statement, in milliseconds
    #[arg(long, env = "SECKILL_DATABASE_STATEMENT_TIMEOUT_MS", default_value = "10000",
          value_name = "MS", value_parser = positive_millis)]
    pub database_statement_timeout_ms: Duration,

    /// Longest wait for a lock, in milliseconds
    #[arg(long, env = "SECKILL_DATABASE_LOCK_TIMEOUT_MS", default_value = "5000",
          value_name = "MS", value_parser = positive_millis)]
    pub database_lock_timeout_ms: Duration,

    /// Longest pause inside a transaction, in milliseconds
    #[arg(long, env = "SECKILL_DATABASE_IDLE_IN_TRANSACTION_TIMEOUT_MS", default_value = "10000",
          value_name = "MS", value_parser = positive_millis)]
    pub database_idle_in_transaction_timeout_ms: Duration,
}

impl PostgresArgs {
    /// The settings in the form that the store takes; `application_name` shows up in the server's
    /// list of sessions.
    #[must_use]
    pub fn config(&self, application_name: &str) -> StoreConfig {
        StoreConfig {
            url: self.database_url.clone(),
            pool_size: self.database_pool_size,
            acquire_timeout: self.database_acquire_timeout_ms,
            statement_timeout: self.database_statement_timeout_ms,
            lock_timeout: self.database_lock_timeout_ms,
            idle_in_transaction_timeout: self.database_idle_in_transaction_timeout_ms,
            application_name: application_name.to_owned(),
        }
    }

    /// Makes the pool, which connects when it is first used.
    ///
    /// # Errors
    /// [`Error::Setting`] when the URL is none.
    pub fn connect(&self, application_name: &str) -> Result<Store, Error> {
        Store::connect(&self.config(application_name))
            .map_err(|error| Error::setting("--database-url (SECKILL_DATABASE_URL)", error))
    }
}

/// Where the message bus is.
#[derive(Debug, Clone, Args)]
pub struct BrokerArgs {
    /// Address of the name server, host:port; further ones after ';'
    #[arg(long, env = "SECKILL_ROCKETMQ_NAMESRV", value_name = "ADDR", value_parser = name_servers)]
    pub rocketmq_namesrv: String,

    /// Prefix of all topics and groups; empty in production
    #[arg(long, env = "SECKILL_ROCKETMQ_NAMESPACE", default_value = "", value_name = "PREFIX",
          value_parser = namespace)]
    pub rocketmq_namespace: String,

    /// Time limit of one send, in milliseconds
    #[arg(long, env = "SECKILL_ROCKETMQ_SEND_TIMEOUT_MS", default_value = "3000",
          value_name = "MS", value_parser = send_timeout)]
    pub rocketmq_send_timeout_ms: Duration,
}

impl BrokerArgs {
    /// The settings in the form that the bus takes. `role` names the client in the broker's
    /// lists.
    #[must_use]
    pub fn config(&self, role: &str) -> BusConfig {
        BusConfig {
            namesrv: self.rocketmq_namesrv.clone(),
            namespace: self.rocketmq_namespace.clone(),
            send_timeout: self.rocketmq_send_timeout_ms,
            instance: role.to_owned(),
        }
    }
}

/// The bus client takes time limits of 100 ms to a minute.
fn send_timeout(text: &str) -> Result<Duration, String> {
    millis_between::<100, 60_000>(text)
}

/// The secrets that reservation ids are derived from.
#[derive(Debug, Clone, Args)]
pub struct SecretArgs {
    /// Secrets of reservation ids, `<version>:<base64>`, separated by commas
    #[arg(long, env = "SECKILL_HMAC_SECRETS", hide_env_values = true, value_parser = secrets)]
    pub hmac_secrets: Arc<HmacSecrets>,
}

fn secrets(text: &str) -> Result<Arc<HmacSecrets>, SecretsError> {
    text.parse().map(Arc::new)
}

/// How the process starts, is watched and stops.
#[derive(Debug, Clone, Args)]
pub struct ProcessArgs {
    /// Address of /livez and /readyz; port 0 takes any free one
    #[arg(long, env = "SECKILL_ADMIN_ADDR", value_name = "ADDR",
          default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))]
    pub admin_addr: SocketAddr,

    /// Folder for the run file, which tells pid and addresses
    #[arg(long, env = "SECKILL_RUN_DIR", value_name = "DIR")]
    pub run_dir: Option<PathBuf>,

    /// Number of this replica, for the run file's name
    #[arg(long, env = "SECKILL_INSTANCE", default_value_t = 1, value_name = "N")]
    pub instance: u32,

    /// From SIGTERM, when the process stops being ready, to when it takes no more work, in milliseconds
    ///
    /// Load balancers need this long to notice.
    #[arg(long, env = "SECKILL_DRAIN_DELAY_MS", default_value = "500", value_name = "MS",
          value_parser = millis)]
    pub drain_delay_ms: Duration,

    /// How long work in hand may take after that, in milliseconds
    #[arg(long, env = "SECKILL_GRACE_PERIOD_MS", default_value = "20000", value_name = "MS",
          value_parser = positive_millis)]
    pub grace_period_ms: Duration,

    /// Form of the log: auto, json or text
    #[arg(long, env = "SECKILL_LOG_FORMAT", default_value = "auto", value_name = "FORM",
          value_parser = log_format)]
    pub log_format: LogFormat,
}

fn log_format(text: &str) -> Result<LogFormat, seckill_telemetry::UnknownFormat> {
    text.parse()
}
