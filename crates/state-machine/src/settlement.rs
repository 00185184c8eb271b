//! The half of [`replay()`] about reservations that Redis still has.

use crate::{DecisionKind, OrderState, Replay, ReservationStatus, replay};

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
    match replay(decision, order, Some(status)) {
        Replay::Agreed => Settlement::Agreed,
        Replay::MarkOrdered => Settlement::MarkOrdered,
        Replay::MarkRejected => Settlement::MarkRejected,
        Replay::Release => Settlement::Release,
        Replay::Cancel => Settlement::Cancel,
        Replay::Contradiction => Settlement::Contradiction,
        // Never for a reservation that is there; nothing would be the safe answer.
        Replay::Rebuild | Replay::TombstoneReleased | Replay::TombstoneCancelled => {
            Settlement::Contradiction
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_that_is_there_is_never_written_anew() {
        for decision in DecisionKind::ALL {
            for order in [None, Some(OrderState::Active), Some(OrderState::Cancelled)] {
                for status in ReservationStatus::ALL {
                    let step = replay(*decision, order, Some(status));
                    assert!(
                        !matches!(
                            step,
                            Replay::Rebuild
                                | Replay::TombstoneReleased
                                | Replay::TombstoneCancelled
                        ),
                        "{decision} {order:?} {status}"
                    );
                }
            }
        }
    }
}
