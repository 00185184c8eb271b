//! What is to be done about one member of the expiry index, given both sides' word on it.

use seckill_lua_scripts::ReservationRecord;
use seckill_order_store::DecisionRecord;
use seckill_settlement::Class;
use seckill_state_machine::{Replay, replay};

use crate::finding::Finding;
use crate::sweep::judge;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Tell Redis what was decided.
    Settle,
    /// Leave it to the compensation worker, unless it turns out to be at it already.
    HandOver,
    /// Nobody has decided: leave it alone while patience lasts.
    Undecided,
    /// Whatever it is, it counts only if it stays.
    Report(Finding),
}

/// Judges a member by PostgreSQL's decision and by what Redis has of the reservation. `None`: neither
/// side knows it.
#[must_use]
pub fn judge(
    decision: Option<&DecisionRecord>,
    record: Option<&ReservationRecord>,
) -> Option<Step> {
    let Some(decision) = decision else {
        let record = record?;
        return Some(match judge::undecided(record) {
            Some(finding) if record.status.is_settled() => Step::Report(finding),
            _ => Step::Undecided,
        });
    };
    let order = decision.order.as_ref().map(|(_, state)| *state);
    let status = record.map(|record| record.status);
    if let Some(finding) = judge::decided(decision, record) {
        return Some(match replay(decision.kind, order, status) {
            // One that is another's under the same id must not be touched.
            _ if finding.class == Class::IdentityDiffers => Step::Report(finding),
            Replay::MarkOrdered | Replay::MarkRejected => Step::Settle,
            Replay::Release => Step::HandOver,
            Replay::Agreed
            | Replay::Cancel
            | Replay::Rebuild
            | Replay::TombstoneReleased
            | Replay::TombstoneCancelled
            | Replay::Contradiction => Step::Report(finding),
        });
    }
    let id = &decision.reservation_id;
    let held = status.map_or("nothing", |status| status.as_str());
    let redis = format!("{held}, member of reservation_expiry");
    let left_over = Finding::of(Class::IndexLeftOver, id, redis, judge::words(decision));
    Some(Step::Report(left_over.about("reservation_expiry")))
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::{DecisionKind, OrderState, ReservationStatus as S};

    use super::*;
    use crate::sweep::judge::tests::{decision, held};

    fn class_of(step: Option<Step>) -> Class {
        match step {
            Some(Step::Report(finding)) => finding.class,
            other => panic!("{other:?} is no report"),
        }
    }

    #[test]
    fn what_is_undecided_is_left_to_patience_and_an_end_without_a_decision_is_told() {
        for status in [
            S::Reserved,
            S::SendUnknown,
            S::Enqueued,
            S::Rejected,
            S::ReleasePending,
        ] {
            assert_eq!(judge(None, Some(&held(status))), Some(Step::Undecided));
        }
        for (status, class) in [
            (S::OrderCreated, Class::OrderedWithoutOrder),
            (S::Released, Class::ReleasedWithoutDecision),
            (S::OrderCancelled, Class::OrderedWithoutOrder),
        ] {
            assert_eq!(class_of(judge(None, Some(&held(status)))), class);
        }
        assert_eq!(judge(None, None), None);
    }

    #[test]
    fn an_order_is_settled_and_a_refusal_released_by_the_worker() {
        let ordered = decision(DecisionKind::Ordered, Some(OrderState::Active));
        assert_eq!(
            judge(Some(&ordered), Some(&held(S::Enqueued))),
            Some(Step::Settle)
        );
        let rejected = decision(DecisionKind::Rejected, None);
        assert_eq!(
            judge(Some(&rejected), Some(&held(S::Reserved))),
            Some(Step::Settle)
        );
        assert_eq!(
            judge(Some(&rejected), Some(&held(S::Rejected))),
            Some(Step::HandOver)
        );
        let released = decision(DecisionKind::Released, None);
        assert_eq!(
            judge(Some(&released), Some(&held(S::Enqueued))),
            Some(Step::HandOver)
        );
    }

    #[test]
    fn units_of_an_active_order_are_never_handed_over() {
        let ordered = decision(DecisionKind::Ordered, Some(OrderState::Active));
        for status in S::ALL {
            let step = judge(Some(&ordered), Some(&held(status)));
            assert_ne!(step, Some(Step::HandOver), "{status}");
        }
    }

    #[test]
    fn a_lost_reservation_and_a_stale_member_are_told() {
        let ordered = decision(DecisionKind::Ordered, Some(OrderState::Active));
        assert_eq!(
            class_of(judge(Some(&ordered), None)),
            Class::ReservationMissing
        );
        assert_eq!(
            class_of(judge(Some(&ordered), Some(&held(S::OrderCreated)))),
            Class::IndexLeftOver
        );
        let cancelled = decision(DecisionKind::Ordered, Some(OrderState::Cancelled));
        assert_eq!(
            class_of(judge(Some(&cancelled), Some(&held(S::OrderCreated)))),
            Class::NotRestocked
        );
        let mut foreign = held(S::Enqueued);
        foreign.request_id = seckill_state_machine::RequestId::parse("q2").unwrap();
        assert_eq!(
            class_of(judge(Some(&ordered), Some(&foreign))),
            Class::IdentityDiffers
        );
    }
}
