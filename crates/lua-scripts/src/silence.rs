//! Since when a part of the slots has not answered.
//!
//! The library gives up a connection only when nothing was written to it for a while: under load a hung
//! server, to which each caller writes anew, is never noticed. In a cluster the heartbeat does not help
//! either, since any other node answers it. So the calls themselves are watched.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For each group of slots, when the silence began.
#[derive(Debug)]
pub(crate) struct Silence {
    began: Instant,
    /// Milliseconds since `began`, plus one; 0 while the last call was answered.
    groups: Vec<AtomicU64>,
}

impl Silence {
    pub(crate) fn new(groups: usize) -> Self {
        Self {
            began: Instant::now(),
            groups: std::iter::repeat_with(AtomicU64::default)
                .take(groups)
                .collect(),
        }
    }

    fn now(&self) -> u64 {
        let elapsed = self.began.elapsed().as_millis();
        u64::try_from(elapsed).unwrap_or(u64::MAX - 1)
    }

    /// A call of this group was answered.
    pub(crate) fn ends(&self, group: usize) {
        if let Some(since) = self.groups.get(group)
            // Nearly always it is 0, and reading costs less than writing.
            && since.load(Ordering::Relaxed) != 0
        {
            since.store(0, Ordering::Relaxed);
        }
    }

    /// A call of this group was not answered in time; how long that has been so.
    pub(crate) fn lasts(&self, group: usize) -> Duration {
        self.lasts_at(group, self.now())
    }

    fn lasts_at(&self, group: usize, now_ms: u64) -> Duration {
        let Some(since) = self.groups.get(group) else {
            return Duration::ZERO;
        };
        match since.compare_exchange(0, now_ms + 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Duration::ZERO,
            Err(first) => Duration::from_millis((now_ms + 1).saturating_sub(first)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_lasts_from_its_first_time_out_until_an_answer() {
        let silence = Silence::new(2);
        let ms = Duration::from_millis;
        assert_eq!(silence.lasts_at(0, 0), ms(0));
        assert_eq!(silence.lasts_at(0, 700), ms(700));
        assert_eq!(silence.lasts_at(1, 700), ms(0));
        silence.ends(0);
        assert_eq!(silence.lasts_at(0, 900), ms(0));
        assert_eq!(silence.lasts_at(1, 900), ms(200));
        assert_eq!(silence.lasts_at(2, 900), ms(0));
    }
}
