//! `GetReservation`: what became of a reservation, for its owner alone.

use std::sync::Arc;

use seckill_key_layout::{BucketKeys, bucket_of_user};
use seckill_lua_scripts::{
    Error as RedisError, ErrorKind, Meta, Recovery, Redis, ReservationRecord,
};
use seckill_order_store::{DecisionRecord, ReservationRef, Store};
use seckill_proto::{QueryKey, ReservationQuery, v1};
use seckill_state_machine::{
    DecisionKind, OrderState, RequestId, ReservationId, ReservationStatus, ReserveCode, UserId,
};
use tokio::sync::Semaphore;
use tokio::time::timeout_at;
use tonic::Status;
use tracing::{error, warn};

use crate::activities::Activities;
use crate::deadline::CallDeadline;
use crate::faults::{Fault, not_found};
use crate::log_limit::LogLimit;
use crate::reserve::Reserving;
use crate::settings::FrontSettings;

/// Queries that may wait for PostgreSQL at once: four for each connection of the default pool. The
/// hot path must never turn into load on it, so further ones are turned away.
const STORE_QUERIES_MAX: usize = 32;

/// Answers queries.
pub(crate) struct Querying {
    redis: Redis,
    store: Store,
    activities: Arc<Activities>,
    reserving: Arc<Reserving>,
    in_hand: Semaphore,
    store_queries: Semaphore,
    redis_trouble: LogLimit,
    store_trouble: LogLimit,
    shed: LogLimit,
}

/// Redis could not answer.
struct Unanswered;

/// What Redis says.
enum Found {
    Record(Box<ReservationRecord>),
    /// It is somebody else's.
    NotYours,
    /// Nothing, in the bucket of these keys.
    Nothing(BucketKeys),
    /// It does not know the activity.
    NoActivity,
}

impl Querying {
    pub(crate) fn new(
        redis: Redis,
        store: Store,
        activities: Arc<Activities>,
        reserving: Arc<Reserving>,
        settings: &FrontSettings,
    ) -> Self {
        Self {
            redis,
            store,
            activities,
            reserving,
            in_hand: Semaphore::new(settings.queries_max()),
            store_queries: Semaphore::new(STORE_QUERIES_MAX),
            redis_trouble: LogLimit::new(),
            store_trouble: LogLimit::new(),
            shed: LogLimit::new(),
        }
    }

    /// Answers one query: Redis first, and PostgreSQL when Redis cannot answer or has nothing.
    pub(crate) async fn find(
        &self,
        query: &ReservationQuery,
        deadline: CallDeadline,
    ) -> Result<v1::GetReservationResponse, Status> {
        let request_id = match &query.key {
            QueryKey::Request(request_id) => Some(request_id),
            QueryKey::Reservation(_) => None,
        };
        let Ok(_room) = self.in_hand.try_acquire() else {
            if let Some(left_out) = self.shed.allow() {
                warn!(left_out, "too many queries in hand, some are turned away");
            }
            return Err(Fault::SystemBusy.status(request_id));
        };
        match timeout_at(deadline.instant(), self.find_somewhere(query)).await {
            Ok(Ok(Some(response))) => Ok(response),
            Ok(Ok(None)) => Err(not_found()),
            Ok(Err(fault)) => Err(fault.status(request_id)),
            Err(_) => Err(Fault::DeadlineExceeded.status(request_id)),
        }
    }

    async fn find_somewhere(
        &self,
        query: &ReservationQuery,
    ) -> Result<Option<v1::GetReservationResponse>, Fault> {
        let in_redis = self.find_in_redis(query).await;
        match &in_redis {
            Ok(Found::Record(record)) => return Ok(Some(from_redis(record))),
            // A stranger learns nothing, not even that PostgreSQL has nothing either.
            Ok(Found::NotYours) => return Ok(None),
            Ok(Found::Nothing(_) | Found::NoActivity) | Err(Unanswered) => {}
        }
        if let Some(record) = self.find_in_store(query).await? {
            return Ok(Some(from_store(record)));
        }
        match in_redis {
            Ok(Found::Nothing(keys)) => self.surely_nothing(&keys).await.map(|()| None),
            Ok(_) if self.reserving.assumes_window(None) => Err(Fault::OutcomeUnknown),
            Ok(_) => Ok(None),
            // It may be open in Redis, where nobody can look right now.
            Err(Unanswered) => Err(Fault::SystemBusy),
        }
    }

    /// Whether what neither store has does not exist. A failover may have lost an acceptance that
    /// still becomes an order, so that in its recovery window nobody knows.
    async fn surely_nothing(&self, keys: &BucketKeys) -> Result<(), Fault> {
        if self.reserving.assumes_window(Some(keys)) {
            return Err(Fault::OutcomeUnknown);
        }
        let meta = self.redis.meta(keys).await;
        let meta = meta.map_err(|error| {
            self.redis_failed(&error);
            Fault::SystemBusy
        })?;
        match meta.map(|meta| meta.recovery) {
            Some(Recovery::None) => Ok(()),
            // A bucket of a known activity without meta has lost everything.
            Some(Recovery::Window | Recovery::Rebuild) | None => Err(Fault::OutcomeUnknown),
        }
    }

    async fn find_in_redis(&self, query: &ReservationQuery) -> Result<Found, Unanswered> {
        let meta = self.activities.meta_for_query(&query.scope).await;
        let Some(meta) = meta.map_err(|error| self.redis_failed(&error))? else {
            return Ok(Found::NoActivity);
        };
        let bucket_id = bucket_of_user(&query.scope, &query.user_id, meta.bucket_count);
        let keys = BucketKeys::new(&query.scope.bucket(bucket_id));
        let found = match &query.key {
            QueryKey::Reservation(id) => self.find_by_id(&keys, id).await,
            QueryKey::Request(id) => self.find_by_request(&keys, &meta, &query.user_id, id).await,
        };
        Ok(match found.map_err(|error| self.redis_failed(&error))? {
            Found::Record(record) if record.user_id != query.user_id => Found::NotYours,
            found => found,
        })
    }

    async fn find_by_id(&self, keys: &BucketKeys, id: &ReservationId) -> Result<Found, RedisError> {
        let record = self.redis.reservation(keys, id).await?;
        Ok(record.map_or_else(
            || Found::Nothing(keys.clone()),
            |record| Found::Record(Box::new(record)),
        ))
    }

    /// The remembered result names the reservation; when it was lost, the id can still be derived.
    async fn find_by_request(
        &self,
        keys: &BucketKeys,
        meta: &Meta,
        user_id: &UserId,
        request_id: &RequestId,
    ) -> Result<Found, RedisError> {
        let cached = self.redis.cached_request(keys, request_id).await?;
        let remembered: Option<ReservationId> = match cached {
            Some(cached) if cached.user_id != *user_id => return Ok(Found::NotYours),
            Some(cached) if cached.code == ReserveCode::Accepted => cached.reservation_id,
            Some(_) | None => None,
        };
        let derived = || self.reserving.derived_id(meta, user_id, request_id);
        match remembered.or_else(derived) {
            Some(id) => self.find_by_id(keys, &id).await,
            None => Ok(Found::Nothing(keys.clone())),
        }
    }

    async fn find_in_store(
        &self,
        query: &ReservationQuery,
    ) -> Result<Option<DecisionRecord>, Fault> {
        let Ok(_room) = self.store_queries.try_acquire() else {
            return Err(Fault::SystemBusy);
        };
        let by = match &query.key {
            QueryKey::Reservation(id) => ReservationRef::Reservation(id),
            QueryKey::Request(id) => ReservationRef::Request(id),
        };
        self.store
            .find_reservation(&query.scope, &query.user_id, by)
            .await
            .map_err(|failure| {
                if let Some(left_out) = self.store_trouble.allow() {
                    warn!(left_out, "postgres could not answer a query: {failure}");
                }
                Fault::SystemBusy
            })
    }

    fn redis_failed(&self, failure: &RedisError) -> Unanswered {
        if let Some(left_out) = self.redis_trouble.allow() {
            if failure.kind() == ErrorKind::Broken {
                error!(left_out, "operators must look: {failure}");
            } else {
                warn!(left_out, "redis could not answer a query: {failure}");
            }
        }
        Unanswered
    }
}

fn from_redis(record: &ReservationRecord) -> v1::GetReservationResponse {
    let reason = record
        .release_reason
        .as_ref()
        .or(record.error_code.as_ref());
    v1::GetReservationResponse {
        reservation_id: record.reservation_id.to_string(),
        request_id: record.request_id.to_string(),
        status: v1::ReservationStatus::from(record.status).into(),
        quantity: record.quantity.get(),
        order_id: record
            .order_id
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        reason: reason.cloned().unwrap_or_default(),
        reserved_at_ms: record.reserved_at_ms.get(),
        expires_at_ms: record.expires_at_ms.get(),
        updated_at_ms: record.updated_at_ms.get(),
        source: v1::AnswerSource::Redis.into(),
    }
}

fn from_store(record: DecisionRecord) -> v1::GetReservationResponse {
    let order_state = record.order.as_ref().map(|(_, state)| *state);
    v1::GetReservationResponse {
        reservation_id: record.reservation_id.to_string(),
        request_id: record.request_id.to_string(),
        status: v1::ReservationStatus::from(status_of(record.kind, order_state)).into(),
        quantity: record.quantity.get(),
        order_id: record
            .order
            .map(|(order_id, _)| order_id.to_string())
            .unwrap_or_default(),
        reason: record.reason.unwrap_or_default(),
        updated_at_ms: record.decided_at_ms.get(),
        source: v1::AnswerSource::Postgres.into(),
        ..v1::GetReservationResponse::default()
    }
}

/// Where a decided reservation stands, or will once Redis is told.
const fn status_of(kind: DecisionKind, order: Option<OrderState>) -> ReservationStatus {
    match (kind, order) {
        (DecisionKind::Ordered, Some(OrderState::Cancelled)) => ReservationStatus::OrderCancelled,
        (DecisionKind::Ordered, Some(OrderState::Active) | None) => ReservationStatus::OrderCreated,
        (DecisionKind::Rejected, _) => ReservationStatus::Rejected,
        (DecisionKind::Released, _) => ReservationStatus::Released,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_read_as_the_states_they_lead_to() {
        use {DecisionKind as D, OrderState as O, ReservationStatus as S};
        assert_eq!(status_of(D::Ordered, Some(O::Active)), S::OrderCreated);
        assert_eq!(status_of(D::Ordered, Some(O::Cancelled)), S::OrderCancelled);
        assert_eq!(status_of(D::Rejected, None), S::Rejected);
        assert_eq!(status_of(D::Released, None), S::Released);
    }
}
