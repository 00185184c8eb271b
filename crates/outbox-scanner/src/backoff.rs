//! When an attempt that ended in "unknown" is made again.
//!
//! The schedule is pure, so that its worst case can be counted in a test: at most 15 attempts in ten
//! minutes of outage (the front's first send among them), and at most a minute from the recovery to
//! the next attempt, which leaves room for the bus client's own circuit breaker of 30 s within the
//! two minutes that a drained backlog may take.

use std::time::Duration;

/// How much longer each wait is than the one before it. Two would need 16 attempts in ten minutes.
const GROWTH: u32 = 3;

/// The share of a wait that chance may take off it. It spreads what failed together over nine
/// seconds of a full minute; more would cost an attempt beyond the fifteenth.
const JITTER_SHARE: f64 = 0.15;

/// A bounded exponential schedule.
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

    /// The wait after the given attempt, counted from 1. `chance` lies in 0 to 1; the draw is the
    /// caller's, so that a test can take the worst one.
    #[must_use]
    pub fn after(&self, attempt: u32, chance: f64) -> Duration {
        let growth = GROWTH.saturating_pow(attempt.saturating_sub(1));
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

    const DEFAULT: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(60));
    const OUTAGE: Duration = Duration::from_secs(600);
    /// The front's grace before the scanner may take a reservation over.
    const FIRST_SEND_GRACE: Duration = Duration::from_secs(2);

    #[test]
    fn at_most_fifteen_attempts_in_ten_minutes_even_with_the_shortest_waits() {
        let mut attempts_by_front_and_scanner = 1;
        let mut attempt = 0;
        let mut at = FIRST_SEND_GRACE;
        while at <= OUTAGE {
            attempt += 1;
            attempts_by_front_and_scanner += 1;
            at += DEFAULT.after(attempt, 1.0);
        }
        assert_eq!(attempts_by_front_and_scanner, 15);
    }

    #[test]
    fn waits_grow_to_the_cap_and_stay_there() {
        let waits: Vec<u64> = (1..=6)
            .map(|attempt| DEFAULT.after(attempt, 0.0).as_secs())
            .collect();
        assert_eq!(waits, [5, 15, 45, 60, 60, 60]);
        assert_eq!(DEFAULT.after(u32::MAX, 0.0), Duration::from_secs(60));
    }

    #[test]
    fn chance_only_shortens_and_never_by_more_than_its_share() {
        for attempt in 1..40 {
            let full = DEFAULT.after(attempt, 0.0);
            let drawn = DEFAULT.draw(attempt);
            assert!(drawn <= full && drawn >= full.mul_f64(0.849), "{attempt}");
        }
    }

    #[test]
    fn an_attempt_that_was_never_counted_waits_like_the_first() {
        assert_eq!(DEFAULT.after(0, 0.0), DEFAULT.after(1, 0.0));
    }
}
