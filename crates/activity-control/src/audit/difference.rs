//! What an audit can find, each with a fixed word that alarms and tests rely on.

use std::fmt;

use seckill_state_machine::{BucketScope, ReservationId};
use serde::Serialize;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum DifferenceKind {
    /// PostgreSQL holds an active order whose reservation Redis does not know.
    OrderWithoutReservation,
    /// Redis says that an order was made, PostgreSQL holds none.
    ReservationWithoutOrder,
    /// A decision says ordered, but no order stands behind it.
    DecisionWithoutOrder,
    /// Orders stand in PostgreSQL without a decision behind them (I7).
    OrderWithoutDecision,
    /// PostgreSQL has decided, Redis has not been told yet.
    NotSettled,
    /// Both sides are final and disagree.
    Contradiction,
    /// Both sides know the reservation, with another quantity, buyer, bucket or order.
    FieldMismatch,
    /// Units went back on sale without a decision that allows it (I6).
    ReleasedWithoutDecision,
    /// `available + reserved` is not `initial` (I3, first half).
    NotConserved,
    /// `reserved` is not the sum of what reservations hold: a double release or a lost one (I3,
    /// second half).
    HoldersMismatch,
    /// `released_total` is more than what released and cancelled reservations can have given back.
    ReleasedTotalMismatch,
    /// Redis and PostgreSQL disagree on how many units a bucket has in all.
    TotalMismatch,
    /// In PostgreSQL, `available` and the active orders do not add up to `total` (I1).
    BookNotConserved,
    /// A user holds more than one active order (I2).
    DuplicateOrder,
    /// A bucket that was opened has no meta or no stock.
    StateMissing,
    /// Redis sells by other settings than PostgreSQL's, or in another state.
    MetaMismatch,
    /// The version on sale is not the one that buyers are pointed at.
    PointerMismatch,
    /// A user marker points at a reservation that holds nothing or belongs to somebody else.
    StrayMarker,
    /// A reservation holds units and its buyer's marker does not say so.
    MissingMarker,
    /// An index names a reservation that does not exist.
    StrayMember,
    /// An open reservation is in no index: nobody will come back to it (I5).
    NotIndexed,
    /// The sold-out mark stands although units are available.
    StaleSoldOut,
    /// A key has no expiry (I10).
    NoExpiry,
    /// A key or its value is of a kind that this version never writes.
    Unreadable,
    /// The bucket changed during every try to read it: nothing was proved about its sums.
    InMotion,
}

impl DifferenceKind {
    /// The fixed word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OrderWithoutReservation => "ORDER_WITHOUT_RESERVATION",
            Self::ReservationWithoutOrder => "RESERVATION_WITHOUT_ORDER",
            Self::DecisionWithoutOrder => "DECISION_WITHOUT_ORDER",
            Self::OrderWithoutDecision => "ORDER_WITHOUT_DECISION",
            Self::NotSettled => "NOT_SETTLED",
            Self::Contradiction => "CONTRADICTION",
            Self::FieldMismatch => "FIELD_MISMATCH",
            Self::ReleasedWithoutDecision => "RELEASED_WITHOUT_DECISION",
            Self::NotConserved => "NOT_CONSERVED",
            Self::HoldersMismatch => "HOLDERS_MISMATCH",
            Self::ReleasedTotalMismatch => "RELEASED_TOTAL_MISMATCH",
            Self::TotalMismatch => "TOTAL_MISMATCH",
            Self::BookNotConserved => "BOOK_NOT_CONSERVED",
            Self::DuplicateOrder => "DUPLICATE_ORDER",
            Self::StateMissing => "STATE_MISSING",
            Self::MetaMismatch => "META_MISMATCH",
            Self::PointerMismatch => "POINTER_MISMATCH",
            Self::StrayMarker => "STRAY_MARKER",
            Self::MissingMarker => "MISSING_MARKER",
            Self::StrayMember => "STRAY_MEMBER",
            Self::NotIndexed => "NOT_INDEXED",
            Self::StaleSoldOut => "STALE_SOLD_OUT",
            Self::NoExpiry => "NO_EXPIRY",
            Self::Unreadable => "UNREADABLE",
            Self::InMotion => "IN_MOTION",
        }
    }
}

impl fmt::Display for DifferenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One difference. Never carries a raw user id: reports end up in logs (I12).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    /// The bucket it is in.
    pub bucket: BucketScope,
    /// What is wrong.
    pub kind: DifferenceKind,
    /// The reservation it is about, unless it is about the bucket.
    pub reservation_id: Option<ReservationId>,
    /// Both sides in words.
    pub detail: String,
}

impl Difference {
    /// A difference of a bucket as a whole.
    #[must_use]
    pub fn of_bucket(
        bucket: &BucketScope,
        kind: DifferenceKind,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            bucket: bucket.clone(),
            kind,
            reservation_id: None,
            detail: detail.into(),
        }
    }

    /// A difference of one reservation.
    #[must_use]
    pub fn of_reservation(
        bucket: &BucketScope,
        kind: DifferenceKind,
        id: &ReservationId,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            bucket: bucket.clone(),
            kind,
            reservation_id: Some(id.clone()),
            detail: detail.into(),
        }
    }

    /// Whether both are about the same thing, whatever the figures in their details.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.bucket == other.bucket
            && self.kind == other.kind
            && self.reservation_id == other.reservation_id
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.bucket, self.kind)?;
        if let Some(id) = &self.reservation_id {
            write!(f, " {id}")?;
        }
        write!(f, ": {}", self.detail)
    }
}
