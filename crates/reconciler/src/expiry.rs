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
mod tally;
mod walk;

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use seckill_lua_scripts::{Error as RedisError, Redis};
use seckill_order_store::{Error as StoreError, Store};
use seckill_state_machine::{Activity, Scope};

use crate::rounds::{Round, Rounds};
use walk::Walk;

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
}

/// The walks over all open buckets.
pub struct Expiry {
    redis: Redis,
    store: Store,
    rounds: Rounds,
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
    pub fn new(redis: Redis, store: Store, rounds: Rounds, grace: Duration) -> Self {
        Self {
            redis,
            store,
            rounds,
            grace,
            versions: HashMap::new(),
        }
    }

    /// Walks some pages of every open bucket.
    ///
    /// # Errors
    /// The first failure, after every bucket had its turn.
    pub async fn tick(&mut self) -> Result<(), Error> {
        let open = self.store.open_scopes().await?;
        self.follow(&open);
        let mut failure = self.walk_all().await.err();
        for (scope, version) in &mut self.versions {
            if let Err(error) = version.end_round(scope, &self.rounds).await {
                failure.get_or_insert(error.into());
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn walk_all(&mut self) -> Result<(), Error> {
        let (redis, store) = (&self.redis, &self.store);
        let mut steps = Vec::new();
        for version in self.versions.values_mut() {
            for walk in &mut version.walks {
                steps.push(walk.go_on(redis, store));
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
                        .map(|bucket_id| Walk::new(scope.bucket(bucket_id), self.grace))
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
    /// if an earlier one had.
    async fn end_round(&mut self, scope: &Scope, rounds: &Rounds) -> Result<(), StoreError> {
        if !self.walks.iter().all(Walk::has_finished) {
            return Ok(());
        }
        let mut round = Round::begin();
        for finished in self.walks.iter_mut().filter_map(Walk::take_finished) {
            round.add(finished);
        }
        if round.is_quiet() && !self.dirty {
            return Ok(());
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
        Ok(())
    }
}
