//! Replay: what brings Redis to agreement with PostgreSQL, from whatever it holds.
//!
//! A failover gives a bucket an earlier state of itself, or none at all. PostgreSQL's decisions stand,
//! so recovery is to look at each decision, at the order behind it and at what Redis has, and to take
//! the one step that leads on. Every step is idempotent; taking steps until both sides agree is the
//! whole of the recovery.

use crate::{DecisionKind, ReservationStatus};

/// The state of the order behind an `ORDERED` decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderState {
    /// It counts against the stock.
    Active,
    /// Its units went back in PostgreSQL.
    Cancelled,
}

impl OrderState {
    /// Every state.
    pub const ALL: [Self; 2] = [Self::Active, Self::Cancelled];
}

/// The next step towards agreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Replay {
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
    /// Take the order's units again and write its reservation, or wait until they are there.
    Rebuild,
    /// Write a `RELEASED` reservation that holds nothing, so that a repeat takes no unit.
    TombstoneReleased,
    /// Write an `ORDER_CANCELLED` reservation that holds nothing.
    TombstoneCancelled,
    /// Redis gave back units of an order, or claims an order that PostgreSQL does not have: no step is
    /// safe, a person must look.
    Contradiction,
}

impl Replay {
    /// Every step.
    pub const ALL: [Self; 9] = [
        Self::Agreed,
        Self::MarkOrdered,
        Self::MarkRejected,
        Self::Release,
        Self::Cancel,
        Self::Rebuild,
        Self::TombstoneReleased,
        Self::TombstoneCancelled,
        Self::Contradiction,
    ];

    /// The words of the documentation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agreed => "agreed",
            Self::MarkOrdered => "mark ordered",
            Self::MarkRejected => "mark rejected",
            Self::Release => "release",
            Self::Cancel => "cancel",
            Self::Rebuild => "rebuild",
            Self::TombstoneReleased => "tombstone released",
            Self::TombstoneCancelled => "tombstone cancelled",
            Self::Contradiction => "contradiction",
        }
    }
}

/// Compares PostgreSQL's decision, and the state of the order behind it, with what Redis holds for the
/// reservation, `None` for nothing.
///
/// An undecided reservation is none of its business: only the compensation worker, behind its fence,
/// may give one up.
#[must_use]
pub const fn replay(
    decision: DecisionKind,
    order: Option<OrderState>,
    redis: Option<ReservationStatus>,
) -> Replay {
    match (decision, order) {
        (DecisionKind::Ordered, Some(OrderState::Active)) => active(redis),
        (DecisionKind::Ordered, Some(OrderState::Cancelled)) => cancelled(redis),
        (DecisionKind::Rejected, None) => rejected(redis),
        (DecisionKind::Released, None) => released(redis),
        // PostgreSQL contradicts itself; whatever Redis holds may be an order's units.
        (DecisionKind::Ordered, None)
        | (DecisionKind::Rejected | DecisionKind::Released, Some(_)) => Replay::Contradiction,
    }
}

const fn active(redis: Option<ReservationStatus>) -> Replay {
    use ReservationStatus as S;
    match redis {
        None => Replay::Rebuild,
        Some(S::OrderCreated) => Replay::Agreed,
        Some(S::Reserved | S::SendUnknown | S::Enqueued) => Replay::MarkOrdered,
        Some(S::Rejected | S::ReleasePending | S::Released | S::OrderCancelled) => {
            Replay::Contradiction
        }
    }
}

const fn cancelled(redis: Option<ReservationStatus>) -> Replay {
    use ReservationStatus as S;
    match redis {
        None => Replay::TombstoneCancelled,
        Some(S::OrderCancelled) => Replay::Agreed,
        Some(S::Reserved | S::SendUnknown | S::Enqueued | S::OrderCreated) => Replay::Cancel,
        Some(S::Rejected | S::ReleasePending | S::Released) => Replay::Contradiction,
    }
}

const fn rejected(redis: Option<ReservationStatus>) -> Replay {
    use ReservationStatus as S;
    match redis {
        None => Replay::TombstoneReleased,
        Some(S::Released) => Replay::Agreed,
        Some(S::Reserved | S::SendUnknown | S::Enqueued) => Replay::MarkRejected,
        Some(S::Rejected | S::ReleasePending) => Replay::Release,
        Some(S::OrderCreated | S::OrderCancelled) => Replay::Contradiction,
    }
}

const fn released(redis: Option<ReservationStatus>) -> Replay {
    use ReservationStatus as S;
    match redis {
        None => Replay::TombstoneReleased,
        Some(S::Released) => Replay::Agreed,
        Some(S::Reserved | S::SendUnknown | S::Enqueued | S::Rejected | S::ReleasePending) => {
            Replay::Release
        }
        Some(S::OrderCreated | S::OrderCancelled) => Replay::Contradiction,
    }
}

#[cfg(test)]
mod tests;
