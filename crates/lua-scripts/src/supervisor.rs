//! Keeps each connection's task alive for ever and tells since when Redis has been reachable.
//!
//! The library's own task ends for good on some errors, and does not notice a peer that accepts bytes
//! and never answers while the socket is blocked. One supervisor per connection starts it again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fred::clients::{Client, WithOptions};
use fred::interfaces::{ClientLike, EventInterface};
use fred::types::config::Server;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// How often an idle connection is asked whether it is alive.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Wait before a connection task that ended is started again.
const RESTART_DELAY: Duration = Duration::from_millis(100);

/// Between two attempts to find the right server. While there is no primary the address may lead to a
/// replica or a hung server for as long as the failover takes, and all processes try.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// How many unresponsive periods a connection may claim to be up without one answered heartbeat
/// before its task is replaced: its socket is blocked, and it cannot see that by itself.
const STALLS_MAX: u32 = 3;

/// How long the same trouble of one connection is not told again.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// When each connection came up; `None` while it is down.
#[derive(Debug)]
pub(crate) struct Uptime {
    slots: Mutex<Vec<Option<Instant>>>,
    trouble: Mutex<Option<String>>,
}

impl Uptime {
    pub(crate) fn new(connections: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: Mutex::new(vec![None; connections]),
            trouble: Mutex::new(None),
        })
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Option<Instant>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, index: usize, since: Option<Instant>) {
        if let Some(slot) = self.slots().get_mut(index) {
            *slot = since;
        }
        if since.is_some() {
            *self.last_trouble() = None;
        }
    }

    fn last_trouble(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, trouble: &str) {
        *self.last_trouble() = Some(trouble.to_owned());
    }

    /// Why a connection could last not be had; `None` once one is up. Commands are turned away
    /// meanwhile with a text that does not tell.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.last_trouble().clone()
    }

    /// The newest instant at which a connection came up, once all are up.
    pub(crate) fn since(&self) -> Option<Instant> {
        let slots = self.slots();
        let all_up: Option<Vec<Instant>> = slots.iter().copied().collect();
        all_up.and_then(|times| times.into_iter().max())
    }
}

/// One supervised connection.
pub(crate) struct Supervisor {
    pub(crate) index: usize,
    pub(crate) server: Server,
    pub(crate) client: WithOptions<Client>,
    pub(crate) uptime: Arc<Uptime>,
    /// Changes when the connection may lead to the wrong server: a replica, or one that hangs.
    pub(crate) doubts: watch::Receiver<u64>,
    pub(crate) stop: CancellationToken,
    /// Silence after which the library closes a connection by itself.
    pub(crate) unresponsive_after: Duration,
}

/// Why a connection task must be started again.
enum End {
    Stopped,
    TaskEnded,
    Stalled,
}

impl Supervisor {
    /// Connects, and connects again, until stopped.
    pub(crate) async fn run(self) {
        let mut told: Option<(String, Instant)> = None;
        loop {
            let mut task = (*self.client).connect();
            let end = tokio::select! {
                () = self.stop.cancelled() => End::Stopped,
                result = &mut task => {
                    let why = match result {
                        Ok(Ok(())) => "no reason given".to_owned(),
                        Ok(Err(error)) => error.details().to_owned(),
                        Err(error) => error.to_string(),
                    };
                    self.task_ended(&why, &mut told);
                    End::TaskEnded
                }
                () = self.watch() => End::Stalled,
            };
            self.uptime.set(self.index, None);
            match end {
                End::Stopped => {
                    if let Err(error) = self.client.quit().await {
                        debug!(%error, "quit was not acknowledged");
                    }
                    // With a server that hangs it would wait for the answers for ever.
                    task.abort();
                    return;
                }
                End::TaskEnded => {}
                End::Stalled => {
                    warn!(
                        server = %self.server,
                        connection = self.index,
                        "redis connection stalled, replacing it"
                    );
                    task.abort();
                }
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(RESTART_DELAY) => {}
            }
        }
    }

    /// A task that ends at once, because of a setting for instance, ends ten times a second: the same
    /// end is told once a minute.
    fn task_ended(&self, why: &str, told: &mut Option<(String, Instant)>) {
        self.uptime.note(why);
        let is_known = told
            .as_ref()
            .is_some_and(|(text, at)| text == why && at.elapsed() < TELL_AGAIN_AFTER);
        if is_known {
            return;
        }
        warn!(
            server = %self.server,
            connection = self.index,
            why,
            trouble = self.uptime.trouble(),
            "redis connection task ended"
        );
        *told = Some((why.to_owned(), Instant::now()));
    }

    /// Follows the connection's events and returns only when it is stalled.
    async fn watch(&self) {
        let mut doubts = self.doubts.clone();
        let mut looked_again: Option<Instant> = None;
        let mut up = self.client.reconnect_rx();
        let mut errors = self.client.error_rx();
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last_answer = Instant::now();
        loop {
            tokio::select! {
                biased;
                error = errors.recv() => match error {
                    Ok((error, _)) => {
                        debug!(server = %self.server, connection = self.index, %error, "redis connection error");
                        self.uptime.note(error.details());
                        self.uptime.set(self.index, None);
                    }
                    Err(RecvError::Lagged(_)) => self.uptime.set(self.index, None),
                    Err(RecvError::Closed) => return,
                },
                server = up.recv() => match server {
                    Ok(_) | Err(RecvError::Lagged(_)) => {
                        info!(server = %self.server, connection = self.index, "redis connection is up");
                        last_answer = Instant::now();
                        self.uptime.set(self.index, Some(last_answer));
                    }
                    Err(RecvError::Closed) => return,
                },
                Ok(()) = doubts.changed() => {
                    // What comes during the pause is repeated by the next call after it.
                    if looked_again.is_none_or(|at| at.elapsed() >= LOOK_PAUSE) {
                        looked_again = Some(Instant::now());
                        self.look_again().await;
                    }
                }
                _ = heartbeat.tick() => {
                    // While it is down the library reconnects by itself, so that is no stall.
                    let fine = !self.client.is_connected()
                        || self.client.ping::<()>(None).await.is_ok();
                    if fine {
                        last_answer = Instant::now();
                    } else if last_answer.elapsed() > self.unresponsive_after * STALLS_MAX + HEARTBEAT {
                        return;
                    }
                }
            }
        }
    }

    /// Opens the connection anew. It goes on in the background when it takes longer than a server may be
    /// silent, and shows as an event then.
    async fn look_again(&self) {
        warn!(
            server = %self.server,
            connection = self.index,
            "redis is silent or answers as a replica, connecting again"
        );
        let anew = self.client.force_reconnection();
        if let Ok(Err(error)) = tokio::time::timeout(self.unresponsive_after, anew).await {
            debug!(connection = self.index, %error, "connecting again failed");
        }
    }
}
