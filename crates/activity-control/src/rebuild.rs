//! From PostgreSQL back to Redis, after Redis has lost settings or counters of a version, or everything.
//!
//! | step | a crash after it leaves | who repairs |
//! | --- | --- | --- |
//! | `PAUSED` in PostgreSQL | a version that sells nothing | rebuild, run again |
//! | meta of some buckets | meta that says `PAUSED` and `rebuild`: fronts answer that the system is busy, and without counters no script moves a unit | rebuild, run again: what is held is added up again |
//! | their stock, less what reservations that are left hold | the same with counters | rebuild, run again: what is there stays |
//! | some reservations | the same; each has taken its units from `available` once | rebuild, run again: what agrees is only looked at |
//! | both ends compared | the same | rebuild, run again |
//! | the recovery window on record | a window that is open over a meta that says `rebuild` | rebuild, run again: the window starts afresh |
//! | meta says `window` in some buckets | a paused version | rebuild, run again, or `resume`, which refuses while a bucket says `rebuild` |
//!
//! Services may run meanwhile. Fronts sell nothing from a bucket that says `rebuild`. The consumer may
//! decide messages that were on their way when Redis was lost; the comparison finds them and the next
//! round brings them over, the reconciler those that come after the last one: this is also why a recovery window follows, in
//! which a repeat that would be refused afresh is told that its outcome is unknown.
//!
//! **Invariant:** units are written once, where stock is missing, and from then on move in scripts
//! alone. Nothing here puts a version on sale: that is an operator's `resume`.

mod held;

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    InitialiseBucket, InitialiseReply, Recovery, SetRecovery, SetRecoveryReply,
};
use seckill_order_store::ServerNames;
use seckill_settlement::{Replayer, Tally};
use seckill_state_machine::{Activity, ActivitySettings, ActivityState, BucketId, Scope};
use serde::Serialize;

use crate::Error;
use crate::audit::{AuditOptions, AuditReport, Difference};
use crate::compare::{Sides, Stage};
use crate::control::{BUCKETS_AT_ONCE, Control};
use crate::lifecycle::Order;

const STEP: &str = "rebuild";

/// Rounds of replaying and comparing. The first does the work; a further one finds what the consumer has
/// decided meanwhile. Five that all find something mean that somebody is still selling.
const ROUNDS_MAX: u32 = 5;

/// What a rebuild did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rebuilt {
    /// Where PostgreSQL says the version stands.
    pub state: ActivityState,
    /// Buckets of the version.
    pub buckets: u32,
    /// Metas written now, or closed to buyers.
    pub meta_written: u32,
    /// Stocks written now.
    pub stock_written: u32,
    /// Rounds of replaying.
    pub rounds: u32,
    /// Decisions that were looked at in the last round.
    pub decisions: u64,
    /// Reservations brought back, over all rounds.
    pub reservations: u64,
    /// Ended ones put on record, over all rounds.
    pub tombstones: u64,
    /// Other steps towards agreement, over all rounds.
    pub settled: u64,
    /// Decisions that the last round could not bring to agreement.
    pub open: u64,
    /// Differences that the comparison found; with any, the buckets stay closed to buyers.
    pub differences: Vec<Difference>,
}

impl Rebuilt {
    /// Whether both sides hold the same.
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        self.differences.is_empty()
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Written {
    meta: u32,
    stock: u32,
}

/// What the rounds did in all, and what the last one found.
#[derive(Debug, Default)]
struct Rounds {
    count: u32,
    total: Tally,
    last: Tally,
}

/// What one call of the script did.
struct Initialised {
    meta: bool,
    stock: bool,
    stock_missing: bool,
}

impl Control {
    /// Restores a version in Redis from PostgreSQL and leaves it paused. May be run again from
    /// wherever a crash left it.
    ///
    /// # Errors
    /// [`Error::WrongState`] when it was never on sale, or is on sale and nothing is missing;
    /// [`Error::Over`] when its keys would have expired; errors of the stores.
    pub async fn rebuild(
        &self,
        scope: &Scope,
        order: &Order,
        recheck_after: Duration,
    ) -> Result<Rebuilt, Error> {
        let activity = self.activity(scope).await?;
        self.require_lost(&activity).await?;
        self.take_off_sale(&activity, order).await?;
        let written = self.initialise(&activity.settings).await?;
        let (rounds, report) = self.bring_back(&activity, recheck_after).await?;
        if report.is_ok() {
            self.open_window(&activity, order).await?;
        }
        let state = self.push_state(scope).await?.state;
        self.point(&scope.activity_id).await?;
        if report.is_ok() && state == ActivityState::Paused {
            let activity = self.activity(scope).await?;
            self.require_equal(&activity, Stage::OnSale).await?;
        }
        Ok(Rebuilt {
            state,
            buckets: activity.settings.bucket_count.get(),
            meta_written: written.meta,
            stock_written: written.stock,
            rounds: rounds.count,
            decisions: rounds.last.checked(),
            reservations: rounds.total.rebuilt,
            tombstones: rounds.total.tombstoned,
            settled: rounds.total.changed() - rounds.total.rebuilt - rounds.total.tombstoned,
            open: rounds.last.open(),
            differences: report.differences,
        })
    }

    /// A version that sells from a whole Redis must not be taken off sale by mistake.
    async fn require_lost(&self, activity: &Activity) -> Result<(), Error> {
        let refused = |hint| {
            Err(Error::WrongState {
                step: STEP,
                scope: activity.settings.scope.clone(),
                state: activity.state,
                hint,
            })
        };
        match activity.state {
            ActivityState::Prepared => refused("it was never on sale; preheat it"),
            ActivityState::Paused | ActivityState::Closed => Ok(()),
            ActivityState::Active => {
                let sides = self.sides(activity).await?;
                let is_lost = |side: &Sides| {
                    let meta = side.meta.as_ref();
                    let half_done = meta.is_some_and(|meta| meta.recovery == Recovery::Rebuild);
                    half_done || !side.missing().is_empty()
                };
                if sides.iter().any(is_lost) {
                    return Ok(());
                }
                refused("nothing is missing in Redis; see `seckillctl audit`, or pause it first")
            }
        }
    }

    /// PostgreSQL first. Buckets that are still there stop selling at once.
    async fn take_off_sale(&self, activity: &Activity, order: &Order) -> Result<(), Error> {
        let scope = &activity.settings.scope;
        if activity.state == ActivityState::Closed {
            return Ok(());
        }
        let from = [ActivityState::Active, ActivityState::Paused];
        let Order { actor, reason } = order;
        self.store
            .set_activity_state(scope, &from, ActivityState::Paused, actor, reason)
            .await?;
        self.push_state(scope).await?;
        Ok(())
    }

    async fn initialise(&self, settings: &ActivitySettings) -> Result<Written, Error> {
        let buckets = settings.bucket_count.buckets();
        let replies = buckets.map(|bucket_id| self.initialise_bucket(settings, bucket_id));
        futures::stream::iter(replies)
            .buffer_unordered(BUCKETS_AT_ONCE)
            .try_fold(Written::default(), |sum, (meta, stock)| async move {
                Ok(Written {
                    meta: sum.meta + u32::from(meta),
                    stock: sum.stock + u32::from(stock),
                })
            })
            .await
    }

    /// Closes the bucket, and writes the counters that it lacks. Between the two calls the sum of what is
    /// held cannot change: without counters every script refuses to accept, to release and to rebuild.
    async fn initialise_bucket(
        &self,
        settings: &ActivitySettings,
        bucket_id: BucketId,
    ) -> Result<(bool, bool), Error> {
        let keys = BucketKeys::new(&settings.scope.bucket(bucket_id));
        let closed = self.initialise_once(settings, &keys, None).await?;
        if !closed.stock_missing {
            return Ok((closed.meta, false));
        }
        let held = held::units(&self.redis, &keys).await?;
        let written = self.initialise_once(settings, &keys, Some(held)).await?;
        Ok((closed.meta || written.meta, written.stock))
    }

    async fn initialise_once(
        &self,
        settings: &ActivitySettings,
        keys: &BucketKeys,
        held: Option<u64>,
    ) -> Result<Initialised, Error> {
        let call = InitialiseBucket {
            keys,
            settings,
            held,
            now_override: None,
        };
        let reason = match self.redis.initialise_bucket(&call).await? {
            InitialiseReply::Initialised {
                meta_written,
                stock_written,
                stock_missing,
            } => {
                return Ok(Initialised {
                    meta: meta_written,
                    stock: stock_written,
                    stock_missing,
                });
            }
            InitialiseReply::RetentionPassed => {
                return Err(Error::Over {
                    step: STEP,
                    scope: settings.scope.clone(),
                    what: "retention",
                });
            }
            InitialiseReply::ScopeMismatch => "its meta names another bucket".to_owned(),
            InitialiseReply::HeldBeyondInitial => {
                let units = held.unwrap_or_default();
                format!("its reservations hold {units} units, more than it ever had")
            }
            InitialiseReply::BadArgument { detail } => detail,
        };
        Err(Error::Declined {
            step: STEP,
            bucket: keys.scope().clone(),
            reason,
        })
    }

    /// Replays every decision and compares both sides, until they hold the same or a round that
    /// changed nothing has shown that they will not.
    async fn bring_back(
        &self,
        activity: &Activity,
        recheck_after: Duration,
    ) -> Result<(Rounds, AuditReport), Error> {
        let replayer = Replayer::new(self.redis.clone(), self.store.clone());
        let mut rounds = Rounds::default();
        loop {
            rounds.last = replay_once(&replayer, &activity.settings).await?;
            rounds.total.add(&rounds.last);
            rounds.count += 1;
            let options = AuditOptions { recheck_after };
            let report = self.audit(&activity.settings.scope, options).await?;
            let is_idle = rounds.last.changed() + rounds.last.in_progress == 0;
            if report.is_ok() || is_idle || rounds.count == ROUNDS_MAX {
                return Ok((rounds, report));
            }
        }
    }

    /// PostgreSQL's record of the window first: a meta that says `window` without one would say so
    /// for ever.
    async fn open_window(&self, activity: &Activity, order: &Order) -> Result<(), Error> {
        let settings = &activity.settings;
        let reason = format!("rebuilt by {}: {}", order.actor, order.reason);
        let reason = reason.as_str();
        let buckets = settings.bucket_count.buckets().map(|bucket_id| async move {
            let bucket = settings.scope.bucket(bucket_id);
            let keys = BucketKeys::new(&bucket);
            let server = self.redis.who_serves(&keys).await?;
            let names = ServerNames {
                run_id: &server.run_id,
                replication_id: &server.replication_id,
            };
            // A window that is open may be from before the loss.
            self.store.restart_window(&bucket, names, reason).await?;
            let call = SetRecovery {
                keys: &keys,
                recovery: Recovery::Window,
                expected: None,
            };
            let reason = match self.redis.set_recovery(&call).await? {
                SetRecoveryReply::Set | SetRecoveryReply::Unchanged => return Ok(()),
                SetRecoveryReply::ConfigMissing => "its meta has vanished again".to_owned(),
                SetRecoveryReply::ScopeMismatch => "its meta names another bucket".to_owned(),
                SetRecoveryReply::Moved { found } => format!("its meta says {found:?}"),
            };
            Err(Error::Declined {
                step: STEP,
                bucket,
                reason,
            })
        });
        futures::stream::iter(buckets)
            .buffer_unordered(BUCKETS_AT_ONCE)
            .try_collect()
            .await
    }
}

/// One round over all buckets.
async fn replay_once(replayer: &Replayer, settings: &ActivitySettings) -> Result<Tally, Error> {
    let buckets: Vec<BucketId> = settings.bucket_count.buckets().collect();
    let ended = replayer
        .replay_buckets(&settings.scope, &buckets, |_, _| {})
        .await?;
    let mut sum = Tally::default();
    for tally in ended.into_values() {
        sum.add(&tally?);
    }
    Ok(sum)
}
