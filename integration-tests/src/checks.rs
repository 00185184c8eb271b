//! What must hold in the stores, read by queries of our own.
//!
//! The numbers F1 to F7 are those of the fault cases. Each check returns every violation as a
//! sentence; none means that all is well.

mod buckets;
mod ledger;
mod postgres;

use std::collections::BTreeMap;

use seckill_test_support::Dump;

pub use buckets::{Bucket, buckets};
pub use ledger::differences;
pub use postgres::postgres_violations;

/// The fields of a hash.
pub type Fields = BTreeMap<String, String>;

/// After this a version's pointer may live 30 days more than its keys.
const POINTER_EXTRA_MS: i64 = 30 * 86_400_000;

/// Whether a reservation's state is final.
#[must_use]
pub fn is_final(reservation: &Fields) -> bool {
    matches!(
        status(reservation),
        "ORDER_CREATED" | "ORDER_CANCELLED" | "RELEASED"
    )
}

/// Whether a reservation holds its units.
#[must_use]
pub fn holds_units(reservation: &Fields) -> bool {
    !matches!(status(reservation), "RELEASED" | "ORDER_CANCELLED")
}

pub(crate) fn status(reservation: &Fields) -> &str {
    reservation.get("status").map_or("", String::as_str)
}

/// A number as the contract writes it: decimal digits without sign or leading zero.
fn canonical(fields: &Fields, name: &str) -> Option<i64> {
    let text = fields.get(name)?;
    let number: i64 = text.parse().ok()?;
    (number >= 0 && number.to_string() == *text).then_some(number)
}

/// F1, F2, F4 and F7, bucket by bucket.
#[must_use]
pub fn redis_violations(dump: &Dump) -> Vec<String> {
    let mut violations = Vec::new();
    for bucket in buckets(dump) {
        violations.extend(conservation(&bucket));
        violations.extend(one_holder_a_user(&bucket));
    }
    violations.extend(expiries(dump));
    violations
}

/// F1: the counters add up. F2: what is reserved is what the reservations hold.
fn conservation(bucket: &Bucket) -> Vec<String> {
    let tag = &bucket.tag;
    if bucket.stock.is_empty() {
        return Vec::new();
    }
    let count = |name: &str| canonical(&bucket.stock, name);
    let (Some(initial), Some(available), Some(reserved)) =
        (count("initial"), count("available"), count("reserved"))
    else {
        return vec![format!("F1 {tag}: counters {:?}", bucket.stock)];
    };
    let mut violations = Vec::new();
    if initial != available + reserved {
        violations.push(format!("F1 {tag}: {initial} = {available} + {reserved}"));
    }
    let mut held = 0;
    for (id, fields) in &bucket.reservations {
        match canonical(fields, "quantity") {
            Some(quantity) if holds_units(fields) => held += quantity,
            Some(_) => {}
            None => violations.push(format!("F2 {tag}: {id} has no quantity")),
        }
    }
    if held != reserved {
        violations.push(format!(
            "F2 {tag}: {reserved} reserved, but {held} in reservations"
        ));
    }
    violations
}

/// F4 as far as one bucket can tell: no user holds two reservations, and a marker names the user's own.
fn one_holder_a_user(bucket: &Bucket) -> Vec<String> {
    let tag = &bucket.tag;
    let mut violations = Vec::new();
    let mut holder: BTreeMap<&str, &str> = BTreeMap::new();
    for (id, fields) in &bucket.reservations {
        let user = fields.get("user_id").map_or("", String::as_str);
        if holds_units(fields)
            && let Some(other) = holder.insert(user, id)
        {
            violations.push(format!("F4 {tag}: {user} holds {id} and {other}"));
        }
    }
    for (user, id) in &bucket.markers {
        let owner = bucket
            .reservations
            .get(id)
            .and_then(|fields| fields.get("user_id"));
        if owner != Some(user) {
            violations.push(format!("F4 {tag}: {user} is marked with {id} of {owner:?}"));
        }
    }
    violations
}

/// F7: every key of ours expires, and none after its version's retention.
fn expiries(dump: &Dump) -> Vec<String> {
    let retention: BTreeMap<String, i64> = buckets(dump)
        .iter()
        .filter_map(|bucket| {
            let until = canonical(&bucket.meta, "retention_until_ms")?;
            Some((bucket.prefix(), until))
        })
        .collect();
    let latest = retention.values().max().copied();
    let mut violations = Vec::new();
    for (key, entry) in dump.0.iter().filter(|(key, _)| key.starts_with("seckill:")) {
        let Some(at) = entry.expires_at_ms else {
            violations.push(format!("F7 {key} never expires"));
            continue;
        };
        let limit = match buckets::prefix_of(key) {
            Some(prefix) => retention.get(prefix).copied(),
            None => latest.map(|latest| latest + POINTER_EXTRA_MS),
        };
        if limit.is_some_and(|limit| at > limit) {
            violations.push(format!("F7 {key} expires at {at}, after {limit:?}"));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use seckill_test_support::{Content, Entry};

    use super::*;

    const PREFIX: &str = "seckill:{a:A:s:S:v:1:b:0}:";

    fn hash(fields: &[(&str, &str)]) -> Content {
        let fields = fields.iter();
        Content::Hash(
            fields
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    fn dump(keys: &[(&str, Content)]) -> Dump {
        let keys = keys.iter().map(|(suffix, content)| {
            let entry = Entry {
                content: content.clone(),
                expires_at_ms: Some(1_000),
            };
            (format!("{PREFIX}{suffix}"), entry)
        });
        Dump(keys.collect())
    }

    fn healthy() -> Vec<(&'static str, Content)> {
        vec![
            ("meta", hash(&[("retention_until_ms", "1000")])),
            (
                "stock",
                hash(&[("initial", "5"), ("available", "3"), ("reserved", "2")]),
            ),
            (
                "resv:r1",
                hash(&[("user_id", "u1"), ("quantity", "2"), ("status", "ENQUEUED")]),
            ),
            (
                "resv:r2",
                hash(&[("user_id", "u2"), ("quantity", "1"), ("status", "RELEASED")]),
            ),
            ("user:u1", Content::Text("r1".to_owned())),
        ]
    }

    #[test]
    fn a_healthy_bucket_violates_nothing() {
        assert_eq!(redis_violations(&dump(&healthy())), Vec::<String>::new());
    }

    #[test]
    fn each_violation_is_named() {
        let broken = |suffix: &'static str, content: Content| {
            let mut keys = healthy();
            keys.retain(|(name, _)| *name != suffix);
            keys.push((suffix, content));
            redis_violations(&dump(&keys)).join("\n")
        };
        let stock = |initial, available, reserved| {
            hash(&[
                ("initial", initial),
                ("available", available),
                ("reserved", reserved),
            ])
        };
        assert!(broken("stock", stock("5", "4", "2")).contains("F1"));
        assert!(broken("stock", stock("5", "03", "2")).contains("F1"));
        assert!(broken("stock", stock("5", "4", "1")).contains("F2"));
        let second = hash(&[("user_id", "u1"), ("quantity", "0"), ("status", "RESERVED")]);
        assert!(broken("resv:r3", second).contains("F4"));
        assert!(broken("user:u1", Content::Text("r2".to_owned())).contains("F4"));
        let mut late = dump(&healthy());
        for entry in late.0.values_mut() {
            entry.expires_at_ms = Some(1_001);
        }
        assert!(
            redis_violations(&late)
                .iter()
                .any(|text| text.contains("after"))
        );
        let mut endless = dump(&healthy());
        for entry in endless.0.values_mut() {
            entry.expires_at_ms = None;
        }
        assert!(
            redis_violations(&endless)
                .iter()
                .any(|text| text.contains("never"))
        );
    }
}
