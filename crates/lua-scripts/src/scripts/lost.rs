//! What PostgreSQL knows of a reservation that Redis lost, as the scripts take it.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{
    MessageId, OrderId, Quantity, RequestId, ReservationId, SCHEMA_VERSION, TimestampMs,
    Traceparent, UserId,
};

use super::optional;

/// How many arguments describe a lost reservation.
pub(super) const LOST_ARGS: usize = 13;

/// A reservation with an active order in PostgreSQL.
#[derive(Debug, Clone, Copy)]
pub struct OrderedReservation<'a> {
    /// Its id.
    pub reservation_id: &'a ReservationId,
    /// The request that took it.
    pub request_id: &'a RequestId,
    /// Who ordered.
    pub user_id: &'a UserId,
    /// Units ordered.
    pub quantity: Quantity,
    /// The order.
    pub order_id: &'a OrderId,
    /// When Redis accepted it.
    pub reserved_at_ms: TimestampMs,
    /// The purchase's trace.
    pub traceparent: Option<&'a Traceparent>,
}

impl<'a> OrderedReservation<'a> {
    pub(super) const fn lost(&self) -> Lost<'a> {
        Lost {
            reservation_id: self.reservation_id,
            request_id: self.request_id,
            user_id: self.user_id,
            quantity: self.quantity,
            order_id: Some(self.order_id),
            reserved_at_ms: self.reserved_at_ms,
            traceparent: self.traceparent,
        }
    }

    /// Appends the keys that a release needs to hand its units over.
    pub(super) fn waiting_keys(&self, keys: &BucketKeys, out: &mut Vec<Value>) {
        out.extend([
            keys.meta().into(),
            keys.request(self.request_id).into(),
            keys.user(self.user_id).into(),
            keys.reservation(self.reservation_id).into(),
        ]);
    }
}

/// A reservation whose order, if any, may be active or cancelled.
pub(super) struct Lost<'a> {
    pub(super) reservation_id: &'a ReservationId,
    pub(super) request_id: &'a RequestId,
    pub(super) user_id: &'a UserId,
    pub(super) quantity: Quantity,
    pub(super) order_id: Option<&'a OrderId>,
    pub(super) reserved_at_ms: TimestampMs,
    pub(super) traceparent: Option<&'a Traceparent>,
}

impl Lost<'_> {
    /// Appends the [`LOST_ARGS`] arguments.
    pub(super) fn args(&self, keys: &BucketKeys, out: &mut Vec<Value>) {
        let bucket = keys.scope();
        out.extend([
            self.reservation_id.as_str().into(),
            self.request_id.as_str().into(),
            MessageId::of(self.reservation_id).as_str().into(),
            bucket.scope.activity_id.as_str().into(),
            bucket.scope.sku_id.as_str().into(),
            self.user_id.as_str().into(),
            bucket.scope.version.to_string().into(),
            Value::Integer(i64::from(bucket.bucket_id.get())),
            Value::Integer(i64::from(self.quantity.get())),
            optional(self.order_id.map(OrderId::as_str)),
            Value::Integer(self.reserved_at_ms.get()),
            Value::Integer(i64::from(SCHEMA_VERSION)),
            optional(self.traceparent.map(Traceparent::as_str)),
        ]);
    }
}
