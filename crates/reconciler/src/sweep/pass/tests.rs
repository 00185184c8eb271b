use seckill_state_machine::invariants::StockCounters;
use seckill_state_machine::{ActivityId, ActivityVersion, BucketId, Scope, SkuId};

use super::*;

fn stock(reserved: u64) -> Stock {
    Stock {
        counters: StockCounters {
            initial: 10,
            available: 10 - reserved,
            reserved,
        },
        released_total: 0,
    }
}

fn pass(before: Option<Stock>, held: u64, after: Option<Stock>) -> Pass {
    let scope = Scope {
        activity_id: ActivityId::parse("a1").unwrap(),
        sku_id: SkuId::parse("s1").unwrap(),
        version: ActivityVersion::new(1).unwrap(),
    };
    Pass {
        keys: BucketKeys::new(&scope.bucket(BucketId::ZERO)),
        phase: Phase::Done,
        before,
        after,
        counted: HashSet::new(),
        held,
        unreadable: 0,
        soldout: false,
        found: Found::default(),
        reported: HashSet::new(),
    }
}

fn classes(pass: Pass) -> Vec<Class> {
    let findings = pass.into_outcome().findings;
    findings.into_iter().map(|found| found.class).collect()
}

#[test]
fn a_double_release_shows_and_a_bucket_that_moved_is_not_judged() {
    let (two, three) = (Some(stock(2)), Some(stock(3)));
    assert!(classes(pass(three, 3, three)).is_empty());
    assert_eq!(classes(pass(two, 3, two)), [Class::HoldersDiffer]);
    let moved = pass(two, 3, three).into_outcome();
    assert!(moved.findings.is_empty());
    assert_eq!(moved.incomplete, None);
    assert_eq!(moved.unjudged, OF_SUMS);
    assert!(pass(two, 2, two).into_outcome().unjudged.is_empty());
    assert!(classes(pass(None, 0, None)).is_empty());
}

#[test]
fn a_sold_out_mark_is_stale_only_while_units_are_available() {
    let marked = |reserved| Pass {
        soldout: true,
        ..pass(Some(stock(reserved)), reserved, Some(stock(reserved)))
    };
    assert_eq!(classes(marked(3)), [Class::SoldOutStale]);
    assert!(classes(marked(10)).is_empty());
}

#[test]
fn what_there_was_no_room_for_makes_the_pass_no_proof() {
    let mut pass = pass(Some(stock(1)), 1, Some(stock(1)));
    for number in 0..10_001 {
        let finding = Finding::of_bucket(Class::ForeignKey, number.to_string(), "");
        pass.found.push(finding);
    }
    let outcome = pass.into_outcome();
    assert_eq!(outcome.findings.len(), 10_000);
    assert!(outcome.incomplete.unwrap().contains("1 further"));
}
