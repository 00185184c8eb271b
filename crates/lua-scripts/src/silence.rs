//! Since when a server has not answered.
//!
//! The library gives up a connection only when nothing was written to it for a while: under load a hung
//! server, to which each caller writes anew, is never noticed. So the calls themselves are watched.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When the silence of a server began.
#[derive(Debug)]
pub(crate) struct Silence {
    epoch: Instant,
    /// Between two time-outs further apart than this hardly anybody has called, which proves nothing.
    gap_ms: u64,
    /// Milliseconds since `epoch`, plus one; 0 while the last call was answered.
    since: AtomicU64,
    /// Milliseconds from `epoch` to the last time-out.
    last: AtomicU64,
}

impl Silence {
    pub(crate) fn new(gap: Duration) -> Self {
        Self {
            epoch: Instant::now(),
            gap_ms: millis(gap),
            since: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    /// A call was answered.
    pub(crate) fn ends(&self) {
        // Nearly always it is 0, and reading costs less than writing.
        if self.is_on() {
            self.since.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the last call was not answered in time.
    pub(crate) fn is_on(&self) -> bool {
        self.since.load(Ordering::Relaxed) != 0
    }

    /// A call was not answered in time; how long none has been.
    pub(crate) fn lasts(&self) -> Duration {
        self.lasts_at(millis(self.epoch.elapsed()))
    }

    fn lasts_at(&self, now_ms: u64) -> Duration {
        let last = self.last.swap(now_ms, Ordering::Relaxed);
        let since = self.since.load(Ordering::Relaxed);
        if since == 0 || now_ms.saturating_sub(last) > self.gap_ms {
            self.since.store(now_ms + 1, Ordering::Relaxed);
            return Duration::ZERO;
        }
        Duration::from_millis((now_ms + 1).saturating_sub(since))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_silence_lasts_from_its_first_time_out_until_an_answer() {
        let silence = Silence::new(MS(1_000));
        assert_eq!(silence.lasts_at(0), MS(0));
        assert_eq!(silence.lasts_at(700), MS(700));
        assert!(silence.is_on());
        silence.ends();
        assert!(!silence.is_on());
        assert_eq!(silence.lasts_at(900), MS(0));
        assert_eq!(silence.lasts_at(1_100), MS(200));
    }

    #[test]
    fn time_without_calls_is_no_silence() {
        let silence = Silence::new(MS(1_000));
        assert_eq!(silence.lasts_at(0), MS(0));
        assert_eq!(silence.lasts_at(60_000), MS(0));
        assert_eq!(silence.lasts_at(60_500), MS(500));
    }
}
