//! The invariants that code can check on values it already has, each in one place.

use crate::ReservationStatus;

/// A bucket's counters, as the `stock` hash or a stock row holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockCounters {
    /// Units the bucket was given.
    pub initial: u64,
    /// Units for sale.
    pub available: u64,
    /// Units held by reservations or orders.
    pub reserved: u64,
}

impl StockCounters {
    /// I3, first half: `initial = available + reserved`.
    #[must_use]
    pub fn is_conserved(self) -> bool {
        self.available.checked_add(self.reserved) == Some(self.initial)
    }

    /// I3, second half: `reserved` is what the reservations that hold units add up to. The first
    /// half alone would miss a double release.
    #[must_use]
    pub fn matches_holders(
        self,
        reservations: impl IntoIterator<Item = (ReservationStatus, u64)>,
    ) -> bool {
        held(reservations) == Some(self.reserved)
    }
}

/// The sum of the quantities of the reservations that hold units; `None` if it overflows.
pub fn held(reservations: impl IntoIterator<Item = (ReservationStatus, u64)>) -> Option<u64> {
    reservations
        .into_iter()
        .filter(|(status, _)| status.holds_units())
        .try_fold(0u64, |sum, (_, quantity)| sum.checked_add(quantity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_double_release_keeps_the_sum_but_not_the_holders() {
        let holders = [
            (ReservationStatus::OrderCreated, 1),
            (ReservationStatus::Released, 1),
        ];
        let right = StockCounters {
            initial: 3,
            available: 2,
            reserved: 1,
        };
        let released_twice = StockCounters {
            initial: 3,
            available: 3,
            reserved: 0,
        };
        assert!(right.is_conserved() && right.matches_holders(holders));
        assert!(released_twice.is_conserved() && !released_twice.matches_holders(holders));
    }

    #[test]
    fn overflow_is_a_violation_not_a_panic() {
        let counters = StockCounters {
            initial: 1,
            available: u64::MAX,
            reserved: 2,
        };
        assert!(!counters.is_conserved());
        assert_eq!(
            held([
                (ReservationStatus::Reserved, u64::MAX),
                (ReservationStatus::Enqueued, 1)
            ]),
            None
        );
    }
}
