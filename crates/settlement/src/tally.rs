//! How the replays of many reservations ended.

use crate::Replayed;

/// A count per ending.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Both sides agreed.
    pub agreed: u64,
    /// Settled now.
    pub settled: u64,
    /// Left to the compensation worker.
    pub handed_over: u64,
    /// Brought back.
    pub rebuilt: u64,
    /// Waiting for units.
    pub waits: u64,
    /// Recorded as ended.
    pub tombstoned: u64,
    /// Markers set right.
    pub markers_repaired: u64,
    /// Orders' units put back on sale.
    pub cancelled: u64,
    /// Of buckets that Redis does not have.
    pub bucket_gone: u64,
    /// For a person.
    pub contradictions: u64,
    /// Refused by a script.
    pub refused: u64,
    /// Damaged.
    pub unreadable: u64,
    /// Moved by others meanwhile.
    pub moving: u64,
    /// Of buckets without counters.
    pub no_counters: u64,
    /// Decided just before the look at them, or since, and settled, handed over or moved by others, as
    /// usual: counted here alone, since a sale always has some.
    pub in_progress: u64,
}

impl Tally {
    /// Counts one.
    pub const fn note(&mut self, replayed: &Replayed) {
        let count = match replayed {
            Replayed::Agreed => &mut self.agreed,
            Replayed::Settled => &mut self.settled,
            Replayed::HandedOver => &mut self.handed_over,
            Replayed::Rebuilt => &mut self.rebuilt,
            Replayed::Waits => &mut self.waits,
            Replayed::Tombstoned => &mut self.tombstoned,
            Replayed::MarkerRepaired => &mut self.markers_repaired,
            Replayed::Cancelled => &mut self.cancelled,
            Replayed::BucketGone => &mut self.bucket_gone,
            Replayed::Contradiction { .. } => &mut self.contradictions,
            Replayed::Refused { .. } => &mut self.refused,
            Replayed::Unreadable { .. } => &mut self.unreadable,
            Replayed::Moving => &mut self.moving,
            Replayed::NoCounters => &mut self.no_counters,
        };
        *count += 1;
    }

    /// Adds another tally.
    pub const fn add(&mut self, other: &Self) {
        self.agreed += other.agreed;
        self.settled += other.settled;
        self.handed_over += other.handed_over;
        self.rebuilt += other.rebuilt;
        self.waits += other.waits;
        self.tombstoned += other.tombstoned;
        self.markers_repaired += other.markers_repaired;
        self.cancelled += other.cancelled;
        self.bucket_gone += other.bucket_gone;
        self.contradictions += other.contradictions;
        self.refused += other.refused;
        self.unreadable += other.unreadable;
        self.moving += other.moving;
        self.no_counters += other.no_counters;
        self.in_progress += other.in_progress;
    }

    /// How many were looked at.
    #[must_use]
    pub const fn checked(&self) -> u64 {
        self.agreed + self.in_progress + self.changed() + self.open()
    }

    /// How many were brought to agreement.
    #[must_use]
    pub const fn changed(&self) -> u64 {
        self.settled + self.rebuilt + self.tombstoned + self.markers_repaired + self.cancelled
    }

    /// How many are not in agreement after it.
    #[must_use]
    pub const fn open(&self) -> u64 {
        self.handed_over
            + self.waits
            + self.bucket_gone
            + self.contradictions
            + self.refused
            + self.unreadable
            + self.moving
            + self.no_counters
    }

    /// Whether nothing had to be done and nothing is left to do, but for what is in progress.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.changed() == 0 && self.open() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_is_counted_once_and_only_agreement_is_clean() {
        let detail = String::new;
        let endings = [
            Replayed::Agreed,
            Replayed::Settled,
            Replayed::HandedOver,
            Replayed::Rebuilt,
            Replayed::Waits,
            Replayed::Tombstoned,
            Replayed::MarkerRepaired,
            Replayed::Cancelled,
            Replayed::BucketGone,
            Replayed::NoCounters,
            Replayed::Contradiction { detail: detail() },
            Replayed::Refused { detail: detail() },
            Replayed::Unreadable { detail: detail() },
            Replayed::Moving,
        ];
        let mut all = Tally::default();
        for ending in &endings {
            let mut one = Tally::default();
            one.note(ending);
            assert_eq!(one.checked(), 1, "{ending:?}");
            assert_eq!(one.is_clean(), *ending == Replayed::Agreed, "{ending:?}");
            assert_eq!(one.open() == 0, ending.agrees(), "{ending:?}");
            all.add(&one);
        }
        assert_eq!(all.checked(), 14);
        assert_eq!((all.changed(), all.open()), (5, 8));
    }
}
