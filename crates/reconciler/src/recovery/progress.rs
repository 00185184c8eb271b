//! How far the recovery of one bucket has come, as this process knows it. Another replica may be
//! further; whoever has seen all that is needed ends the window.

use std::time::Duration;

use seckill_settlement::Tally;
use seckill_state_machine::TimestampMs;
use tokio::time::Instant;

/// The first pause after a round that was not clean.
const PAUSE_MIN: Duration = Duration::from_millis(500);

/// The longest: what the last rounds found waits for units or for the compensation worker.
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// The recovery of one bucket.
#[derive(Debug, Default)]
pub struct Progress {
    opened_at: Option<TimestampMs>,
    /// When the last round began, if it was clean.
    clean: Option<Instant>,
    next_at: Option<Instant>,
    pause: Duration,
    /// When it was first seen that the backlog is consumed.
    reached: Option<Instant>,
    /// Whether it waited for redeliveries when that was looked at last.
    waits: bool,
}

impl Progress {
    /// Begins anew when the window is another one.
    pub fn follow(&mut self, opened_at: TimestampMs) {
        if self.opened_at != Some(opened_at) {
            *self = Self {
                opened_at: Some(opened_at),
                ..Self::default()
            };
        }
    }

    /// Whether a round is to be begun.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.next_at.is_none_or(|at| now >= at)
    }

    /// Notes a round.
    pub fn replayed(&mut self, began: Instant, tally: &Tally) {
        let clean = is_clean(tally);
        self.clean = clean.then_some(began);
        self.pause = if clean {
            // The backlog may still bring orders whose reservations were lost.
            PAUSE_MAX
        } else if tally.changed() > 0 {
            PAUSE_MIN
        } else {
            (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX)
        };
        self.next_at = Some(Instant::now() + self.pause);
    }

    /// Notes whether it waits for redeliveries; says whether that is new.
    pub const fn waits_for_redeliveries(&mut self, waits: bool) -> bool {
        let is_new = waits && !self.waits;
        self.waits = waits;
        is_new
    }

    /// Notes that the backlog from before is consumed.
    pub fn reached(&mut self, now: Instant) {
        self.reached.get_or_insert(now);
    }

    /// Whether one more round has to prove that nothing is left: the last clean one began too early.
    #[must_use]
    pub fn needs_last_round(&self) -> bool {
        self.clean.is_some() && !self.is_over()
    }

    /// Whether a clean round began after the backlog was consumed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match (self.reached, self.clean) {
            (Some(reached), Some(clean)) => clean >= reached,
            _ => false,
        }
    }
}

/// Whether a round leaves nothing that time or a worker will end. What only a person can end is told
/// as a difference; to wait for it would keep the window open for days.
const fn is_clean(tally: &Tally) -> bool {
    tally.changed() == 0
        && tally.handed_over == 0
        && tally.waits == 0
        && tally.bucket_gone == 0
        && tally.no_counters == 0
        && tally.moving == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(settled: u64, waits: u64, contradictions: u64) -> Tally {
        Tally {
            settled,
            waits,
            contradictions,
            ..Tally::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_clean_round_that_began_after_the_backlog_was_consumed_ends_it() {
        let mut progress = Progress::default();
        progress.follow(TimestampMs::new(1));
        assert!(progress.is_due(Instant::now()));
        progress.replayed(Instant::now(), &tally(0, 0, 1));
        assert!(!progress.is_due(Instant::now()) && !progress.is_over());
        tokio::time::advance(Duration::from_secs(1)).await;
        progress.reached(Instant::now());
        assert!(!progress.is_over(), "that round began before");
        assert!(progress.needs_last_round());
        tokio::time::advance(Duration::from_secs(1)).await;
        progress.replayed(Instant::now(), &tally(1, 0, 0));
        assert!(!progress.is_over(), "that round had something to do");
        progress.replayed(Instant::now(), &tally(0, 0, 0));
        assert!(progress.is_over());
        // The next failover begins anew.
        progress.follow(TimestampMs::new(2));
        assert!(!progress.is_over() && progress.is_due(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_that_only_wait_grow_rare() {
        let mut progress = Progress::default();
        progress.follow(TimestampMs::new(1));
        for pause in [500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000] {
            progress.replayed(Instant::now(), &tally(0, 1, 0));
            tokio::time::advance(Duration::from_millis(pause - 1)).await;
            assert!(!progress.is_due(Instant::now()), "{pause}");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(progress.is_due(Instant::now()), "{pause}");
        }
    }
}
