//! The handle that services hold: the servers, a limit of calls in flight, and the scripts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures::future::join_all;
use seckill_key_layout::BucketKeys;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cluster::{Cluster, Routed};
use crate::node::Node;
use crate::{Error, RedisConfig, runner};

/// A cheap handle to Redis, standalone or Cluster.
#[derive(Clone)]
pub struct Redis {
    shared: Arc<Shared>,
}

struct Shared {
    servers: Servers,
    turn: AtomicUsize,
    in_flight: Semaphore,
    limit: usize,
    stop: CancellationToken,
    tasks: TaskTracker,
    scripts: runner::Scripts,
}

/// Who may be called.
enum Servers {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

/// Who serves a call.
pub(crate) enum Route {
    One(Arc<Node>),
    Cluster(Arc<Cluster>, Routed),
}

impl Route {
    pub(crate) fn node(&self) -> &Node {
        match self {
            Self::One(node) => node,
            Self::Cluster(_, routed) => &routed.node,
        }
    }

    /// Finds out who serves what this server does not. A server alone redirects nobody.
    pub(crate) async fn redirected(&self) -> Result<(), Error> {
        match self {
            Self::One(_) => Ok(()),
            Self::Cluster(cluster, routed) => cluster.redirected(routed).await,
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let servers: Vec<String> = self
            .nodes()
            .iter()
            .map(|node| node.server().to_string())
            .collect();
        f.debug_struct("Redis")
            .field("servers", &servers)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Redis {
    /// Starts connecting in the background, for ever; an absent server is not an error here.
    ///
    /// It waits for the first connections at most as long as opening one may take, and in a Cluster twice
    /// as long (one server is asked for the others), so that a server that is there serves the first call.
    ///
    /// # Errors
    /// [`Error::Config`] for an unusable setting.
    pub async fn connect(config: &RedisConfig) -> Result<Self, Error> {
        let target = config.target()?;
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let servers = match target.servers().as_slice() {
            [server] if !target.is_cluster() => {
                let node = Node::start(&target, server)?;
                node.first_connection().await;
                Servers::One(node)
            }
            _ => {
                let limit = target.connect_timeout() * 2;
                let cluster = Arc::new(Cluster::new(target));
                // What takes longer is done by the task.
                let _ = tokio::time::timeout(limit, cluster.draw_first()).await;
                tasks.spawn(Arc::clone(&cluster).keep(stop.clone()));
                Servers::Cluster(cluster)
            }
        };
        tasks.close();
        Ok(Self {
            shared: Arc::new(Shared {
                servers,
                turn: AtomicUsize::new(0),
                in_flight: Semaphore::new(config.buffer_limit),
                limit: config.buffer_limit,
                stop,
                tasks,
                scripts: runner::Scripts::new(),
            }),
        })
    }

    /// One round trip to the server.
    ///
    /// # Errors
    /// When no answer comes in time or there is no connection.
    pub async fn ping(&self) -> Result<(), Error> {
        let _permit = self.permit()?;
        let turn = self.turn();
        let route = self.server(turn, None)?;
        let answer = route.node().send(turn, "PING", Vec::new()).await;
        let failed = |error| match Error::from_client("ping", &error) {
            Error::NotConnected(reason) => {
                Error::NotConnected(route.node().trouble().unwrap_or(reason))
            }
            other => other,
        };
        answer.map(|_| ()).map_err(failed)
    }

    /// Finishes what is in flight and closes the connections.
    pub async fn quit(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.wait().await;
        let nodes = self.nodes();
        join_all(nodes.iter().map(|node| node.quit())).await;
    }

    /// The newest instant at which a connection to the server of this bucket, or to any server, came up;
    /// `None` unless all of these are up. A caller that sees `None` must assume that a failover is going
    /// on.
    #[must_use]
    pub fn connected_since(&self, keys: Option<&BucketKeys>) -> Option<Instant> {
        if let Some(keys) = keys {
            let route = self.server(0, self.slot(keys)).ok()?;
            return route.node().since();
        }
        let nodes = self.nodes();
        let all_up: Option<Vec<Instant>> = nodes.iter().map(|node| node.since()).collect();
        all_up.and_then(|times| times.into_iter().max())
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

    fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.shared.servers {
            Servers::One(node) => vec![Arc::clone(node)],
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// The next turn: which connection a call takes, and which server if any will do.
    pub(crate) fn turn(&self) -> usize {
        self.shared.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// The server of a slot; without one, any.
    pub(crate) fn server(&self, turn: usize, slot: Option<u16>) -> Result<Route, Error> {
        match &self.shared.servers {
            Servers::One(node) => Ok(Route::One(Arc::clone(node))),
            Servers::Cluster(cluster) => {
                let routed = match slot {
                    Some(slot) => cluster.owner(slot),
                    None => cluster.any(turn),
                };
                Ok(Route::Cluster(Arc::clone(cluster), routed?))
            }
        }
    }

    pub(crate) fn is_clustered(&self) -> bool {
        matches!(self.shared.servers, Servers::Cluster(_))
    }

    /// The slot by which a Cluster routes a command; a server alone needs none.
    pub(crate) fn slot(&self, keys: &BucketKeys) -> Option<u16> {
        self.is_clustered().then(|| keys.slot())
    }
}
