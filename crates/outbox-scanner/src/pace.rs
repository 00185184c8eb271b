//! An upper bound on how many reservations are resent a second, over all buckets.
//!
//! After a long outage a million members may be due at once. Without a bound the scanner would take
//! the broker and Redis away from the sale that is going on.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Keeps the given number of items a second, on the average. Callers that get their turn at the same
/// moment may begin a page each; the next turn then comes after all of these pages' time.
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

    /// Waits until more may begin, and says whether it is so. Gives up at `until`, or when told to
    /// stop: a slow pace must keep neither a heartbeat nor a shutdown waiting.
    pub async fn turn(&self, until: Instant, stop: &CancellationToken) -> bool {
        loop {
            let start = self.next_start();
            if stop.is_cancelled() || start > until {
                return false;
            }
            if start <= Instant::now() {
                return true;
            }
            // Others may begin while this one waits, so the wait is looked at again.
            tokio::select! {
                () = tokio::time::sleep_until(start) => {}
                () = stop.cancelled() => return false,
            }
        }
    }

    /// Counts `items` that begin now. Whoever asks for a turn next waits for them.
    pub fn begin(&self, items: usize) {
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        let cost = self.per_item.saturating_mul(items);
        let mut next_start = self.lock();
        *next_start = (*next_start).max(Instant::now()) + cost;
    }

    fn next_start(&self) -> Instant {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Instant> {
        // A poisoned lock guards one instant, which is whole whatever its holder did.
        self.next_start
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn whoever_comes_next_waits_for_what_began_before() {
        let (pace, stop) = (Pace::new(100), CancellationToken::new());
        let started = Instant::now();
        assert!(pace.turn(started + FAR, &stop).await);
        pace.begin(50);
        assert!(pace.turn(started + FAR, &stop).await);
        assert_eq!(started.elapsed().as_millis() / 10, 50);
        pace.begin(50);
        assert!(pace.turn(started + FAR, &stop).await);
        assert_eq!(started.elapsed().as_millis() / 10, 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_too_long_is_not_begun_and_a_stop_ends_one() {
        let (pace, stop) = (Pace::new(1), CancellationToken::new());
        pace.begin(30);
        let started = Instant::now();
        assert!(!pace.turn(started + Duration::from_secs(20), &stop).await);
        assert_eq!(started.elapsed(), Duration::ZERO);
        let turn = pace.turn(started + FAR, &stop);
        let told = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stop.cancel();
        };
        let (turn, ()) = tokio::join!(turn, told);
        assert!(!turn);
        assert!(started.elapsed() < Duration::from_secs(2));
    }
}
