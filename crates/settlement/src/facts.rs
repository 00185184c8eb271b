//! What PostgreSQL says about one reservation, as far as a replay needs it.

use seckill_lua_scripts::{OrderedReservation, ReservationRecord};
use seckill_order_store::DecisionRecord;
use seckill_state_machine::{
    DecisionKind, OrderId, OrderRequest, OrderState, RejectReason, Replay, ReservationStatus,
    replay,
};

/// A decision, the request behind it, and the order if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The reservation, as its order request tells it.
    pub request: OrderRequest,
    /// The decision.
    pub kind: DecisionKind,
    /// Why it is no order.
    pub reason: Option<String>,
    /// The order behind `ORDERED`.
    pub order: Option<(OrderId, OrderState)>,
}

impl From<&DecisionRecord> for Facts {
    fn from(record: &DecisionRecord) -> Self {
        Self {
            request: record.order_request(),
            kind: record.kind,
            reason: record.reason.clone(),
            order: record.order.clone(),
        }
    }
}

impl Facts {
    /// The next step towards agreement, with this in Redis.
    #[must_use]
    pub fn step(&self, redis: Option<ReservationStatus>) -> Replay {
        replay(self.kind, self.order_state(), redis)
    }

    /// The order, while it counts.
    #[must_use]
    pub fn active_order(&self) -> Option<&OrderId> {
        match &self.order {
            Some((order_id, OrderState::Active)) => Some(order_id),
            Some((_, OrderState::Cancelled)) | None => None,
        }
    }

    pub(crate) fn order_id(&self) -> Option<&OrderId> {
        self.order.as_ref().map(|(order_id, _)| order_id)
    }

    fn order_state(&self) -> Option<OrderState> {
        self.order.as_ref().map(|(_, state)| *state)
    }

    pub(crate) fn reject_reason(&self) -> Option<RejectReason> {
        self.reason.as_deref()?.parse().ok()
    }

    /// Both sides' words, for a person.
    #[must_use]
    pub fn words(&self, redis: Option<ReservationStatus>) -> String {
        let decided = match self.order_state() {
            Some(OrderState::Cancelled) => "ordered, order cancelled",
            Some(OrderState::Active) | None => match self.kind {
                DecisionKind::Ordered => "ordered",
                DecisionKind::Rejected => "rejected",
                DecisionKind::Released => "released",
            },
        };
        let held = redis.map_or("nothing", ReservationStatus::as_str);
        format!("postgresql: {decided}; redis: {held}")
    }

    /// What Redis holds under this id for somebody or something else. Never names a user.
    pub(crate) fn foreign(&self, record: &ReservationRecord) -> Option<&'static str> {
        let request = &self.request;
        if record.user_id != request.user_id {
            return Some("another user's reservation");
        }
        if record.request_id != request.request_id {
            return Some("another request's reservation");
        }
        if record.quantity != request.quantity {
            return Some("another quantity");
        }
        if record.bucket != request.bucket {
            return Some("another bucket's reservation");
        }
        let other_order = record.order_id.is_some() && record.order_id.as_ref() != self.order_id();
        other_order.then_some("another order")
    }
}

/// PostgreSQL's word on an active order, as the scripts take it.
pub(crate) fn ordered<'a>(
    request: &'a OrderRequest,
    order_id: &'a OrderId,
) -> OrderedReservation<'a> {
    OrderedReservation {
        reservation_id: &request.reservation_id,
        request_id: &request.request_id,
        user_id: &request.user_id,
        quantity: request.quantity,
        order_id,
        reserved_at_ms: request.reserved_at_ms,
        traceparent: request.traceparent.as_ref(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use seckill_state_machine::{
        ActivityId, ActivityVersion, BucketId, Quantity, RequestId, ReservationId, Scope, SkuId,
        TimestampMs, UserId,
    };

    use super::*;

    /// An order request of a bucket, whose reservation id repeats a letter.
    pub fn request(bucket: u32, letter: char) -> OrderRequest {
        let scope = Scope {
            activity_id: ActivityId::parse("a1").unwrap(),
            sku_id: SkuId::parse("s1").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        };
        OrderRequest {
            reservation_id: ReservationId::parse(letter.to_string().repeat(26)).unwrap(),
            request_id: RequestId::parse(format!("q-{letter}")).unwrap(),
            user_id: UserId::parse(format!("user-{letter}")).unwrap(),
            bucket: scope.bucket(BucketId::new(bucket).unwrap()),
            quantity: Quantity::ONE,
            reserved_at_ms: TimestampMs::new(1),
            traceparent: None,
        }
    }

    /// An active order.
    pub fn ordered(bucket: u32, letter: char) -> Facts {
        Facts {
            request: request(bucket, letter),
            kind: DecisionKind::Ordered,
            reason: None,
            order: Some((OrderId::parse("o1").unwrap(), OrderState::Active)),
        }
    }

    fn record(facts: &Facts) -> ReservationRecord {
        let request = facts.request.clone();
        ReservationRecord {
            message_id: request.message_id(),
            reservation_id: request.reservation_id,
            request_id: request.request_id,
            user_id: request.user_id,
            bucket: request.bucket,
            quantity: request.quantity,
            status: ReservationStatus::OrderCreated,
            reserved_at_ms: request.reserved_at_ms,
            expires_at_ms: TimestampMs::new(2),
            updated_at_ms: TimestampMs::new(2),
            order_id: facts.order_id().cloned(),
            error_code: None,
            release_reason: None,
            released_at_ms: None,
            send_attempts: 0,
            schema_version: 1,
            traceparent: None,
        }
    }

    #[test]
    fn a_record_of_somebody_or_something_else_is_named_without_its_user() {
        let facts = ordered(0, 'a');
        let same = record(&facts);
        assert_eq!(facts.foreign(&same), None);
        let not_yet_settled = ReservationRecord {
            order_id: None,
            ..same.clone()
        };
        assert_eq!(facts.foreign(&not_yet_settled), None);
        let other = request(1, 'b');
        let foreign = [
            ReservationRecord {
                user_id: other.user_id,
                ..same.clone()
            },
            ReservationRecord {
                request_id: other.request_id,
                ..same.clone()
            },
            ReservationRecord {
                quantity: Quantity::new(2).unwrap(),
                ..same.clone()
            },
            ReservationRecord {
                bucket: other.bucket,
                ..same.clone()
            },
            ReservationRecord {
                order_id: Some(OrderId::parse("o2").unwrap()),
                ..same
            },
        ];
        for record in foreign {
            let named = facts.foreign(&record);
            assert!(
                named.is_some_and(|words| !words.contains("user-")),
                "{record:?}"
            );
        }
    }

    #[test]
    fn both_sides_have_a_word() {
        let mut facts = ordered(0, 'a');
        assert_eq!(facts.words(None), "postgresql: ordered; redis: nothing");
        facts.order = Some((OrderId::parse("o1").unwrap(), OrderState::Cancelled));
        assert_eq!(
            facts.words(Some(ReservationStatus::OrderCreated)),
            "postgresql: ordered, order cancelled; redis: ORDER_CREATED"
        );
        assert_eq!(facts.active_order(), None);
    }
}
