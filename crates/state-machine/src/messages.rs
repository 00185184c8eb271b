//! What travels over the message bus, as domain values.

use crate::{
    BucketScope, MessageId, OrderId, Quantity, RejectReason, RequestId, ReservationId, TimestampMs,
    Traceparent, UserId,
};

/// The schema of keys, records and messages that this version writes.
pub const SCHEMA_VERSION: u32 = 1;

/// "This reservation wants to become an order": front or scanner to order consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRequest {
    /// The claim on stock.
    pub reservation_id: ReservationId,
    /// The caller's idempotency key.
    pub request_id: RequestId,
    /// The buyer.
    pub user_id: UserId,
    /// The bucket whose unit is held.
    pub bucket: BucketScope,
    /// Units held.
    pub quantity: Quantity,
    /// When Redis accepted it.
    pub reserved_at_ms: TimestampMs,
    /// The purchase's trace, if the caller sent one.
    pub traceparent: Option<Traceparent>,
}

impl OrderRequest {
    /// The id it travels under.
    #[must_use]
    pub fn message_id(&self) -> MessageId {
        MessageId::of(&self.reservation_id)
    }
}

/// What became of an order request: outbox to compensation worker and downstream services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderEvent {
    /// The reservation it is about.
    pub reservation_id: ReservationId,
    /// The caller's idempotency key.
    pub request_id: RequestId,
    /// The buyer.
    pub user_id: UserId,
    /// The bucket.
    pub bucket: BucketScope,
    /// Units.
    pub quantity: Quantity,
    /// What happened.
    pub kind: OrderEventKind,
    /// When PostgreSQL committed it, as its transaction's clock tells.
    pub occurred_at_ms: TimestampMs,
    /// The purchase's trace.
    pub traceparent: Option<Traceparent>,
}

/// The outcome that an [`OrderEvent`] tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderEventKind {
    /// An order exists.
    OrderCreated {
        /// Its id.
        order_id: OrderId,
    },
    /// No order; the units must go back.
    Rejected {
        /// Why.
        reason: RejectReason,
    },
    /// The order does not count any more; its units can be sold again.
    OrderCancelled {
        /// Its id.
        order_id: OrderId,
    },
}
