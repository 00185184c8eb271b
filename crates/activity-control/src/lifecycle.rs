//! Open, pause, resume, close: PostgreSQL first, then every bucket, then the version pointer.
//!
//! PostgreSQL's word is final: it is written first, and Redis follows. Buyers see a version only
//! through its pointer, which is written last, so that it goes on sale in all buckets at once.
//!
//! | a crash leaves | who repairs |
//! | --- | --- |
//! | `ACTIVE` in PostgreSQL, some buckets still `PREPARED` | `open`, run again, finishes |
//! | all buckets `ACTIVE`, no pointer | `open`, run again; until then buyers are told `CONFIG_MISSING`, which is retryable |
//! | `PAUSED` or `CLOSED` in PostgreSQL, some buckets still `ACTIVE` | the same step, run again; what these buckets sell meanwhile stays valid |
//! | a failover lost a state | the same step, run again, or whoever calls [`Control::push_state`] |
//!
//! Every step may be taken again from where a crash left it, and by two operators at once: the last
//! word in PostgreSQL is pushed until both sides agree. That holds for the pointer too: whoever
//! wrote it late, after others have closed the version and opened the next, puts it right again.

use futures::{StreamExt as _, TryStreamExt as _};
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{SetActivityState, SetActivityStateReply};
use seckill_state_machine::{Activity, ActivityId, ActivityState, ActivityVersion, Scope};
use serde::Serialize;

use crate::Error;
use crate::compare::{Sides, Stage};
use crate::control::{BUCKETS_AT_ONCE, Control};

/// How long the version pointer outlives the sale: longer than the keys, so that a late caller is
/// told that another version is current, and not that there is none.
const POINTER_LIFE_MS: i64 = 30 * 24 * 3_600_000;

/// Rounds of pushing a state that others keep moving. Operators do not press buttons in turns; five
/// rounds only meet a script gone wild.
const PUSH_ROUNDS_MAX: u32 = 5;

/// Who wants a change, and why; both are kept with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
}

/// What a step did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// The state before.
    pub from: ActivityState,
    /// The state now, in both stores.
    pub to: ActivityState,
    /// Buckets whose state was written now.
    pub written: u32,
    /// Buckets that had the state already.
    pub unchanged: u32,
    /// Buckets without meta; they sell nothing.
    pub missing: u32,
}

/// What pushing a state did to the buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushed {
    /// PostgreSQL's state, which the buckets have now.
    pub state: ActivityState,
    written: u32,
    unchanged: u32,
    missing: u32,
}

impl Control {
    /// Opens a preheated version, or finishes an opening that a crash cut short.
    ///
    /// # Errors
    /// [`Error::Differs`] unless both stores agree in every field, [`Error::OtherVersion`] while
    /// another version is on sale or a newer one has been.
    pub async fn open(&self, scope: &Scope, order: &Order) -> Result<Moved, Error> {
        const STEP: &str = "open";
        let activity = self.activity(scope).await?;
        let stage = match activity.state {
            ActivityState::Prepared => Stage::Fresh,
            ActivityState::Active => Stage::OnSale,
            state @ (ActivityState::Paused | ActivityState::Closed) => {
                let hint = match state {
                    ActivityState::Paused => "resume it",
                    _ => "create a new version",
                };
                return Err(Error::WrongState {
                    step: STEP,
                    scope: scope.clone(),
                    state,
                    hint,
                });
            }
        };
        self.require_turn(&activity).await?;
        self.require_time(STEP, &activity).await?;
        self.require_whole(STEP, &activity, stage).await?;
        let from = [ActivityState::Prepared, ActivityState::Active];
        self.put_on_sale(&activity, &from, order).await
    }

    /// Puts a paused version back on sale.
    ///
    /// # Errors
    /// As [`Control::open`].
    pub async fn resume(&self, scope: &Scope, order: &Order) -> Result<Moved, Error> {
        const STEP: &str = "resume";
        let activity = self.activity(scope).await?;
        if let state @ (ActivityState::Prepared | ActivityState::Closed) = activity.state {
            let hint = match state {
                ActivityState::Prepared => "open it",
                _ => "create a new version",
            };
            return Err(Error::WrongState {
                step: STEP,
                scope: scope.clone(),
                state,
                hint,
            });
        }
        self.require_turn(&activity).await?;
        self.require_time(STEP, &activity).await?;
        self.require_whole(STEP, &activity, Stage::OnSale).await?;
        let from = [ActivityState::Paused, ActivityState::Active];
        self.put_on_sale(&activity, &from, order).await
    }

    /// Stops a version for a while. Buckets that Redis lost are counted, not refused: they sell
    /// nothing anyway.
    ///
    /// # Errors
    /// [`Error::WrongState`] unless it is on sale.
    pub async fn pause(&self, scope: &Scope, order: &Order) -> Result<Moved, Error> {
        let activity = self.activity(scope).await?;
        if let state @ (ActivityState::Prepared | ActivityState::Closed) = activity.state {
            let hint = "only a version on sale can be paused";
            return Err(Error::WrongState {
                step: "pause",
                scope: scope.clone(),
                state,
                hint,
            });
        }
        let from = [ActivityState::Active, ActivityState::Paused];
        self.shift(&activity, &from, ActivityState::Paused, order)
            .await
    }

    /// Ends a version for good. Closing it again finishes a closing that a crash cut short.
    ///
    /// # Errors
    /// Store errors.
    pub async fn close(&self, scope: &Scope, order: &Order) -> Result<Moved, Error> {
        let activity = self.activity(scope).await?;
        self.shift(&activity, &ActivityState::ALL, ActivityState::Closed, order)
            .await
    }

    /// Writes PostgreSQL's state into every bucket until it no longer changes under our hands.
    ///
    /// # Errors
    /// [`Error::Declined`] when a bucket cannot take the state, and store errors.
    pub async fn push_state(&self, scope: &Scope) -> Result<Pushed, Error> {
        let mut activity = self.activity(scope).await?;
        for _ in 0..PUSH_ROUNDS_MAX {
            let pushed = self.push_once(&activity).await?;
            let now = self.activity(scope).await?;
            if now.state == activity.state {
                return Ok(pushed);
            }
            activity = now;
        }
        Err(Error::Overtaken {
            scope: scope.clone(),
            wanted: activity.state,
            state: activity.state,
        })
    }

    async fn push_once(&self, activity: &Activity) -> Result<Pushed, Error> {
        let state = activity.state;
        let replies = activity
            .settings
            .bucket_count
            .buckets()
            .map(|bucket_id| async move {
                let bucket = activity.settings.scope.bucket(bucket_id);
                let keys = BucketKeys::new(&bucket);
                let call = SetActivityState { keys: &keys, state };
                let reply = self.redis.set_activity_state(&call).await?;
                Ok::<_, Error>((bucket, reply))
            });
        let replies: Vec<_> = futures::stream::iter(replies)
            .buffer_unordered(BUCKETS_AT_ONCE)
            .try_collect()
            .await?;
        let mut pushed = Pushed {
            state,
            written: 0,
            unchanged: 0,
            missing: 0,
        };
        for (bucket, reply) in replies {
            let reason = match reply {
                SetActivityStateReply::Updated { .. } => {
                    pushed.written += 1;
                    continue;
                }
                SetActivityStateReply::Unchanged => {
                    pushed.unchanged += 1;
                    continue;
                }
                SetActivityStateReply::MetaMissing => {
                    pushed.missing += 1;
                    continue;
                }
                SetActivityStateReply::ScopeMismatch => "its meta names another bucket".to_owned(),
                SetActivityStateReply::Refused { state: found } => {
                    format!("it is {found} and cannot become {state}")
                }
            };
            return Err(Error::Declined {
                step: "change the state of",
                bucket,
                reason,
            });
        }
        Ok(pushed)
    }

    async fn put_on_sale(
        &self,
        activity: &Activity,
        from: &[ActivityState],
        order: &Order,
    ) -> Result<Moved, Error> {
        let scope = &activity.settings.scope;
        let wanted = ActivityState::Active;
        let moved = self.shift(activity, from, wanted, order).await?;
        self.point(&scope.activity_id).await?;
        let state = self.activity(scope).await?.state;
        if state != wanted {
            return Err(Error::Overtaken {
                scope: scope.clone(),
                wanted,
                state,
            });
        }
        Ok(moved)
    }

    /// Points buyers at the version that PostgreSQL says is on sale, until it no longer changes
    /// under our hands: a pointer that is written late must not stay behind a newer version's.
    /// Without a version on sale the pointer stays, and the scripts tell buyers why they get nothing.
    ///
    /// # Errors
    /// [`Error::PointerRace`] when the versions do not stop changing, and store errors.
    pub async fn point(&self, activity_id: &ActivityId) -> Result<Option<ActivityVersion>, Error> {
        let mut written = None;
        for _ in 0..PUSH_ROUNDS_MAX {
            let all = self.activities(activity_id).await?;
            let Some(settings) = on_sale(&all).map(|activity| &activity.settings) else {
                return Ok(None);
            };
            let version = settings.scope.version;
            if written == Some(version) {
                return Ok(written);
            }
            let expire_at = settings.ends_at_ms + POINTER_LIFE_MS;
            self.redis
                .set_current_version(activity_id, version, expire_at)
                .await?;
            written = Some(version);
        }
        Err(Error::PointerRace(activity_id.clone()))
    }

    /// PostgreSQL first, then every bucket.
    async fn shift(
        &self,
        activity: &Activity,
        from: &[ActivityState],
        to: ActivityState,
        order: &Order,
    ) -> Result<Moved, Error> {
        let scope = &activity.settings.scope;
        let Order { actor, reason } = order;
        self.store
            .set_activity_state(scope, from, to, actor, reason)
            .await?;
        let pushed = self.push_state(scope).await?;
        if pushed.state != to {
            let state = pushed.state;
            return Err(Error::Overtaken {
                scope: scope.clone(),
                wanted: to,
                state,
            });
        }
        Ok(Moved {
            from: activity.state,
            to,
            written: pushed.written,
            unchanged: pushed.unchanged,
            missing: pushed.missing,
        })
    }

    /// Versions are opened one at a time and in order: a pointer that went back would send buyers
    /// with the newer token away.
    async fn require_turn(&self, activity: &Activity) -> Result<(), Error> {
        let scope = &activity.settings.scope;
        for other in self.store.activities(Some(&scope.activity_id)).await? {
            let version = other.settings.scope.version;
            let is_on_sale = matches!(other.state, ActivityState::Active | ActivityState::Paused);
            let was_opened = other.state != ActivityState::Prepared;
            let blocks =
                version != scope.version && is_on_sale || version > scope.version && was_opened;
            if blocks {
                return Err(Error::OtherVersion {
                    scope: scope.clone(),
                    other: version,
                    state: other.state,
                });
            }
        }
        Ok(())
    }

    async fn require_time(&self, step: &'static str, activity: &Activity) -> Result<(), Error> {
        let settings = &activity.settings;
        if self.now(&settings.scope).await? <= settings.ends_at_ms {
            return Ok(());
        }
        Err(Error::Over {
            step,
            scope: settings.scope.clone(),
            what: "end",
        })
    }

    /// Nothing may be missing, and every field must agree.
    async fn require_whole(
        &self,
        step: &'static str,
        activity: &Activity,
        stage: Stage,
    ) -> Result<(), Error> {
        let sides = self.sides(activity).await?;
        let missing: Vec<String> = sides.iter().flat_map(Sides::missing).collect();
        let scope = activity.settings.scope.clone();
        match stage {
            _ if missing.is_empty() => self.require_equal(activity, stage).await,
            Stage::OnSale => Err(Error::NeedsRebuild {
                step,
                scope,
                missing,
            }),
            Stage::Fresh => Err(Error::WrongState {
                step,
                scope,
                state: activity.state,
                hint: "preheat it first",
            }),
        }
    }
}

/// The newest version on sale; of several SKUs in one version, the one that is sold longest, whose
/// pointer outlives the others'.
pub(crate) fn on_sale(all: &[Activity]) -> Option<&Activity> {
    all.iter()
        .filter(|activity| {
            matches!(
                activity.state,
                ActivityState::Active | ActivityState::Paused
            )
        })
        .max_by_key(|activity| {
            (
                activity.settings.scope.version,
                activity.settings.ends_at_ms,
            )
        })
}
