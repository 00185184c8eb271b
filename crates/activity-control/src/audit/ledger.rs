//! The rules of the ledger: pure functions from what both stores hold to what is wrong with it.
//!
//! Three questions, each answered on its own: does a bucket add up by itself in Redis
//! ([`judge_bucket`]), does its row add up by itself in PostgreSQL ([`judge_book`]), and do both
//! name the same orders ([`Ledger`])? The decisions come page by page; only Redis's side, which a
//! SCAN yields in no order, is held whole: about 250 bytes a reservation, 250 MB for a million.

use std::collections::{BTreeMap, BTreeSet};

use seckill_key_layout::KeyKind;
use seckill_state_machine::{
    BucketId, BucketScope, DecisionKind, OrderState, ReservationId, ReservationStatus, Settlement,
    settlement,
};
use seckill_telemetry::user_id_hash;

use sha2::{Digest as _, Sha256};

use super::difference::{Difference, DifferenceKind as Kind};
use super::facts::{BookFacts, BucketFacts, DecisionFacts, ReservationFacts, StockFacts, Subject};

/// Families of key names, whose word alone tells nothing about a user.
const FAMILIES: [&str; 3] = ["req", "user", "resv"];

/// 64 bits, as in the logs.
const HASH_BYTES: usize = 8;

/// What is wrong with a bucket as Redis holds it, without looking at PostgreSQL.
///
/// A version that was never opened may not have been preheated yet; one that was must have both its
/// meta and its stock.
#[must_use]
pub fn judge_bucket(facts: &BucketFacts, was_opened: bool) -> Vec<Difference> {
    let mut found = Vec::new();
    let bucket = &facts.bucket;
    match facts.stock {
        Some(stock) if facts.steady => judge_counters(facts, stock, &mut found),
        Some(_) => found.push(Difference::of_bucket(
            bucket,
            Kind::InMotion,
            "the counters changed during every scan; stop the sale or look again when it is calm",
        )),
        None => {}
    }
    let missing = match (facts.has_meta, facts.stock.is_some()) {
        (true, true) => None,
        (false, false) if !was_opened => None,
        (true, false) => Some("stock is missing"),
        (false, true) => Some("meta is missing"),
        (false, false) => Some("meta and stock are missing"),
    };
    if let Some(detail) = missing {
        found.push(Difference::of_bucket(bucket, Kind::StateMissing, detail));
    }
    judge_markers(facts, &mut found);
    judge_indexes(facts, &mut found);
    judge_keys(facts, &mut found);
    found
}

fn judge_counters(facts: &BucketFacts, stock: StockFacts, found: &mut Vec<Difference>) {
    let bucket = &facts.bucket;
    let counters = stock.counters;
    if !counters.is_conserved() {
        let detail = format!(
            "initial {} is not available {} + reserved {}",
            counters.initial, counters.available, counters.reserved
        );
        found.push(Difference::of_bucket(bucket, Kind::NotConserved, detail));
    }
    let (open, ordered) = (facts.open_units(), facts.ordered_units());
    if counters.reserved != open.saturating_add(ordered) {
        let detail = format!(
            "reserved is {}, but reservations hold {open} open + {ordered} ordered",
            counters.reserved
        );
        found.push(Difference::of_bucket(bucket, Kind::HoldersMismatch, detail));
    }
    // It may be less: a tombstone stands for a reservation whose release was lost with the counter.
    if stock.released_total > facts.returned_units() {
        let detail = format!(
            "released_total is {}, but released and cancelled reservations gave back at most {}",
            stock.released_total,
            facts.returned_units()
        );
        found.push(Difference::of_bucket(
            bucket,
            Kind::ReleasedTotalMismatch,
            detail,
        ));
    }
    if facts.sold_out && counters.available > 0 {
        let detail = format!(
            "marked sold out with {} units available",
            counters.available
        );
        found.push(Difference::of_bucket(bucket, Kind::StaleSoldOut, detail));
    }
}

/// Markers and holders must name each other.
fn judge_markers(facts: &BucketFacts, found: &mut Vec<Difference>) {
    for (user_id, named) in &facts.markers {
        let reason = match facts.reservations.get(named) {
            None => "which does not exist".to_owned(),
            Some(reservation) if reservation.user_id != *user_id => {
                "which belongs to another user".to_owned()
            }
            Some(reservation) if !reservation.status.holds_units() => {
                format!("which is {} and holds nothing", reservation.status)
            }
            Some(_) => continue,
        };
        let detail = format!(
            "the marker of user {} points at it, {reason}",
            user_id_hash(user_id)
        );
        found.push(Difference::of_reservation(
            &facts.bucket,
            Kind::StrayMarker,
            named,
            detail,
        ));
    }
    let holders = facts
        .reservations
        .iter()
        .filter(|(_, r)| r.status.holds_units());
    for (id, reservation) in holders {
        let detail = match facts.markers.get(&reservation.user_id) {
            Some(named) if named == id => continue,
            Some(named) => format!("it is {}, but the marker names {named}", reservation.status),
            None => format!("it is {}, but there is no marker", reservation.status),
        };
        let missing = Difference::of_reservation(&facts.bucket, Kind::MissingMarker, id, detail);
        found.push(missing);
    }
}

/// Whatever is open must be found again by an index, and an index may name only what exists.
fn judge_indexes(facts: &BucketFacts, found: &mut Vec<Difference>) {
    let indexes = [
        ("send_pending", &facts.send_pending),
        ("reservation_expiry", &facts.reservation_expiry),
    ];
    for (name, members) in indexes {
        for member in members {
            let Ok(id) = member.parse::<ReservationId>() else {
                let detail = format!("{name} has a member that is no reservation id");
                found.push(Difference::of_bucket(
                    &facts.bucket,
                    Kind::StrayMember,
                    detail,
                ));
                continue;
            };
            if !facts.reservations.contains_key(&id) {
                let detail = format!("{name} names it, but it does not exist");
                let stray =
                    Difference::of_reservation(&facts.bucket, Kind::StrayMember, &id, detail);
                found.push(stray);
            }
        }
    }
    let open = facts
        .reservations
        .iter()
        .filter(|(_, r)| !r.status.is_settled());
    for (id, reservation) in open {
        let unsent = reservation.status.awaits_send();
        let missing = match (
            facts.reservation_expiry.contains(id.as_str()),
            !unsent || facts.send_pending.contains(id.as_str()),
        ) {
            (true, true) => continue,
            (false, _) => "reservation_expiry",
            (true, false) => "send_pending",
        };
        let detail = format!(
            "it is {}, but not a member of {missing}",
            reservation.status
        );
        let lost = Difference::of_reservation(&facts.bucket, Kind::NotIndexed, id, detail);
        found.push(lost);
    }
}

fn judge_keys(facts: &BucketFacts, found: &mut Vec<Difference>) {
    for key in &facts.without_expiry {
        let (id, name) = printable(key);
        found.push(Difference {
            bucket: facts.bucket.clone(),
            kind: Kind::NoExpiry,
            reservation_id: id,
            detail: format!("{name} never expires"),
        });
    }
    for (subject, reason) in &facts.unreadable {
        let (reservation_id, name) = match subject {
            Subject::Key(key) => printable(key),
            Subject::Foreign(name) => (None, foreign(name)),
        };
        found.push(Difference {
            bucket: facts.bucket.clone(),
            kind: Kind::Unreadable,
            reservation_id,
            detail: format!("{name}: {reason}"),
        });
    }
}

/// A key's name for a report, without a raw user id.
fn printable(key: &KeyKind) -> (Option<ReservationId>, String) {
    match key {
        KeyKind::Meta => (None, "meta".to_owned()),
        KeyKind::Stock => (None, "stock".to_owned()),
        KeyKind::Request(shard) => (None, format!("req:{shard:03}")),
        KeyKind::User(user_id) => (
            None,
            format!("the marker of user {}", user_id_hash(user_id)),
        ),
        KeyKind::Reservation(id) => (Some(id.clone()), "its hash".to_owned()),
        KeyKind::SendPending => (None, "send_pending".to_owned()),
        KeyKind::ReservationExpiry => (None, "reservation_expiry".to_owned()),
        KeyKind::SoldOut => (None, "soldout".to_owned()),
    }
}

/// A foreign key's name for a report. Whatever follows the family may be a user id, also a damaged
/// one, so that only its hash may appear.
fn foreign(name: &str) -> String {
    // The tag in braces holds colons, too.
    let suffix = name.rsplit_once("}:").map_or(name, |(_, suffix)| suffix);
    let family = suffix.split_once(':').map_or("", |(family, _)| family);
    match FAMILIES.iter().find(|known| **known == family) {
        Some(known) => {
            let rest = suffix.get(known.len() + 1..).unwrap_or_default();
            format!("{known}:<{}>", user_text_hash(rest))
        }
        None => format!("a key of no known family <{}>", user_text_hash(suffix)),
    }
}

/// The hash that stands for a user in reports, of a text that is no user id.
fn user_text_hash(text: &str) -> String {
    let mut hasher = Sha256::new();
    hasher.update(b"seckill-user\0");
    hasher.update(text.as_bytes());
    hasher
        .finalize()
        .iter()
        .take(HASH_BYTES)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// What is wrong with a bucket's row in PostgreSQL; `initial` is what Redis says it started with.
#[must_use]
pub fn judge_book(bucket: &BucketScope, book: BookFacts, initial: Option<u64>) -> Vec<Difference> {
    let mut found = Vec::new();
    if book.available.checked_add(book.ordered_units) != Some(book.total) {
        let detail = format!(
            "total {} is not available {} + {} units of active orders",
            book.total, book.available, book.ordered_units
        );
        found.push(Difference::of_bucket(
            bucket,
            Kind::BookNotConserved,
            detail,
        ));
    }
    if let Some(initial) = initial.filter(|initial| *initial != book.total) {
        let detail = format!(
            "PostgreSQL has {} units in all, Redis {initial}",
            book.total
        );
        found.push(Difference::of_bucket(bucket, Kind::TotalMismatch, detail));
    }
    found
}

/// Matches the decisions of a version, one by one, with the reservations of all its buckets.
#[derive(Debug)]
pub struct Ledger<'a> {
    buckets: BTreeMap<BucketId, &'a BucketFacts>,
    undecided: BTreeSet<(BucketId, &'a ReservationId)>,
}

impl<'a> Ledger<'a> {
    /// A ledger in which nothing is decided yet.
    #[must_use]
    pub fn new(buckets: &'a [BucketFacts]) -> Self {
        let undecided = buckets.iter().flat_map(|facts| {
            let bucket_id = facts.bucket.bucket_id;
            facts.reservations.keys().map(move |id| (bucket_id, id))
        });
        Self {
            undecided: undecided.collect(),
            buckets: buckets
                .iter()
                .map(|facts| (facts.bucket.bucket_id, facts))
                .collect(),
        }
    }

    /// Enters one decision and says what is wrong with it.
    pub fn enter(&mut self, decision: &DecisionFacts) -> Option<Difference> {
        let facts = self.buckets.get(&decision.bucket.bucket_id).copied();
        let reservation =
            facts.and_then(|f| f.reservations.get_key_value(&decision.reservation_id));
        if let Some((id, _)) = reservation {
            self.undecided.remove(&(decision.bucket.bucket_id, id));
        }
        judge_decision(decision, reservation.map(|(_, reservation)| reservation))
    }

    /// What is wrong with the reservations that no decision was entered for.
    #[must_use]
    pub fn finish(self) -> Vec<Difference> {
        let reservations = self.undecided.into_iter().filter_map(|(bucket_id, id)| {
            let facts = self.buckets.get(&bucket_id)?;
            Some((&facts.bucket, id, facts.reservations.get(id)?))
        });
        reservations
            .filter_map(|(bucket, id, reservation)| {
                let (kind, reason) = judge_undecided(reservation.status)?;
                let detail = format!("it is {}, but {reason}", reservation.status);
                Some(Difference::of_reservation(bucket, kind, id, detail))
            })
            .collect()
    }
}

/// What is wrong with a reservation that PostgreSQL has not decided on.
const fn judge_undecided(status: ReservationStatus) -> Option<(Kind, &'static str)> {
    use ReservationStatus as S;
    match status {
        S::Reserved | S::SendUnknown | S::Enqueued => None,
        S::OrderCreated | S::OrderCancelled => Some((
            Kind::ReservationWithoutOrder,
            "PostgreSQL holds no decision and no order",
        )),
        S::Released => Some((
            Kind::ReleasedWithoutDecision,
            "PostgreSQL holds no decision",
        )),
        S::Rejected | S::ReleasePending => {
            Some((Kind::Contradiction, "PostgreSQL holds no decision"))
        }
    }
}

/// What is wrong with a decision, given what Redis has of its reservation.
///
/// A rejected or released reservation that still holds its units is open, not wrong: the release
/// is on its way, and the counters say so on both sides.
fn judge_decision(
    decision: &DecisionFacts,
    reservation: Option<&ReservationFacts>,
) -> Option<Difference> {
    let found = |kind, detail: String| {
        let id = &decision.reservation_id;
        Some(Difference::of_reservation(
            &decision.bucket,
            kind,
            id,
            detail,
        ))
    };
    let order = decision.order.as_ref().map(|(_, state)| *state);
    if decision.kind == DecisionKind::Ordered && order.is_none() {
        return found(
            Kind::DecisionWithoutOrder,
            "decided ORDERED, but there is no order".into(),
        );
    }
    let says = match (decision.kind, order) {
        (DecisionKind::Ordered, Some(OrderState::Cancelled)) => "an order that was cancelled",
        (DecisionKind::Ordered, _) => "an active order",
        (DecisionKind::Rejected, _) => "a rejection",
        (DecisionKind::Released, _) => "a release",
    };
    let Some(reservation) = reservation else {
        let is_active = order == Some(OrderState::Active);
        return if is_active {
            found(
                Kind::OrderWithoutReservation,
                format!("PostgreSQL holds {says}, Redis nothing"),
            )
        } else {
            None
        };
    };
    let detail = format!("PostgreSQL holds {says}, Redis says {}", reservation.status);
    match settlement(decision.kind, order, reservation.status) {
        Settlement::Agreed => mismatch(decision, reservation)
            .and_then(|what| found(Kind::FieldMismatch, format!("{what} differs"))),
        Settlement::MarkOrdered | Settlement::Cancel => found(Kind::NotSettled, detail),
        Settlement::MarkRejected | Settlement::Release => None,
        Settlement::Contradiction => found(Kind::Contradiction, detail),
    }
}

/// The first field in which both sides differ.
fn mismatch(decision: &DecisionFacts, reservation: &ReservationFacts) -> Option<String> {
    if decision.quantity != reservation.quantity {
        let (ours, theirs) = (decision.quantity, reservation.quantity);
        return Some(format!("quantity (PostgreSQL {ours}, Redis {theirs})"));
    }
    if decision.user_id != reservation.user_id {
        return Some("user_id".to_owned());
    }
    let order_id = decision.order.as_ref().map(|(order_id, _)| order_id);
    match (order_id, &reservation.order_id) {
        (Some(ours), Some(theirs)) if ours != theirs => {
            Some(format!("order_id (PostgreSQL {ours}, Redis {theirs})"))
        }
        (Some(ours), None) => Some(format!("order_id (PostgreSQL {ours}, Redis none)")),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
