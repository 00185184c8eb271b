//! Design §4.2, step by step.

use seckill_lua_scripts::{ReplyStatus, Reserve, ReserveReply};
use seckill_state_machine::{
    MessageId, ReservationId, ReservationStatus, ReserveCode as Code, is_id_byte,
};
use seckill_test_support::Dump;

use super::store::{
    Damaged, Fields, add_member, ensure_expiry, hash, members, number, set_fields, set_text, text,
};

fn answer(code: Code) -> ReserveReply {
    ReserveReply {
        code,
        reservation_id: None,
        remaining: 0,
        status: ReplyStatus::None,
        replay: false,
    }
}

fn because(code: Code, detail: &str) -> ReserveReply {
    ReserveReply {
        status: ReplyStatus::Detail(detail.to_owned()),
        ..answer(code)
    }
}

struct Call<'a> {
    call: &'a Reserve<'a>,
    now: i64,
    quantity: i64,
    request_key: String,
    reservation_key: String,
}

/// Decides one call.
pub fn reserve(dump: &mut Dump, call: &Reserve<'_>, now: i64) -> Result<ReserveReply, Damaged> {
    let call = Call {
        call,
        now,
        quantity: i64::from(call.quantity.get()),
        request_key: call.keys.request(call.request_id),
        reservation_key: call.keys.reservation(call.reservation_id),
    };
    // 1
    let arguments = call.call;
    if arguments.quantity > arguments.max_quantity
        || arguments.reservation_ttl_ms <= 0
        || arguments.first_send_grace_ms < 0
    {
        return Ok(answer(Code::BadArgument));
    }
    // 2
    if let Some(packed) = hash(dump, &call.request_key)?.get(arguments.request_id.as_str()) {
        return remembered(dump, &call, packed);
    }
    // 3
    let meta = match Meta::read(dump, &call)? {
        Ok(meta) => meta,
        Err(refusal) => return Ok(refusal),
    };
    // 4
    let held = hash(dump, &call.reservation_key)?;
    if !held.is_empty() {
        return existing(dump, &call, &meta, &held);
    }
    fresh(dump, &call, &meta)
}

fn remembered(dump: &Dump, call: &Call<'_>, packed: &str) -> Result<ReserveReply, Damaged> {
    let corrupt = || because(Code::InvariantViolation, "CORRUPTED_REQUEST_RESULT");
    let parts: Vec<&str> = packed.split('|').collect();
    let [code, id, remaining, word, owner, quantity] = parts[..] else {
        return Ok(corrupt());
    };
    let is_id = |text: &str| (1..=128).contains(&text.len()) && text.bytes().all(is_id_byte);
    let code = number(Some(&code.to_owned())).and_then(|code| Code::try_from(code).ok());
    let remaining = number(Some(&remaining.to_owned()));
    let units = number(Some(&quantity.to_owned())).filter(|units| *units > 0);
    let (Some(code), Some(remaining), Some(units)) = (code, remaining, units) else {
        return Ok(corrupt());
    };
    let sound = match code {
        Code::Accepted => is_id(id) && word == "QUEUED",
        Code::UserAlreadyReserved => is_id(id) && word.is_empty(),
        other => other.is_cached_refusal() && id.is_empty() && word.is_empty(),
    };
    if !sound || !is_id(owner) {
        return Ok(corrupt());
    }
    if owner != call.call.user_id.as_str() || units != call.quantity {
        return Ok(answer(Code::RequestIdConflict));
    }
    let first = ReserveReply {
        code,
        reservation_id: ReservationId::parse(id).ok(),
        remaining: remaining.unsigned_abs(),
        status: ReplyStatus::None,
        replay: true,
    };
    if code != Code::Accepted {
        return Ok(first);
    }
    let held = hash(dump, &call.reservation_key)?;
    let compared = [
        "reservation_id",
        "request_id",
        "user_id",
        "quantity",
        "status",
    ];
    if compared.iter().all(|field| !held.contains_key(*field)) {
        return Ok(because(Code::InvariantViolation, "RESERVATION_MISSING"));
    }
    Ok(match compare(call, &held) {
        Ok(_) if id != call.call.reservation_id.as_str() => answer(Code::ReservationIdConflict),
        Ok(status) => ReserveReply {
            status: ReplyStatus::Status(status),
            ..first
        },
        Err(refusal) => refusal,
    })
}

/// Whether a reservation is this very request's, and where it stands.
fn compare(call: &Call<'_>, held: &Fields) -> Result<ReservationStatus, ReserveReply> {
    let corrupt = because(Code::InvariantViolation, "CORRUPTED_RESERVATION");
    let status = held.get("status").and_then(|word| word.parse().ok());
    let expected = [
        ("reservation_id", call.call.reservation_id.to_string()),
        ("request_id", call.call.request_id.to_string()),
        ("user_id", call.call.user_id.to_string()),
        ("quantity", call.quantity.to_string()),
    ];
    if expected.iter().any(|(field, _)| !held.contains_key(*field)) {
        return Err(corrupt);
    }
    let status = status.ok_or(corrupt)?;
    if expected.iter().any(|(field, value)| held[*field] != *value) {
        return Err(answer(Code::ReservationIdConflict));
    }
    Ok(status)
}

/// The fields of meta that a reservation depends on.
const READ: [&str; 9] = [
    "activity_id",
    "sku_id",
    "bucket_id",
    "version",
    "state",
    "starts_at_ms",
    "ends_at_ms",
    "retention_until_ms",
    "recovery",
];

struct Meta {
    fields: Fields,
    starts: i64,
    ends: i64,
    retention: i64,
    window: bool,
}

impl Meta {
    fn read(dump: &Dump, call: &Call<'_>) -> Result<Result<Self, ReserveReply>, Damaged> {
        let fields = hash(dump, &call.call.keys.meta())?;
        if READ.iter().all(|field| !fields.contains_key(*field)) {
            return Ok(Err(because(Code::ConfigMissing, "CONFIG_MISSING")));
        }
        let violation = |detail| Ok(Err(because(Code::InvariantViolation, detail)));
        let bucket = call.call.keys.scope();
        let scope = [
            ("activity_id", bucket.scope.activity_id.to_string()),
            ("sku_id", bucket.scope.sku_id.to_string()),
            ("bucket_id", bucket.bucket_id.to_string()),
        ];
        if scope
            .iter()
            .any(|(field, value)| fields.get(*field) != Some(value))
        {
            return violation("META_SCOPE_MISMATCH");
        }
        let times = ["starts_at_ms", "ends_at_ms", "retention_until_ms"];
        let [Some(starts), Some(ends), Some(retention)] =
            times.map(|field| number(fields.get(field)))
        else {
            return violation("INVALID_META_TIME");
        };
        if starts > ends || call.now >= retention {
            return violation("INVALID_META_TIME");
        }
        let recovery = fields
            .get("recovery")
            .map(String::as_str)
            .unwrap_or_default();
        let window = match recovery {
            "" => call.call.assume_window,
            "window" => true,
            "rebuild" => return Ok(Err(because(Code::ConfigMissing, "REBUILDING"))),
            _ => return violation("INVALID_META_RECOVERY"),
        };
        Ok(Ok(Self {
            fields,
            starts,
            ends,
            retention,
            window,
        }))
    }
}

/// The counters: missing, contradictory, or (available, reserved).
enum Stock {
    Missing,
    Broken,
    Sound { available: i64, reserved: i64 },
}

impl Stock {
    fn read(dump: &Dump, call: &Call<'_>) -> Result<Self, Damaged> {
        let fields = hash(dump, &call.call.keys.stock())?;
        let names = ["initial", "available", "reserved"];
        if names.iter().any(|field| !fields.contains_key(*field)) {
            return Ok(Self::Missing);
        }
        Ok(match names.map(|field| number(fields.get(field))) {
            [Some(initial), Some(available), Some(reserved)] if initial == available + reserved => {
                Self::Sound {
                    available,
                    reserved,
                }
            }
            _ => Self::Broken,
        })
    }

    /// What a refusal says is left.
    const fn left(&self) -> i64 {
        match self {
            Self::Sound { available, .. } => *available,
            Self::Missing | Self::Broken => 0,
        }
    }
}

fn remember(dump: &mut Dump, call: &Call<'_>, meta: &Meta, reply: &ReserveReply) {
    let id = reply
        .reservation_id
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    let word = if reply.code == Code::Accepted {
        "QUEUED"
    } else {
        ""
    };
    let packed = format!(
        "{}|{id}|{}|{word}|{}|{}",
        reply.code.code(),
        reply.remaining,
        call.call.user_id.as_str(),
        call.quantity
    );
    let field = call.call.request_id.as_str();
    set_fields(dump, &call.request_key, &[(field, packed)], meta.retention);
    ensure_expiry(dump, &call.request_key, meta.retention);
}

fn existing(
    dump: &mut Dump,
    call: &Call<'_>,
    meta: &Meta,
    held: &Fields,
) -> Result<ReserveReply, Damaged> {
    let status = match compare(call, held) {
        Ok(status) => status,
        Err(refusal) => return Ok(refusal),
    };
    let left = Stock::read(dump, call)?.left();
    let reply = ReserveReply {
        code: Code::Accepted,
        reservation_id: Some(call.call.reservation_id.clone()),
        remaining: left.unsigned_abs(),
        status: ReplyStatus::Status(status),
        replay: true,
    };
    remember(dump, call, meta, &reply);
    Ok(reply)
}

fn fresh(dump: &mut Dump, call: &Call<'_>, meta: &Meta) -> Result<ReserveReply, Damaged> {
    let arguments = call.call;
    let stock = Stock::read(dump, call)?;
    // 5
    let marker = text(dump, &arguments.keys.user(arguments.user_id))?;
    if let Some(marker) = marker {
        return match ReservationId::parse(marker) {
            Ok(id) => refuse(
                dump,
                call,
                meta,
                &stock,
                Code::UserAlreadyReserved,
                Some(id),
            ),
            Err(_) => Ok(because(Code::InvariantViolation, "CORRUPTED_USER_MARKER")),
        };
    }
    // 6
    let version = arguments.keys.scope().scope.version.to_string();
    let refusal = if meta.fields.get("version") != Some(&version) {
        Some(Code::VersionMismatch)
    } else if call.now < meta.starts {
        Some(Code::ActivityNotStarted)
    } else if call.now > meta.ends {
        Some(Code::ActivityEnded)
    } else if meta.fields.get("state").map(String::as_str) != Some("ACTIVE") {
        Some(Code::ActivityNotActive)
    } else {
        None
    };
    if let Some(code) = refusal {
        return refuse(dump, call, meta, &stock, code, None);
    }
    // 7
    let (available, reserved) = match stock {
        Stock::Missing => return Ok(because(Code::ConfigMissing, "STOCK_CONFIG_MISSING")),
        Stock::Broken => {
            return Ok(because(
                Code::InvariantViolation,
                "STOCK_INVARIANT_VIOLATION",
            ));
        }
        Stock::Sound {
            available,
            reserved,
        } => (available, reserved),
    };
    // 8
    if available < call.quantity {
        return refuse(dump, call, meta, &stock, Code::SoldOut, None);
    }
    // 9
    if call.now + arguments.reservation_ttl_ms >= meta.retention {
        return Ok(because(Code::BadArgument, "RESERVATION_TTL_TOO_LONG"));
    }
    accept(dump, call, meta, available, reserved)
}

fn refuse(
    dump: &mut Dump,
    call: &Call<'_>,
    meta: &Meta,
    stock: &Stock,
    code: Code,
    reservation_id: Option<ReservationId>,
) -> Result<ReserveReply, Damaged> {
    if meta.window && call.call.repeat {
        return Ok(because(Code::OutcomeUnknown, "RECOVERY_WINDOW"));
    }
    let reply = ReserveReply {
        reservation_id,
        remaining: stock.left().unsigned_abs(),
        ..answer(code)
    };
    let soldout = call.call.keys.soldout();
    let marks = code == Code::SoldOut && stock.left() == 0;
    let marked = if marks {
        text(dump, &soldout)?.is_some()
    } else {
        false
    };
    let remembered = hash(dump, &call.request_key)?.len();
    if remembered < call.call.negative_cache_max as usize {
        remember(dump, call, meta, &reply);
    }
    if marks && !marked {
        set_text(dump, &soldout, "1", meta.retention);
    }
    Ok(reply)
}

fn accept(
    dump: &mut Dump,
    call: &Call<'_>,
    meta: &Meta,
    available: i64,
    reserved: i64,
) -> Result<ReserveReply, Damaged> {
    let arguments = call.call;
    let keys = arguments.keys;
    let id = arguments.reservation_id;
    let (pending, expiry, soldout) = (
        keys.send_pending(),
        keys.reservation_expiry(),
        keys.soldout(),
    );
    members(dump, &pending)?;
    members(dump, &expiry)?;
    let marked = text(dump, &soldout)?.is_some();
    let remaining = available - call.quantity;
    let expires = call.now + arguments.reservation_ttl_ms;
    set_text(
        dump,
        &keys.user(arguments.user_id),
        id.as_str(),
        meta.retention,
    );
    let scope = &keys.scope().scope;
    let fields = [
        ("reservation_id", id.to_string()),
        ("request_id", arguments.request_id.to_string()),
        ("message_id", MessageId::of(id).to_string()),
        ("activity_id", scope.activity_id.to_string()),
        ("sku_id", scope.sku_id.to_string()),
        ("user_id", arguments.user_id.to_string()),
        ("activity_version", scope.version.to_string()),
        ("bucket_id", keys.scope().bucket_id.to_string()),
        ("quantity", call.quantity.to_string()),
        ("status", "RESERVED".to_owned()),
        ("reserved_at_ms", call.now.to_string()),
        ("expires_at_ms", expires.to_string()),
        ("updated_at_ms", call.now.to_string()),
        ("send_attempts", "0".to_owned()),
        ("schema_version", "1".to_owned()),
        (
            "traceparent",
            arguments
                .traceparent
                .map(ToString::to_string)
                .unwrap_or_default(),
        ),
    ];
    set_fields(dump, &call.reservation_key, &fields, meta.retention);
    let first_send = call.now + arguments.first_send_grace_ms;
    add_member(dump, &pending, id.as_str(), first_send, meta.retention);
    add_member(dump, &expiry, id.as_str(), expires, meta.retention);
    let reply = ReserveReply {
        code: Code::Accepted,
        reservation_id: Some(id.clone()),
        remaining: remaining.unsigned_abs(),
        status: ReplyStatus::Queued,
        replay: false,
    };
    remember(dump, call, meta, &reply);
    let counters = [
        ("available", remaining.to_string()),
        ("reserved", (reserved + call.quantity).to_string()),
    ];
    set_fields(dump, &keys.stock(), &counters, 0);
    if remaining == 0 && !marked {
        set_text(dump, &soldout, "1", meta.retention);
    }
    Ok(reply)
}
