//! The two-round rule: a difference counts only if it is still there in a later round, further away
//! than anything is on its way, and in every round between.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// What is known about a difference that a round saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// It may still be something on its way.
    Waiting,
    /// It counts, from this round on.
    Confirmed,
    /// It was confirmed in an earlier round.
    Known,
}

#[derive(Debug)]
struct Entry {
    since: Instant,
    round: u64,
    confirmed: bool,
}

/// The differences of one series of rounds. Holds no more than what the last round saw.
#[derive(Debug)]
pub struct Persistence<K> {
    grace: Duration,
    round: u64,
    entries: HashMap<K, Entry>,
}

impl<K: Eq + Hash> Persistence<K> {
    /// `grace` is how long something may be on its way.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            round: 0,
            entries: HashMap::new(),
        }
    }

    /// Notes a difference in the current round. Its key names all that must stay the same.
    pub fn see(&mut self, key: K, now: Instant) -> Seen {
        let round = self.round;
        let entry = self.entries.entry(key).or_insert(Entry {
            since: now,
            round,
            confirmed: false,
        });
        entry.round = round;
        if entry.confirmed {
            return Seen::Known;
        }
        if now.duration_since(entry.since) < self.grace {
            return Seen::Waiting;
        }
        entry.confirmed = true;
        Seen::Confirmed
    }

    /// Ends the round: what it did not see is forgotten.
    pub fn end_round(&mut self) {
        let round = self.round;
        self.entries.retain(|_, entry| entry.round == round);
        self.round += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(30);

    #[test]
    fn a_difference_counts_when_a_later_round_beyond_the_grace_sees_it_again() {
        let mut rule = Persistence::new(GRACE);
        let start = Instant::now();
        assert_eq!(rule.see("a", start), Seen::Waiting);
        rule.end_round();
        assert_eq!(rule.see("a", start + GRACE / 2), Seen::Waiting);
        rule.end_round();
        assert_eq!(rule.see("a", start + GRACE), Seen::Confirmed);
        rule.end_round();
        assert_eq!(rule.see("a", start + GRACE * 2), Seen::Known);
    }

    #[test]
    fn a_round_that_does_not_see_it_starts_its_time_anew() {
        let mut rule = Persistence::new(GRACE);
        let start = Instant::now();
        rule.see("a", start);
        rule.end_round();
        rule.end_round();
        assert_eq!(rule.see("a", start + GRACE), Seen::Waiting);
    }

    #[test]
    fn a_difference_that_moves_is_another_one() {
        let mut rule = Persistence::new(GRACE);
        let start = Instant::now();
        rule.see(("a", 1), start);
        rule.end_round();
        assert_eq!(rule.see(("a", 2), start + GRACE), Seen::Waiting);
    }

    #[test]
    fn nothing_but_the_last_round_is_kept() {
        let mut rule = Persistence::new(GRACE);
        let now = Instant::now();
        for member in 0..1_000 {
            rule.see(member, now);
        }
        rule.end_round();
        rule.see(1, now);
        rule.end_round();
        assert_eq!(rule.entries.len(), 1);
    }
}
