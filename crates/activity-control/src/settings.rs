//! The rules that an activity's settings must keep, checked before anything is stored.
//!
//! All violations are named at once, each with its setting, so that an operator corrects a plan in
//! one go. The scripts and the constraints in PostgreSQL check much of this again; here it becomes a
//! sentence instead of a refused purchase.

use seckill_state_machine::{ActivitySettings, TimestampMs};

/// Longest sale, 30 days: keys outlive the sale by the retention, and every cached refusal with them.
const SALE_MS_MAX: i64 = 30 * DAY_MS;

/// Longest retention after the end, 90 days; the version pointer lives 30 days after the end.
const RETENTION_MS_MAX: i64 = 90 * DAY_MS;

/// Longest life of an open reservation: an hour is far beyond any resend and any patience.
const RESERVATION_TTL_MS_MAX: i64 = HOUR_MS;

/// Longest patience: a day covers an outage of the broker that nobody repairs at night.
const PATIENCE_MS_MAX: i64 = DAY_MS;

/// Most units of one version. PostgreSQL counts in `bigint` and Lua in doubles; a billion is far
/// inside both, and no flash sale comes near it.
const TOTAL_STOCK_MAX: u64 = 1_000_000_000;

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// One setting that cannot stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The setting's name, as its column and its flag spell it.
    pub setting: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl Violation {
    fn new(setting: &'static str, problem: impl Into<String>) -> Self {
        Self {
            setting,
            problem: problem.into(),
        }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.setting, self.problem)
    }
}

fn outside(setting: &'static str, found: i64, min: i64, max: i64) -> Option<Violation> {
    let problem = format!("must be {min} to {max}, is {found}");
    (found < min || found > max).then(|| Violation::new(setting, problem))
}

/// Every setting that cannot stand at `now`; none when all can.
#[must_use]
pub fn violations(settings: &ActivitySettings, now: TimestampMs) -> Vec<Violation> {
    let sale_ms = settings.ends_at_ms - settings.starts_at_ms;
    let retention_ms = settings.retention_until_ms - settings.ends_at_ms;
    let ttl_ms = settings.reservation_ttl_ms;
    let mut found = Vec::new();
    if sale_ms < 0 {
        found.push(Violation::new(
            "ends_at_ms",
            "must not lie before starts_at_ms",
        ));
    } else if sale_ms > SALE_MS_MAX {
        found.push(Violation::new(
            "ends_at_ms",
            "must lie within 30 days after starts_at_ms",
        ));
    }
    if settings.ends_at_ms <= now {
        found.push(Violation::new("ends_at_ms", "must lie in the future"));
    }
    found.extend(outside(
        "reservation_ttl_ms",
        ttl_ms,
        1,
        RESERVATION_TTL_MS_MAX,
    ));
    // The reserve script refuses a reservation that could outlive its keys. Twice the life leaves
    // room for a buyer in the last instant of the sale and for the check that follows.
    let room_ms = ttl_ms.saturating_mul(2);
    if retention_ms <= room_ms {
        let problem =
            format!("must lie more than {room_ms} ms (2 reservation_ttl_ms) after ends_at_ms");
        found.push(Violation::new("retention_until_ms", problem));
    } else if retention_ms > RETENTION_MS_MAX {
        found.push(Violation::new(
            "retention_until_ms",
            "must lie within 90 days after ends_at_ms",
        ));
    }
    found.extend(outside(
        "patience_ms",
        settings.patience_ms,
        1,
        PATIENCE_MS_MAX,
    ));
    found.extend(stock_violations(settings));
    if settings.secret_version == 0 {
        found.push(Violation::new("secret_version", "must be at least 1"));
    }
    found
}

fn stock_violations(settings: &ActivitySettings) -> Vec<Violation> {
    let mut found = Vec::new();
    let (total, buckets) = (settings.total_stock, u64::from(settings.bucket_count.get()));
    if total == 0 || total > TOTAL_STOCK_MAX {
        let problem = format!("must be 1 to {TOTAL_STOCK_MAX}, is {total}");
        found.push(Violation::new("total_stock", problem));
    } else if total < buckets {
        // A bucket without a unit would refuse its buyers from the first call on.
        let problem = format!("must not exceed total_stock {total}, is {buckets}");
        found.push(Violation::new("bucket_count", problem));
    }
    if settings.limit_per_user != 1 {
        let problem = format!(
            "must be 1, is {}: cumulative limits do not exist",
            settings.limit_per_user
        );
        found.push(Violation::new("limit_per_user", problem));
    }
    if u64::from(settings.max_quantity.get()) > total {
        let problem = format!(
            "must not exceed total_stock {total}, is {}",
            settings.max_quantity
        );
        found.push(Violation::new("max_quantity", problem));
    }
    found
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::{ActivityId, ActivityVersion, BucketCount, Quantity, Scope, SkuId};

    use super::*;

    const NOW: TimestampMs = TimestampMs::new(1_800_000_000_000);

    fn good() -> ActivitySettings {
        ActivitySettings {
            scope: Scope {
                activity_id: ActivityId::parse("act").unwrap(),
                sku_id: SkuId::parse("sku").unwrap(),
                version: ActivityVersion::new(1).unwrap(),
            },
            starts_at_ms: NOW,
            ends_at_ms: NOW + HOUR_MS,
            retention_until_ms: NOW + HOUR_MS + 7 * DAY_MS,
            total_stock: 100,
            bucket_count: BucketCount::new(4).unwrap(),
            limit_per_user: 1,
            max_quantity: Quantity::ONE,
            reservation_ttl_ms: 60_000,
            patience_ms: 60_000,
            secret_version: 1,
        }
    }

    fn named(settings: &ActivitySettings) -> Vec<&'static str> {
        violations(settings, NOW)
            .into_iter()
            .map(|violation| violation.setting)
            .collect()
    }

    #[test]
    fn good_settings_stand() {
        assert_eq!(named(&good()), [""; 0]);
    }

    #[test]
    fn every_bad_setting_is_named_at_once() {
        let bad = ActivitySettings {
            ends_at_ms: NOW + -1,
            retention_until_ms: NOW,
            total_stock: 0,
            limit_per_user: 2,
            reservation_ttl_ms: 0,
            patience_ms: -1,
            secret_version: 0,
            ..good()
        };
        assert_eq!(
            named(&bad),
            [
                "ends_at_ms",
                "ends_at_ms",
                "reservation_ttl_ms",
                "patience_ms",
                "total_stock",
                "limit_per_user",
                "max_quantity",
                "secret_version"
            ]
        );
    }

    #[test]
    fn retention_leaves_room_for_the_last_buyer() {
        let tight = ActivitySettings {
            retention_until_ms: NOW + HOUR_MS + 120_000,
            ..good()
        };
        assert_eq!(named(&tight), ["retention_until_ms"]);
        let enough = ActivitySettings {
            retention_until_ms: NOW + HOUR_MS + 120_001,
            ..good()
        };
        assert_eq!(named(&enough), [""; 0]);
        let ages = ActivitySettings {
            retention_until_ms: NOW + 100 * DAY_MS,
            ..good()
        };
        assert_eq!(named(&ages), ["retention_until_ms"]);
    }

    #[test]
    fn no_bucket_starts_empty() {
        let thin = ActivitySettings {
            total_stock: 3,
            ..good()
        };
        assert_eq!(named(&thin), ["bucket_count"]);
    }
}
