//! Keeps one fault from filling the log: the same line at most once a second, with what was left out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Between two lines of one kind.
const INTERVAL: Duration = Duration::from_secs(1);

/// The limit for one kind of line.
#[derive(Debug)]
pub(crate) struct LogLimit {
    began: Instant,
    /// When the next line may be written, in milliseconds since `began`.
    next_ms: AtomicU64,
    left_out: AtomicU64,
}

impl LogLimit {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            next_ms: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// Whether to write a line now, and if so, how many were left out since the last.
    pub(crate) fn allow(&self) -> Option<u64> {
        self.allow_at(self.began.elapsed())
    }

    fn allow_at(&self, now: Duration) -> Option<u64> {
        let now_ms = millis(now);
        let next_ms = self.next_ms.load(Ordering::Relaxed);
        let taken = now_ms >= next_ms
            && self
                .next_ms
                .compare_exchange(
                    next_ms,
                    now_ms + millis(INTERVAL),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if taken {
            Some(self.left_out.swap(0, Ordering::Relaxed))
        } else {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_tells_what_was_left_out() {
        let limit = LogLimit::new();
        let at = |ms| limit.allow_at(Duration::from_millis(ms));
        assert_eq!(at(0), Some(0));
        assert_eq!(at(1), None);
        assert_eq!(at(999), None);
        assert_eq!(at(1_000), Some(2));
        assert_eq!(at(5_000), Some(0));
    }
}
