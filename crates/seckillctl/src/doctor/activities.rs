//! What the activities that are open need: their secret, and a pointer that leads to them.

use std::collections::BTreeMap;

use seckill_activity_control::{Control, PointerState};
use seckill_key_layout::HmacSecrets;
use seckill_order_store::Store;
use seckill_state_machine::{Activity, ActivityState};

use super::ASK_LIMIT;
use super::finding::{Area, Finding, Grade, some_of, unless};

/// Every version whose keys live, or why that is not known.
pub type Open = Result<Vec<Activity>, String>;

/// Reads the open versions.
pub async fn open(store: Option<&Store>) -> Open {
    let store = store.ok_or_else(|| "PostgreSQL could not be asked".to_owned())?;
    match tokio::time::timeout(ASK_LIMIT, store.open_scopes()).await {
        Ok(Ok(open)) => Ok(open),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

/// Whether anything is on sale, as far as that is known.
pub fn any_on_sale(open: &Open) -> bool {
    let is_on_sale = |activity: &Activity| activity.state == ActivityState::Active;
    open.as_ref().is_ok_and(|open| open.iter().any(is_on_sale))
}

/// Judges secrets and pointers.
pub async fn check(
    open: &Open,
    secrets: Option<&HmacSecrets>,
    control: Option<&Control>,
) -> Vec<Finding> {
    let open = match open {
        Ok(open) => open,
        Err(why) => return vec![unknown("open", why)],
    };
    let pointers = match control {
        None => unknown("current_version", "both stores must be reachable"),
        Some(control) => match tokio::time::timeout(ASK_LIMIT, control.pointers(open)).await {
            Ok(Ok(pointers)) => judge_pointers(&pointers),
            Ok(Err(error)) => unknown("current_version", &error.to_string()),
            Err(_) => unknown("current_version", "no answer in time"),
        },
    };
    vec![judge_secrets(open, secrets), pointers]
}

fn unknown(check: &str, why: &str) -> Finding {
    Finding::of(
        Grade::Warn,
        Area::Activities,
        check,
        format!("not checked: {why}"),
        "an answer",
        "mend the dependency and run the doctor again",
    )
}

fn judge_secrets(open: &[Activity], secrets: Option<&HmacSecrets>) -> Finding {
    let mut needed: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for activity in open {
        let scopes = needed.entry(activity.settings.secret_version).or_default();
        scopes.push(activity.settings.scope.to_string());
    }
    let versions: Vec<String> = needed.keys().map(ToString::to_string).collect();
    let wanted = match versions.as_slice() {
        [] => "none: nothing is open".to_owned(),
        versions => format!("versions {}", versions.join(", ")),
    };
    let Some(secrets) = secrets else {
        let hint = "set SECKILL_HMAC_SECRETS as the fronts have it to have it checked";
        let grade = unless(needed.is_empty(), Grade::Warn);
        let found = "not given";
        return Finding::of(grade, Area::Activities, "hmac secrets", found, wanted, hint);
    };
    let missing: Vec<String> = needed
        .iter()
        .filter(|(version, _)| !secrets.has(**version))
        .map(|(version, scopes)| format!("{version} (for {})", some_of(scopes)))
        .collect();
    let found = match missing.as_slice() {
        [] => "all there".to_owned(),
        missing => format!("missing: {}", missing.join(", ")),
    };
    Finding::of(
        unless(missing.is_empty(), Grade::Fail),
        Area::Activities,
        "hmac secrets",
        found,
        wanted,
        "keep a secret until the last version that was created with it has expired",
    )
}

fn judge_pointers(pointers: &[PointerState]) -> Finding {
    let broken: Vec<String> = pointers
        .iter()
        .filter(|pointer| !pointer.is_right())
        .map(ToString::to_string)
        .collect();
    let found = match broken.as_slice() {
        [] => format!("{} right", pointers.len()),
        broken => some_of(broken),
    };
    Finding::of(
        unless(broken.is_empty(), Grade::Fail),
        Area::Activities,
        "current_version",
        found,
        "the version that is on sale",
        "`seckillctl activity open` (or `resume`) of the version on sale writes it again",
    )
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::{
        ActivityId, ActivitySettings, ActivityVersion, BucketCount, Quantity, Scope, SkuId,
        TimestampMs,
    };

    use super::*;

    fn activity(secret_version: u32) -> Activity {
        Activity {
            settings: ActivitySettings {
                scope: Scope {
                    activity_id: ActivityId::parse("act").unwrap(),
                    sku_id: SkuId::parse("sku").unwrap(),
                    version: ActivityVersion::new(1).unwrap(),
                },
                starts_at_ms: TimestampMs::new(0),
                ends_at_ms: TimestampMs::new(1),
                retention_until_ms: TimestampMs::new(2),
                total_stock: 1,
                bucket_count: BucketCount::ONE,
                limit_per_user: 1,
                max_quantity: Quantity::ONE,
                reservation_ttl_ms: 1,
                patience_ms: 1,
                secret_version,
            },
            state: ActivityState::Active,
        }
    }

    #[test]
    fn a_secret_that_an_open_version_needs_is_missed() {
        let secrets: HmacSecrets = "1:QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
            .parse()
            .unwrap();
        let judged = |open: &[Activity]| judge_secrets(open, Some(&secrets));
        assert_eq!(judged(&[]).verdict, Grade::Ok);
        assert_eq!(judged(&[activity(1)]).verdict, Grade::Ok);
        let missed = judged(&[activity(1), activity(2)]);
        assert_eq!(missed.verdict, Grade::Fail);
        assert!(missed.found.contains("2 (for act/sku/v1)"), "{missed:?}");
        assert!(!format!("{missed:?}").contains("QUFB"));
        assert_eq!(judge_secrets(&[activity(1)], None).verdict, Grade::Warn);
        assert_eq!(judge_secrets(&[], None).verdict, Grade::Ok);
    }
}
