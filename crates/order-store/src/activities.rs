//! Activities: created once, moved by operators, every move on record.
use seckill_state_machine::{
    Activity, ActivityId, ActivitySettings, ActivityState, BucketId, Scope,
};

use crate::{Error, Store};

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
    /// Creates an activity version with its stock rows, or finds the identical one.
    ///
    /// # Errors
    /// `Invalid` for settings that make no sense, `Conflict` naming the difference when the version
    /// exists with other settings.
    pub async fn create_activity(&self, settings: &ActivitySettings) -> Result<Created, Error> {
        let _ = settings;
        todo!()
    }
    /// One activity version.
    ///
    /// # Errors
    /// As every read.
    pub async fn activity(&self, scope: &Scope) -> Result<Option<Activity>, Error> {
        let _ = scope;
        todo!()
    }
    /// All versions, newest first; of one activity or of all.
    ///
    /// # Errors
    /// As every read.
    pub async fn activities(
        &self,
        activity_id: Option<&ActivityId>,
    ) -> Result<Vec<Activity>, Error> {
        let _ = activity_id;
        todo!()
    }
    /// The newest version of an activity.
    ///
    /// # Errors
    /// As every read.
    pub async fn latest(&self, activity_id: &ActivityId) -> Result<Option<Activity>, Error> {
        let _ = activity_id;
        todo!()
    }
    /// The version that is on sale: the `ACTIVE` one, else the newest.
    ///
    /// # Errors
    /// As every read.
    pub async fn current(&self, activity_id: &ActivityId) -> Result<Option<Activity>, Error> {
        let _ = activity_id;
        todo!()
    }
    /// Moves an activity's state; already being in `to` is a success when `from` allows `to`'s own
    /// state, and changes nothing.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when the state is none of `from`, or another version is `ACTIVE`.
    pub async fn set_activity_state(
        &self,
        scope: &Scope,
        from: &[ActivityState],
        to: ActivityState,
        actor: &str,
        reason: &str,
    ) -> Result<Activity, Error> {
        let _ = (scope, from, to, actor, reason);
        todo!()
    }
    /// Every version that is not archived and whose retention lies ahead, whatever its state.
    ///
    /// # Errors
    /// As every read.
    pub async fn open_scopes(&self) -> Result<Vec<Activity>, Error> {
        todo!()
    }
    /// Whether anything was decided for this version.
    ///
    /// # Errors
    /// As every read.
    pub async fn has_decisions(&self, scope: &Scope) -> Result<bool, Error> {
        let _ = scope;
        todo!()
    }
    /// The stock rows in bucket order.
    ///
    /// # Errors
    /// As every read.
    pub async fn stock_rows(&self, scope: &Scope) -> Result<Vec<StockRow>, Error> {
        let _ = scope;
        todo!()
    }
}
