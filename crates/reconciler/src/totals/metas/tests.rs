use seckill_lua_scripts::Recovery;
use seckill_state_machine::{
    ActivityId, ActivitySettings, BucketCount, BucketId, Quantity, SCHEMA_VERSION, Scope, SkuId,
    TimestampMs,
};

use super::*;

fn activity(state: ActivityState) -> Activity {
    let scope = Scope {
        activity_id: ActivityId::parse("a1").unwrap(),
        sku_id: SkuId::parse("s1").unwrap(),
        version: ActivityVersion::new(2).unwrap(),
    };
    Activity {
        state,
        settings: ActivitySettings {
            scope,
            starts_at_ms: TimestampMs::new(1_000),
            ends_at_ms: TimestampMs::new(2_000),
            retention_until_ms: TimestampMs::new(3_000),
            total_stock: 10,
            bucket_count: BucketCount::new(1).unwrap(),
            limit_per_user: 1,
            max_quantity: Quantity::ONE,
            reservation_ttl_ms: 500,
            patience_ms: 500,
            secret_version: 1,
        },
    }
}

fn bucket(activity: &Activity) -> BucketScope {
    activity.settings.scope.bucket(BucketId::ZERO)
}

fn held(activity: &Activity) -> Meta {
    let settings = &activity.settings;
    Meta {
        bucket: bucket(activity),
        state: activity.state,
        starts_at_ms: settings.starts_at_ms,
        ends_at_ms: settings.ends_at_ms,
        retention_until_ms: settings.retention_until_ms,
        bucket_count: settings.bucket_count,
        limit_per_user: settings.limit_per_user,
        max_quantity: settings.max_quantity,
        reservation_ttl_ms: settings.reservation_ttl_ms,
        secret_version: settings.secret_version,
        recovery: Recovery::None,
        schema_version: u64::from(SCHEMA_VERSION),
    }
}

fn totals(sold: u64) -> BucketTotals {
    BucketTotals {
        bucket_id: BucketId::ZERO,
        total: 10,
        available: 10 - sold,
        sold,
        active_units: sold,
        active_orders: sold,
        journal_units: 0,
    }
}

fn classes(activity: &Activity, sold: u64, read: &Result<Option<Meta>, String>) -> Vec<Class> {
    let found = meta(activity, &bucket(activity), &totals(sold), read);
    found.into_iter().map(|found| found.class).collect()
}

#[test]
fn a_lost_state_is_one_thing_and_a_changed_setting_another() {
    let active = activity(ActivityState::Active);
    assert!(classes(&active, 0, &Ok(Some(held(&active)))).is_empty());
    let mut lost = held(&active);
    lost.state = ActivityState::Prepared;
    assert_eq!(
        classes(&active, 0, &Ok(Some(lost.clone()))),
        [Class::StateDiffers]
    );
    lost.ends_at_ms = TimestampMs::new(9_999);
    assert_eq!(
        classes(&active, 0, &Ok(Some(lost))),
        [Class::StateDiffers, Class::MetaDiffers]
    );
    let damaged = Err("meta is malformed".to_owned());
    assert_eq!(classes(&active, 0, &damaged), [Class::Unreadable]);
}

#[test]
fn settings_may_be_missing_before_the_preheat_and_after_a_close_without_a_sale() {
    let missing = Ok(None);
    assert_eq!(
        classes(&activity(ActivityState::Active), 0, &missing),
        [Class::MetaMissing]
    );
    assert!(classes(&activity(ActivityState::Prepared), 0, &missing).is_empty());
    let closed = activity(ActivityState::Closed);
    assert!(classes(&closed, 0, &missing).is_empty());
    assert_eq!(classes(&closed, 1, &missing), [Class::MetaMissing]);
}

#[test]
fn buyers_are_pointed_at_the_version_on_sale() {
    let active = activity(ActivityState::Active);
    let version = |number| Ok(Some(ActivityVersion::new(number).unwrap()));
    assert_eq!(pointer(&active, &version(2)), None);
    assert!(pointer(&active, &version(1)).is_some());
    assert!(pointer(&active, &Ok(None)).is_some());
    assert_eq!(pointer(&activity(ActivityState::Closed), &version(3)), None);
}
