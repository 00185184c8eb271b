use seckill_state_machine::invariants::StockCounters;

use super::*;

const COUNTS: VersionCounts = VersionCounts {
    total_stock: 10,
    orders: 4,
    order_units: 4,
    cancelled: 0,
    released: 1,
    rejected: 1,
};

fn bucket(available: u64) -> BucketEnd {
    BucketEnd {
        bucket_id: BucketId::ZERO,
        stock: Some(Stock {
            counters: StockCounters {
                initial: 10,
                available,
                reserved: 10 - available,
            },
            released_total: 2,
        }),
        indexed: 0,
        replayed: Tally::default(),
    }
}

/// A look at a version that was on sale.
fn look(state: ActivityState, work: &OpenWork, bucket: BucketEnd) -> Proof {
    let redis = in_redis(&[bucket], COUNTS, true);
    proof(state, work, redis, result(COUNTS, left(&[bucket])))
}

/// What is open on each side.
fn open(proof: Proof) -> (String, String) {
    match proof {
        Proof::Done(_) => panic!("nothing is open"),
        Proof::Open(evidence) => (evidence.redis, evidence.postgres),
    }
}

#[test]
fn a_version_ends_only_when_nothing_is_open_anywhere_and_every_unit_is_accounted_for() {
    let none = OpenWork::default();
    let result = VersionResult {
        counts: COUNTS,
        redis_left: Some(6),
        difference: 0,
    };
    let done = look(ActivityState::Closed, &none, bucket(6));
    assert_eq!(done, Proof::Done(result));
    let (redis, postgres) = open(look(ActivityState::Paused, &none, bucket(6)));
    assert_eq!(redis, NOTHING);
    assert_eq!(postgres, "it is PAUSED, not CLOSED");
    let task = OpenWork { tasks: 1, ..none };
    let (redis, _) = open(look(ActivityState::Closed, &task, bucket(6)));
    assert_eq!(redis, NOTHING);
    let waits = Tally {
        waits: 1,
        ..Tally::default()
    };
    let in_redis = [
        BucketEnd {
            indexed: 1,
            ..bucket(6)
        },
        bucket(5),
        BucketEnd {
            replayed: waits,
            ..bucket(6)
        },
        BucketEnd {
            stock: None,
            ..bucket(6)
        },
    ];
    for bucket in in_redis {
        let (redis, postgres) = open(look(ActivityState::Closed, &none, bucket));
        assert_ne!(redis, NOTHING, "{bucket:?}");
        assert_eq!(postgres, NOTHING);
    }
}

#[test]
fn a_version_that_was_never_on_sale_needs_no_counters() {
    let empty = BucketEnd {
        stock: None,
        ..bucket(0)
    };
    let counts = VersionCounts {
        total_stock: 10,
        ..VersionCounts::default()
    };
    assert_eq!(in_redis(&[empty], counts, false), None);
    assert_eq!(expired(&LastSight::default()), None);
}

#[test]
fn once_the_keys_are_gone_a_person_has_the_last_word() {
    let sight = LastSight {
        was_on_sale: true,
        ..LastSight::default()
    };
    assert!(expired(&sight).is_some(), "nobody looked");
    let seen = LastSight {
        redis: Some("2 open".to_owned()),
        is_open: true,
        ..sight
    };
    assert_eq!(expired(&seen).as_deref(), Some("2 open"));
    let clean = LastSight {
        redis: Some(NOTHING.to_owned()),
        was_on_sale: true,
        ..LastSight::default()
    };
    assert_eq!(
        expired(&clean).as_deref(),
        Some(NOTHING),
        "something may have come since"
    );
    let accepted = LastSight {
        is_open: false,
        is_accepted: true,
        ..seen
    };
    assert_eq!(expired(&accepted), None);
}
