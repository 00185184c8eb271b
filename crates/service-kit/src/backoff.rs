//! When work that could not be finished is tried again.
//!
//! A bounded exponential schedule. It is pure but for one draw, so that a service can count the worst
//! case of its own numbers in a test.

use std::time::Duration;

/// A bounded schedule: each wait is a multiple of the one before it, up to a cap, less what chance
/// takes off, so that what failed together does not come back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    growth: u32,
    jitter_percent: u32,
}

impl Backoff {
    /// A schedule from its first and its longest wait. It doubles, and chance takes off a quarter at
    /// most.
    #[must_use]
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self {
            first,
            max,
            growth: 2,
            jitter_percent: 25,
        }
    }

    /// With another growth from one wait to the next.
    #[must_use]
    pub const fn growth(mut self, growth: u32) -> Self {
        self.growth = growth;
        self
    }

    /// With another share that chance may take off a wait, up to all of it.
    #[must_use]
    pub const fn jitter_percent(mut self, percent: u32) -> Self {
        self.jitter_percent = if percent > 100 { 100 } else { percent };
        self
    }

    /// The wait after the given attempt, counted from 1. `chance` lies in 0 to 1; the draw is the
    /// caller's, so that a test can take the worst one.
    #[must_use]
    pub fn after(&self, attempt: u32, chance: f64) -> Duration {
        let growth = self.growth.saturating_pow(attempt.saturating_sub(1));
        let full = self.first.saturating_mul(growth).min(self.max);
        let taken_off = f64::from(self.jitter_percent) / 100.0 * chance.clamp(0.0, 1.0);
        full.mul_f64(1.0 - taken_off)
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

    const TEN: Duration = Duration::from_secs(10);

    #[test]
    fn waits_double_up_to_the_cap() {
        let backoff = Backoff::new(Duration::from_secs(1), TEN);
        let waits: Vec<u64> = (0..=6)
            .map(|attempt| backoff.after(attempt, 0.0).as_secs())
            .collect();
        assert_eq!(waits, [1, 1, 2, 4, 8, 10, 10]);
        assert_eq!(backoff.after(u32::MAX, 0.0), TEN);
    }

    #[test]
    fn chance_only_shortens_and_never_by_more_than_its_share() {
        let backoff = Backoff::new(TEN, TEN).jitter_percent(15);
        assert_eq!(backoff.after(1, 1.0), Duration::from_millis(8_500));
        for attempt in 1..40 {
            let drawn = backoff.draw(attempt);
            assert!(drawn <= TEN && drawn >= TEN.mul_f64(0.849), "{attempt}");
        }
    }

    #[test]
    fn an_attempt_that_was_never_counted_waits_like_the_first() {
        let backoff = Backoff::new(Duration::from_secs(1), TEN).growth(3);
        assert_eq!(backoff.after(0, 0.0), backoff.after(1, 0.0));
        assert_eq!(backoff.after(3, 0.0), Duration::from_secs(9));
    }
}
