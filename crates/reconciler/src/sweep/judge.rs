//! What is wrong with one reservation, given what both sides hold: pure rules, for the sweep.
//!
//! Every rule may be met by healthy work that is on its way between the stores; the two-round rule
//! above sorts that out.

use seckill_lua_scripts::{CachedResult, ReservationRecord};
use seckill_order_store::DecisionRecord;
use seckill_settlement::{Class, remembered_wrongly};
use seckill_state_machine::{
    BucketScope, OrderState, Replay, ReservationId, ReservationStatus, TimestampMs, replay,
};

use crate::finding::Finding;

const NOTHING: &str = "nothing";

/// What is wrong with a decision, given Redis' record. At most one thing: what follows from another
/// difference is not told twice.
#[must_use]
pub fn decided(decision: &DecisionRecord, record: Option<&ReservationRecord>) -> Option<Finding> {
    let id = &decision.reservation_id;
    if let Some(what) = record.and_then(|record| identity(decision, record)) {
        return Some(Finding::of(
            Class::IdentityDiffers,
            id,
            what,
            words(decision),
        ));
    }
    let status = record.map(|record| record.status);
    let order = decision.order.as_ref().map(|(_, state)| *state);
    let class = match replay(decision.kind, order, status) {
        Replay::Agreed => return None,
        Replay::MarkOrdered | Replay::MarkRejected => Class::NotSettled,
        Replay::Release => Class::NotReleased,
        Replay::Cancel => Class::NotRestocked,
        Replay::Rebuild => Class::ReservationMissing,
        Replay::TombstoneReleased | Replay::TombstoneCancelled => Class::TombstoneMissing,
        Replay::Contradiction => contradiction(decision, status),
    };
    let held = status.map_or(NOTHING, ReservationStatus::as_str);
    Some(Finding::of(class, id, held, words(decision)))
}

/// A contradiction by its more telling name, if it has one.
fn contradiction(decision: &DecisionRecord, status: Option<ReservationStatus>) -> Class {
    use seckill_state_machine::DecisionKind;
    match (decision.kind, &decision.order, status) {
        (DecisionKind::Ordered, None, _) => Class::DecisionWithoutOrder,
        (DecisionKind::Ordered, Some((_, OrderState::Active)), Some(status))
            if !status.holds_units() =>
        {
            Class::ReleasedInRedisOnly
        }
        _ => Class::Contradiction,
    }
}

/// PostgreSQL's side in words.
#[must_use]
pub fn words(decision: &DecisionRecord) -> String {
    match &decision.order {
        Some((order_id, OrderState::Active)) => format!("ORDERED, order {order_id}"),
        Some((order_id, OrderState::Cancelled)) => format!("ORDERED, order {order_id} cancelled"),
        None => match &decision.reason {
            Some(reason) => format!("{} ({reason})", decision.kind.as_str()),
            None => decision.kind.as_str().to_owned(),
        },
    }
}

/// The first field in which both sides differ, in words that name no user.
fn identity(decision: &DecisionRecord, record: &ReservationRecord) -> Option<String> {
    if record.user_id != decision.user_id {
        return Some("another buyer".to_owned());
    }
    if record.request_id != decision.request_id {
        return Some("another request".to_owned());
    }
    if record.quantity != decision.quantity {
        return Some(format!(
            "quantity {} instead of {}",
            record.quantity, decision.quantity
        ));
    }
    if record.bucket != decision.bucket {
        return Some(format!("bucket {}", record.bucket));
    }
    match (&record.order_id, &decision.order) {
        (Some(ours), Some((theirs, _))) if ours != theirs => Some(format!("order {ours}")),
        (None, Some(_)) if record.status == ReservationStatus::OrderCreated => {
            Some("no order id".to_owned())
        }
        _ => None,
    }
}

/// What is wrong with the marker of a buyer whose reservation holds units.
#[must_use]
pub fn marker(record: &ReservationRecord, marker: Option<&ReservationId>) -> Option<Finding> {
    let id = &record.reservation_id;
    match marker {
        None => Some(Finding::of(
            Class::MarkerMissing,
            id,
            format!("{}, no marker", record.status),
            "",
        )),
        Some(named) if named != id => Some(Finding::of(
            Class::MarkerElsewhere,
            id,
            format!("{}, the marker names {named}", record.status),
            "",
        )),
        Some(_) => None,
    }
}

/// What is wrong with a reservation that PostgreSQL has not decided about.
#[must_use]
pub fn undecided(record: &ReservationRecord) -> Option<Finding> {
    use ReservationStatus as S;
    let class = match record.status {
        S::Reserved | S::SendUnknown | S::Enqueued => return None,
        S::OrderCreated | S::OrderCancelled => Class::OrderedWithoutOrder,
        S::Released => Class::ReleasedWithoutDecision,
        // The fence comes first, always.
        S::Rejected | S::ReleasePending => Class::Contradiction,
    };
    let id = &record.reservation_id;
    Some(Finding::of(class, id, record.status.as_str(), "undecided"))
}

/// What is wrong with a record by itself. A record under another's name is damage, and counts for
/// nobody.
#[must_use]
pub fn record(
    bucket: &BucketScope,
    id: &ReservationId,
    record: &ReservationRecord,
) -> Option<Finding> {
    if record.reservation_id != *id {
        let what = format!("the record names reservation {}", record.reservation_id);
        return Some(Finding::of(Class::Unreadable, id, what, ""));
    }
    (record.bucket != *bucket).then(|| {
        let what = format!("the record names {}", record.bucket);
        Finding::of(Class::ForeignScope, id, what, "")
    })
}

/// How far ahead of PostgreSQL's clock a reservation may have been accepted: more than the clocks of two
/// servers that are kept in time ever differ.
const AHEAD_MAX_MS: i64 = 60_000;

/// What is wrong with the time of a reservation, given PostgreSQL's, by which patience is measured.
#[must_use]
pub fn ahead(record: &ReservationRecord, now: TimestampMs) -> Option<Finding> {
    let ahead_ms = record.reserved_at_ms.get().saturating_sub(now.get());
    (ahead_ms > AHEAD_MAX_MS).then(|| {
        let (id, ahead_s) = (&record.reservation_id, ahead_ms / 1_000);
        let redis = format!("{}, accepted {ahead_s} s from now", record.status);
        Finding::of(Class::ReservedAhead, id, redis, "")
    })
}

/// Whether a reservation is a member of the indexes that would bring somebody back to it.
#[must_use]
pub fn indexed(record: &ReservationRecord, in_expiry: bool, in_send_pending: bool) -> Vec<Finding> {
    let (id, status) = (&record.reservation_id, record.status);
    let mut found = Vec::new();
    if !status.is_settled() && !in_expiry {
        found.push(Finding::of(Class::NotInExpiry, id, status.as_str(), ""));
    }
    if status.awaits_send() && !in_send_pending {
        found.push(Finding::of(
            Class::NotInSendPending,
            id,
            status.as_str(),
            "",
        ));
    }
    found
}

/// What is wrong with the remembered answer to the request that made a reservation. None at all is
/// fine: the script makes it anew from the reservation. So is a refusal in front of a reservation that
/// holds nothing, which a failover and the decision about its first attempt leave.
#[must_use]
pub fn cached(record: &ReservationRecord, cached: Option<&CachedResult>) -> Option<Finding> {
    let what = remembered_wrongly(record, cached?)?;
    let id = &record.reservation_id;
    Some(Finding::of(Class::CachedResultDiffers, id, what, ""))
}

#[cfg(test)]
pub mod tests;
