//! One server and the connections to it.
//!
//! In a Cluster each server has connections of its own. The library's cluster client is one task for all
//! of them: when one server dies or hangs it connects to every one anew, and until the replica is
//! elected it turns all calls away, also those of slots whose server is well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fred::clients::{Client, WithOptions};
use fred::error::Error as ClientError;
use fred::interfaces::ClientLike;
use fred::types::config::Server;
use fred::types::{ClusterHash, CustomCommand, Value};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::config::Target;
use crate::error::{is_cluster_down, is_from_replica, is_silence};
use crate::scripts::Kind;
use crate::silence::Silence;
use crate::supervisor::{Supervisor, Uptime};

/// A server.
pub(crate) struct Node {
    server: Server,
    clients: Vec<WithOptions<Client>>,
    uptime: Arc<Uptime>,
    /// Changes when an answer, or the want of any, shows that the connections may lead to the wrong server.
    doubts: watch::Sender<u64>,
    silence: Silence,
    /// After which silence the connections are doubted.
    silent_after: Duration,
    connect_timeout: Duration,
    /// Whether its last answer was that it does not serve what it was asked for.
    is_astray: AtomicBool,
    loads: Vec<Loads>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The loads of one script into one server.
#[derive(Default)]
pub(crate) struct Loads {
    /// Counts them, so that a caller can tell whether somebody loaded it since it last tried.
    pub(crate) generation: AtomicU64,
    pub(crate) loading: Mutex<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Node {
    /// Starts connecting in the background, for ever.
    pub(crate) fn start(target: &Target, server: &Server) -> Result<Arc<Self>, Error> {
        let mut clients = Vec::with_capacity(target.connections());
        for _ in 0..target.connections() {
            clients.push(target.client(server)?);
        }
        let silent_after = target.unresponsive_after();
        let uptime = Uptime::new(clients.len());
        let doubts = watch::Sender::new(0);
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        for (index, client) in clients.iter().enumerate() {
            let supervisor = Supervisor {
                index,
                server: server.clone(),
                client: client.clone(),
                uptime: Arc::clone(&uptime),
                doubts: doubts.subscribe(),
                stop: stop.clone(),
                unresponsive_after: silent_after,
            };
            tasks.spawn(supervisor.run());
        }
        tasks.close();
        let loads = Kind::ALL.map(|_| Loads::default()).into();
        Ok(Arc::new(Self {
            server: server.clone(),
            clients,
            uptime,
            doubts,
            silence: Silence::new(silent_after),
            silent_after,
            connect_timeout: target.connect_timeout(),
            is_astray: AtomicBool::new(false),
            loads,
            stop,
            tasks,
        }))
    }

    /// Waits until all connections are up, but not longer than opening one may take.
    pub(crate) async fn first_connection(&self) {
        let up = async {
            for client in &self.clients {
                while !client.is_connected() {
                    // An absent server shows up as an error here; it is tried again.
                    let _ = client.wait_for_connect().await;
                    tokio::task::yield_now().await;
                }
            }
        };
        let _ = tokio::time::timeout(self.connect_timeout, up).await;
    }

    /// Sends a command. Calls of one turn share a connection, which keeps their order.
    pub(crate) async fn send(
        &self,
        turn: usize,
        name: &'static str,
        arguments: Vec<Value>,
    ) -> Result<Value, ClientError> {
        let command = CustomCommand::new_static(name, ClusterHash::FirstKey, false);
        let outcome = self.client(turn).custom(command, arguments).await;
        self.hear(&outcome);
        outcome
    }

    /// A turn's connection, or if it is down the next one that is up.
    fn client(&self, turn: usize) -> &WithOptions<Client> {
        let at = |step: usize| &self.clients[turn.wrapping_add(step) % self.clients.len()];
        (0..self.clients.len())
            .map(at)
            .find(|client| client.is_connected())
            .unwrap_or_else(|| at(0))
    }

    /// Notes what became of a call.
    fn hear(&self, outcome: &Result<Value, ClientError>) {
        match outcome {
            Err(error) if is_silence(error) => {
                if self.silence.lasts() >= self.silent_after {
                    self.doubt();
                }
                return;
            }
            Err(error) if is_from_replica(error) => {
                self.is_astray.store(true, Ordering::Relaxed);
                self.doubt();
            }
            Err(error) if is_cluster_down(error) => self.is_astray.store(true, Ordering::Relaxed),
            Ok(_) if self.is_astray.load(Ordering::Relaxed) => {
                self.is_astray.store(false, Ordering::Relaxed);
            }
            _ => {}
        }
        self.silence.ends();
    }

    /// Has its connections opened anew.
    fn doubt(&self) {
        self.doubts
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(crate) const fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) fn loads(&self, kind: Kind) -> &Loads {
        &self.loads[kind as usize]
    }

    /// The newest instant at which a connection came up; `None` unless all are up.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.uptime.since()
    }

    /// Why a connection could last not be had; `None` once one is up.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.uptime.trouble()
    }

    /// Whether a connection is up, the last call was answered, and the answer was not that another
    /// server should be asked.
    pub(crate) fn is_well(&self) -> bool {
        self.clients.iter().any(|client| client.is_connected())
            && !self.silence.is_on()
            && !self.is_astray.load(Ordering::Relaxed)
    }

    /// Finishes what is in flight and closes the connections.
    pub(crate) async fn quit(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}
