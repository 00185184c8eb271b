//! Design §4.4, and the sending of §4.5.

use seckill_lua_scripts::{ClaimSend, Transition, TransitionReply};
use seckill_state_machine::{ReservationStatus as S, TransitionCode, Verdict, transition as rule};
use seckill_test_support::Dump;

use super::store::{
    Damaged, WEEK_MS, add_member, hash, is, members, number, remove_member, set_fields,
    stored_status,
};

/// A repeat takes out of the indexes what its state has no place in.
fn leave_indexes(dump: &mut Dump, call: &Transition<'_>) -> Result<(), Damaged> {
    if call.target == S::Reserved {
        return Ok(());
    }
    let (pending, expiry) = (call.keys.send_pending(), call.keys.reservation_expiry());
    members(dump, &pending)?;
    members(dump, &expiry)?;
    let id = call.reservation_id.as_str();
    remove_member(dump, &pending, id);
    if matches!(
        call.target,
        S::OrderCreated | S::Released | S::OrderCancelled
    ) {
        remove_member(dump, &expiry, id);
    }
    Ok(())
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
        Verdict::Idempotent => {
            leave_indexes(dump, call)?;
            return reply(TransitionCode::Idempotent, status);
        }
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
