//! A primary with a replica, and the failover that loses the primary's last writes.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use seckill_test_support::{FaultProxy, Framing, Loss, PrivateRedis, RedisPair};
use tokio::time::sleep;

use crate::clock::{Clock, Moment};

/// A failover as it happened.
#[derive(Debug, Clone)]
pub(crate) struct Failover {
    /// Everything before has arrived at the replica.
    pub(crate) cut_off: Moment,
    /// Then the primary was dead.
    pub(crate) died: Moment,
    /// How much of the stream of writes only the dead primary had.
    pub(crate) lost_bytes: u64,
    /// The servers' own ids, before and after.
    pub(crate) run_ids: [String; 2],
}

/// Both servers.
pub(crate) struct Redis {
    pair: RedisPair,
    /// The way of operators, which no fault is made on. It follows the primary, too.
    door: FaultProxy,
    failovers: Mutex<Vec<Failover>>,
}

impl Redis {
    pub(crate) async fn start() -> Self {
        let pair = RedisPair::start().await;
        let door = FaultProxy::start(pair.primary().address(), Framing::Raw).await;
        Self {
            pair,
            door,
            failovers: Mutex::new(Vec::new()),
        }
    }

    /// The primary of now, past all proxies.
    pub(crate) fn primary(&self) -> &PrivateRedis {
        self.pair.primary()
    }

    /// The proxy between the services and the primary.
    pub(crate) const fn proxy(&self) -> &FaultProxy {
        self.pair.proxy()
    }

    /// Where the services find it.
    pub(crate) fn url(&self) -> String {
        self.pair.url()
    }

    /// Where operators find it.
    pub(crate) fn operators_url(&self) -> String {
        format!("redis://{}", self.door.addr())
    }

    /// All failovers so far.
    pub(crate) fn failovers(&self) -> Vec<Failover> {
        self.failovers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Awaits that the replica has what the primary has now: a sale whose stock a failover took away
    /// before it began would only be an operator's to rebuild.
    pub(crate) async fn await_replica(&self) {
        self.pair.caught_up().await;
    }

    /// Kills the primary with writes that its replica does not have, sends everybody to the replica,
    /// and gives it a replica of its own.
    pub(crate) async fn fail_over(
        &self,
        clock: Clock,
        unreplicated: Duration,
        outage: Duration,
    ) -> anyhow::Result<Failover> {
        let before = self.run_id().await?;
        let cut_off = clock.now();
        self.pair.hold_replication().await;
        sleep(unreplicated).await;
        let lost_bytes = self.pair.lose_primary(Loss::Kill).await;
        let died = clock.now();
        sleep(outage).await;
        self.pair.promote().await;
        self.door.set_upstream(self.primary().address());
        let failover = Failover {
            cut_off,
            died,
            lost_bytes,
            run_ids: [before, self.run_id().await?],
        };
        self.failovers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(failover.clone());
        self.pair.rejoin().await;
        Ok(failover)
    }

    async fn run_id(&self) -> anyhow::Result<String> {
        let id = self.primary().info("run_id").await;
        let id = id.context("a primary without an id")?;
        ensure!(!id.is_empty(), "an empty id");
        Ok(id)
    }
}
