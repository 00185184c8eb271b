//! Design §4.5, the scripts that write no reservation.

use seckill_lua_scripts::{
    ExtendRetention, InitialiseBucket, InitialiseReply, PreheatBucket, PreheatReply,
    SetActivityState, SetActivityStateReply, SetRecovery, SetRecoveryReply,
};
use seckill_test_support::Dump;

use super::store::{Damaged, Fields, hash, number, set_fields};

/// Writes what is absent.
pub fn preheat(
    dump: &mut Dump,
    call: &PreheatBucket<'_>,
    now: i64,
) -> Result<PreheatReply, Damaged> {
    let settings = call.settings;
    let retention = settings.retention_until_ms.get();
    if now >= retention {
        return Ok(PreheatReply::RetentionPassed);
    }
    let (meta_key, stock_key) = (call.keys.meta(), call.keys.stock());
    let meta = hash(dump, &meta_key)?;
    let stock = hash(dump, &stock_key)?;
    let state = meta.get("state").cloned().unwrap_or_default();
    if stock.is_empty() && !meta.is_empty() && state != "PREPARED" {
        return Ok(PreheatReply::NotPrepared { state });
    }
    if meta.is_empty() {
        write_meta(dump, call, "PREPARED", "");
    }
    if stock.is_empty() {
        write_stock(dump, call, 0);
    }
    Ok(PreheatReply::Preheated {
        meta_written: meta.is_empty(),
        stock_written: stock.is_empty(),
    })
}

/// Writes PostgreSQL's state.
pub fn set_state(
    dump: &mut Dump,
    call: &SetActivityState<'_>,
) -> Result<SetActivityStateReply, Damaged> {
    let key = call.keys.meta();
    let meta = hash(dump, &key)?;
    if meta.is_empty() {
        return Ok(SetActivityStateReply::MetaMissing);
    }
    if !names(&meta, call.keys.scope()) {
        return Ok(SetActivityStateReply::ScopeMismatch);
    }
    let state = meta.get("state").cloned().unwrap_or_default();
    let target = call.state.as_str();
    if state == target {
        return Ok(SetActivityStateReply::Unchanged);
    }
    if state == "CLOSED" || target == "PREPARED" {
        return Ok(SetActivityStateReply::Refused { state });
    }
    set_fields(dump, &key, &[("state", target.to_owned())], 0);
    Ok(SetActivityStateReply::Updated { from: state })
}

fn write_meta(dump: &mut Dump, call: &PreheatBucket<'_>, state: &str, recovery: &str) {
    let settings = call.settings;
    let scope = &settings.scope;
    let fields = [
        ("activity_id", scope.activity_id.to_string()),
        ("sku_id", scope.sku_id.to_string()),
        ("bucket_id", call.keys.scope().bucket_id.to_string()),
        ("version", scope.version.to_string()),
        ("state", state.to_owned()),
        ("starts_at_ms", settings.starts_at_ms.to_string()),
        ("ends_at_ms", settings.ends_at_ms.to_string()),
        (
            "retention_until_ms",
            settings.retention_until_ms.to_string(),
        ),
        ("schema_version", "1".to_owned()),
        ("bucket_count", settings.bucket_count.to_string()),
        ("limit_per_user", settings.limit_per_user.to_string()),
        ("max_quantity", settings.max_quantity.to_string()),
        (
            "reservation_ttl_ms",
            settings.reservation_ttl_ms.to_string(),
        ),
        ("secret_version", settings.secret_version.to_string()),
        ("recovery", recovery.to_owned()),
    ];
    let retention = settings.retention_until_ms.get();
    set_fields(dump, &call.keys.meta(), &fields, retention);
}

fn write_stock(dump: &mut Dump, call: &PreheatBucket<'_>, held: u64) {
    let initial = call.initial();
    let fields = [
        ("initial", initial.to_string()),
        ("available", (initial - held).to_string()),
        ("reserved", held.to_string()),
        ("released_total", "0".to_owned()),
    ];
    let retention = call.settings.retention_until_ms.get();
    set_fields(dump, &call.keys.stock(), &fields, retention);
}

/// Whether meta names this bucket.
fn names(meta: &Fields, bucket: &seckill_state_machine::BucketScope) -> bool {
    let scope = [
        ("activity_id", bucket.scope.activity_id.to_string()),
        ("sku_id", bucket.scope.sku_id.to_string()),
        ("version", bucket.scope.version.to_string()),
        ("bucket_id", bucket.bucket_id.to_string()),
    ];
    scope
        .iter()
        .all(|(field, value)| meta.get(*field) == Some(value))
}

/// Writes a bucket anew, closed to buyers.
pub fn initialise(
    dump: &mut Dump,
    call: &InitialiseBucket<'_>,
    now: i64,
) -> Result<InitialiseReply, Damaged> {
    if now >= call.settings.retention_until_ms.get() {
        return Ok(InitialiseReply::RetentionPassed);
    }
    let meta = hash(dump, &call.keys.meta())?;
    if !meta.is_empty() && !names(&meta, call.keys.scope()) {
        return Ok(InitialiseReply::ScopeMismatch);
    }
    let absent = hash(dump, &call.keys.stock())?.is_empty();
    let written = PreheatBucket {
        keys: call.keys,
        settings: call.settings,
        now_override: None,
    };
    let held = call.held.unwrap_or_default();
    if absent && held > written.initial() {
        return Ok(InitialiseReply::HeldBeyondInitial);
    }
    let field = |name: &str| meta.get(name).map(String::as_str);
    let sells_again =
        !absent && field("state") != Some("PAUSED") && field("recovery") != Some("rebuild");
    let meta_written = if meta.is_empty() {
        write_meta(dump, &written, "PAUSED", "rebuild");
        true
    } else if sells_again {
        false
    } else {
        let closed = matches!(field("state"), Some("PAUSED" | "CLOSED"));
        let changes = [
            (
                "state",
                if closed {
                    field("state").unwrap()
                } else {
                    "PAUSED"
                }
                .to_owned(),
            ),
            ("recovery", "rebuild".to_owned()),
        ];
        set_fields(dump, &call.keys.meta(), &changes, 0);
        !closed || field("recovery") != Some("rebuild")
    };
    if absent && call.held.is_some() {
        write_stock(dump, &written, held);
    }
    Ok(InitialiseReply::Initialised {
        meta_written,
        stock_written: absent && call.held.is_some(),
        stock_missing: absent && call.held.is_none(),
    })
}

/// Says whether the bucket is in recovery.
pub fn set_recovery(dump: &mut Dump, call: &SetRecovery<'_>) -> Result<SetRecoveryReply, Damaged> {
    let key = call.keys.meta();
    let meta = hash(dump, &key)?;
    if meta.is_empty() {
        return Ok(SetRecoveryReply::ConfigMissing);
    }
    if !names(&meta, call.keys.scope()) {
        return Ok(SetRecoveryReply::ScopeMismatch);
    }
    let found = meta.get("recovery").cloned().unwrap_or_default();
    if found == call.recovery.as_str() {
        return Ok(SetRecoveryReply::Unchanged);
    }
    if call.expected.is_some_and(|word| word.as_str() != found) {
        return Ok(SetRecoveryReply::Moved { found });
    }
    let word = call.recovery.as_str().to_owned();
    set_fields(dump, &key, &[("recovery", word)], 0);
    Ok(SetRecoveryReply::Set)
}

/// Lengthens lives.
pub fn extend(dump: &mut Dump, call: &ExtendRetention<'_>, now: i64) -> Result<u64, Damaged> {
    let until = call.until.get();
    if until <= now {
        return Ok(0);
    }
    let meta_key = call.keys.meta();
    if call.names.contains(&meta_key) {
        let meta = hash(dump, &meta_key)?;
        let retention = number(meta.get("retention_until_ms"));
        if retention.is_some_and(|retention| retention < until) {
            let later = [("retention_until_ms", until.to_string())];
            set_fields(dump, &meta_key, &later, 0);
        }
    }
    let mut lengthened = 0;
    for name in call.names {
        let Some(entry) = dump.0.get_mut(name) else {
            continue;
        };
        if entry.expires_at_ms.is_none_or(|at| at < until) {
            entry.expires_at_ms = Some(until);
            lengthened += 1;
        }
    }
    Ok(lengthened)
}
