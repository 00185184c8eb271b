//! What a version is sold by: each bucket's settings and state in Redis, and the pointer that buyers
//! follow, against PostgreSQL's activity.

use seckill_activity_control::meta_differences;
use seckill_lua_scripts::Meta;
use seckill_order_store::BucketTotals;
use seckill_settlement::Class;
use seckill_state_machine::{Activity, ActivityState, ActivityVersion, BucketScope};

use super::compare::owes_redis;
use crate::finding::Finding;

/// What is wrong with a bucket's settings. A state that was lost is replayed by the service; any other
/// field has been written by somebody.
#[must_use]
pub fn meta(
    activity: &Activity,
    bucket: &BucketScope,
    totals: &BucketTotals,
    read: &Result<Option<Meta>, String>,
) -> Vec<Finding> {
    let meta = match read {
        Ok(Some(meta)) => meta,
        Ok(None) if owes_redis(activity.state, totals) => {
            let postgres = format!("{}", activity.state);
            return vec![Finding::of_bucket(Class::MetaMissing, "nothing", postgres)];
        }
        Ok(None) => return Vec::new(),
        Err(damage) => {
            let redis = format!("meta: {damage}");
            return vec![Finding::of_bucket(Class::Unreadable, redis, "")];
        }
    };
    let mut redis = Vec::new();
    let mut postgres = Vec::new();
    let mut found = Vec::new();
    for field in meta_differences(activity, bucket, meta) {
        if field.field == "state" {
            let state = Finding::of_bucket(Class::StateDiffers, field.redis, field.postgres);
            found.push(state);
        } else {
            redis.push(format!("{} {}", field.field, field.redis));
            postgres.push(format!("{} {}", field.field, field.postgres));
        }
    }
    if !redis.is_empty() {
        let (redis, postgres) = (redis.join(", "), postgres.join(", "));
        found.push(Finding::of_bucket(Class::MetaDiffers, redis, postgres));
    }
    found
}

/// What is wrong with the pointer of an activity whose version is on sale.
#[must_use]
pub fn pointer(
    activity: &Activity,
    read: &Result<Option<ActivityVersion>, String>,
) -> Option<Finding> {
    if activity.state != ActivityState::Active {
        return None;
    }
    let version = activity.settings.scope.version;
    let redis = match read {
        Ok(Some(named)) if *named == version => return None,
        Ok(Some(named)) => format!("current_version {named}"),
        Ok(None) => "no current_version".to_owned(),
        Err(damage) => damage.clone(),
    };
    let postgres = format!("version {version} on sale");
    Some(Finding::of_bucket(Class::PointerDiffers, redis, postgres))
}

#[cfg(test)]
mod tests;
