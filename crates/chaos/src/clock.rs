//! The run's own time: milliseconds since its start.

use std::time::{Duration, Instant};

/// A moment of the run, in milliseconds since its start.
pub(crate) type Moment = u64;

/// Counts from the start of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Sleeps until some time after a moment; returns at once when that has passed.
    pub(crate) async fn sleep_until(&self, moment: Moment, after: Duration) {
        let at = self.start + Duration::from_millis(moment) + after;
        tokio::time::sleep_until(at.into()).await;
    }
}
