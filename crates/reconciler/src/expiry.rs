//! Visits reservations whose time is up and that are still open, and settles what is decided.
//!
//! The index is walked by (score, member), a bounded number of pages a tick, so that members that
//! stay (undecided ones, above all) never hide those behind them. Each bucket's walk begins again by
//! itself, so one that cannot be walked keeps no other from being settled; a version's round is put
//! on record when the walks of all its buckets have got to an end.
//!
//! A crash at any point leaves every member where it is: each step is idempotent, and the next walk
//! of any replica starts from the beginning.

mod judge;
mod walk;

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use seckill_lua_scripts::{Error as RedisError, Redis};
use seckill_order_store::{Error as StoreError, Store};
use seckill_settlement::{Error as SettlementError, Replayer};
use seckill_state_machine::{Activity, Scope};

use crate::apply::Applier;
use crate::rounds::{Round, Rounds};
use walk::{Tools, Walk};

/// Buckets walked at once: with 32 calls in flight each, 256 in all.
const BUCKETS_AT_ONCE: usize = 8;

/// Why a tick did not get through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis did not answer.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// PostgreSQL did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A settlement did not get through.
    #[error(transparent)]
    Settlement(#[from] SettlementError),
}

/// The walks over all open buckets.
pub struct Expiry {
    tools: Tools,
    rounds: Rounds,
    applier: Applier,
    grace: Duration,
    versions: HashMap<Scope, Version>,
}

/// The walks over the buckets of one version.
struct Version {
    walks: Vec<Walk>,
    /// Whether the last recorded round may have left differences open.
    dirty: bool,
}

impl Expiry {
    /// `grace` is how long something may be on its way before it counts as a difference.
    #[must_use]
    pub fn new(
        redis: Redis,
        store: Store,
        rounds: Rounds,
        applier: Applier,
        grace: Duration,
    ) -> Self {
        let replayer = Replayer::new(redis.clone(), store.clone());
        Self {
            tools: Tools {
                redis,
                store,
                replayer,
            },
            rounds,
            applier,
            grace,
            versions: HashMap::new(),
        }
    }

    /// Walks some pages of every open bucket.
    ///
    /// # Errors
    /// The first failure, after every bucket had its turn.
    pub async fn tick(&mut self) -> Result<(), Error> {
        let open = self.tools.store.open_scopes().await?;
        self.follow(&open);
        let mut failure = self.walk_all().await.err();
        for (scope, version) in &mut self.versions {
            match version.end_round(scope, &self.rounds).await {
                Ok(false) => {}
                Ok(true) => {
                    let applied = self.applier.apply(scope, self.rounds.kind()).await;
                    failure = failure.or(applied.err().map(Error::from));
                }
                Err(error) => failure = failure.or(Some(error.into())),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn walk_all(&mut self) -> Result<(), Error> {
        let tools = &self.tools;
        let mut steps = Vec::new();
        for version in self.versions.values_mut() {
            for walk in &mut version.walks {
                steps.push(walk.go_on(tools));
            }
        }
        let mut failure = None;
        let mut ends = futures::stream::iter(steps).buffer_unordered(BUCKETS_AT_ONCE);
        while let Some(end) = ends.next().await {
            if let Err(error) = end {
                failure.get_or_insert(error);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Begins walks for new versions and forgets those that are gone.
    fn follow(&mut self, open: &[Activity]) {
        let mut versions = HashMap::new();
        for activity in open {
            let scope = &activity.settings.scope;
            let version = self.versions.remove(scope).unwrap_or_else(|| {
                let buckets = activity.settings.bucket_count.buckets();
                Version {
                    walks: buckets
                        .map(|bucket_id| {
                            let patience_ms = activity.settings.patience_ms;
                            Walk::new(&scope.bucket(bucket_id), patience_ms, self.grace)
                        })
                        .collect(),
                    // Another process may have left some.
                    dirty: true,
                }
            });
            versions.insert(scope.clone(), version);
        }
        self.versions = versions;
    }
}

impl Version {
    /// When every walk has got to an end, puts the round on record if it has something to tell, or
    /// if an earlier one had. Says whether it found differences that count.
    async fn end_round(&mut self, scope: &Scope, rounds: &Rounds) -> Result<bool, StoreError> {
        if !self.walks.iter().all(Walk::has_finished) {
            return Ok(false);
        }
        let mut round = Round::begin();
        for finished in self.walks.iter_mut().filter_map(Walk::take_finished) {
            round.add(finished);
        }
        if round.is_quiet() && !self.dirty {
            return Ok(false);
        }
        if round.settled > 0 {
            tracing::info!(
                %scope,
                checked = round.checked,
                settled = round.settled,
                "settled reservations whose time was up"
            );
        }
        self.dirty = true;
        let nothing_open = rounds.record(scope, &round).await?;
        self.dirty = !nothing_open;
        Ok(!round.found.is_empty())
    }
}
