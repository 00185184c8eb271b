//! What a walk came to, page by page, with a limit on what is listed one by one.

use std::collections::BTreeMap;

use seckill_order_store::Discrepancy;

use crate::findings;
use crate::rounds::Round;

/// Reservations that are listed one by one, per kind, bucket and round. After an outage there may be
/// a million of them; the bucket's own entry tells how many there are.
pub const LISTED_MAX: u64 = 100;

/// What one page came to. It counts when the page is done: one that fails half way is read again.
#[derive(Default)]
pub struct Page {
    /// Members looked at.
    pub checked: u64,
    /// Steps taken towards agreement.
    pub settled: u64,
    /// Differences that count, by kind; no more than the page has members.
    pub found: Vec<(&'static str, Discrepancy)>,
}

/// What a walk came to so far.
pub struct Tally {
    round: Round,
    counts: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// A walk that begins now.
    pub fn begin() -> Self {
        Self {
            round: Round::begin(),
            counts: BTreeMap::new(),
        }
    }

    /// How many differences of a kind there are so far.
    pub fn count(&self, kind: &str) -> u64 {
        self.counts.get(kind).copied().unwrap_or_default()
    }

    /// Adds a page that is done.
    pub fn add(&mut self, page: Page) {
        self.round.checked += page.checked;
        self.round.settled += page.settled;
        for (kind, found) in page.found {
            let count = self.counts.entry(kind).or_default();
            *count += 1;
            if *count <= LISTED_MAX {
                self.round.found.push(found);
            }
        }
    }

    /// Notes why the walk does not get to the end.
    pub fn give_up(&mut self, error: String) {
        self.round.error = Some(error);
    }

    /// The walk as a round. `of_bucket` makes the bucket's own entry of a kind, which tells how many
    /// there are where not all are listed, and of the undecided ones always.
    pub fn into_round(self, of_bucket: impl Fn(&'static str, String) -> Discrepancy) -> Round {
        let mut round = self.round;
        for (kind, count) in self.counts {
            if kind == findings::UNDECIDED {
                let detail = format!("{count} reservations are due and undecided");
                round.found.push(of_bucket(kind, detail));
            } else if count > LISTED_MAX {
                let detail = format!("{count} in all, of which {LISTED_MAX} are listed");
                round.found.push(of_bucket(kind, detail));
            }
        }
        round
    }
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::{ActivityId, ActivityVersion, BucketId, Scope, SkuId};

    use super::*;

    fn of_bucket(kind: &'static str, detail: String) -> Discrepancy {
        let scope = Scope {
            activity_id: ActivityId::parse("a1").unwrap(),
            sku_id: SkuId::parse("s1").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        };
        Discrepancy::new(kind, scope.bucket(BucketId::ZERO), None, detail)
    }

    fn page(kind: &'static str, count: usize) -> Page {
        Page {
            checked: count as u64,
            found: vec![(kind, of_bucket(kind, String::new())); count],
            ..Page::default()
        }
    }

    #[test]
    fn every_kind_is_listed_up_to_the_limit_and_then_counted() {
        let mut tally = Tally::begin();
        for _ in 0..2 {
            tally.add(page(findings::NOT_RELEASED, 80));
            tally.add(page(findings::UNDECIDED, 80));
        }
        tally.add(page(findings::CONTRADICTION, 3));
        let round = tally.into_round(of_bucket);
        assert_eq!(round.checked, 323);
        let details = |kind| {
            let found = round.found.iter().filter(move |found| found.kind == kind);
            found.map(|found| found.detail.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(details(findings::CONTRADICTION).len(), 3);
        for (kind, total) in [
            (
                findings::NOT_RELEASED,
                "160 in all, of which 100 are listed",
            ),
            (
                findings::UNDECIDED,
                "160 reservations are due and undecided",
            ),
        ] {
            let details = details(kind);
            assert_eq!(details.len(), 101);
            assert_eq!(details.last(), Some(&total));
        }
    }
}
