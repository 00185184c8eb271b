//! Design §4.3 to §4.5.

use seckill_lua_scripts::{
    ClaimSend, Compensate, CompensateReply, PreheatBucket, PreheatReply, SetActivityState,
    SetActivityStateReply, Transition, TransitionReply,
};
use seckill_state_machine::{
    CompensateCode, ReservationStatus as S, TransitionCode, Verdict, transition as rule,
};
use seckill_test_support::{Content, Dump};

use super::store::{
    Damaged, Fields, add_member, hash, members, number, remove_member, set_fields, text,
};

/// The default retention, in milliseconds.
const WEEK_MS: i64 = 7 * 24 * 3_600_000;

/// A stored state: known, absent, or a word that makes the answer unreadable.
fn stored_status(fields: &Fields) -> Result<Option<S>, Damaged> {
    match fields.get("status").map(String::as_str) {
        None | Some("") => Ok(None),
        Some(word) => word.parse().map(Some).map_err(|_| Damaged),
    }
}

fn is(fields: &Fields, field: &str, value: &str) -> bool {
    fields.get(field).is_some_and(|found| found == value)
}

/// Puts the units of a rejected or fenced reservation back.
pub fn compensate(
    dump: &mut Dump,
    call: &Compensate<'_>,
    now: i64,
) -> Result<CompensateReply, Damaged> {
    let keys = call.keys;
    let reservation_key = keys.reservation(call.reservation_id);
    let id = call.reservation_id.as_str();
    let held = hash(dump, &reservation_key)?;
    let reply = |code, status| {
        Ok(CompensateReply {
            code,
            status,
            rebuilt: false,
        })
    };
    if held.is_empty() {
        return reply(CompensateCode::ReservationNotFound, None);
    }
    let status = stored_status(&held)?;
    if !is(&held, "reservation_id", id) || !is(&held, "user_id", call.user_id.as_str()) {
        return reply(CompensateCode::ReservationIdConflict, status);
    }
    match status {
        Some(S::Released) => return reply(CompensateCode::AlreadyReleased, status),
        Some(S::Rejected | S::ReleasePending) => {}
        _ => return reply(CompensateCode::NotCompensatable, status),
    }
    let stock = hash(dump, &keys.stock())?;
    let counters = ["initial", "available", "reserved"].map(|field| number(stock.get(field)));
    let zero = "0".to_owned();
    let released = number(Some(stock.get("released_total").unwrap_or(&zero)));
    let (Some(quantity), [Some(initial), Some(available), Some(reserved)], Some(released)) =
        (number(held.get("quantity")), counters, released)
    else {
        return reply(CompensateCode::InvariantViolation, status);
    };
    if quantity == 0 || initial != available + reserved || reserved < quantity {
        return reply(CompensateCode::InvariantViolation, status);
    }
    let marker_key = keys.user(call.user_id);
    let marker = text(dump, &marker_key)?;
    members(dump, &keys.send_pending())?;
    members(dump, &keys.reservation_expiry())?;
    let changes = [
        ("status", S::Released.as_str().to_owned()),
        ("release_reason", call.release_reason.to_owned()),
        ("released_at_ms", now.to_string()),
        ("updated_at_ms", now.to_string()),
    ];
    set_fields(dump, &reservation_key, &changes, 0);
    let counters = [
        ("available", (available + quantity).to_string()),
        ("reserved", (reserved - quantity).to_string()),
        ("released_total", (released + quantity).to_string()),
    ];
    set_fields(dump, &keys.stock(), &counters, 0);
    if marker.as_deref() == Some(id) {
        dump.0.remove(&marker_key);
    }
    remove_member(dump, &keys.send_pending(), id);
    remove_member(dump, &keys.reservation_expiry(), id);
    dump.0.remove(&keys.soldout());
    reply(CompensateCode::Released, Some(S::Released))
}

/// Moves a reservation one step.
pub fn transition(
    dump: &mut Dump,
    call: &Transition<'_>,
    now: i64,
) -> Result<TransitionReply, Damaged> {
    let reservation_key = call.keys.reservation(call.reservation_id);
    let id = call.reservation_id.as_str();
    let held = hash(dump, &reservation_key)?;
    let reply = |code, status| Ok(TransitionReply { code, status });
    if held.is_empty() {
        return reply(TransitionCode::NotFound, None);
    }
    let status = stored_status(&held)?;
    let on_record = |field: &str| held.get(field).filter(|value| !value.is_empty());
    let differs = |field: &str, given: Option<&str>| {
        given.is_some_and(|given| on_record(field).is_some_and(|found| found != given))
    };
    if !is(&held, "reservation_id", id)
        || differs("message_id", call.message_id.map(AsRef::as_ref))
        || differs("order_id", call.order_id.map(AsRef::as_ref))
    {
        return reply(TransitionCode::IdConflict, status);
    }
    let verdict = status.map_or(Verdict::Illegal, |from| rule(from, call.target));
    let retry_at = call
        .next_retry_at_ms
        .map(|at| at.get())
        .filter(|at| *at > 0);
    let resend = call.target == S::SendUnknown;
    match verdict {
        Verdict::Illegal => return reply(TransitionCode::IllegalTransition, status),
        Verdict::Idempotent => return reply(TransitionCode::Idempotent, status),
        Verdict::Update if resend && retry_at.is_none() => {
            return reply(TransitionCode::IllegalTransition, status);
        }
        Verdict::Update => {}
    }
    let (pending, expiry) = (call.keys.send_pending(), call.keys.reservation_expiry());
    members(dump, &pending)?;
    members(dump, &expiry)?;
    let mut changes = vec![
        ("status", call.target.as_str().to_owned()),
        ("updated_at_ms", now.to_string()),
    ];
    if let Some(message_id) = call.message_id {
        changes.push(("message_id", message_id.to_string()));
    }
    if let (S::OrderCreated, Some(order_id)) = (call.target, call.order_id) {
        changes.push(("order_id", order_id.to_string()));
    }
    if let Some(error_code) = call.error_code {
        changes.push(("error_code", error_code.to_owned()));
    }
    set_fields(dump, &reservation_key, &changes, 0);
    let lives_until = dump.0[&reservation_key]
        .expires_at_ms
        .unwrap_or(now + WEEK_MS);
    match retry_at {
        Some(at) if resend => add_member(dump, &pending, id, at, lives_until),
        _ => remove_member(dump, &pending, id),
    }
    if call.target == S::OrderCreated {
        remove_member(dump, &expiry, id);
    }
    reply(TransitionCode::Updated, Some(call.target))
}

/// Who has a due member.
#[derive(Debug, PartialEq, Eq)]
pub enum Claim {
    Claimed,
    Moved(i64),
    NotDue,
    NotSendable(S),
    Missing,
    Broken,
}

/// Takes a due member.
pub fn claim_send(dump: &mut Dump, call: &ClaimSend<'_>) -> Result<Claim, Damaged> {
    let pending = call.keys.send_pending();
    let id = call.reservation_id.as_str();
    let key = call.keys.reservation(call.reservation_id);
    let Some(score) = members(dump, &pending)?.get(id).cloned() else {
        return Ok(Claim::NotDue);
    };
    let score: i64 = score.parse().expect("these tests write whole scores");
    if score != call.expected_score {
        return Ok(Claim::Moved(score));
    }
    let held = hash(dump, &key);
    let lease = call.lease_until.get();
    let outcome = match &held {
        Err(Damaged) => Claim::Broken,
        Ok(held) if held.is_empty() => Claim::Missing,
        Ok(held) => {
            let attempts_sound = held
                .get("send_attempts")
                .is_none_or(|text| number(Some(text)).is_some());
            match stored_status(held) {
                _ if !is(held, "reservation_id", id) || !attempts_sound => Claim::Broken,
                Ok(Some(status)) if status.awaits_send() => Claim::Claimed,
                Ok(Some(status)) => Claim::NotSendable(status),
                Ok(None) | Err(Damaged) => Claim::Broken,
            }
        }
    };
    if matches!(outcome, Claim::NotSendable(_)) {
        remove_member(dump, &pending, id);
        return Ok(outcome);
    }
    add_member(dump, &pending, id, lease, 0);
    if outcome == Claim::Claimed {
        let attempts = number(held?.get("send_attempts")).unwrap_or(0) + 1;
        set_fields(dump, &key, &[("send_attempts", attempts.to_string())], 0);
    }
    Ok(outcome)
}

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
        let scope = &settings.scope;
        let fields = [
            ("activity_id", scope.activity_id.to_string()),
            ("sku_id", scope.sku_id.to_string()),
            ("bucket_id", call.keys.scope().bucket_id.to_string()),
            ("version", scope.version.to_string()),
            ("state", "PREPARED".to_owned()),
            ("starts_at_ms", settings.starts_at_ms.to_string()),
            ("ends_at_ms", settings.ends_at_ms.to_string()),
            ("retention_until_ms", retention.to_string()),
            ("schema_version", "1".to_owned()),
            ("bucket_count", settings.bucket_count.to_string()),
            ("limit_per_user", settings.limit_per_user.to_string()),
            ("max_quantity", settings.max_quantity.to_string()),
            (
                "reservation_ttl_ms",
                settings.reservation_ttl_ms.to_string(),
            ),
            ("secret_version", settings.secret_version.to_string()),
            ("recovery", String::new()),
        ];
        set_fields(dump, &meta_key, &fields, retention);
    }
    if stock.is_empty() {
        let initial = call.initial().to_string();
        let fields = [
            ("initial", initial.clone()),
            ("available", initial),
            ("reserved", "0".to_owned()),
            ("released_total", "0".to_owned()),
        ];
        set_fields(dump, &stock_key, &fields, retention);
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
    if !matches!(dump.get(&key), None | Some(Content::Hash(_))) {
        return Err(Damaged);
    }
    let meta = dump.hash(&key);
    if meta.is_empty() {
        return Ok(SetActivityStateReply::MetaMissing);
    }
    let bucket = call.keys.scope();
    let scope = [
        ("activity_id", bucket.scope.activity_id.to_string()),
        ("sku_id", bucket.scope.sku_id.to_string()),
        ("version", bucket.scope.version.to_string()),
        ("bucket_id", bucket.bucket_id.to_string()),
    ];
    if scope
        .iter()
        .any(|(field, value)| meta.get(*field) != Some(value))
    {
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
