//! Activities: created once, moved by operators, every move on record.
//!
//! Settings never change after creation; a new edition is a new version with its own stock rows.
//! Versions are opened one at a time.

mod rules;
mod statements;

use seckill_state_machine::{
    Activity, ActivityId, ActivitySettings, ActivityState, BucketId, Scope,
};
use tokio_postgres::Row;

use self::rules::{check, differences, permitted, refuse_second_version};
use self::statements::{
    ACTIVITIES, ACTIVITY, OPEN_SCOPES, insert_activity, insert_stock, lock_versions, move_state,
    read_activity,
};
use crate::retention::was_extended;
use crate::rows::{ScopeKey, bucket_id, number};
use crate::{Error, Store};

pub(crate) use self::statements::{activity, activity_columns, record_move};

/// Who creates an activity, in its record of moves.
const CREATOR: &str = "create_activity";

/// What creating an activity version did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It is new, in state `PREPARED`, with one stock row a bucket.
    New,
    /// The very same settings were there already.
    Already,
}

/// One bucket's stock as PostgreSQL counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockRow {
    /// Which bucket.
    pub bucket_id: BucketId,
    /// Units the bucket was given.
    pub total: u64,
    /// Units without an active order.
    pub available: u64,
    /// Units in active orders.
    pub sold: u64,
}

impl Store {
    /// Creates an activity version with its stock rows, or finds the identical one, whose retention may
    /// have been extended since.
    ///
    /// # Errors
    /// `Invalid` for settings that make no sense, `Conflict` naming the difference when the version
    /// exists with other settings.
    pub async fn create_activity(&self, settings: &ActivitySettings) -> Result<Created, Error> {
        check(settings)?;
        self.run_tx(CREATOR, async |session| {
            if insert_activity(session, settings).await? {
                insert_stock(session, settings).await?;
                record_move(
                    session,
                    &settings.scope,
                    None,
                    ActivityState::Prepared,
                    CREATOR,
                    "",
                )
                .await?;
                return Ok(Created::New);
            }
            let Some(stored) = read_activity(session, &settings.scope).await? else {
                return Err(Error::Interfered { operation: CREATOR });
            };
            let mut stored = stored.settings;
            if stored.retention_until_ms > settings.retention_until_ms
                && was_extended(session, &settings.scope).await?
            {
                // Its end was moved since it was created: no contradiction to how it was created.
                stored.retention_until_ms = settings.retention_until_ms;
            }
            let differences = differences(&stored, settings);
            if differences.is_empty() {
                return Ok(Created::Already);
            }
            Err(Error::Conflict(format!(
                "activity {} exists with other settings: {}",
                settings.scope,
                differences.join(", ")
            )))
        })
        .await
    }

    /// One activity version.
    ///
    /// # Errors
    /// As every read.
    pub async fn activity(&self, scope: &Scope) -> Result<Option<Activity>, Error> {
        let rows = self
            .read("activity", ACTIVITY, &ScopeKey::of(scope).params())
            .await?;
        rows.first().map(activity).transpose()
    }

    /// All versions, newest first; of one activity or of all.
    ///
    /// # Errors
    /// As every read.
    pub async fn activities(
        &self,
        activity_id: Option<&ActivityId>,
    ) -> Result<Vec<Activity>, Error> {
        let id = activity_id.map(ActivityId::as_str);
        let rows = self
            .read("activities", ACTIVITIES, &[/* activity_id */ &id])
            .await?;
        rows.iter().map(activity).collect()
    }

    /// The newest version of an activity.
    ///
    /// # Errors
    /// As every read.
    pub async fn latest(&self, activity_id: &ActivityId) -> Result<Option<Activity>, Error> {
        let mut versions = self.activities(Some(activity_id)).await?;
        Ok((!versions.is_empty()).then(|| versions.swap_remove(0)))
    }

    /// The version that is on sale: the `ACTIVE` one, else the newest.
    ///
    /// # Errors
    /// As every read.
    pub async fn current(&self, activity_id: &ActivityId) -> Result<Option<Activity>, Error> {
        let mut versions = self.activities(Some(activity_id)).await?;
        let active = versions
            .iter()
            .position(|a| a.state == ActivityState::Active);
        Ok((!versions.is_empty()).then(|| versions.swap_remove(active.unwrap_or(0))))
    }

    /// Moves an activity's state and records who did it and why. When it is in `to` already, and
    /// `from` names `to` as well, nothing changes.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when the state is none of `from`, when no step leads to `to`, or when
    /// another version of the activity is `ACTIVE`; `Invalid` without an actor.
    pub async fn set_activity_state(
        &self,
        scope: &Scope,
        from: &[ActivityState],
        to: ActivityState,
        actor: &str,
        reason: &str,
    ) -> Result<Activity, Error> {
        if actor.is_empty() {
            return Err(Error::invalid("actor", "must be named"));
        }
        self.run_tx("set_activity_state", async |session| {
            let versions = lock_versions(session, &scope.activity_id).await?;
            let current = versions.iter().find(|a| a.settings.scope == *scope);
            let mut activity = current.cloned().ok_or_else(|| Error::NotFound {
                what: format!("activity {scope}"),
            })?;
            if !permitted(&activity, from, to)? {
                return Ok(activity);
            }
            if to == ActivityState::Active {
                refuse_second_version(&versions, scope)?;
            }
            move_state(session, scope, to).await?;
            record_move(session, scope, Some(activity.state), to, actor, reason).await?;
            activity.state = to;
            Ok(activity)
        })
        .await
    }

    /// Every version that is not archived and whose retention lies ahead, whatever its state: what
    /// an older version left undone must be finished as well.
    ///
    /// # Errors
    /// As every read.
    pub async fn open_scopes(&self) -> Result<Vec<Activity>, Error> {
        let rows = self.read("open_scopes", OPEN_SCOPES, &[]).await?;
        rows.iter().map(activity).collect()
    }

    /// Whether anything was decided for this version.
    ///
    /// # Errors
    /// As every read.
    pub async fn has_decisions(&self, scope: &Scope) -> Result<bool, Error> {
        let rows = self
            .read(
                "has_decisions",
                "-- has_decisions
                SELECT FROM reservation_decision
                WHERE activity_id = $1 AND sku_id = $2 AND version = $3
                LIMIT 1",
                &ScopeKey::of(scope).params(),
            )
            .await?;
        Ok(!rows.is_empty())
    }

    /// The stock rows in bucket order.
    ///
    /// # Errors
    /// As every read.
    pub async fn stock_rows(&self, scope: &Scope) -> Result<Vec<StockRow>, Error> {
        let rows = self
            .read(
                "stock_rows",
                "-- stock_rows
                SELECT bucket_id, total, available, sold FROM activity_stock
                WHERE activity_id = $1 AND sku_id = $2 AND version = $3
                ORDER BY bucket_id",
                &ScopeKey::of(scope).params(),
            )
            .await?;
        let stock = |row: &Row| {
            Ok(StockRow {
                bucket_id: bucket_id(row)?,
                total: number(row, "total")?,
                available: number(row, "available")?,
                sold: number(row, "sold")?,
            })
        };
        rows.iter().map(stock).collect()
    }
}
