//! What the front counts of its first sends, told when it stops.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// First sends that the broker confirmed.
    pub(crate) sent: AtomicU64,
    /// First sends of unknown outcome.
    pub(crate) send_unknown: AtomicU64,
    /// Reservations left to the scanner because the queue was full.
    pub(crate) queue_full: AtomicU64,
    /// Reservations left to the scanner because they had waited too long.
    pub(crate) too_old: AtomicU64,
    /// Late reports about reservations that were already further: expected and benign.
    pub(crate) already_further: AtomicU64,
    /// First sends or reports that Redis could not serve.
    pub(crate) left_to_scanner: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
    }

    /// Writes them into the log.
    pub(crate) fn log(&self) {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        tracing::info!(
            sent = value(&self.sent),
            send_unknown = value(&self.send_unknown),
            queue_full = value(&self.queue_full),
            too_old = value(&self.too_old),
            already_further = value(&self.already_further),
            left_to_scanner = value(&self.left_to_scanner),
            "first sends since the start"
        );
    }
}
