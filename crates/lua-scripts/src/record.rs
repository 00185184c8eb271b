//! What the hashes hold, as types. A field that is missing or malformed is an error that names it,
//! never a default: the audit must see damage.

use std::collections::HashMap;
use std::str::FromStr;

use fred::types::Value;
use seckill_state_machine::invariants::StockCounters;
use seckill_state_machine::{
    ActivityId, ActivityState, ActivityVersion, BucketCount, BucketId, BucketScope, MessageId,
    OrderId, OrderRequest, Quantity, RequestId, ReservationId, ReservationStatus, ReserveCode,
    Scope, SkuId, TimestampMs, Traceparent, UserId,
};

use crate::Error;

/// The longest number that scripts compute with, in digits: below 2^53, so that Lua does it exactly.
const DIGITS_MAX: usize = 15;

/// The longest version, in digits: it goes up to 2^53 - 1, and no script computes with it.
const VERSION_DIGITS_MAX: usize = 16;

/// A hash as it was read.
pub(crate) struct Fields {
    what: &'static str,
    map: HashMap<String, String>,
}

impl Fields {
    /// Reads HGETALL's answer, as a flat array of the older or a map of the newer protocol.
    pub(crate) fn from_pairs(what: &'static str, reply: Value) -> Result<Self, Error> {
        let map = reply
            .convert()
            .map_err(|error| Error::malformed(what, error.to_string()))?;
        Ok(Self { what, map })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    fn broken(&self, field: &str, problem: &str) -> Error {
        Error::malformed(self.what, format!("{field} {problem}"))
    }

    fn get(&self, field: &str) -> Option<&str> {
        self.map
            .get(field)
            .map(String::as_str)
            .filter(|text| !text.is_empty())
    }

    fn optional<T: FromStr>(&self, field: &str) -> Result<Option<T>, Error> {
        self.get(field)
            .map(|text| text.parse().map_err(|_| self.broken(field, "is malformed")))
            .transpose()
    }

    fn required<T: FromStr>(&self, field: &str) -> Result<T, Error> {
        self.optional(field)?
            .ok_or_else(|| self.broken(field, "is missing"))
    }

    fn number(&self, field: &str) -> Result<u64, Error> {
        self.digits(field, DIGITS_MAX)
    }

    fn digits(&self, field: &str, digits_max: usize) -> Result<u64, Error> {
        let text = self
            .get(field)
            .ok_or_else(|| self.broken(field, "is missing"))?;
        canonical(text, digits_max).ok_or_else(|| self.broken(field, "is no canonical number"))
    }

    fn version(&self, field: &str) -> Result<ActivityVersion, Error> {
        ActivityVersion::new(self.digits(field, VERSION_DIGITS_MAX)?)
            .map_err(|_| self.broken(field, "is out of range"))
    }

    fn number_or_zero(&self, field: &str) -> Result<u64, Error> {
        match self.get(field) {
            None => Ok(0),
            Some(_) => self.number(field),
        }
    }

    fn in_range<T: TryFrom<N>, N: TryFrom<u64>>(&self, field: &str) -> Result<T, Error> {
        let number = self.number(field)?;
        N::try_from(number)
            .ok()
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| self.broken(field, "is out of range"))
    }

    fn time(&self, field: &str) -> Result<TimestampMs, Error> {
        let ms = self.number(field)?;
        // At most 15 digits, so it fits.
        Ok(TimestampMs::new(i64::try_from(ms).unwrap_or(i64::MAX)))
    }

    fn optional_time(&self, field: &str) -> Result<Option<TimestampMs>, Error> {
        self.get(field).map(|_| self.time(field)).transpose()
    }

    fn scope(&self, version: &str) -> Result<BucketScope, Error> {
        let scope = Scope {
            activity_id: self.required::<ActivityId>("activity_id")?,
            sku_id: self.required::<SkuId>("sku_id")?,
            version: self.version(version)?,
        };
        Ok(scope.bucket(self.in_range::<BucketId, u32>("bucket_id")?))
    }
}

/// A non-negative integer without sign, blanks, exponent or leading zeros.
fn canonical(text: &str, digits_max: usize) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = text == "0" || !text.starts_with('0');
    (digits && plain && (1..=digits_max).contains(&text.len()))
        .then(|| text.parse().ok())
        .flatten()
}

/// One reservation, as its hash holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationRecord {
    /// Its id.
    pub reservation_id: ReservationId,
    /// The request that took it.
    pub request_id: RequestId,
    /// The id that its order request travels under.
    pub message_id: MessageId,
    /// Who holds it.
    pub user_id: UserId,
    /// Where it is held.
    pub bucket: BucketScope,
    /// Units held.
    pub quantity: Quantity,
    /// Where it stands.
    pub status: ReservationStatus,
    /// When it was accepted.
    pub reserved_at_ms: TimestampMs,
    /// When it must be checked if it is still open.
    pub expires_at_ms: TimestampMs,
    /// When its state last moved.
    pub updated_at_ms: TimestampMs,
    /// The order that it became.
    pub order_id: Option<OrderId>,
    /// Why it was rejected.
    pub error_code: Option<String>,
    /// Why it was released.
    pub release_reason: Option<String>,
    /// When it was released.
    pub released_at_ms: Option<TimestampMs>,
    /// How often the scanner claimed it for sending.
    pub send_attempts: u64,
    /// The schema it was written in.
    pub schema_version: u64,
    /// The purchase's trace. A damaged one is dropped: a trace is no reason to lose a purchase.
    pub traceparent: Option<Traceparent>,
}

impl ReservationRecord {
    pub(crate) fn read(fields: &Fields) -> Result<Self, Error> {
        Ok(Self {
            reservation_id: fields.required("reservation_id")?,
            request_id: fields.required("request_id")?,
            message_id: fields.required("message_id")?,
            user_id: fields.required("user_id")?,
            bucket: fields.scope("activity_version")?,
            quantity: fields.in_range::<Quantity, u32>("quantity")?,
            status: fields.required("status")?,
            reserved_at_ms: fields.time("reserved_at_ms")?,
            expires_at_ms: fields.time("expires_at_ms")?,
            updated_at_ms: fields.time("updated_at_ms")?,
            order_id: fields.optional("order_id")?,
            error_code: fields.optional("error_code")?,
            release_reason: fields.optional("release_reason")?,
            released_at_ms: fields.optional_time("released_at_ms")?,
            send_attempts: fields.number_or_zero("send_attempts")?,
            schema_version: fields.number("schema_version")?,
            traceparent: fields
                .get("traceparent")
                .and_then(|text| Traceparent::parse(text).ok()),
        })
    }

    /// The order request that this reservation stands for; the same for every send.
    #[must_use]
    pub fn order_request(&self) -> OrderRequest {
        OrderRequest {
            reservation_id: self.reservation_id.clone(),
            request_id: self.request_id.clone(),
            user_id: self.user_id.clone(),
            bucket: self.bucket.clone(),
            quantity: self.quantity,
            reserved_at_ms: self.reserved_at_ms,
            traceparent: self.traceparent.clone(),
        }
    }
}

/// Whether a bucket is being brought back to agreement with PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Business as usual.
    None,
    /// After a failover: a marked repeat that would freshly be refused has an unknown outcome.
    Window,
    /// After a total loss: nothing is sold until an operator has rebuilt the bucket.
    Rebuild,
}

impl Recovery {
    /// The word that meta keeps.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Window => "window",
            Self::Rebuild => "rebuild",
        }
    }
}

impl FromStr for Recovery {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "window" => Ok(Self::Window),
            "rebuild" => Ok(Self::Rebuild),
            _ => Err(()),
        }
    }
}

/// A bucket's copy of its activity's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// What it describes.
    pub bucket: BucketScope,
    /// Where the activity stands.
    pub state: ActivityState,
    /// First instant of the sale, inclusive.
    pub starts_at_ms: TimestampMs,
    /// Last instant of the sale, inclusive.
    pub ends_at_ms: TimestampMs,
    /// When the version's keys expire.
    pub retention_until_ms: TimestampMs,
    /// Buckets of the version.
    pub bucket_count: BucketCount,
    /// Units a user may hold.
    pub limit_per_user: u32,
    /// Most units one call may ask for.
    pub max_quantity: Quantity,
    /// From acceptance to the check of an open reservation, in milliseconds.
    pub reservation_ttl_ms: i64,
    /// Which HMAC secret derives reservation ids.
    pub secret_version: u32,
    /// Whether the bucket is in recovery.
    pub recovery: Recovery,
    /// The schema it was written in.
    pub schema_version: u64,
}

impl Meta {
    pub(crate) fn read(fields: &Fields) -> Result<Self, Error> {
        Ok(Self {
            bucket: fields.scope("version")?,
            state: fields.required("state")?,
            starts_at_ms: fields.time("starts_at_ms")?,
            ends_at_ms: fields.time("ends_at_ms")?,
            retention_until_ms: fields.time("retention_until_ms")?,
            bucket_count: fields.in_range::<BucketCount, u32>("bucket_count")?,
            limit_per_user: fields.in_range::<u32, u32>("limit_per_user")?,
            max_quantity: fields.in_range::<Quantity, u32>("max_quantity")?,
            reservation_ttl_ms: fields.in_range::<i64, i64>("reservation_ttl_ms")?,
            secret_version: fields.in_range::<u32, u32>("secret_version")?,
            recovery: fields.optional("recovery")?.unwrap_or(Recovery::None),
            schema_version: fields.number("schema_version")?,
        })
    }
}

/// A bucket's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stock {
    /// What is given, for sale and held.
    pub counters: StockCounters,
    /// Units ever put back on sale.
    pub released_total: u64,
}

impl Stock {
    pub(crate) fn read(fields: &Fields) -> Result<Self, Error> {
        Ok(Self {
            counters: StockCounters {
                initial: fields.number("initial")?,
                available: fields.number("available")?,
                reserved: fields.number("reserved")?,
            },
            released_total: fields.number_or_zero("released_total")?,
        })
    }
}

/// A remembered answer: `code|reservation_id|remaining|status|user_id|quantity`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedResult {
    /// The first answer's code.
    pub code: ReserveCode,
    /// The reservation it named.
    pub reservation_id: Option<ReservationId>,
    /// Units that were left then.
    pub remaining: u64,
    /// Whose request it was.
    pub user_id: UserId,
    /// For how many units.
    pub quantity: Quantity,
}

impl FromStr for CachedResult {
    type Err = Error;
    fn from_str(packed: &str) -> Result<Self, Error> {
        let broken = |field: &str| Error::malformed("cached result", format!("{field} is broken"));
        let parts: [&str; 6] = packed
            .split('|')
            .collect::<Vec<_>>()
            .try_into()
            .map_err(|_| broken("field count"))?;
        let [code, reservation_id, remaining, word, user_id, quantity] = parts;
        let code: i64 = code.parse().map_err(|_| broken("code"))?;
        let code = ReserveCode::try_from(code).map_err(|_| broken("code"))?;
        let accepted = code == ReserveCode::Accepted;
        if !accepted && !code.is_cached_refusal() {
            return Err(broken("code"));
        }
        if word != if accepted { "QUEUED" } else { "" } {
            return Err(broken("status"));
        }
        let names_one = accepted || code == ReserveCode::UserAlreadyReserved;
        if names_one == reservation_id.is_empty() {
            return Err(broken("reservation_id"));
        }
        let quantity = canonical(quantity, DIGITS_MAX).and_then(|units| u32::try_from(units).ok());
        Ok(Self {
            code,
            reservation_id: (!reservation_id.is_empty())
                .then(|| ReservationId::parse(reservation_id))
                .transpose()
                .map_err(|_| broken("reservation_id"))?,
            remaining: canonical(remaining, DIGITS_MAX).ok_or_else(|| broken("remaining"))?,
            user_id: UserId::parse(user_id).map_err(|_| broken("user_id"))?,
            quantity: quantity
                .and_then(|units| Quantity::new(units).ok())
                .ok_or_else(|| broken("quantity"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_must_be_canonical() {
        let canonical = |text| canonical(text, DIGITS_MAX);
        assert_eq!(canonical("0"), Some(0));
        assert_eq!(canonical("999999999999999"), Some(999_999_999_999_999));
        for bad in [
            "",
            "00",
            "01",
            "-1",
            "+1",
            " 1",
            "1e3",
            "0x1",
            "1.0",
            "nan",
            "1000000000000000",
        ] {
            assert_eq!(canonical(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_version_may_be_as_long_as_it_can_be_created() {
        let version = |text: &str| {
            let map = HashMap::from([("version".to_owned(), text.to_owned())]);
            let fields = Fields { what: "meta", map };
            fields.version("version").ok().map(ActivityVersion::get)
        };
        assert_eq!(version("9007199254740991"), Some(9_007_199_254_740_991));
        for bad in ["9007199254740992", "10000000000000000", "0", "01", ""] {
            assert_eq!(version(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_cached_result_is_read_whole_or_not_at_all() {
        let accepted: CachedResult = "0|abcdefghijklmnopqrstuvwx27|9|QUEUED|u1|1"
            .parse()
            .unwrap();
        assert_eq!(accepted.code, ReserveCode::Accepted);
        assert_eq!(accepted.remaining, 9);
        let refused: CachedResult = "15||0||u1|2".parse().unwrap();
        assert_eq!(refused.reservation_id, None);
        for bad in [
            "",
            "abc|x|y|z|u1|1",
            "0|x|9|QUEUED",
            "15||1e3||u1|1",
            "15||0||u1|1|x",
        ] {
            assert!(bad.parse::<CachedResult>().is_err(), "{bad}");
        }
    }
}
