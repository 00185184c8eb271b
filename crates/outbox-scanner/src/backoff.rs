//! When a send whose outcome is unknown is repeated.
//!
//! The schedule's worst case is counted in a test: at most 15 attempts in ten minutes of outage (the
//! front's first send among them), and at most a minute from the recovery to the next attempt, which
//! leaves room for the bus client's own circuit breaker of 30 s within the two minutes that a drained
//! backlog may take.

use std::time::Duration;

use seckill_service_kit::Backoff;

/// How much longer each wait is than the one before it. Two would need 16 attempts in ten minutes.
const GROWTH: u32 = 3;

/// The part of a wait that chance may take off it. It spreads what failed together over nine seconds
/// of a full minute; more would cost an attempt beyond the fifteenth.
const JITTER_PERCENT: u32 = 15;

/// The schedule from its first and its longest wait.
#[must_use]
pub const fn schedule(first: Duration, max: Duration) -> Backoff {
    Backoff::new(first, max)
        .growth(GROWTH)
        .jitter_percent(JITTER_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Backoff = schedule(Duration::from_secs(5), Duration::from_secs(60));
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
}
