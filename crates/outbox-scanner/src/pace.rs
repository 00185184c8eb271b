//! An upper bound on how many reservations are resent a second, over all buckets.
//!
//! After a long outage a million members may be due at once. Without a bound the scanner would take
//! the broker and Redis away from the sale that is going on.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;

/// Hands out starting times so that no more than the given number of items begin each second.
#[derive(Debug)]
pub struct Pace {
    per_item: Duration,
    next_start: Mutex<Instant>,
}

impl Pace {
    /// A pace of `per_second` items.
    #[must_use]
    pub fn new(per_second: usize) -> Self {
        let per_second = u32::try_from(per_second).unwrap_or(u32::MAX).max(1);
        Self {
            per_item: Duration::from_secs(1) / per_second,
            next_start: Mutex::new(Instant::now()),
        }
    }

    /// Waits until `items` more may begin. The items are booked before the wait, so that several
    /// callers queue up instead of starting together.
    pub async fn book(&self, items: usize) {
        tokio::time::sleep_until(self.reserve(items)).await;
    }

    fn reserve(&self, items: usize) -> Instant {
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        let cost = self.per_item.saturating_mul(items);
        // A poisoned lock guards one instant, which is whole whatever its holder did.
        let mut next_start = self
            .next_start
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let start = (*next_start).max(Instant::now());
        *next_start = start + cost;
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookings_queue_up_behind_each_other() {
        let pace = Pace::new(100);
        let first = pace.reserve(50);
        let second = pace.reserve(50);
        let third = pace.reserve(1);
        assert_eq!(second - first, Duration::from_millis(500));
        assert_eq!(third - second, Duration::from_millis(500));
    }
}
