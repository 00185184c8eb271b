//! Compares each script's header with its struct, and `lua/` with what is embedded.

use std::collections::BTreeSet;

use super::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lua");

/// A script's own file, without the parts in front of it.
fn file(kind: Kind) -> String {
    std::fs::read_to_string(format!("{FOLDER}/{}.lua", kind.name())).unwrap()
}

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
    let header = file(S::KIND);
    assert_eq!(documented(&header, "KEYS"), S::KEYS, "{name}");
    assert_eq!(documented(&header, "ARGV"), S::ARGS, "{name}");
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
    recovery_scripts(keys, reservation_id, user_id);
    control_scripts(keys);
}

/// The same for the scripts that know of orders.
fn recovery_scripts(
    keys: &seckill_key_layout::BucketKeys,
    reservation_id: &seckill_state_machine::ReservationId,
    user_id: &seckill_state_machine::UserId,
) {
    use seckill_state_machine::{OrderId, Quantity, RequestId};

    let order_id = &OrderId::parse("o").unwrap();
    let order = OrderedReservation {
        reservation_id,
        request_id: &RequestId::parse("q").unwrap(),
        user_id,
        quantity: Quantity::ONE,
        order_id,
        reserved_at_ms: TimestampMs::new(1),
        traceparent: None,
    };
    check(&Compensate {
        keys,
        reservation_id,
        user_id,
        release_reason: "",
        waiting: Some(order),
        now_override: None,
    });
    check(&Cancel {
        keys,
        reservation_id,
        user_id,
        order_id,
        waiting: Some(order),
        now_override: None,
    });
    check(&RebuildReservation {
        keys,
        order,
        now_override: None,
    });
    check(&WriteTombstone {
        keys,
        reservation_id,
        request_id: order.request_id,
        user_id,
        quantity: Quantity::ONE,
        reserved_at_ms: TimestampMs::new(1),
        traceparent: None,
        end: TombstoneEnd::OrderCancelled { order_id },
        now_override: None,
    });
    check(&RepairMarker {
        keys,
        reservation_id,
        user_id,
        marker: Some(reservation_id),
        now_override: None,
    });
}

/// The same for the scripts that write no reservation.
fn control_scripts(keys: &seckill_key_layout::BucketKeys) {
    use seckill_state_machine::{ActivitySettings, ActivityState, BucketCount, Quantity};

    let settings = &ActivitySettings {
        scope: keys.scope().scope.clone(),
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
        settings,
        now_override: None,
    });
    check(&InitialiseBucket {
        keys,
        settings,
        held: Some(1),
        now_override: None,
    });
    check(&SetActivityState {
        keys,
        state: ActivityState::Active,
    });
    check(&SetRecovery {
        keys,
        recovery: crate::Recovery::Window,
        expected: None,
    });
    check(&ExtendRetention {
        keys,
        names: &[keys.meta()],
        until: TimestampMs::new(1),
        now_override: None,
    });
    check(&RemoveStray {
        keys,
        stray: Stray::SoldOut,
    });
}

/// The names of the Lua files of a folder, without their extension.
fn lua_files(folder: &str) -> BTreeSet<String> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".lua").map(str::to_owned))
        .collect()
}

#[test]
fn every_file_of_the_folder_is_embedded_and_listed_in_its_index() {
    let embedded: BTreeSet<String> = Kind::ALL
        .iter()
        .map(|kind| kind.name().to_owned())
        .collect();
    assert_eq!(lua_files(FOLDER), embedded);
    let index = std::fs::read_to_string(format!("{FOLDER}/README.md")).unwrap();
    for (position, kind) in Kind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, position);
        let row = format!("[`{0}`]({0}.lua)", kind.name());
        assert!(index.contains(&row), "README.md lacks {row}");
        assert!(kind.source().ends_with(&file(kind)), "{row}");
    }
}

#[test]
fn a_script_is_loaded_with_the_parts_that_its_header_names() {
    let parts = format!("{FOLDER}/parts");
    for kind in Kind::ALL {
        let file = file(kind);
        let named: Vec<&str> = file
            .lines()
            .find_map(|line| line.strip_prefix("-- Parts: "))
            .map(|line| line.trim_end_matches('.').split(", ").collect())
            .unwrap_or_default();
        let expected: String = named
            .iter()
            .map(|part| std::fs::read_to_string(format!("{parts}/{part}.lua")).unwrap())
            .chain([file.clone()])
            .collect();
        assert_eq!(kind.source(), expected, "{}", kind.name());
    }
    let index = std::fs::read_to_string(format!("{FOLDER}/README.md")).unwrap();
    for part in lua_files(&parts) {
        let row = format!("[`{part}`](parts/{part}.lua)");
        assert!(index.contains(&row), "README.md lacks {row}");
    }
}
