//! After a failover: replays PostgreSQL's decisions at once, and keeps the recovery window of each
//! bucket until nothing from before the failover can become an order any more (M7).
//!
//! A failover shows as another history behind a bucket ([`lookout`]). It may have lost the newest writes
//! of that bucket, the activity's state among them. Whoever repeats a request whose reservation was lost
//! must not be refused afresh while the first attempt may still become an order: the window says so in
//! the bucket's meta, and ends when all of this is true:
//!
//! 1. no front holds a first send from before any more (they drop it after 10 s, and one that is on
//!    its way ends within the send's time limit): the delay of this module;
//! 2. every message that had been sent by then is consumed: the ends of the queues, taken after the
//!    delay, have been acknowledged; and none of the bucket that a consumer handed back instead waits
//!    for its delay, for its redelivery, or among the dead letters for their reader;
//! 3. a replay that began after that found nothing to do;
//! 4. no compensation task of the version waits for a decision: its message may be parked, and an
//!    operator may send it again until the task has put up its fence.
//!
//! PostgreSQL is written first when a window opens, and Redis first when it ends:
//!
//! | crash or loss here | is left | who repairs it |
//! | --- | --- | --- |
//! | failover, nobody has looked yet | no window | the fronts assume one for 10 s after they reconnect; the next look opens it |
//! | row opened, meta not written | a window that the fronts do not see | the next look of any replica writes meta: it does so for every open window |
//! | meta written, state not restored or not all replayed | an open window | the next look goes on; every step is idempotent |
//! | another failover lost meta's word | another history | the window is opened afresh, its ends taken anew |
//! | ends taken, not recorded | an open window without ends | the next look takes later ends |
//! | meta cleared, row still open | a window that the fronts do not see | the next look writes meta again and ends the window later |
//! | a replica wrote meta just after another one had ended the window | meta's word without a row | the next look opens a window for it, which ends as any other |
//! | another failover while a replay was under way | two windows by time | the older one is not ended: row and server are read again before meta is cleared |
//! | the whole bucket is gone | an open window, no meta to write | an operator rebuilds it; the window ends as any other |
//!
//! Were meta written first, another failover before the row was written would leave no trace of the
//! first one. Were the row closed first, a crash would leave a window in meta that nobody ends.

mod lookout;
mod progress;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    Error as RedisError, Recovery as InMeta, Redis, SetRecovery, SetRecoveryReply,
};
use seckill_message_bus::{
    Admin, Error as BusError, Group, QueuePosition, Redeliveries, Topic, has_reached,
};
use seckill_order_store::{Error as StoreError, QueueEnd, RecoveryWindow, Store};
use seckill_settlement::{Error as SettlementError, Repairer, Replayer, Tally};
use seckill_state_machine::{Activity, BucketId, BucketScope, Scope, TimestampMs};
use tokio::time::Instant;

use lookout::Lookout;
use progress::Progress;

/// Why a look did not get through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis did not answer.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// PostgreSQL did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker did not answer.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A replay did not get through.
    #[error(transparent)]
    Settlement(#[from] SettlementError),
}

/// Looks after all open buckets.
pub struct Recovery {
    redis: Redis,
    store: Store,
    admin: Arc<Admin>,
    replayer: Replayer,
    repairer: Repairer,
    lookout: Lookout,
    redeliveries: Redeliveries,
    delay: Duration,
    progress: HashMap<BucketScope, Progress>,
}

/// An open window, and when it was opened.
type Open = (RecoveryWindow, TimestampMs);

impl Recovery {
    /// Looks once an `interval`; `delay` is how long after the opening a message from before may still
    /// be sent.
    #[must_use]
    pub fn new(
        redis: Redis,
        store: Store,
        admin: Arc<Admin>,
        interval: Duration,
        delay: Duration,
    ) -> Self {
        Self {
            lookout: Lookout::new(redis.clone(), store.clone(), interval),
            replayer: Replayer::new(redis.clone(), store.clone()),
            repairer: Repairer::new(redis.clone(), store.clone()),
            redis,
            store,
            redeliveries: Redeliveries::new(Arc::clone(&admin), Group::OrderConsumer),
            admin,
            delay,
            progress: HashMap::new(),
        }
    }

    /// Opens windows and holds them, and does nothing else: a replay takes minutes, and the fronts cover
    /// a further failover for seconds by themselves.
    ///
    /// # Errors
    /// The first failure, after every version had its turn.
    pub async fn watch(&self) -> Result<(), Error> {
        let mut failure = None;
        for activity in &self.store.open_scopes().await? {
            let sighted = self.lookout.look(activity).await;
            failure = failure.or(sighted.err());
            let held = match self.open_windows(activity).await {
                Ok(open) => self.hold(&open).await,
                Err(error) => Err(error),
            };
            failure = failure.or(held.err());
        }
        failure.map_or(Ok(()), Err)
    }

    /// One look at every open bucket, and the next step of every open window.
    ///
    /// # Errors
    /// The first failure, after every version and every window had its turn.
    pub async fn look(&mut self) -> Result<(), Error> {
        let activities = self.store.open_scopes().await?;
        let mut failure = None;
        let mut open = Vec::new();
        for activity in &activities {
            let sighted = self.lookout.look(activity).await;
            failure = failure.or(sighted.err());
            // A server that is away must not keep the other buckets from their windows.
            match self.open_windows(activity).await {
                Ok(windows) => open.extend(windows),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        self.progress
            .retain(|bucket, _| open.iter().any(|(window, _)| window.bucket == *bucket));
        let steps = [
            self.hold(&open).await,
            self.replay(&open).await,
            self.take_ends(&open).await,
            self.end(&open).await,
        ];
        let failure = steps
            .into_iter()
            .filter_map(Result::err)
            .fold(failure, |first, error| first.or(Some(error)));
        failure.map_or(Ok(()), Err)
    }

    async fn open_windows(&self, activity: &Activity) -> Result<Vec<Open>, Error> {
        let scope = &activity.settings.scope;
        let windows = self.store.recovery_windows(scope).await?;
        let open = windows.into_iter().filter_map(|window| {
            let opened_at = window.opened_at_ms?;
            Some((window, opened_at))
        });
        Ok(open.collect())
    }

    /// Says in meta what PostgreSQL says, again and again: another failover may have lost it. A bucket
    /// that an operator rebuilds is not touched.
    async fn hold(&self, open: &[Open]) -> Result<(), Error> {
        let mut failure = None;
        for (window, _) in open {
            let keys = BucketKeys::new(&window.bucket);
            let call = SetRecovery {
                keys: &keys,
                recovery: InMeta::Window,
                expected: Some(InMeta::None),
            };
            let reply = match self.redis.set_recovery(&call).await {
                Ok(reply) => reply,
                Err(error) => {
                    failure = failure.or(Some(error.into()));
                    continue;
                }
            };
            match reply {
                SetRecoveryReply::Set => {
                    tracing::info!(bucket = %window.bucket, "the fronts know of the recovery window");
                    // The change of a state may be among what was lost. PostgreSQL is always written
                    // first, so that this never undoes one that is under way.
                    self.repairer.restore_state(&keys).await?;
                }
                // Meta may have kept the word of an earlier window, or a crash came before the state.
                SetRecoveryReply::Unchanged if window.ends.is_none() => {
                    self.repairer.restore_state(&keys).await?;
                }
                SetRecoveryReply::Unchanged
                | SetRecoveryReply::ConfigMissing
                | SetRecoveryReply::ScopeMismatch
                | SetRecoveryReply::Moved { .. } => {}
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Replays the buckets whose last round was not clean.
    async fn replay(&mut self, open: &[Open]) -> Result<(), Error> {
        let now = Instant::now();
        for (window, opened_at) in open {
            let progress = self.progress.entry(window.bucket.clone()).or_default();
            progress.follow(*opened_at);
        }
        let due: Vec<&BucketScope> = open
            .iter()
            .map(|(window, _)| &window.bucket)
            .filter(|bucket| self.progress.get(bucket).is_some_and(|p| p.is_due(now)))
            .collect();
        self.replay_all(due).await
    }

    /// One walk over each version's decisions, whatever buckets of it are meant. What is left is told by
    /// the sweep.
    async fn replay_all(&mut self, buckets: Vec<&BucketScope>) -> Result<(), Error> {
        let mut versions: BTreeMap<&Scope, Vec<BucketId>> = BTreeMap::new();
        for bucket in buckets {
            let of_version = versions.entry(&bucket.scope).or_default();
            of_version.push(bucket.bucket_id);
        }
        let mut failure = None;
        for (scope, buckets) in versions {
            let began = Instant::now();
            let replayed = self.replayer.replay_buckets(scope, &buckets, |_, _| ());
            match replayed.await {
                Ok(ended) => {
                    for (bucket_id, end) in ended {
                        let noted = self.note(&scope.bucket(bucket_id), began, end);
                        failure = failure.or(noted.err());
                    }
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Notes a round over one bucket.
    fn note(
        &mut self,
        bucket: &BucketScope,
        began: Instant,
        end: Result<Tally, SettlementError>,
    ) -> Result<(), SettlementError> {
        let tally = end?;
        if tally.changed() + tally.open() > 0 {
            tracing::info!(%bucket, ?tally, "replayed a bucket's decisions");
        }
        if let Some(progress) = self.progress.get_mut(bucket) {
            progress.replayed(began, &tally);
        }
        Ok(())
    }

    /// Once nothing from before can be sent any more: how far must be consumed.
    async fn take_ends(&self, open: &[Open]) -> Result<(), Error> {
        let delay_ms = i64::try_from(self.delay.as_millis()).unwrap_or(i64::MAX);
        let due: Vec<RecoveryWindow> = open
            .iter()
            .map(|(window, _)| window)
            .filter(|window| window.ends.is_none())
            .filter(|window| window.open_for_ms.is_some_and(|open| open >= delay_ms))
            .cloned()
            .collect();
        if due.is_empty() {
            return Ok(());
        }
        let ends = self.admin.queue_ends(Topic::OrderRequest).await?;
        let ends: Vec<QueueEnd> = ends
            .into_iter()
            .map(|(queue, offset)| QueueEnd { queue, offset })
            .collect();
        self.store.set_window_ends(&due, &ends).await?;
        Ok(())
    }

    /// Ends the windows whose backlog is consumed and whose replay since then was clean.
    async fn end(&mut self, open: &[Open]) -> Result<(), Error> {
        let consumed = self.consumed(open).await?;
        let now = Instant::now();
        let mut buckets = Vec::new();
        for (window, _) in &consumed {
            if let Some(progress) = self.progress.get_mut(&window.bucket) {
                progress.reached(now);
                if progress.needs_last_round() {
                    buckets.push(&window.bucket);
                }
            }
        }
        self.replay_all(buckets).await?;
        for (window, opened_at) in consumed {
            let progress = self.progress.get(&window.bucket);
            if progress.is_some_and(Progress::is_over) {
                self.close(window, *opened_at).await?;
            }
        }
        Ok(())
    }

    /// The windows from before which no message is left anywhere.
    async fn consumed<'a>(&mut self, open: &'a [Open]) -> Result<Vec<&'a Open>, Error> {
        let with_ends: Vec<(&Open, Vec<QueuePosition>)> = open
            .iter()
            .filter_map(|open| Some((open, positions(open.0.ends.as_ref()?))))
            .collect();
        if with_ends.is_empty() {
            return Ok(Vec::new());
        }
        let consumed = self
            .admin
            .consumed(Group::OrderConsumer, Topic::OrderRequest)
            .await?;
        let mut reached: Vec<&Open> = with_ends
            .into_iter()
            .filter(|(_, ends)| has_reached(ends, &consumed))
            .map(|(open, _)| open)
            .collect();
        if reached.is_empty() {
            return Ok(reached);
        }
        // After that: what the main topic counts as consumed had been handed back by then.
        let may_come = self.redeliveries.look().await?;
        reached.retain(|(window, _)| {
            let waits = may_come.of(&window.bucket);
            if let Some(progress) = self.progress.get_mut(&window.bucket)
                && progress.waits_for_redeliveries(waits)
            {
                tracing::info!(bucket = %window.bucket, "a recovery waits for redeliveries");
            }
            !waits
        });
        Ok(reached)
    }

    async fn close(&self, window: &RecoveryWindow, opened_at: TimestampMs) -> Result<(), Error> {
        let bucket = &window.bucket;
        // A message that was parked undecided is acknowledged, and an operator may replay it until its
        // task has fenced it.
        if self.store.open_work(&bucket.scope).await?.undecided > 0 {
            return Ok(());
        }
        let keys = BucketKeys::new(bucket);
        // The replay may have taken minutes: another failover since must keep its own window.
        let now = self.store.recovery_windows(&bucket.scope).await?;
        let is_this = now
            .iter()
            .any(|now| now.bucket == *bucket && now.opened_at_ms == Some(opened_at));
        let server = self.redis.who_serves(&keys).await?;
        if !is_this || server.replication_id != window.replication_id {
            return Ok(());
        }
        let reply = self
            .redis
            .set_recovery(&SetRecovery {
                keys: &keys,
                recovery: InMeta::None,
                expected: Some(InMeta::Window),
            })
            .await?;
        if matches!(reply, SetRecoveryReply::Moved { .. }) {
            // An operator is rebuilding it.
            return Ok(());
        }
        if self.store.close_window(bucket, opened_at).await? {
            tracing::info!(%bucket, "the recovery of a bucket is over");
        }
        Ok(())
    }
}

fn positions(ends: &[QueueEnd]) -> Vec<QueuePosition> {
    ends.iter()
        .map(|end| (end.queue.clone(), end.offset))
        .collect()
}
