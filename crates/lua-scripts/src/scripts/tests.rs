//! Compares each script's header with its struct, and `lua/` with what is embedded.

use std::collections::BTreeSet;

use super::*;

/// Counts the lines of a header that document `KEYS[n]` or `ARGV[n]`, and checks their numbering.
fn documented(source: &str, list: &str) -> usize {
    let mut count = 0;
    for line in source.lines().take_while(|line| line.starts_with("--")) {
        let Some(rest) = line.strip_prefix(&format!("-- {list}[")) else {
            continue;
        };
        count += 1;
        let number = rest.split(']').next().unwrap();
        assert_eq!(number, count.to_string(), "{line}");
    }
    count
}

fn check<S: Script>(script: &S) {
    let (mut keys, mut args) = (Vec::new(), Vec::new());
    script.keys(&mut keys);
    script.args(&mut args);
    let name = S::KIND.name();
    assert_eq!(keys.len(), S::KEYS, "{name}");
    assert_eq!(args.len(), S::ARGS, "{name}");
    assert_eq!(documented(S::KIND.source(), "KEYS"), S::KEYS, "{name}");
    assert_eq!(documented(S::KIND.source(), "ARGV"), S::ARGS, "{name}");
}

#[test]
fn headers_document_every_key_and_argument() {
    use seckill_key_layout::BucketKeys;
    use seckill_state_machine::*;

    let scope = Scope {
        activity_id: ActivityId::parse("a").unwrap(),
        sku_id: SkuId::parse("s").unwrap(),
        version: ActivityVersion::new(1).unwrap(),
    };
    let keys = &BucketKeys::new(&scope.bucket(BucketId::ZERO));
    let reservation_id = &ReservationId::parse("a".repeat(26)).unwrap();
    let user_id = &UserId::parse("u").unwrap();
    check(&Reserve {
        keys,
        request_id: &RequestId::parse("q").unwrap(),
        reservation_id,
        user_id,
        quantity: Quantity::ONE,
        max_quantity: Quantity::ONE,
        reservation_ttl_ms: 1,
        first_send_grace_ms: 1,
        negative_cache_max: 1,
        traceparent: None,
        repeat: false,
        assume_window: false,
        now_override: None,
    });
    check(&Compensate {
        keys,
        reservation_id,
        user_id,
        release_reason: "",
        now_override: None,
    });
    check(&Transition {
        keys,
        reservation_id,
        target: ReservationStatus::Enqueued,
        next_retry_at_ms: None,
        message_id: None,
        order_id: None,
        error_code: None,
        now_override: None,
    });
    check(&ClaimSend {
        keys,
        reservation_id,
        expected_score: 1,
        lease_until: TimestampMs::new(1),
    });
    let settings = ActivitySettings {
        scope,
        starts_at_ms: TimestampMs::new(1),
        ends_at_ms: TimestampMs::new(2),
        retention_until_ms: TimestampMs::new(3),
        total_stock: 1,
        bucket_count: BucketCount::ONE,
        limit_per_user: 1,
        max_quantity: Quantity::ONE,
        reservation_ttl_ms: 1,
        patience_ms: 1,
        secret_version: 1,
    };
    check(&PreheatBucket {
        keys,
        settings: &settings,
        now_override: None,
    });
    check(&SetActivityState {
        keys,
        state: ActivityState::Active,
    });
}

#[test]
fn every_file_of_the_folder_is_embedded_and_listed_in_its_index() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lua");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".lua"))
        .collect();
    let embedded: BTreeSet<String> = Kind::ALL
        .iter()
        .map(|kind| format!("{}.lua", kind.name()))
        .collect();
    assert_eq!(files, embedded);
    let index = std::fs::read_to_string(format!("{folder}/README.md")).unwrap();
    for (position, kind) in Kind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, position);
        let row = format!("[`{0}`]({0}.lua)", kind.name());
        assert!(index.contains(&row), "README.md lacks {row}");
    }
}
