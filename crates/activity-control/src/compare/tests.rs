//! Every field is spoilt once; the comparison must name exactly that one.

use seckill_state_machine::invariants::StockCounters;
use seckill_state_machine::{
    ActivityId, ActivitySettings, ActivityVersion, BucketCount, Quantity, Scope, SkuId, TimestampMs,
};

use super::*;

fn activity() -> Activity {
    Activity {
        settings: ActivitySettings {
            scope: Scope {
                activity_id: ActivityId::parse("act").unwrap(),
                sku_id: SkuId::parse("sku").unwrap(),
                version: ActivityVersion::new(3).unwrap(),
            },
            starts_at_ms: TimestampMs::new(1_000),
            ends_at_ms: TimestampMs::new(2_000),
            retention_until_ms: TimestampMs::new(3_000),
            total_stock: 11,
            bucket_count: BucketCount::new(2).unwrap(),
            limit_per_user: 1,
            max_quantity: Quantity::ONE,
            reservation_ttl_ms: 60_000,
            patience_ms: 60_000,
            secret_version: 1,
        },
        state: ActivityState::Prepared,
    }
}

/// Bucket 0 of two: six of eleven units.
fn fresh() -> Sides {
    let settings = activity().settings;
    let bucket = settings.scope.bucket(BucketId::ZERO);
    Sides {
        row: Some(StockRow {
            bucket_id: BucketId::ZERO,
            total: 6,
            available: 6,
            sold: 0,
        }),
        meta: Some(Meta {
            bucket: bucket.clone(),
            state: ActivityState::Prepared,
            starts_at_ms: settings.starts_at_ms,
            ends_at_ms: settings.ends_at_ms,
            retention_until_ms: settings.retention_until_ms,
            bucket_count: settings.bucket_count,
            limit_per_user: 1,
            max_quantity: settings.max_quantity,
            reservation_ttl_ms: settings.reservation_ttl_ms,
            secret_version: 1,
            recovery: Recovery::None,
            schema_version: SCHEMA_VERSION.into(),
        }),
        stock: Some(Stock {
            counters: StockCounters {
                initial: 6,
                available: 6,
                reserved: 0,
            },
            released_total: 0,
        }),
        bucket,
    }
}

fn fields(stage: Stage, spoil: impl FnOnce(&mut Sides)) -> Vec<&'static str> {
    let mut sides = fresh();
    spoil(&mut sides);
    sides
        .differences(&activity(), stage)
        .into_iter()
        .map(|found| found.field)
        .collect()
}

fn meta(sides: &mut Sides) -> &mut Meta {
    sides.meta.as_mut().unwrap()
}

fn stock(sides: &mut Sides) -> &mut Stock {
    sides.stock.as_mut().unwrap()
}

#[test]
fn a_fresh_bucket_agrees_at_both_stages() {
    assert_eq!(fields(Stage::Fresh, |_| {}), [""; 0]);
    assert_eq!(fields(Stage::OnSale, |_| {}), [""; 0]);
}

/// Spoils one field of a sound bucket.
type Spoiler = fn(&mut Sides);

#[test]
fn every_field_is_compared() {
    let spoilers: [(&str, Spoiler); 19] = [
        ("meta", |s| s.meta = None),
        ("stock", |s| s.stock = None),
        ("activity_stock row", |s| s.row = None),
        ("scope", |s| {
            meta(s).bucket.bucket_id = BucketId::new(1).unwrap()
        }),
        ("starts_at_ms", |s| {
            meta(s).starts_at_ms = TimestampMs::new(1)
        }),
        ("ends_at_ms", |s| meta(s).ends_at_ms = TimestampMs::new(1)),
        ("retention_until_ms", |s| {
            meta(s).retention_until_ms = TimestampMs::new(1)
        }),
        ("bucket_count", |s| meta(s).bucket_count = BucketCount::ONE),
        ("limit_per_user", |s| meta(s).limit_per_user = 2),
        ("max_quantity", |s| {
            meta(s).max_quantity = Quantity::new(2).unwrap()
        }),
        ("reservation_ttl_ms", |s| meta(s).reservation_ttl_ms = 1),
        ("secret_version", |s| meta(s).secret_version = 2),
        ("schema_version", |s| meta(s).schema_version = 2),
        ("state", |s| meta(s).state = ActivityState::Active),
        ("recovery", |s| meta(s).recovery = Recovery::Rebuild),
        ("initial", |s| stock(s).counters.initial = 7),
        ("available", |s| stock(s).counters.available = 5),
        ("reserved", |s| stock(s).counters.reserved = 1),
        ("released_total", |s| stock(s).released_total = 1),
    ];
    for (field, spoil) in spoilers {
        assert_eq!(fields(Stage::Fresh, spoil), [field]);
    }
}

#[test]
fn a_row_with_another_share_is_named_together_with_the_stock_made_from_it() {
    let found = fields(Stage::Fresh, |sides| {
        sides.row = Some(StockRow {
            bucket_id: BucketId::ZERO,
            total: 5,
            available: 5,
            sold: 0,
        });
    });
    assert_eq!(
        found,
        ["total (share of total_stock)", "initial", "available"]
    );
}

#[test]
fn counters_of_a_bucket_on_sale_may_move_but_must_add_up() {
    let sold = |sides: &mut Sides| {
        meta(sides).state = ActivityState::Active;
        stock(sides).counters = StockCounters {
            initial: 6,
            available: 2,
            reserved: 4,
        };
    };
    assert_eq!(fields(Stage::OnSale, sold), [""; 0]);
    let lost = |sides: &mut Sides| {
        stock(sides).counters = StockCounters {
            initial: 6,
            available: 2,
            reserved: 3,
        };
    };
    assert_eq!(fields(Stage::OnSale, lost), ["available + reserved"]);
    let closed = |sides: &mut Sides| meta(sides).state = ActivityState::Closed;
    assert_eq!(fields(Stage::OnSale, closed), ["state"]);
}

#[test]
fn a_difference_reads_as_a_sentence() {
    let mut sides = fresh();
    sides.stock = None;
    let found = sides.differences(&activity(), Stage::Fresh);
    assert_eq!(
        found[0].to_string(),
        "bucket 0 stock: PostgreSQL present, Redis missing"
    );
    assert_eq!(sides.missing(), ["stock of bucket 0"]);
}
