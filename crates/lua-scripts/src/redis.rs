//! The handle that services hold: a few connections, a limit of calls in flight, and the scripts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fred::clients::{Client, WithOptions};
use fred::error::Error as ClientError;
use fred::interfaces::ClientLike;
use seckill_key_layout::BucketKeys;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::is_silence;
use crate::silence::Silence;
use crate::supervisor::{Supervisor, Uptime};
use crate::{Error, RedisConfig, runner};

/// A cheap handle to Redis, standalone or Cluster.
#[derive(Clone)]
pub struct Redis {
    shared: Arc<Shared>,
}

struct Shared {
    clients: Vec<WithOptions<Client>>,
    next: AtomicUsize,
    in_flight: Semaphore,
    limit: usize,
    clustered: bool,
    uptime: Arc<Uptime>,
    /// Changes when an answer, or the want of any, shows that the connections may lead to the wrong server.
    doubts: watch::Sender<u64>,
    silence: Silence,
    /// After which silence the connections are doubted.
    silent_after: Duration,
    stop: CancellationToken,
    tasks: TaskTracker,
    pub(crate) scripts: runner::Scripts,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis")
            .field("connections", &self.shared.clients.len())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Redis {
    /// Starts connecting in the background, for ever; an absent server is not an error here.
    ///
    /// It waits for the first connection at most as long as opening one may take, so that a server
    /// that is there serves the first call.
    ///
    /// # Errors
    /// [`Error::Config`] for an unusable setting.
    pub async fn connect(config: &RedisConfig) -> Result<Self, Error> {
        let (builder, options) = config.builder()?;
        let mut clients = Vec::with_capacity(config.connections);
        for _ in 0..config.connections {
            let client = builder
                .build()
                .map_err(|error| Error::Config(error.to_string()))?;
            clients.push(client.with_options(&options));
        }
        let clustered = clients.first().is_some_and(|client| client.is_clustered());
        let uptime = Uptime::new(clients.len());
        let doubts = watch::Sender::new(0);
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        for (index, client) in clients.iter().enumerate() {
            let supervisor = Supervisor {
                index,
                client: client.clone(),
                uptime: Arc::clone(&uptime),
                doubts: doubts.subscribe(),
                stop: stop.clone(),
                unresponsive_after: config.unresponsive_after(),
            };
            tasks.spawn(supervisor.run());
        }
        tasks.close();
        let redis = Self {
            shared: Arc::new(Shared {
                clients,
                next: AtomicUsize::new(0),
                in_flight: Semaphore::new(config.buffer_limit),
                limit: config.buffer_limit,
                clustered,
                uptime,
                doubts,
                silence: Silence::new(runner::SLOT_GROUPS),
                silent_after: config.unresponsive_after(),
                stop,
                tasks,
                scripts: runner::Scripts::new(),
            }),
        };
        redis.first_connection(config).await;
        Ok(redis)
    }

    /// Waits until all connections are up, but not longer than opening one may take.
    async fn first_connection(&self, config: &RedisConfig) {
        let up = async {
            for client in &self.shared.clients {
                while !client.is_connected() {
                    // An absent server shows up as an error here; it is tried again.
                    let _ = client.wait_for_connect().await;
                    tokio::task::yield_now().await;
                }
            }
        };
        let _ = tokio::time::timeout(config.connect_timeout, up).await;
    }

    /// One round trip to the server.
    ///
    /// # Errors
    /// When no answer comes in time or there is no connection.
    pub async fn ping(&self) -> Result<(), Error> {
        let _permit = self.permit()?;
        let answer = self.client().ping::<()>(None).await;
        answer.map_err(|error| match Error::from_client("ping", &error) {
            Error::NotConnected(reason) => {
                Error::NotConnected(self.shared.uptime.trouble().unwrap_or(reason))
            }
            other => other,
        })
    }

    /// Finishes what is in flight and closes the connections.
    pub async fn quit(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.wait().await;
    }

    /// The newest instant at which a connection came up; `None` unless all are up. A caller that sees
    /// `None` must assume that a failover is going on.
    #[must_use]
    pub fn connected_since(&self) -> Option<Instant> {
        self.shared.uptime.since()
    }

    /// Calls that wait for an answer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.limit - self.shared.in_flight.available_permits()
    }

    pub(crate) fn scripts(&self) -> &runner::Scripts {
        &self.shared.scripts
    }

    /// Room for one more call.
    pub(crate) fn permit(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.shared
            .in_flight
            .try_acquire()
            .map_err(|_| Error::Overloaded {
                limit: self.shared.limit,
            })
    }

    /// The next connection in turn, preferring one that is up.
    pub(crate) fn client(&self) -> &WithOptions<Client> {
        let clients = &self.shared.clients;
        let start = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let turn = |step: usize| &clients[start.wrapping_add(step) % clients.len()];
        (0..clients.len())
            .map(turn)
            .find(|client| client.is_connected())
            .unwrap_or_else(|| turn(0))
    }

    /// Looks for the right server again.
    pub(crate) fn doubt_connections(&self) {
        self.shared
            .doubts
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Notes what became of a call of a group of slots.
    pub(crate) fn hear<T>(&self, group: usize, outcome: &Result<T, ClientError>) {
        let silent = matches!(outcome, Err(error) if is_silence(error));
        if !silent {
            self.shared.silence.ends(group);
        } else if self.shared.silence.lasts(group) >= self.shared.silent_after {
            self.doubt_connections();
        }
    }

    pub(crate) fn is_clustered(&self) -> bool {
        self.shared.clustered
    }

    /// The slot by which a cluster routes a command; standalone servers need none.
    pub(crate) fn route(&self, keys: &BucketKeys) -> Option<u16> {
        self.shared.clustered.then(|| keys.slot())
    }
}
