//! From PostgreSQL to Redis: an activity's settings and stock, before it is opened.
//!
//! | a crash leaves | who repairs |
//! | --- | --- |
//! | version created, nothing in Redis | preheat, run again |
//! | some buckets written | preheat, run again: what is there stays, what is absent is written |
//! | all written, not compared | preheat, run again: it writes nothing and compares |
//!
//! Nothing can be sold from a preheated bucket, since its meta says `PREPARED`, and `open` compares
//! once more. **Invariant:** stock is written only where there is none, only while PostgreSQL says
//! `PREPARED`, and only while no decision exists; after that, vanished stock is a case for a rebuild
//! that counts the orders.

use futures::{StreamExt as _, TryStreamExt as _};
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{PreheatBucket, PreheatReply};
use seckill_order_store::Created;
use seckill_state_machine::{Activity, ActivitySettings, ActivityState, BucketId, Scope};
use serde::Serialize;

use crate::compare::{FieldDifference, Sides, Stage};
use crate::control::{BUCKETS_AT_ONCE, Control};
use crate::{Error, violations};

const STEP: &str = "preheat";

/// What preheating did; both counts are 0 when everything was there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Preheated {
    /// Buckets of the version.
    pub buckets: u32,
    /// Metas written now.
    pub meta_written: u32,
    /// Stocks written now.
    pub stock_written: u32,
}

impl Control {
    /// Creates an activity version in PostgreSQL, in state `PREPARED`, with one stock row a bucket.
    /// Creating the same settings again is a success that changes nothing.
    ///
    /// # Errors
    /// [`Error::Settings`] naming every setting that cannot stand, and a conflict when the version
    /// exists with others.
    pub async fn create(&self, settings: &ActivitySettings) -> Result<Created, Error> {
        let violations = violations(settings, self.now(&settings.scope).await?);
        if !violations.is_empty() {
            return Err(Error::Settings(violations));
        }
        Ok(self.store.create_activity(settings).await?)
    }

    /// Writes what is absent in Redis and compares both sides field by field.
    ///
    /// # Errors
    /// [`Error::NeedsRebuild`] when keys vanished after the sale had begun, [`Error::WrongState`]
    /// when it is past `PREPARED` and nothing is missing, [`Error::Differs`] with every difference.
    pub async fn preheat(&self, scope: &Scope) -> Result<Preheated, Error> {
        let activity = self.activity(scope).await?;
        self.require_unsold(&activity).await?;
        let written = activity.settings.bucket_count.buckets().map(|bucket_id| {
            let settings = &activity.settings;
            async move { self.preheat_bucket(settings, bucket_id).await }
        });
        let written: Vec<(bool, bool)> = futures::stream::iter(written)
            .buffer_unordered(BUCKETS_AT_ONCE)
            .try_collect()
            .await?;
        // Read again, not taken from above: what is compared is what the stores hold now.
        let activity = self.activity(scope).await?;
        require_prepared(&activity)?;
        self.require_equal(&activity, Stage::Fresh).await?;
        let count = |chosen: fn(&(bool, bool)) -> bool| {
            u32::try_from(written.iter().filter(|w| chosen(w)).count()).unwrap_or(u32::MAX)
        };
        Ok(Preheated {
            buckets: activity.settings.bucket_count.get(),
            meta_written: count(|(meta, _)| *meta),
            stock_written: count(|(_, stock)| *stock),
        })
    }

    /// Refuses once anything may have been sold, and says what to do instead.
    async fn require_unsold(&self, activity: &Activity) -> Result<(), Error> {
        let scope = &activity.settings.scope;
        let is_prepared = activity.state == ActivityState::Prepared;
        if is_prepared && !self.store.has_decisions(scope).await? {
            return Ok(());
        }
        let missing: Vec<String> = self
            .sides(activity)
            .await?
            .iter()
            .flat_map(Sides::missing)
            .collect();
        if missing.is_empty() {
            return Err(Error::WrongState {
                step: STEP,
                scope: scope.clone(),
                state: activity.state,
                hint: "its stock is live and stays as it is",
            });
        }
        Err(Error::NeedsRebuild {
            step: STEP,
            scope: scope.clone(),
            missing,
        })
    }

    async fn preheat_bucket(
        &self,
        settings: &ActivitySettings,
        bucket_id: BucketId,
    ) -> Result<(bool, bool), Error> {
        let bucket = settings.scope.bucket(bucket_id);
        let keys = BucketKeys::new(&bucket);
        let call = PreheatBucket {
            keys: &keys,
            settings,
            now_override: None,
        };
        match self.redis.preheat_bucket(&call).await? {
            PreheatReply::Preheated {
                meta_written,
                stock_written,
            } => Ok((meta_written, stock_written)),
            PreheatReply::NotPrepared { .. } => Err(Error::NeedsRebuild {
                step: STEP,
                scope: settings.scope.clone(),
                missing: vec![format!("stock of bucket {bucket_id}")],
            }),
            PreheatReply::RetentionPassed => Err(Error::Over {
                step: STEP,
                scope: settings.scope.clone(),
                what: "retention",
            }),
            PreheatReply::BadArgument { detail } => Err(Error::Declined {
                step: STEP,
                bucket,
                reason: detail,
            }),
        }
    }

    /// Compares every bucket.
    pub(crate) async fn require_equal(
        &self,
        activity: &Activity,
        stage: Stage,
    ) -> Result<(), Error> {
        let sides = self.sides(activity).await?;
        let differences: Vec<FieldDifference> = sides
            .iter()
            .flat_map(|side| side.differences(activity, stage))
            .collect();
        if differences.is_empty() {
            return Ok(());
        }
        Err(Error::Differs {
            scope: activity.settings.scope.clone(),
            differences,
        })
    }
}

fn require_prepared(activity: &Activity) -> Result<(), Error> {
    if activity.state == ActivityState::Prepared {
        return Ok(());
    }
    Err(Error::Overtaken {
        scope: activity.settings.scope.clone(),
        wanted: ActivityState::Prepared,
        state: activity.state,
    })
}
