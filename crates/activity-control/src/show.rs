//! An activity as both stores hold it, for a person to look at.

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{CachedResult, Meta, Recovery, ReservationRecord, Stock};
use seckill_order_store::DecisionRecord;
use seckill_state_machine::{
    Activity, ActivityState, ActivityVersion, BucketId, RequestId, ReservationId, Scope, UserId,
};
use serde::Serialize;

use crate::Error;
use crate::control::Control;

/// A bucket's figures and state on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BucketView {
    /// Which one.
    pub bucket_id: BucketId,
    /// PostgreSQL: units in all, left and sold.
    pub postgres: Option<BookView>,
    /// Redis: the state in meta; absent when meta is.
    pub state: Option<ActivityState>,
    /// Redis: whether the bucket is in recovery.
    pub recovery: Option<&'static str>,
    /// Redis: the counters; absent when stock is.
    pub redis: Option<StockView>,
}

/// A stock row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BookView {
    /// Units in all.
    pub total: u64,
    /// Units left.
    pub available: u64,
    /// Units sold.
    pub sold: u64,
}

/// A bucket's counters in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StockView {
    /// Units it started with.
    pub initial: u64,
    /// Units on sale.
    pub available: u64,
    /// Units held.
    pub reserved: u64,
    /// Units that went back on sale so far.
    pub released_total: u64,
}

impl From<Stock> for StockView {
    fn from(stock: Stock) -> Self {
        Self {
            initial: stock.counters.initial,
            available: stock.counters.available,
            reserved: stock.counters.reserved,
            released_total: stock.released_total,
        }
    }
}

/// An activity version on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActivityView {
    /// PostgreSQL's settings and state.
    pub activity: Activity,
    /// The version that Redis points at.
    pub current_version: Option<ActivityVersion>,
    /// Each bucket.
    pub buckets: Vec<BucketView>,
    /// Reservations whose order request may have to be sent.
    pub send_pending: u64,
    /// Reservations that are neither ordered nor released.
    pub reservation_expiry: u64,
    /// Open compensation tasks.
    pub tasks: u64,
}

/// How an operator names a reservation. The bucket follows from the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReservationName {
    /// By its id; every bucket is looked into.
    Id(ReservationId),
    /// By its buyer, whose marker names it.
    User(UserId),
    /// By the request that made it and its buyer.
    Request(UserId, RequestId),
}

/// A reservation on both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationView {
    /// In Redis.
    pub redis: Option<ReservationRecord>,
    /// In PostgreSQL.
    pub decision: Option<DecisionRecord>,
    /// The remembered answer, when it was named by its request.
    pub cached: Option<CachedResult>,
}

impl Control {
    /// Shows an activity version.
    ///
    /// # Errors
    /// [`Error::Unknown`] when it does not exist, and errors of the stores.
    pub async fn show(&self, scope: &Scope) -> Result<ActivityView, Error> {
        let activity = self.activity(scope).await?;
        let current_version = self.redis.current_version(&scope.activity_id).await?;
        let (send_pending, reservation_expiry) = self.index_lengths(&activity).await?;
        let tasks = self.store.open_tasks(Some(scope)).await?;
        let sides = self.sides(&activity).await?;
        let buckets = sides
            .into_iter()
            .map(|side| BucketView {
                bucket_id: side.bucket.bucket_id,
                postgres: side.row.map(|row| BookView {
                    total: row.total,
                    available: row.available,
                    sold: row.sold,
                }),
                state: side.meta.as_ref().map(|meta| meta.state),
                recovery: side.meta.as_ref().and_then(recovery_word),
                redis: side.stock.map(StockView::from),
            })
            .collect();
        Ok(ActivityView {
            activity,
            current_version,
            buckets,
            send_pending,
            reservation_expiry,
            tasks,
        })
    }

    /// Finds a reservation on both sides; `None` when neither knows it.
    ///
    /// # Errors
    /// [`Error::Unknown`] when the activity does not exist, and errors of the stores.
    pub async fn reservation(
        &self,
        scope: &Scope,
        name: &ReservationName,
    ) -> Result<Option<ReservationView>, Error> {
        let activity = self.activity(scope).await?;
        let (redis, cached, id) = self.in_redis(&activity, name).await?;
        let decision = match (id, name) {
            (Some(id), _) => self.store.decisions(&[id]).await?.pop(),
            (None, ReservationName::Request(user_id, request_id)) => {
                let by = seckill_order_store::ReservationRef::Request(request_id);
                self.store.find_reservation(scope, user_id, by).await?
            }
            (None, _) => None,
        };
        let is_known = redis.is_some() || decision.is_some() || cached.is_some();
        Ok(is_known.then_some(ReservationView {
            redis,
            decision,
            cached,
        }))
    }

    /// The reservation in Redis, the cached answer, and the id to ask PostgreSQL for.
    async fn in_redis(
        &self,
        activity: &Activity,
        name: &ReservationName,
    ) -> Result<
        (
            Option<ReservationRecord>,
            Option<CachedResult>,
            Option<ReservationId>,
        ),
        Error,
    > {
        let scope = &activity.settings.scope;
        let keys_of = |user_id| {
            let buckets = activity.settings.bucket_count;
            let bucket_id = seckill_key_layout::bucket_of_user(scope, user_id, buckets);
            BucketKeys::new(&scope.bucket(bucket_id))
        };
        let (keys, id, cached) = match name {
            ReservationName::Id(id) => {
                let found = self.search(activity, id).await?;
                return Ok((found, None, Some(id.clone())));
            }
            ReservationName::User(user_id) => {
                let keys = keys_of(user_id);
                let id = self.redis.marker(&keys, user_id).await?;
                (keys, id, None)
            }
            ReservationName::Request(user_id, request_id) => {
                let keys = keys_of(user_id);
                let cached = self.redis.cached_request(&keys, request_id).await?;
                let id = cached
                    .as_ref()
                    .and_then(|cached| cached.reservation_id.clone());
                (keys, id, cached)
            }
        };
        let record = match &id {
            Some(id) => self.redis.reservation(&keys, id).await?,
            None => None,
        };
        Ok((record, cached, id))
    }

    /// A reservation id does not tell its bucket.
    async fn search(
        &self,
        activity: &Activity,
        id: &ReservationId,
    ) -> Result<Option<ReservationRecord>, Error> {
        for bucket_id in activity.settings.bucket_count.buckets() {
            let keys = BucketKeys::new(&activity.settings.scope.bucket(bucket_id));
            if let Some(record) = self.redis.reservation(&keys, id).await? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }
}

fn recovery_word(meta: &Meta) -> Option<&'static str> {
    match meta.recovery {
        Recovery::None => None,
        Recovery::Window => Some("window"),
        Recovery::Rebuild => Some("rebuild"),
    }
}
