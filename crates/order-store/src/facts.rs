//! Decisions that stand, read.
use seckill_state_machine::{
    BucketScope, DecisionKind, OrderId, OrderState, Quantity, RequestId, ReservationId, Scope,
    TimestampMs, Traceparent, UserId,
};

use crate::{Error, Store};

/// A decision and what became of its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionRecord {
    /// The reservation.
    pub reservation_id: ReservationId,
    /// The caller's idempotency key.
    pub request_id: RequestId,
    /// The buyer.
    pub user_id: UserId,
    /// The bucket.
    pub bucket: BucketScope,
    /// Units.
    pub quantity: Quantity,
    /// The decision.
    pub kind: DecisionKind,
    /// Why it is no order.
    pub reason: Option<String>,
    /// The order behind `ORDERED`.
    pub order: Option<(OrderId, OrderState)>,
    /// When it was decided, by PostgreSQL's clock.
    pub decided_at_ms: TimestampMs,
    /// The purchase's trace.
    pub traceparent: Option<Traceparent>,
}

/// How a caller names a reservation.
#[derive(Debug, Clone, Copy)]
pub enum ReservationRef<'a> {
    /// By its own id.
    Reservation(&'a ReservationId),
    /// By the request that made it.
    Request(&'a RequestId),
}

impl Store {
    /// The decisions of these reservations, as far as there are any, in no given order.
    ///
    /// # Errors
    /// As every read.
    pub async fn decisions(&self, ids: &[ReservationId]) -> Result<Vec<DecisionRecord>, Error> {
        let _ = ids;
        todo!()
    }
    /// A user's own reservation, as far as it is decided. A stranger's is not found.
    ///
    /// # Errors
    /// As every read.
    pub async fn find_reservation(
        &self,
        scope: &Scope,
        user: &UserId,
        by: ReservationRef<'_>,
    ) -> Result<Option<DecisionRecord>, Error> {
        let _ = (scope, user, by);
        todo!()
    }
}
