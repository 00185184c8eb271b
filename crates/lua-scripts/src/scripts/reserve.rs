//! `reserve`: decides who gets units.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{
    MessageId, Quantity, RequestId, ReservationId, ReservationStatus, ReserveCode, SCHEMA_VERSION,
    TimestampMs, Traceparent, UserId,
};

use super::{Kind, Script, elements, integer, optional, override_arg, text};
use crate::{Error, Redis};

const WHAT: &str = "reserve reply";

/// The word for every state of a fresh acceptance.
const QUEUED: &str = "QUEUED";

/// A buyer's attempt.
#[derive(Debug, Clone, Copy)]
pub struct Reserve<'a> {
    /// The user's bucket.
    pub keys: &'a BucketKeys,
    /// The caller's idempotency key.
    pub request_id: &'a RequestId,
    /// The id that this request derives.
    pub reservation_id: &'a ReservationId,
    /// The buyer.
    pub user_id: &'a UserId,
    /// Units wanted.
    pub quantity: Quantity,
    /// Most units that one call may ask for.
    pub max_quantity: Quantity,
    /// From acceptance to the check of a reservation that is still open, in milliseconds.
    pub reservation_ttl_ms: i64,
    /// How long the scanner leaves the first send to the front, in milliseconds.
    pub first_send_grace_ms: i64,
    /// Refusals are remembered only while their shard holds fewer fields.
    pub negative_cache_max: u32,
    /// The purchase's trace.
    pub traceparent: Option<&'a Traceparent>,
    /// The caller says that it may have asked before.
    pub repeat: bool,
    /// The front knows of a recent failover, whatever meta says.
    pub assume_window: bool,
    /// A clock for tests; `None` asks Redis.
    pub now_override: Option<TimestampMs>,
}

/// What the script decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReserveReply {
    /// The decision.
    pub code: ReserveCode,
    /// The reservation: accepted, or the one that the user already holds.
    pub reservation_id: Option<ReservationId>,
    /// Units left after this call, as of the first answer for this request.
    pub remaining: u64,
    /// Where the reservation stands, or why the call failed.
    pub status: ReplyStatus,
    /// Whether this answer was first given to an earlier call.
    pub replay: bool,
}

/// The fourth element of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyStatus {
    /// Nothing to add.
    None,
    /// Freshly accepted.
    Queued,
    /// The live state of a reservation that was accepted before.
    Status(ReservationStatus),
    /// What exactly is wrong, for codes 17 to 21.
    Detail(String),
}

impl Script for Reserve<'_> {
    type Reply = ReserveReply;
    const KIND: Kind = Kind::Reserve;
    const KEYS: usize = 8;
    const ARGS: usize = 18;

    fn keys(&self, out: &mut Vec<Value>) {
        out.extend([
            self.keys.meta().into(),
            self.keys.stock().into(),
            self.keys.request(self.request_id).into(),
            self.keys.user(self.user_id).into(),
            self.keys.reservation(self.reservation_id).into(),
            self.keys.send_pending().into(),
            self.keys.reservation_expiry().into(),
            self.keys.soldout().into(),
        ]);
    }

    fn args(&self, out: &mut Vec<Value>) {
        let bucket = self.keys.scope();
        let message_id = MessageId::of(self.reservation_id);
        out.extend([
            self.request_id.as_str().into(),
            self.reservation_id.as_str().into(),
            bucket.scope.activity_id.as_str().into(),
            bucket.scope.sku_id.as_str().into(),
            self.user_id.as_str().into(),
            bucket.scope.version.to_string().into(),
            Value::Integer(self.reservation_ttl_ms),
            Value::Integer(i64::from(SCHEMA_VERSION)),
            Value::Integer(i64::from(bucket.bucket_id.get())),
            String::from(message_id).into(),
            override_arg(self.now_override),
            Value::Integer(i64::from(self.quantity.get())),
            Value::Integer(i64::from(self.max_quantity.get())),
            Value::Integer(self.first_send_grace_ms),
            Value::Integer(i64::from(self.negative_cache_max)),
            optional(self.traceparent.map(Traceparent::as_str)),
            Value::Integer(i64::from(self.repeat)),
            Value::Integer(i64::from(self.assume_window)),
        ]);
    }

    fn parse(reply: Value) -> Result<ReserveReply, Error> {
        let reply: [Value; 5] = elements(WHAT, reply, 5)?
            .try_into()
            .map_err(|_| Error::malformed(WHAT, "more than 5 elements"))?;
        let [code, reservation_id, remaining, status, replay] = reply;
        let code = ReserveCode::try_from(integer(WHAT, &code)?)
            .map_err(|error| Error::malformed(WHAT, error.to_string()))?;
        let reservation_id = text(WHAT, reservation_id)?;
        let reservation_id = (!reservation_id.is_empty())
            .then(|| ReservationId::parse(reservation_id))
            .transpose()
            .map_err(|error| Error::malformed(WHAT, format!("reservation id {error}")))?;
        let remaining = u64::try_from(integer(WHAT, &remaining)?)
            .map_err(|_| Error::malformed(WHAT, "negative remainder"))?;
        Ok(ReserveReply {
            code,
            reservation_id,
            remaining,
            status: reply_status(text(WHAT, status)?),
            replay: integer(WHAT, &replay)? == 1,
        })
    }
}

fn reply_status(word: String) -> ReplyStatus {
    if word.is_empty() {
        ReplyStatus::None
    } else if word == QUEUED {
        ReplyStatus::Queued
    } else {
        match word.parse() {
            Ok(status) => ReplyStatus::Status(status),
            Err(_) => ReplyStatus::Detail(word),
        }
    }
}

impl Redis {
    /// Tries to take units for a buyer.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn reserve(&self, call: &Reserve<'_>) -> Result<ReserveReply, Error> {
        self.run(call, call.keys).await
    }
}
