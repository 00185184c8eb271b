//! When a task that could not be finished is tried again.

use std::time::Duration;

/// The share of a wait that chance may take off it, so that tasks which failed together do not come
/// back together.
const JITTER_SHARE: f64 = 0.25;

/// A bounded schedule that doubles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
}

impl Backoff {
    /// A schedule from its first and its longest wait.
    #[must_use]
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max }
    }

    /// The wait after the given attempt, counted from 1. `chance` lies in 0 to 1.
    #[must_use]
    pub fn after(&self, attempt: u32, chance: f64) -> Duration {
        let growth = 2u32.saturating_pow(attempt.saturating_sub(1));
        let full = self.first.saturating_mul(growth).min(self.max);
        full.mul_f64(1.0 - JITTER_SHARE * chance.clamp(0.0, 1.0))
    }

    /// [`Self::after`] with a draw of its own.
    #[must_use]
    pub fn draw(&self, attempt: u32) -> Duration {
        self.after(attempt, rand::random())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
        let waits: Vec<u64> = (0..=6)
            .map(|attempt| backoff.after(attempt, 0.0).as_secs())
            .collect();
        assert_eq!(waits, [1, 1, 2, 4, 8, 10, 10]);
        assert_eq!(backoff.after(u32::MAX, 0.0), Duration::from_secs(10));
    }

    #[test]
    fn chance_takes_off_a_quarter_at_most() {
        let backoff = Backoff::new(Duration::from_secs(4), Duration::from_secs(4));
        assert_eq!(backoff.after(1, 1.0), Duration::from_secs(3));
    }
}
