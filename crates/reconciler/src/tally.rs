//! What a walk came to, with a limit on what is listed one by one.

use std::collections::BTreeMap;

use seckill_order_store::Discrepancy;
use seckill_settlement::{Class, Evidence, discrepancy};
use seckill_state_machine::BucketScope;

use crate::rounds::Round;

/// Reservations that are listed one by one, per class, bucket and round. After an outage there may be
/// a million of them; the bucket's own entry tells how many there are.
pub const LISTED_MAX: u64 = 100;

/// Things that may count later, of one walk: some 4 MB. A walk that sees more of them is no proof.
const WAITING_MAX: usize = 10_000;

/// What one page came to. It counts when the page is done: one that fails half way is read again.
#[derive(Default)]
pub struct Page {
    /// Members looked at.
    pub checked: u64,
    /// Steps taken towards agreement.
    pub settled: u64,
    /// What may count later.
    pub waiting: Vec<Discrepancy>,
    /// Differences that count, by class; no more than the page has members.
    pub found: Vec<(Class, Discrepancy)>,
}

/// What a walk came to so far.
pub struct Tally {
    round: Round,
    counts: BTreeMap<Class, u64>,
}

impl Tally {
    /// A walk that begins now.
    pub fn begin() -> Self {
        Self {
            round: Round::begin(),
            counts: BTreeMap::new(),
        }
    }

    /// Whether a further difference of a class would be listed.
    pub fn is_listed(&self, class: Class) -> bool {
        self.counts.get(&class).copied().unwrap_or_default() < LISTED_MAX
    }

    /// Adds things that were looked at.
    pub const fn checked(&mut self, count: u64) {
        self.round.checked += count;
    }

    /// Notes what may count later.
    pub fn wait_for(&mut self, found: Discrepancy) {
        if self.round.waiting.len() < WAITING_MAX {
            self.round.waiting.push(found);
        } else {
            self.round.error = Some("too much is on its way".to_owned());
        }
    }

    /// Adds a difference that counts.
    pub fn add(&mut self, class: Class, found: Discrepancy) {
        if self.is_listed(class) {
            self.round.found.push(found);
        }
        *self.counts.entry(class).or_default() += 1;
    }

    /// Adds a page that is done.
    pub fn add_page(&mut self, page: Page) {
        self.round.checked += page.checked;
        self.round.settled += page.settled;
        page.waiting
            .into_iter()
            .for_each(|found| self.wait_for(found));
        for (class, found) in page.found {
            self.add(class, found);
        }
    }

    /// Notes why the walk does not get to the end.
    pub fn give_up(&mut self, error: String) {
        self.round.error = Some(error);
    }

    /// The walk as a round. Where not all differences of a class are listed, the bucket's own entry
    /// tells how many there are.
    pub fn into_round(self, bucket: &BucketScope) -> Round {
        let mut round = self.round;
        for (class, count) in self.counts {
            if count > LISTED_MAX {
                let evidence = Evidence {
                    redis: format!("{count} in all, of which {LISTED_MAX} are listed"),
                    postgres: String::new(),
                };
                round.found.push(discrepancy(class, bucket, None, evidence));
            }
        }
        round
    }
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::{ActivityId, ActivityVersion, BucketId, Scope, SkuId};

    use super::*;

    fn bucket() -> BucketScope {
        let scope = Scope {
            activity_id: ActivityId::parse("a1").unwrap(),
            sku_id: SkuId::parse("s1").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        };
        scope.bucket(BucketId::ZERO)
    }

    fn page(class: Class, count: usize) -> Page {
        let found = discrepancy(class, &bucket(), None, Evidence::default());
        Page {
            checked: count as u64,
            found: vec![(class, found); count],
            ..Page::default()
        }
    }

    #[test]
    fn every_class_is_listed_up_to_the_limit_and_then_counted() {
        let mut tally = Tally::begin();
        tally.add_page(page(Class::NotReleased, 80));
        assert!(tally.is_listed(Class::NotReleased));
        tally.add_page(page(Class::NotReleased, 80));
        assert!(!tally.is_listed(Class::NotReleased));
        tally.add_page(page(Class::Contradiction, 3));
        let round = tally.into_round(&bucket());
        assert_eq!(round.checked, 163);
        let evidence = |class: Class| {
            let found = round
                .found
                .iter()
                .filter(move |found| found.kind == class.word());
            found
                .map(|found| found.evidence_redis.as_str())
                .collect::<Vec<_>>()
        };
        assert_eq!(evidence(Class::Contradiction).len(), 3);
        let released = evidence(Class::NotReleased);
        assert_eq!(released.len(), 101);
        assert_eq!(
            released.last(),
            Some(&"160 in all, of which 100 are listed")
        );
    }
}
