//! The reservation's states and the table of allowed steps.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a reservation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ReservationStatus {
    /// A unit is held; whether the order request was sent is not yet known.
    Reserved,
    /// A send ended without a plain OK: neither sent nor not sent.
    SendUnknown,
    /// The broker has the order request.
    Enqueued,
    /// PostgreSQL holds an order.
    OrderCreated,
    /// PostgreSQL refused the order; the unit is still held.
    Rejected,
    /// PostgreSQL's fence stands; the unit may now go back.
    ReleasePending,
    /// The unit is back on sale. Final.
    Released,
    /// The order was cancelled and the unit is back on sale. Final.
    OrderCancelled,
}

/// A word that names no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown reservation status")]
pub struct UnknownStatus;

impl ReservationStatus {
    /// Every state, in the order of a reservation's life.
    pub const ALL: [Self; 8] = [
        Self::Reserved,
        Self::SendUnknown,
        Self::Enqueued,
        Self::OrderCreated,
        Self::Rejected,
        Self::ReleasePending,
        Self::Released,
        Self::OrderCancelled,
    ];

    /// The word that Redis stores.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "RESERVED",
            Self::SendUnknown => "SEND_UNKNOWN",
            Self::Enqueued => "ENQUEUED",
            Self::OrderCreated => "ORDER_CREATED",
            Self::Rejected => "REJECTED",
            Self::ReleasePending => "RELEASE_PENDING",
            Self::Released => "RELEASED",
            Self::OrderCancelled => "ORDER_CANCELLED",
        }
    }

    /// Whether the reservation's units count as `reserved` in its bucket (I3).
    #[must_use]
    pub const fn holds_units(self) -> bool {
        match self {
            Self::Reserved
            | Self::SendUnknown
            | Self::Enqueued
            | Self::OrderCreated
            | Self::Rejected
            | Self::ReleasePending => true,
            Self::Released | Self::OrderCancelled => false,
        }
    }

    /// Whether nothing more is expected to happen by itself (I5).
    #[must_use]
    pub const fn is_settled(self) -> bool {
        match self {
            Self::OrderCreated | Self::Released | Self::OrderCancelled => true,
            Self::Reserved
            | Self::SendUnknown
            | Self::Enqueued
            | Self::Rejected
            | Self::ReleasePending => false,
        }
    }

    /// Whether the order request may still have to be sent.
    #[must_use]
    pub const fn awaits_send(self) -> bool {
        matches!(self, Self::Reserved | Self::SendUnknown)
    }

    /// Whether this state lies behind `other` on every path: a late report of `other` is then
    /// expected and benign, for example an `ENQUEUED` written after the consumer has finished.
    #[must_use]
    pub fn is_beyond(self, other: Self) -> bool {
        self != other && reaches(other, self)
    }
}

/// Whether `to` can follow `from` by any number of steps of any script.
fn reaches(from: ReservationStatus, to: ReservationStatus) -> bool {
    ReservationStatus::ALL
        .into_iter()
        .filter(|next| is_step(from, *next))
        .any(|next| next == to || reaches(next, to))
}

/// One step of any script: the transition, compensate or cancel script.
fn is_step(from: ReservationStatus, to: ReservationStatus) -> bool {
    use ReservationStatus::{OrderCancelled, OrderCreated, Rejected, ReleasePending, Released};
    may_transition(from, to)
        || matches!(
            (from, to),
            (ReleasePending | Rejected, Released) | (OrderCreated, OrderCancelled)
        )
}

/// The table of the transition script. `RELEASED` and `ORDER_CANCELLED` are not in it: they move
/// stock, and only the compensate and the cancel script do that.
const fn may_transition(from: ReservationStatus, to: ReservationStatus) -> bool {
    use ReservationStatus as S;
    match from {
        S::Reserved => matches!(to, S::SendUnknown | S::Enqueued | S::ReleasePending),
        S::SendUnknown => matches!(to, S::Enqueued | S::ReleasePending),
        S::Enqueued => matches!(to, S::OrderCreated | S::Rejected | S::ReleasePending),
        S::Rejected => matches!(to, S::ReleasePending),
        S::OrderCreated | S::ReleasePending | S::Released | S::OrderCancelled => false,
    }
}

/// What the transition script answers to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The state moves, or a repeated `SEND_UNKNOWN` moves its retry time.
    Update,
    /// Already there.
    Idempotent,
    /// Not in the table.
    Illegal,
}

/// Rules on one step of the transition script. Total: every pair has an answer.
#[must_use]
pub fn transition(from: ReservationStatus, to: ReservationStatus) -> Verdict {
    if from == to {
        // A retry time that never moves would be a hot loop, so a repeat is an update.
        return if to == ReservationStatus::SendUnknown {
            Verdict::Update
        } else {
            Verdict::Idempotent
        };
    }
    if may_transition(from, to) {
        Verdict::Update
    } else {
        Verdict::Illegal
    }
}

impl fmt::Display for ReservationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ReservationStatus {
    type Err = UnknownStatus;
    fn from_str(text: &str) -> Result<Self, UnknownStatus> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str() == text)
            .ok_or(UnknownStatus)
    }
}

#[cfg(test)]
mod tests {
    use super::ReservationStatus as S;
    use super::*;

    #[test]
    fn the_table_is_the_contract_word_for_word() {
        let allowed = [
            (S::Reserved, S::SendUnknown),
            (S::Reserved, S::Enqueued),
            (S::Reserved, S::ReleasePending),
            (S::SendUnknown, S::Enqueued),
            (S::SendUnknown, S::ReleasePending),
            (S::Enqueued, S::OrderCreated),
            (S::Enqueued, S::Rejected),
            (S::Enqueued, S::ReleasePending),
            (S::Rejected, S::ReleasePending),
        ];
        for from in S::ALL {
            for to in S::ALL {
                let expected = match (from == to, allowed.contains(&(from, to))) {
                    (true, _) if to == S::SendUnknown => Verdict::Update,
                    (true, _) => Verdict::Idempotent,
                    (false, true) => Verdict::Update,
                    (false, false) => Verdict::Illegal,
                };
                assert_eq!(transition(from, to), expected, "{from} to {to}");
            }
        }
    }

    #[test]
    fn nothing_leaves_a_final_state() {
        for from in [S::Released, S::OrderCancelled] {
            assert!(S::ALL.into_iter().all(|to| !is_step(from, to)));
        }
    }

    #[test]
    fn an_ordered_reservation_never_becomes_released() {
        assert!(!S::Released.is_beyond(S::OrderCreated));
        assert!(!S::ReleasePending.is_beyond(S::OrderCreated));
        assert!(S::OrderCancelled.is_beyond(S::OrderCreated));
    }

    #[test]
    fn a_late_enqueued_is_benign_after_every_later_state() {
        for later in [S::OrderCreated, S::Rejected, S::ReleasePending, S::Released] {
            assert!(later.is_beyond(S::Enqueued), "{later}");
            assert!(later.is_beyond(S::SendUnknown), "{later}");
        }
        assert!(!S::Reserved.is_beyond(S::Enqueued));
        assert!(!S::SendUnknown.is_beyond(S::Enqueued));
    }

    #[test]
    fn every_unsettled_state_can_settle() {
        for from in S::ALL.into_iter().filter(|s| !s.is_settled()) {
            assert!(
                S::ALL
                    .into_iter()
                    .any(|to| to.is_settled() && reaches(from, to)),
                "{from}"
            );
        }
    }

    #[test]
    fn words_survive_the_round_trip() {
        for status in S::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        assert_eq!("QUEUED".parse::<S>(), Err(UnknownStatus));
    }
}
