//! Design §4.5: what brings lost reservations back.

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    OrderedReservation, RebuildReply, RebuildReservation, RepairMarker, RepairMarkerReply,
    TombstoneEnd, TombstoneReply, WriteTombstone,
};
use seckill_state_machine::{
    MessageId, OrderId, RebuildCode, RepairMarkerCode, RequestId, ReservationId,
    ReservationStatus as S, TombstoneCode, Traceparent, UserId,
};
use seckill_test_support::Dump;

use super::store::{
    Damaged, WEEK_MS, ensure_expiry, hash, is, members, number, remove_member, set_fields,
    set_text, stored_status, text,
};

/// A reservation as PostgreSQL knows it.
pub struct Lost<'a> {
    keys: &'a BucketKeys,
    reservation_id: &'a ReservationId,
    request_id: &'a RequestId,
    user_id: &'a UserId,
    pub quantity: i64,
    order_id: Option<&'a OrderId>,
    reserved_at: i64,
    traceparent: Option<&'a Traceparent>,
}

/// Where its record would go.
pub enum Place {
    /// There is one; whether it is this very reservation's.
    Taken(bool, Option<S>),
    /// The bucket is gone.
    Gone(&'static str),
    /// Something contradicts itself.
    Contradiction(&'static str),
    /// It may be written, and lives until then.
    Free(i64),
}

pub enum Stock {
    Missing,
    Broken,
    Sound { available: i64, reserved: i64 },
}

pub fn stock(dump: &Dump, keys: &BucketKeys) -> Result<Stock, Damaged> {
    let fields = hash(dump, &keys.stock())?;
    let names = ["initial", "available", "reserved"];
    if names.iter().any(|name| !fields.contains_key(*name)) {
        return Ok(Stock::Missing);
    }
    Ok(match names.map(|name| number(fields.get(name))) {
        [Some(initial), Some(available), Some(reserved)] if initial == available + reserved => {
            Stock::Sound {
                available,
                reserved,
            }
        }
        _ => Stock::Broken,
    })
}

impl<'a> Lost<'a> {
    pub fn ordered(keys: &'a BucketKeys, order: &OrderedReservation<'a>) -> Self {
        Self {
            keys,
            reservation_id: order.reservation_id,
            request_id: order.request_id,
            user_id: order.user_id,
            quantity: i64::from(order.quantity.get()),
            order_id: Some(order.order_id),
            reserved_at: order.reserved_at_ms.get(),
            traceparent: order.traceparent,
        }
    }

    fn place(&self, dump: &Dump, now: i64) -> Result<Place, Damaged> {
        let held = hash(dump, &self.keys.reservation(self.reservation_id))?;
        if !held.is_empty() {
            let other_order = match (held.get("order_id"), self.order_id) {
                (Some(found), Some(order_id)) => !found.is_empty() && found != order_id.as_ref(),
                _ => false,
            };
            let same = is(&held, "reservation_id", self.reservation_id.as_str())
                && is(&held, "request_id", self.request_id.as_str())
                && is(&held, "user_id", self.user_id.as_str())
                && is(&held, "quantity", &self.quantity.to_string())
                && !other_order;
            return Ok(Place::Taken(same, stored_status(&held)?));
        }
        if number(Some(&self.reserved_at.to_string())).is_none() {
            return Ok(Place::Contradiction("BAD_ARGUMENT"));
        }
        let meta = hash(dump, &self.keys.meta())?;
        let bucket = self.keys.scope();
        let scope = [
            ("activity_id", bucket.scope.activity_id.to_string()),
            ("sku_id", bucket.scope.sku_id.to_string()),
            ("version", bucket.scope.version.to_string()),
            ("bucket_id", bucket.bucket_id.to_string()),
        ];
        let end = meta.get("retention_until_ms");
        if end.is_none() && scope.iter().all(|(field, _)| !meta.contains_key(*field)) {
            return Ok(Place::Gone("META_MISSING"));
        }
        if scope.iter().any(|(field, value)| !is(&meta, field, value)) {
            return Ok(Place::Contradiction("META_SCOPE_MISMATCH"));
        }
        Ok(match number(end) {
            None => Place::Contradiction("INVALID_META_TIME"),
            Some(retention) if now >= retention => Place::Gone("RETENTION_PASSED"),
            Some(retention) => Place::Free(retention),
        })
    }

    /// The place of an ordered reservation, once all that its return writes has been looked at.
    pub fn place_of_return(&self, dump: &Dump, now: i64) -> Result<Place, Damaged> {
        let place = self.place(dump, now)?;
        if matches!(place, Place::Free(_)) {
            hash(dump, &self.keys.request(self.request_id))?;
            text(dump, &self.keys.user(self.user_id))?;
            members(dump, &self.keys.send_pending())?;
            members(dump, &self.keys.reservation_expiry())?;
        }
        Ok(place)
    }

    fn write(&self, dump: &mut Dump, status: S, retention: i64, now: i64, more: &[(&str, String)]) {
        let scope = &self.keys.scope().scope;
        let trace = self.traceparent.map(ToString::to_string);
        let mut fields = vec![
            ("reservation_id", self.reservation_id.to_string()),
            ("request_id", self.request_id.to_string()),
            ("message_id", MessageId::of(self.reservation_id).to_string()),
            ("activity_id", scope.activity_id.to_string()),
            ("sku_id", scope.sku_id.to_string()),
            ("user_id", self.user_id.to_string()),
            ("activity_version", scope.version.to_string()),
            ("bucket_id", self.keys.scope().bucket_id.to_string()),
            ("quantity", self.quantity.to_string()),
            ("status", status.as_str().to_owned()),
            ("reserved_at_ms", self.reserved_at.to_string()),
            ("expires_at_ms", self.reserved_at.to_string()),
            ("updated_at_ms", now.to_string()),
            ("send_attempts", "0".to_owned()),
            ("schema_version", "1".to_owned()),
            ("traceparent", trace.unwrap_or_default()),
        ];
        fields.extend_from_slice(more);
        let key = self.keys.reservation(self.reservation_id);
        set_fields(dump, &key, &fields, retention);
        remove_member(
            dump,
            &self.keys.send_pending(),
            self.reservation_id.as_str(),
        );
        remove_member(
            dump,
            &self.keys.reservation_expiry(),
            self.reservation_id.as_str(),
        );
    }

    fn remember(&self, dump: &mut Dump, retention: i64, remaining: i64) {
        let key = self.keys.request(self.request_id);
        let packed = format!(
            "0|{}|{remaining}|QUEUED|{}|{}",
            self.reservation_id,
            self.user_id.as_str(),
            self.quantity
        );
        set_fields(dump, &key, &[(self.request_id.as_str(), packed)], retention);
        ensure_expiry(dump, &key, retention);
    }

    /// Gives it its units back, of which `remaining` are left then. The counters are the caller's.
    pub fn give(&self, dump: &mut Dump, retention: i64, remaining: i64, now: i64) {
        let order_id = self.order_id.map(ToString::to_string).unwrap_or_default();
        let order = [("order_id", order_id)];
        self.write(dump, S::OrderCreated, retention, now, &order);
        self.remember(dump, retention, remaining);
        let marker = self.keys.user(self.user_id);
        if !dump.0.contains_key(&marker) {
            set_text(dump, &marker, self.reservation_id.as_str(), retention);
        }
        let soldout = self.keys.soldout();
        if remaining > 0 {
            dump.0.remove(&soldout);
        } else if !dump.0.contains_key(&soldout) {
            set_text(dump, &soldout, "1", retention);
        }
    }
}

/// Brings an ordered reservation back.
pub fn rebuild(
    dump: &mut Dump,
    call: &RebuildReservation<'_>,
    now: i64,
) -> Result<RebuildReply, Damaged> {
    let lost = Lost::ordered(call.keys, &call.order);
    let reply = |code, status, detail: &str| {
        Ok(RebuildReply {
            code,
            status,
            marker_kept: false,
            detail: detail.to_owned(),
        })
    };
    let retention = match lost.place_of_return(dump, now)? {
        Place::Taken(true, status) => return reply(RebuildCode::AlreadyThere, status, ""),
        Place::Taken(false, status) => {
            return reply(RebuildCode::ReservationIdConflict, status, "");
        }
        Place::Gone(detail) => return reply(RebuildCode::ConfigMissing, None, detail),
        Place::Contradiction(detail) => {
            return reply(RebuildCode::InvariantViolation, None, detail);
        }
        Place::Free(retention) => retention,
    };
    let (available, reserved) = match stock(dump, call.keys)? {
        Stock::Missing => return reply(RebuildCode::ConfigMissing, None, "STOCK_MISSING"),
        Stock::Broken => {
            return reply(
                RebuildCode::InvariantViolation,
                None,
                "STOCK_INVARIANT_VIOLATION",
            );
        }
        Stock::Sound {
            available,
            reserved,
        } => (available, reserved),
    };
    if available < lost.quantity {
        return reply(RebuildCode::Waits, None, "");
    }
    let marker = text(dump, &call.keys.user(lost.user_id))?;
    let counters = [
        ("available", (available - lost.quantity).to_string()),
        ("reserved", (reserved + lost.quantity).to_string()),
    ];
    set_fields(dump, &call.keys.stock(), &counters, 0);
    lost.give(dump, retention, available - lost.quantity, now);
    Ok(RebuildReply {
        code: RebuildCode::Rebuilt,
        status: Some(S::OrderCreated),
        marker_kept: marker.is_some_and(|named| named != lost.reservation_id.as_str()),
        detail: String::new(),
    })
}

/// Whether what is remembered for the request stays: an acceptance, or another user's answer.
fn stays(remembered: &str, user_id: &UserId) -> bool {
    let parts: Vec<&str> = remembered.split('|').collect();
    let readable = parts.len() >= 6
        && !parts[0].is_empty()
        && parts[0].bytes().all(|byte| byte.is_ascii_digit());
    readable && (parts[0] == "0" || parts[4] != user_id.as_str())
}

/// Records the end of a lost reservation.
pub fn tombstone(
    dump: &mut Dump,
    call: &WriteTombstone<'_>,
    now: i64,
) -> Result<TombstoneReply, Damaged> {
    let order_id = match call.end {
        TombstoneEnd::Released { .. } => None,
        TombstoneEnd::OrderCancelled { order_id } => Some(order_id),
    };
    let lost = Lost {
        keys: call.keys,
        reservation_id: call.reservation_id,
        request_id: call.request_id,
        user_id: call.user_id,
        quantity: i64::from(call.quantity.get()),
        order_id,
        reserved_at: call.reserved_at_ms.get(),
        traceparent: call.traceparent,
    };
    let reply = |code, status, detail: &str| {
        let detail = detail.to_owned();
        Ok(TombstoneReply {
            code,
            status,
            detail,
        })
    };
    let retention = match lost.place(dump, now)? {
        Place::Taken(true, status) => return reply(TombstoneCode::AlreadyThere, status, ""),
        Place::Taken(false, status) => {
            return reply(TombstoneCode::ReservationIdConflict, status, "");
        }
        Place::Gone(detail) => return reply(TombstoneCode::ConfigMissing, None, detail),
        Place::Contradiction(detail) => {
            return reply(TombstoneCode::InvariantViolation, None, detail);
        }
        Place::Free(retention) => retention,
    };
    let left = match stock(dump, call.keys)? {
        Stock::Sound { available, .. } => available,
        Stock::Missing | Stock::Broken => 0,
    };
    let remembered = hash(dump, &call.keys.request(call.request_id))?;
    let marker_key = call.keys.user(call.user_id);
    let named = text(dump, &marker_key)?;
    members(dump, &call.keys.send_pending())?;
    members(dump, &call.keys.reservation_expiry())?;
    if named.as_deref() == Some(call.reservation_id.as_str()) {
        dump.0.remove(&marker_key);
    }
    let at = ("released_at_ms", now.to_string());
    let status = match call.end {
        TombstoneEnd::Released { reason } => {
            let fields = [("release_reason", reason.to_owned()), at];
            lost.write(dump, S::Released, retention, now, &fields);
            S::Released
        }
        TombstoneEnd::OrderCancelled { order_id } => {
            let fields = [("order_id", order_id.to_string()), at];
            lost.write(dump, S::OrderCancelled, retention, now, &fields);
            S::OrderCancelled
        }
    };
    let first = remembered.get(call.request_id.as_str());
    if !first.is_some_and(|packed| stays(packed, call.user_id)) {
        lost.remember(dump, retention, left);
    }
    reply(TombstoneCode::Written, Some(status), "")
}

/// Points a marker at an ordered reservation.
pub fn repair_marker(
    dump: &mut Dump,
    call: &RepairMarker<'_>,
    now: i64,
) -> Result<RepairMarkerReply, Damaged> {
    let (key, marker_key) = (
        call.keys.reservation(call.reservation_id),
        call.keys.user(call.user_id),
    );
    let id = call.reservation_id.as_str();
    let reply = |code, status| Ok(RepairMarkerReply { code, status });
    let held = hash(dump, &key)?;
    let ordered = is(&held, "status", S::OrderCreated.as_str());
    if !is(&held, "reservation_id", id) || !is(&held, "user_id", call.user_id.as_str()) || !ordered
    {
        return reply(RepairMarkerCode::NotOrdered, stored_status(&held)?);
    }
    let marker = text(dump, &marker_key)?.unwrap_or_default();
    if marker == id {
        return reply(RepairMarkerCode::AlreadyRight, Some(S::OrderCreated));
    }
    if marker != call.marker.map(ReservationId::as_str).unwrap_or_default() {
        return reply(RepairMarkerCode::Retry, None);
    }
    if let Some(named) = call.marker {
        let other = hash(dump, &call.keys.reservation(named))?;
        let ended = is(&other, "status", S::Released.as_str())
            || is(&other, "status", S::OrderCancelled.as_str());
        if !other.is_empty() && !ended {
            return reply(RepairMarkerCode::HeldByAnother, stored_status(&other)?);
        }
    }
    let expiry_of = |key: &str| dump.0.get(key).and_then(|entry| entry.expires_at_ms);
    let expiry = expiry_of(&key).max(expiry_of(&marker_key));
    set_text(dump, &marker_key, id, expiry.unwrap_or(now + WEEK_MS));
    reply(RepairMarkerCode::Repaired, Some(S::OrderCreated))
}
