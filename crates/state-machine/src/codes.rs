//! The numeric codes that scripts answer with. The numbers are fixed: dashboards rely on them.

/// A code that no script of this version answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown {script} code {code}")]
pub struct UnknownCode {
    /// Which script answered.
    pub script: &'static str,
    /// What it answered.
    pub code: i64,
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident, $script:literal { $($(#[$vdoc:meta])* $variant:ident = $code:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant = $code,)* }

        impl $name {
            /// Every code, in numeric order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The number on the wire.
            #[must_use]
            pub const fn code(self) -> i64 {
                self as i64
            }

            /// The fixed name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl TryFrom<i64> for $name {
            type Error = UnknownCode;
            fn try_from(code: i64) -> Result<Self, UnknownCode> {
                match code {
                    $($code => Ok(Self::$variant),)*
                    _ => Err(UnknownCode { script: $script, code }),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

codes!(
    /// What the reserve script decided.
    ReserveCode, "reserve" {
        /// A unit is held; the order is queued. Not an order yet.
        Accepted = 0, "ACCEPTED";
        /// The user already holds a reservation, whose id is named.
        UserAlreadyReserved = 10, "USER_ALREADY_RESERVED";
        /// Before `starts_at_ms`.
        ActivityNotStarted = 11, "ACTIVITY_NOT_STARTED";
        /// After `ends_at_ms`.
        ActivityEnded = 12, "ACTIVITY_ENDED";
        /// Prepared, paused or closed.
        ActivityNotActive = 13, "ACTIVITY_NOT_ACTIVE";
        /// Another version is on sale.
        VersionMismatch = 14, "VERSION_MISMATCH";
        /// Not enough units are available.
        SoldOut = 15, "SOLD_OUT";
        /// The request id belongs to another user or asked for another quantity.
        RequestIdConflict = 16, "REQUEST_ID_CONFLICT";
        /// Meta or stock is not there; an operator must preheat or repair.
        ConfigMissing = 17, "CONFIG_MISSING";
        /// The derived reservation id belongs to another request: severe.
        ReservationIdConflict = 18, "RESERVATION_ID_CONFLICT";
        /// Data contradicts itself; this SKU must stop.
        InvariantViolation = 19, "INVARIANT_VIOLATION";
        /// The caller's arguments are wrong.
        BadArgument = 20, "BAD_ARGUMENT";
        /// In a recovery window a repeat that would freshly be refused: its first try may still
        /// become an order. Never a business answer; the front maps it to a fault.
        OutcomeUnknown = 21, "OUTCOME_UNKNOWN";
    }
);

impl ReserveCode {
    /// Whether the same request id may get another answer later.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::ConfigMissing)
    }

    /// Refusals that are remembered for their request id while there is room.
    #[must_use]
    pub const fn is_cached_refusal(self) -> bool {
        matches!(
            self,
            Self::UserAlreadyReserved
                | Self::ActivityNotStarted
                | Self::ActivityEnded
                | Self::ActivityNotActive
                | Self::VersionMismatch
                | Self::SoldOut
        )
    }
}

codes!(
    /// What the compensate script did.
    CompensateCode, "compensate" {
        /// The units went back on sale.
        Released = 0, "RELEASED";
        /// They had already gone back: an idempotent success.
        AlreadyReleased = 1, "ALREADY_RELEASED";
        /// No such reservation; nothing was added.
        ReservationNotFound = 2, "RESERVATION_NOT_FOUND";
        /// The reservation is in no state that may be released.
        NotCompensatable = 3, "NOT_COMPENSATABLE";
        /// Counters contradict each other; nothing was moved.
        InvariantViolation = 4, "INVARIANT_VIOLATION";
        /// The hash at that key names another reservation.
        ReservationIdConflict = 5, "RESERVATION_ID_CONFLICT";
    }
);

codes!(
    /// What the cancel script did.
    CancelCode, "cancel" {
        /// The units of the cancelled order went back on sale.
        Cancelled = 0, "CANCELLED";
        /// They had already gone back: an idempotent success.
        AlreadyCancelled = 1, "ALREADY_CANCELLED";
        /// No such reservation; nothing was added.
        ReservationNotFound = 2, "RESERVATION_NOT_FOUND";
        /// The reservation is not `ORDER_CREATED`.
        NotCancellable = 3, "NOT_CANCELLABLE";
        /// Counters contradict each other; nothing was moved.
        InvariantViolation = 4, "INVARIANT_VIOLATION";
        /// The hash at that key names another reservation, user or order.
        ReservationIdConflict = 5, "RESERVATION_ID_CONFLICT";
    }
);

codes!(
    /// What the rebuild script did for an ordered reservation that Redis had lost.
    RebuildCode, "rebuild_reservation" {
        /// It is back and holds its units.
        Rebuilt = 0, "REBUILT";
        /// It is there, in whatever state; nothing was touched.
        AlreadyThere = 1, "ALREADY_THERE";
        /// Fewer units are available than it holds: the next release brings it back.
        Waits = 2, "WAITS";
        /// Meta or stock is missing, or the retention has passed.
        ConfigMissing = 3, "CONFIG_MISSING";
        /// Data contradicts itself; nothing was written.
        InvariantViolation = 4, "INVARIANT_VIOLATION";
        /// The hash at that key is another reservation's, request's, user's or order's.
        ReservationIdConflict = 5, "RESERVATION_ID_CONFLICT";
    }
);

codes!(
    /// What the tombstone script did for an ended reservation that Redis had lost.
    TombstoneCode, "write_tombstone" {
        /// Its end is on record.
        Written = 0, "WRITTEN";
        /// It is there, in whatever state; nothing was touched.
        AlreadyThere = 1, "ALREADY_THERE";
        /// Meta is missing, or the retention has passed.
        ConfigMissing = 3, "CONFIG_MISSING";
        /// Data contradicts itself; nothing was written.
        InvariantViolation = 4, "INVARIANT_VIOLATION";
        /// The hash at that key is another reservation's, request's, user's or order's.
        ReservationIdConflict = 5, "RESERVATION_ID_CONFLICT";
    }
);

codes!(
    /// What the marker repair did.
    RepairMarkerCode, "repair_marker" {
        /// The marker names the ordered reservation now.
        Repaired = 0, "REPAIRED";
        /// It did already.
        AlreadyRight = 1, "ALREADY_RIGHT";
        /// The reservation is missing, another's, or not `ORDER_CREATED`.
        NotOrdered = 2, "NOT_ORDERED";
        /// The marker names a reservation that has not ended.
        HeldByAnother = 3, "HELD_BY_ANOTHER";
        /// The marker is not what the caller read: read it again.
        Retry = 4, "RETRY";
    }
);

codes!(
    /// What the transition script did.
    TransitionCode, "transition" {
        /// The state moved (or a retry time did).
        Updated = 0, "UPDATED";
        /// It was already there.
        Idempotent = 1, "IDEMPOTENT";
        /// No such reservation.
        NotFound = 2, "NOT_FOUND";
        /// The table does not allow this step.
        IllegalTransition = 3, "ILLEGAL_TRANSITION";
        /// Another message id or order id is on record.
        IdConflict = 4, "ID_CONFLICT";
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_wire() {
        for code in ReserveCode::ALL {
            assert_eq!(ReserveCode::try_from(code.code()), Ok(*code));
        }
        for code in CompensateCode::ALL {
            assert_eq!(CompensateCode::try_from(code.code()), Ok(*code));
        }
        for code in TransitionCode::ALL {
            assert_eq!(TransitionCode::try_from(code.code()), Ok(*code));
        }
        for code in CancelCode::ALL {
            assert_eq!(CancelCode::try_from(code.code()), Ok(*code));
        }
        for code in RebuildCode::ALL {
            assert_eq!(RebuildCode::try_from(code.code()), Ok(*code));
        }
        for code in TombstoneCode::ALL {
            assert_eq!(TombstoneCode::try_from(code.code()), Ok(*code));
        }
        for code in RepairMarkerCode::ALL {
            assert_eq!(RepairMarkerCode::try_from(code.code()), Ok(*code));
        }
        assert!(ReserveCode::try_from(1).is_err());
        assert!(CompensateCode::try_from(6).is_err());
        assert!(TransitionCode::try_from(-1).is_err());
        assert!(
            TombstoneCode::try_from(2).is_err(),
            "a tombstone never waits"
        );
    }

    #[test]
    fn refusals_ten_to_fifteen_are_the_cached_ones() {
        for code in ReserveCode::ALL {
            assert_eq!(
                code.is_cached_refusal(),
                (10..=15).contains(&code.code()),
                "{code}"
            );
        }
    }
}
