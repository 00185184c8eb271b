//! A primary and its replica behind one address, as clients see them, and failovers that lose writes.
//!
//! Clients go through a fault proxy whose target moves, as a virtual address or a service's endpoint
//! does. The replica follows through another one, so that a test decides which writes arrive there: what
//! it holds back is what a failover loses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Loss, PrivateRedis, RedisSetup};
use crate::eventually;
use crate::proxy::{Dir, FaultProxy, Framing, Mode};
use crate::resp::Value;

/// How long the replica may take to get what the primary has.
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(20);

/// A primary, its replica, and the address by which clients find whichever is the primary.
#[derive(Debug)]
pub struct RedisPair {
    servers: [PrivateRedis; 2],
    /// Whether the second server is the primary.
    swapped: AtomicBool,
    /// Where clients connect.
    clients: FaultProxy,
    /// Where the replica connects.
    replication: FaultProxy,
}

impl RedisPair {
    /// Starts both and awaits their synchronisation.
    ///
    /// # Panics
    ///
    /// When they do not start or synchronise.
    pub async fn start() -> Self {
        Self::start_as(&RedisSetup::default()).await
    }

    /// Starts both in any way.
    ///
    /// # Panics
    ///
    /// When they do not start or synchronise.
    pub async fn start_as(setup: &RedisSetup) -> Self {
        // A replica would otherwise be sent its first data only after five seconds.
        let mut setup = setup.clone();
        let at_once = ["--repl-diskless-sync-delay", "0"].map(str::to_owned);
        setup.arguments.extend(at_once);
        let (one, other) = tokio::join!(
            PrivateRedis::start_as(&setup),
            PrivateRedis::start_as(&setup)
        );
        let (clients, replication) = tokio::join!(
            FaultProxy::start(one.address(), Framing::Resp),
            FaultProxy::start(one.address(), Framing::Raw)
        );
        other.replicate_from(replication.addr()).await;
        Self {
            servers: [one, other],
            swapped: AtomicBool::new(false),
            clients,
            replication,
        }
    }

    /// The server that clients reach.
    #[must_use]
    pub fn primary(&self) -> &PrivateRedis {
        &self.servers[usize::from(self.swapped.load(Ordering::SeqCst))]
    }

    /// The other one; after a failover the old primary, if it has rejoined.
    #[must_use]
    pub fn replica(&self) -> &PrivateRedis {
        &self.servers[usize::from(!self.swapped.load(Ordering::SeqCst))]
    }

    /// What stands before whichever is the primary.
    #[must_use]
    pub const fn proxy(&self) -> &FaultProxy {
        &self.clients
    }

    /// What stands between the replica and the primary.
    #[must_use]
    pub const fn replication(&self) -> &FaultProxy {
        &self.replication
    }

    /// `redis://127.0.0.1:<port>` of whichever is the primary.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.clients.addr())
    }

    /// The same for a user.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@{}", self.clients.addr())
    }

    /// How many bytes of writes the primary has and the replica has not.
    ///
    /// # Panics
    ///
    /// When one of them does not answer.
    pub async fn unreplicated(&self) -> u64 {
        let written = offset(self.primary(), "master_repl_offset").await;
        let arrived = offset(self.replica(), "slave_repl_offset").await;
        written.saturating_sub(arrived)
    }

    /// Awaits that the replica has what the primary has now.
    ///
    /// # Panics
    ///
    /// When it does not get it.
    pub async fn caught_up(&self) {
        let goal = offset(self.primary(), "master_repl_offset").await;
        eventually(CATCH_UP_DEADLINE, "the replica catches up", async || {
            let arrived = offset(self.replica(), "slave_repl_offset").await;
            if arrived >= goal {
                Ok(())
            } else {
                Err(format!("{arrived} of {goal} bytes"))
            }
        })
        .await;
    }

    /// From here on the replica gets nothing: all writes so far have arrived, and the next failover loses
    /// those to come. The replica still acknowledges what it has, so that `min-replicas-to-write` sees
    /// nothing; [`Self::cut_replication`] is for that.
    ///
    /// # Panics
    ///
    /// When the replica does not catch up first.
    pub async fn hold_replication(&self) {
        self.caught_up().await;
        self.replication.set_mode(Mode::Hold(Dir::ToClient));
    }

    /// The replica's connection is refused: the primary knows that it has none.
    pub fn cut_replication(&self) {
        self.replication.set_mode(Mode::Refuse);
    }

    /// The replica connects again, or gets what was held back.
    pub fn heal_replication(&self) {
        self.replication.set_mode(Mode::Forward);
    }

    /// Loses the primary; until [`Self::promote`] there is none. Answers how many bytes of its writes
    /// nobody else has.
    ///
    /// # Panics
    ///
    /// When it is not running.
    pub async fn lose_primary(&self, how: Loss) -> u64 {
        let lost = self.unreplicated().await;
        self.primary().lose(how);
        lost
    }

    /// Makes the replica the primary and leads clients there. Connections that hang stay as they are: it
    /// is for the clients to notice.
    ///
    /// # Panics
    ///
    /// When the replica does not answer.
    pub async fn promote(&self) {
        let reply = self.replica().cli(&["REPLICAOF", "NO", "ONE"]).await;
        assert_eq!(reply, Value::Status("OK".to_owned()));
        self.clients.set_upstream(self.replica().address());
        self.swapped.fetch_xor(true, Ordering::SeqCst);
        // What was held back belongs to a connection that the replica has closed.
        self.replication.set_upstream(self.primary().address());
        self.replication.set_mode(Mode::Forward);
    }

    /// A failover that loses exactly what `doomed` does: everything before it has arrived at the replica,
    /// nothing of it has, and then the primary is lost and the replica promoted. Answers what `doomed`
    /// answered and how many bytes were lost.
    ///
    /// # Panics
    ///
    /// When one of the steps fails.
    pub async fn fail_over_losing<T>(
        &self,
        how: Loss,
        doomed: impl AsyncFnOnce() -> T,
    ) -> (T, u64) {
        self.hold_replication().await;
        let done = doomed().await;
        let lost = self.lose_primary(how).await;
        self.promote().await;
        (done, lost)
    }

    /// The old primary returns as a replica of the new one, and its own writes are gone.
    ///
    /// # Panics
    ///
    /// When they do not synchronise.
    pub async fn rejoin(&self) {
        let returning = self.replica();
        if returning.is_running() {
            // It never left, as after a planned switch.
        } else if returning.is_paused() {
            returning.resume();
        } else {
            returning.restart().await;
        }
        returning.replicate_from(self.replication.addr()).await;
    }

    /// A planned switch without loss: the replica becomes the primary and the primary its replica, and no
    /// connection ends. Clients that stay connected are with a replica then.
    ///
    /// # Panics
    ///
    /// When one of the steps fails.
    pub async fn switch(&self) {
        self.caught_up().await;
        self.promote().await;
        self.rejoin().await;
    }
}

async fn offset(server: &PrivateRedis, field: &str) -> u64 {
    let value = server.info(field).await.unwrap_or_default();
    value.parse().unwrap_or_default()
}
