//! What is to be done about one member of the expiry index, given both sides' word on it.

use seckill_order_store::DecisionRecord;
use seckill_state_machine::{
    OrderId, OrderState, RejectReason, ReservationStatus, Settlement, settlement,
};

use crate::findings;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Tell Redis about the order.
    SettleOrdered(OrderId),
    /// Tell Redis about the refusal.
    SettleRejected(RejectReason),
    /// Leave it to the compensation worker, unless it turns out to be at it already.
    HandOver,
    /// Nothing is safe, or nothing is known: tell a person, if it stays like this.
    Report {
        /// The difference's name.
        kind: &'static str,
        /// Both sides' words.
        detail: String,
    },
}

/// Judges a member by PostgreSQL's decision and by where Redis has the reservation.
#[must_use]
pub fn judge(decision: Option<&DecisionRecord>, status: Option<ReservationStatus>) -> Step {
    let report = |kind| Step::Report {
        kind,
        detail: detail(decision, status),
    };
    let (Some(decision), Some(status)) = (decision, status) else {
        return report(one_sided(decision, status));
    };
    let state = decision.order.as_ref().map(|(_, state)| *state);
    match settlement(decision.kind, state, status) {
        Settlement::Agreed => report(findings::LEFT_OVER),
        Settlement::MarkOrdered => match &decision.order {
            Some((order_id, OrderState::Active)) => Step::SettleOrdered(order_id.clone()),
            _ => report(findings::CONTRADICTION),
        },
        Settlement::MarkRejected => match reject_reason(decision) {
            Some(reason) => Step::SettleRejected(reason),
            None => Step::HandOver,
        },
        Settlement::Release => Step::HandOver,
        Settlement::Cancel => report(findings::NOT_RESTOCKED),
        Settlement::Contradiction => report(findings::CONTRADICTION),
    }
}

fn reject_reason(decision: &DecisionRecord) -> Option<RejectReason> {
    decision.reason.as_deref()?.parse().ok()
}

/// Only one side, or neither, knows the reservation.
const fn one_sided(
    decision: Option<&DecisionRecord>,
    status: Option<ReservationStatus>,
) -> &'static str {
    match (decision, status) {
        // Redis claims an end that PostgreSQL has never decided.
        (None, Some(status)) if status.is_settled() => findings::CONTRADICTION,
        (None, Some(_)) => findings::UNDECIDED,
        (_, None) => findings::RESERVATION_MISSING,
        (Some(_), Some(_)) => findings::CONTRADICTION,
    }
}

fn detail(decision: Option<&DecisionRecord>, status: Option<ReservationStatus>) -> String {
    let decided = match decision {
        None => "undecided",
        Some(decision) => match decision.order {
            Some((_, OrderState::Cancelled)) => "ordered, order cancelled",
            _ => decision.kind.as_str(),
        },
    };
    let held = status.map_or("nothing", ReservationStatus::as_str);
    format!("postgresql: {decided}; redis: {held}")
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::{
        ActivityId, ActivityVersion, BucketId, DecisionKind, Quantity, RequestId, ReservationId,
        ReservationStatus as S, Scope, SkuId, TimestampMs, UserId,
    };

    use super::*;

    fn decision(
        kind: DecisionKind,
        reason: Option<&str>,
        order: Option<OrderState>,
    ) -> DecisionRecord {
        let scope = Scope {
            activity_id: ActivityId::parse("a1").unwrap(),
            sku_id: SkuId::parse("s1").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        };
        DecisionRecord {
            reservation_id: ReservationId::parse("a".repeat(26)).unwrap(),
            request_id: RequestId::parse("q1").unwrap(),
            user_id: UserId::parse("u1").unwrap(),
            bucket: scope.bucket(BucketId::ZERO),
            quantity: Quantity::ONE,
            kind,
            reason: reason.map(str::to_owned),
            order: order.map(|state| (OrderId::parse("o1").unwrap(), state)),
            reserved_at_ms: TimestampMs::new(1),
            decided_at_ms: TimestampMs::new(1),
            traceparent: None,
        }
    }

    fn kind_of(step: Step) -> &'static str {
        match step {
            Step::Report { kind, .. } => kind,
            other => panic!("{other:?} is no report"),
        }
    }

    #[test]
    fn what_is_undecided_is_reported_and_never_released() {
        for status in [
            S::Reserved,
            S::SendUnknown,
            S::Enqueued,
            S::Rejected,
            S::ReleasePending,
        ] {
            assert_eq!(kind_of(judge(None, Some(status))), findings::UNDECIDED);
        }
        for status in [S::OrderCreated, S::Released, S::OrderCancelled] {
            assert_eq!(kind_of(judge(None, Some(status))), findings::CONTRADICTION);
        }
    }

    #[test]
    fn an_order_is_settled_and_a_refusal_released_by_the_worker() {
        let ordered = decision(DecisionKind::Ordered, None, Some(OrderState::Active));
        assert!(matches!(
            judge(Some(&ordered), Some(S::Enqueued)),
            Step::SettleOrdered(_)
        ));
        let rejected = decision(DecisionKind::Rejected, Some("STOCK_EXHAUSTED"), None);
        assert_eq!(
            judge(Some(&rejected), Some(S::Reserved)),
            Step::SettleRejected(RejectReason::StockExhausted)
        );
        assert_eq!(judge(Some(&rejected), Some(S::Rejected)), Step::HandOver);
        let released = decision(DecisionKind::Released, Some("overdue"), None);
        assert_eq!(judge(Some(&released), Some(S::Enqueued)), Step::HandOver);
    }

    #[test]
    fn units_of_an_active_order_are_never_handed_over() {
        let ordered = decision(DecisionKind::Ordered, None, Some(OrderState::Active));
        for status in S::ALL {
            assert_ne!(
                judge(Some(&ordered), Some(status)),
                Step::HandOver,
                "{status}"
            );
        }
    }

    #[test]
    fn a_lost_reservation_and_a_stale_member_are_reported() {
        let ordered = decision(DecisionKind::Ordered, None, Some(OrderState::Active));
        assert_eq!(
            kind_of(judge(Some(&ordered), None)),
            findings::RESERVATION_MISSING
        );
        assert_eq!(kind_of(judge(None, None)), findings::RESERVATION_MISSING);
        assert_eq!(
            kind_of(judge(Some(&ordered), Some(S::OrderCreated))),
            findings::LEFT_OVER
        );
        let cancelled = decision(DecisionKind::Ordered, None, Some(OrderState::Cancelled));
        assert_eq!(
            kind_of(judge(Some(&cancelled), Some(S::OrderCreated))),
            findings::NOT_RESTOCKED
        );
    }
}
