//! Design §4.3: what puts units back on sale, or hands them to an ordered reservation that waits.

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Cancel, CancelReply, Compensate, CompensateReply};
use seckill_state_machine::{
    CancelCode, CompensateCode, OrderId, ReservationId, ReservationStatus as S, UserId,
};
use seckill_test_support::Dump;

use super::lost::{Lost, Place, Stock, stock};
use super::store::{
    Damaged, hash, is, members, number, remove_member, set_fields, stored_status, text,
};

/// How units go back: what may, what it becomes, and what the record says of it.
struct Ending<'a> {
    keys: &'a BucketKeys,
    reservation_id: &'a ReservationId,
    user_id: &'a UserId,
    from: &'a [S],
    target: S,
    field: (&'static str, String),
    order_id: Option<&'a OrderId>,
    waiting: Option<Lost<'a>>,
}

/// What became of it, by the numbers that both scripts share.
type Ended = Result<(i64, Option<S>, bool), Damaged>;

/// Until when a waiting reservation would live, if it may return out of the units that are available.
/// Damage in its keys does not hold up the release.
fn returns(dump: &Dump, lost: &Lost<'_>, available: i64, now: i64) -> Option<i64> {
    match lost.place_of_return(dump, now) {
        Ok(Place::Free(until)) if lost.quantity <= available => Some(until),
        _ => None,
    }
}

fn give_back(dump: &mut Dump, call: &Ending<'_>, now: i64) -> Ended {
    let keys = call.keys;
    let key = keys.reservation(call.reservation_id);
    let id = call.reservation_id.as_str();
    let held = hash(dump, &key)?;
    if held.is_empty() {
        return Ok((2, None, false));
    }
    let status = stored_status(&held)?;
    let recorded = held.get("order_id").filter(|found| !found.is_empty());
    let other_order = match (recorded, call.order_id) {
        (Some(found), Some(order_id)) => found != order_id.as_ref(),
        _ => false,
    };
    let own = is(&held, "reservation_id", id) && is(&held, "user_id", call.user_id.as_str());
    match status {
        _ if !own || other_order => return Ok((5, status, false)),
        Some(status) if status == call.target => return Ok((1, Some(status), false)),
        Some(status) if call.from.contains(&status) => {}
        _ => return Ok((3, status, false)),
    }
    let zero = "0".to_owned();
    let fields = hash(dump, &keys.stock())?;
    let released = number(Some(fields.get("released_total").unwrap_or(&zero)));
    let (
        Some(quantity),
        Stock::Sound {
            available,
            reserved,
        },
        Some(released),
    ) = (number(held.get("quantity")), stock(dump, keys)?, released)
    else {
        return Ok((4, status, false));
    };
    if quantity == 0 || reserved < quantity {
        return Ok((4, status, false));
    }
    let marker = text(dump, &keys.user(call.user_id))?;
    members(dump, &keys.send_pending())?;
    members(dump, &keys.reservation_expiry())?;

    let heir = call
        .waiting
        .as_ref()
        .and_then(|lost| Some((lost, returns(dump, lost, available + quantity, now)?)));
    let moved = quantity - heir.as_ref().map_or(0, |(lost, _)| lost.quantity);
    let changes = [
        ("status", call.target.as_str().to_owned()),
        ("released_at_ms", now.to_string()),
        ("updated_at_ms", now.to_string()),
        call.field.clone(),
    ];
    set_fields(dump, &key, &changes, 0);
    let counters = [
        ("available", (available + moved).to_string()),
        ("reserved", (reserved - moved).to_string()),
        ("released_total", (released + quantity).to_string()),
    ];
    set_fields(dump, &keys.stock(), &counters, 0);
    if marker.as_deref() == Some(id) {
        dump.0.remove(&keys.user(call.user_id));
    }
    remove_member(dump, &keys.send_pending(), id);
    remove_member(dump, &keys.reservation_expiry(), id);
    match heir {
        Some((lost, until)) => lost.give(dump, until, available + moved, now),
        None => drop(dump.0.remove(&keys.soldout())),
    }
    Ok((0, Some(call.target), heir.is_some()))
}

/// Puts the units of a rejected or fenced reservation back.
pub fn compensate(
    dump: &mut Dump,
    call: &Compensate<'_>,
    now: i64,
) -> Result<CompensateReply, Damaged> {
    let ending = Ending {
        keys: call.keys,
        reservation_id: call.reservation_id,
        user_id: call.user_id,
        from: &[S::Rejected, S::ReleasePending],
        target: S::Released,
        field: ("release_reason", call.release_reason.to_owned()),
        order_id: None,
        waiting: call.waiting.map(|order| Lost::ordered(call.keys, &order)),
    };
    let (code, status, rebuilt) = give_back(dump, &ending, now)?;
    Ok(CompensateReply {
        code: CompensateCode::try_from(code).unwrap(),
        status,
        rebuilt,
    })
}

/// Puts the units of a cancelled order back.
pub fn cancel(dump: &mut Dump, call: &Cancel<'_>, now: i64) -> Result<CancelReply, Damaged> {
    let ending = Ending {
        keys: call.keys,
        reservation_id: call.reservation_id,
        user_id: call.user_id,
        from: &[S::OrderCreated],
        target: S::OrderCancelled,
        field: ("order_id", call.order_id.to_string()),
        order_id: Some(call.order_id),
        waiting: call.waiting.map(|order| Lost::ordered(call.keys, &order)),
    };
    let (code, status, rebuilt) = give_back(dump, &ending, now)?;
    Ok(CancelReply {
        code: CancelCode::try_from(code).unwrap(),
        status,
        rebuilt,
    })
}
