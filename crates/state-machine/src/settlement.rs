//! What Redis must still be told, once PostgreSQL has decided.

use crate::{DecisionKind, ReservationStatus};

/// The state of the order behind an `ORDERED` decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderState {
    /// It counts against the stock.
    Active,
    /// Its units went back in PostgreSQL.
    Cancelled,
}

/// The next step towards agreement, for a reservation that Redis still has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Both sides agree.
    Agreed,
    /// Apply `ENQUEUED` if needed, then `ORDER_CREATED`.
    MarkOrdered,
    /// Apply `ENQUEUED` if needed, then `REJECTED`; its compensation task releases it.
    MarkRejected,
    /// Move to `RELEASE_PENDING` and compensate.
    Release,
    /// Settle as ordered if needed, then run the cancel script.
    Cancel,
    /// Redis gave back units of an active order: no step is safe, a person must look.
    Contradiction,
}

/// Compares PostgreSQL's decision (and the order's state, where there is an order) with Redis.
#[must_use]
pub const fn settlement(
    decision: DecisionKind,
    order: Option<OrderState>,
    status: ReservationStatus,
) -> Settlement {
    use ReservationStatus as S;
    match (decision, order) {
        (DecisionKind::Ordered, Some(OrderState::Cancelled)) => match status {
            S::OrderCancelled => Settlement::Agreed,
            S::Reserved | S::SendUnknown | S::Enqueued | S::OrderCreated => Settlement::Cancel,
            S::Rejected | S::ReleasePending | S::Released => Settlement::Contradiction,
        },
        (DecisionKind::Ordered, Some(OrderState::Active)) => match status {
            S::OrderCreated => Settlement::Agreed,
            S::Reserved | S::SendUnknown | S::Enqueued => Settlement::MarkOrdered,
            S::Rejected | S::ReleasePending | S::Released | S::OrderCancelled => {
                Settlement::Contradiction
            }
        },
        (DecisionKind::Ordered, None) => Settlement::Contradiction,
        (DecisionKind::Rejected, _) => match status {
            S::Released => Settlement::Agreed,
            S::Reserved | S::SendUnknown | S::Enqueued => Settlement::MarkRejected,
            S::Rejected | S::ReleasePending => Settlement::Release,
            S::OrderCreated | S::OrderCancelled => Settlement::Contradiction,
        },
        (DecisionKind::Released, _) => match status {
            S::Released => Settlement::Agreed,
            S::Reserved | S::SendUnknown | S::Enqueued | S::Rejected | S::ReleasePending => {
                Settlement::Release
            }
            S::OrderCreated | S::OrderCancelled => Settlement::Contradiction,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Verdict, transition};

    /// Plays the steps a settlement stands for and says where they lead.
    fn play(step: Settlement, from: ReservationStatus) -> ReservationStatus {
        let walk = |mut at: ReservationStatus, path: &[ReservationStatus]| {
            for to in path {
                if transition(at, *to) == Verdict::Update {
                    at = *to;
                }
            }
            at
        };
        match step {
            Settlement::Agreed | Settlement::Contradiction => from,
            Settlement::MarkOrdered => walk(
                from,
                &[ReservationStatus::Enqueued, ReservationStatus::OrderCreated],
            ),
            Settlement::MarkRejected => walk(
                from,
                &[ReservationStatus::Enqueued, ReservationStatus::Rejected],
            ),
            Settlement::Release => {
                let pending = walk(from, &[ReservationStatus::ReleasePending]);
                assert_eq!(pending, ReservationStatus::ReleasePending);
                ReservationStatus::Released
            }
            Settlement::Cancel => {
                let ordered = walk(
                    from,
                    &[ReservationStatus::Enqueued, ReservationStatus::OrderCreated],
                );
                assert_eq!(ordered, ReservationStatus::OrderCreated);
                ReservationStatus::OrderCancelled
            }
        }
    }

    #[test]
    fn settling_twice_agrees_from_every_state() {
        let facts = [
            (DecisionKind::Ordered, Some(OrderState::Active)),
            (DecisionKind::Ordered, Some(OrderState::Cancelled)),
            (DecisionKind::Rejected, None),
            (DecisionKind::Released, None),
        ];
        for (decision, order) in facts {
            for start in ReservationStatus::ALL {
                let first = settlement(decision, order, start);
                if first == Settlement::Contradiction {
                    continue;
                }
                let middle = play(first, start);
                let end = play(settlement(decision, order, middle), middle);
                assert_eq!(
                    settlement(decision, order, end),
                    Settlement::Agreed,
                    "{decision} from {start}"
                );
            }
        }
    }

    #[test]
    fn units_of_an_active_order_are_never_given_back() {
        for status in ReservationStatus::ALL {
            let step = settlement(DecisionKind::Ordered, Some(OrderState::Active), status);
            assert!(
                !matches!(step, Settlement::Release | Settlement::Cancel),
                "{status}"
            );
        }
    }
}
