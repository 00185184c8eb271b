//! How the client is set up. Every limit goes through fred's own options: an outer `timeout()` would
//! leave the command queued, and it would run later although its caller was told that it failed.

use std::time::Duration;

use fred::clients::{Client, WithOptions};
use fred::interfaces::ClientLike;
use fred::types::Builder;
use fred::types::config::{
    Config, ConnectionConfig, Options, PerformanceConfig, ReconnectPolicy, Server, ServerConfig,
    TcpConfig, UnresponsiveConfig,
};
use secrecy::{ExposeSecret, SecretString};

use crate::Error;

/// Connections that one process may open; a script call keeps the server's only thread busy, so more
/// connections never make it faster.
const CONNECTIONS_MAX: usize = 64;

/// The most calls that one process may have in flight. A million calls of 1.2 KiB each are 1.2 GiB;
/// 65,536 are below 80 MiB, and at 30,000 calls a second they already mean two seconds of waiting.
const BUFFER_LIMIT_MAX: usize = 65_536;

/// Room in fred's queue beyond our own limit. The library puts its reconnect orders into that queue,
/// and its connection task ends for good when one does not fit.
const QUEUE_SLACK: usize = 1_024;

/// First wait before a reconnect, in milliseconds.
const RECONNECT_MIN_MS: u32 = 20;

/// Longest wait between two reconnects, in milliseconds: back within a second after an outage.
const RECONNECT_MAX_MS: u32 = 1_000;

/// Random part of each wait, in milliseconds, so that all replicas do not return at one instant.
const RECONNECT_JITTER_MS: u32 = 50;

/// Growth of the wait.
const RECONNECT_BASE: u32 = 2;

/// A connection that has not answered for this many command time limits is closed.
const UNRESPONSIVE_TIMEOUTS: u32 = 4;

/// And never sooner than this, so that one slow moment does not tear down all connections.
const UNRESPONSIVE_MIN: Duration = Duration::from_millis(500);

/// Events that a slow listener may lag behind before it loses some.
const EVENT_CAPACITY: usize = 128;

/// Where Redis is and what a call may cost.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    /// `redis://`, `rediss://` or `redis-cluster://`, with credentials if there are any.
    pub url: SecretString,
    /// How long a caller waits for the answer of one command.
    pub command_timeout: Duration,
    /// How long opening a connection may take.
    pub connect_timeout: Duration,
    /// Connections to open (to each node of a cluster).
    pub connections: usize,
    /// Calls that may be in flight at once; one more is turned away at once.
    pub buffer_limit: usize,
}

/// What the URL names, and how one of its servers is spoken to.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Of the URL as a whole.
    url: Config,
    settings: RedisConfig,
}

impl Target {
    /// Whether the URL says that it is a Cluster.
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.url.server, ServerConfig::Clustered { .. })
    }

    /// The servers that the URL names.
    pub(crate) fn servers(&self) -> Vec<Server> {
        self.url.server.hosts()
    }

    /// A client of one connection to one server, not yet connected.
    pub(crate) fn client(&self, server: &Server) -> Result<WithOptions<Client>, Error> {
        let client = self
            .builder(server)
            .build()
            .map_err(|error| Error::Config(error.to_string()))?;
        Ok(client.with_options(&self.settings.options()))
    }

    fn builder(&self, server: &Server) -> Builder {
        let mut config = self.url.clone();
        config.fail_fast = false;
        config.server = ServerConfig::Centralized {
            server: server.clone(),
        };
        let mut policy =
            ReconnectPolicy::new_exponential(0, RECONNECT_MIN_MS, RECONNECT_MAX_MS, RECONNECT_BASE);
        policy.set_jitter(RECONNECT_JITTER_MS);

        let mut builder = Builder::from_config(config);
        builder.set_policy(policy);
        builder.set_connection_config(self.settings.connection());
        builder.set_performance_config(PerformanceConfig {
            default_command_timeout: self.settings.command_timeout,
            broadcast_channel_capacity: EVENT_CAPACITY,
            ..PerformanceConfig::default()
        });
        builder
    }

    pub(crate) const fn connections(&self) -> usize {
        self.settings.connections
    }

    pub(crate) const fn connect_timeout(&self) -> Duration {
        self.settings.connect_timeout
    }

    /// After which silence a connection is given up.
    pub(crate) fn unresponsive_after(&self) -> Duration {
        self.settings.unresponsive_after()
    }
}

impl RedisConfig {
    /// Reads the URL.
    pub(crate) fn target(&self) -> Result<Target, Error> {
        self.check()?;
        let url = Config::from_url(self.url.expose_secret())
            .map_err(|_| Error::Config("the url cannot be read".to_owned()))?;
        Ok(Target {
            url,
            settings: self.clone(),
        })
    }

    fn check(&self) -> Result<(), Error> {
        let problem = if self.command_timeout < Duration::from_millis(1) {
            "the command time limit must be at least 1 ms"
        } else if self.connect_timeout < Duration::from_millis(1) {
            "the connect time limit must be at least 1 ms"
        } else if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            "connections must be 1 to 64"
        } else if !(1..=BUFFER_LIMIT_MAX).contains(&self.buffer_limit) {
            "the limit of calls in flight must be 1 to 65536"
        } else {
            return Ok(());
        };
        Err(Error::Config(problem.to_owned()))
    }

    fn connection(&self) -> ConnectionConfig {
        let unresponsive = self.unresponsive_after();
        ConnectionConfig {
            connection_timeout: self.connect_timeout,
            internal_command_timeout: self.connect_timeout,
            // One attempt: a command that was on the wire when its connection broke is never sent
            // again by the library, which would show the caller the second execution's answer.
            max_command_attempts: 1,
            max_command_buffer_len: self.buffer_limit + QUEUE_SLACK,
            unresponsive: UnresponsiveConfig {
                max_timeout: Some(unresponsive),
                interval: unresponsive / 4,
            },
            reconnect_on_auth_error: true,
            tcp: TcpConfig {
                nodelay: Some(true),
                ..TcpConfig::default()
            },
            ..ConnectionConfig::default()
        }
    }

    /// What each command carries. `fail_fast` turns commands away while there is no connection,
    /// instead of queueing them until it returns.
    fn options(&self) -> Options {
        Options {
            max_attempts: Some(1),
            timeout: Some(self.command_timeout),
            fail_fast: true,
            ..Options::default()
        }
    }

    fn unresponsive_after(&self) -> Duration {
        (self.command_timeout * UNRESPONSIVE_TIMEOUTS).max(UNRESPONSIVE_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> RedisConfig {
        RedisConfig {
            url: url.into(),
            command_timeout: Duration::from_millis(40),
            connect_timeout: Duration::from_secs(1),
            connections: 2,
            buffer_limit: 100,
        }
    }

    #[test]
    fn a_wrong_setting_is_named_and_the_url_is_not_repeated() {
        assert!(config("redis://:pw@127.0.0.1:1/0").target().is_ok());
        let error = config("not a url with pw").target().err().unwrap();
        assert!(!error.to_string().contains("pw"), "{error}");
        let none = RedisConfig {
            connections: 0,
            ..config("redis://h")
        };
        let error = none.target().err().unwrap();
        assert!(error.to_string().contains("connections"), "{error}");
    }

    #[test]
    fn no_command_is_sent_twice_and_all_have_a_time_limit() {
        let target = config("redis-cluster://u:p@127.0.0.1:1?node=h:2")
            .target()
            .unwrap();
        assert!(target.is_cluster());
        let servers = target.servers();
        assert_eq!(servers.len(), 2);
        let builder = target.builder(&servers[1]);
        let url = builder.get_config().unwrap();
        // A library that knew of the Cluster would bring its servers' fates together again.
        assert_eq!(url.server.hosts(), [servers[1].clone()]);
        assert!(!url.server.is_clustered());
        assert_eq!(url.password.as_deref(), Some("p"));
        let connection = builder.get_connection_config();
        assert_eq!(connection.max_command_attempts, 1);
        assert_eq!(connection.max_command_buffer_len, 100 + QUEUE_SLACK);
        let options = target.settings.options();
        assert_eq!(options.timeout, Some(Duration::from_millis(40)));
        assert!(options.fail_fast);
    }
}
