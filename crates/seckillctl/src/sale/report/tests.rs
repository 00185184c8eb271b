//! The verdict on a run, one broken condition at a time, and the shape of the file.

use seckill_state_machine::{ActivityId, ActivityVersion, SkuId};

use super::*;

fn report() -> Report {
    Report {
        activity_id: "act".to_owned(),
        sku_id: "sku".to_owned(),
        activity_version: 1,
        buckets: 1,
        stock: 10,
        buyers: 100,
        expected: 10,
        concurrency: 8,
        seed: 1,
        calls: 12,
        accepted: 10,
        replayed: 1,
        sold_out: 1,
        repeats: 1,
        by_code: BTreeMap::from([("ACCEPTED", 11), ("SOLD_OUT", 1)]),
        orders: 10,
        reserved: 10,
        audit: Verdict::OK,
        ..Report::default()
    }
}

fn failures(spoil: impl FnOnce(&mut Report)) -> usize {
    let mut report = report();
    spoil(&mut report);
    report.judge();
    report.failures.len()
}

#[test]
fn a_good_run_has_no_failures() {
    assert_eq!(failures(|_| {}), 0);
}

#[test]
fn every_condition_is_required() {
    let spoilers: [fn(&mut Report); 14] = [
        |r| r.sold_out -= 1,
        |r| (r.errors, r.sold_out) = (1, 0),
        |r| (r.accepted, r.replayed) = (9, 2),
        |r| r.orders += 1,
        |r| r.available = 1,
        |r| r.unclear_replays = 1,
        |r| (r.other, r.sold_out) = (1, 0),
        |r| r.inconsistent_repeats = 1,
        |r| r.accepted_twice = 1,
        |r| r.oversold = 1,
        |r| r.duplicate_orders = 1,
        |r| {
            r.on_its_way = Some(Settledness {
                send_pending: 0,
                reservation_expiry: 0,
                outbox: 1,
                tasks: 0,
                lag: Some(Vec::new()),
            });
        },
        |r| r.accepted_without_order = 1,
        |r| r.audit = Verdict::NotDone("no Redis".to_owned()),
    ];
    for (index, spoil) in spoilers.into_iter().enumerate() {
        assert_eq!(failures(spoil), 1, "spoiler {index}");
    }
}

#[test]
fn fewer_buyers_than_units_must_all_be_served() {
    let few = |report: &mut Report| {
        (report.buyers, report.expected, report.replayed) = (4, 4, 7);
        (report.accepted, report.orders) = (4, 4);
        (report.available, report.reserved) = (6, 4);
    };
    assert_eq!(failures(few), 0);
}

#[test]
fn a_killed_front_may_take_the_fresh_answer_with_it() {
    let killed = |report: &mut Report| {
        report.unclear_replays = 3;
        report.retries = 7;
    };
    assert_eq!(failures(killed), 0);
    let more = |report: &mut Report| (report.unclear_replays, report.retries) = (2, 1);
    assert_eq!(failures(more), 1);
}

#[test]
fn each_bucket_sells_what_its_own_buyers_take() {
    let scope = Scope {
        activity_id: ActivityId::parse("act").unwrap(),
        sku_id: SkuId::parse("sku").unwrap(),
        version: ActivityVersion::new(1).unwrap(),
    };
    let buckets = |count| BucketCount::new(count).unwrap();
    assert_eq!(expected(&scope, BucketCount::ONE, 10, 4), 4);
    assert_eq!(expected(&scope, BucketCount::ONE, 10, 100), 10);
    // As many buyers as units, but they do not spread evenly over the buckets.
    let uneven = expected(&scope, buckets(8), 100, 100);
    assert!((50..100).contains(&uneven), "{uneven}");
    assert_eq!(expected(&scope, buckets(8), 100, 10_000), 100);
}

#[test]
fn the_audit_reads_ok_in_the_file() {
    let json = serde_json::to_value(report()).unwrap();
    assert_eq!(json["audit"], "ok");
    for field in [
        "activity_id",
        "stock",
        "buyers",
        "calls",
        "accepted",
        "replayed",
        "user_already_reserved",
        "sold_out",
        "invalid",
        "errors",
        "orders",
        "available",
        "reserved",
        "oversold",
        "duplicate_orders",
        "unsettled",
        "p50_ms",
        "p99_ms",
        "p999_ms",
        "reserve_seconds",
        "settle_seconds",
        "audit",
    ] {
        assert!(json.get(field).is_some(), "{field}");
    }
}

#[test]
fn latencies_are_milliseconds_of_all_calls() {
    let mut latency = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
    for micros in 1..=1_000 {
        latency.saturating_record(micros * 100);
    }
    let mut report = report();
    report.set_latency(&latency, 2.0);
    assert!((report.p50_ms - 50.0).abs() < 0.2, "{}", report.p50_ms);
    assert!((report.p99_ms - 99.0).abs() < 0.2, "{}", report.p99_ms);
    assert!((report.max_ms - 100.0).abs() < 0.2, "{}", report.max_ms);
    assert!((report.calls_per_second - 6.0).abs() < f64::EPSILON);
}
