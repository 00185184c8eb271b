//! `transition_reservation`: compare and set of a reservation's state; never touches stock.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{
    MessageId, OrderId, ReservationId, ReservationStatus, TimestampMs, TransitionCode,
};

use super::{Kind, Script, elements, integer, optional, override_arg, status};
use crate::{Error, Redis};

const WHAT: &str = "transition reply";

/// One step of a reservation's life.
#[derive(Debug, Clone, Copy)]
pub struct Transition<'a> {
    /// The bucket that holds it.
    pub keys: &'a BucketKeys,
    /// What moves.
    pub reservation_id: &'a ReservationId,
    /// Where to.
    pub target: ReservationStatus,
    /// When to send again; only for `SEND_UNKNOWN`, which needs it.
    pub next_retry_at_ms: Option<TimestampMs>,
    /// The message that it is about, compared with the one on record.
    pub message_id: Option<&'a MessageId>,
    /// The order that it became, compared with the one on record, if any.
    pub order_id: Option<&'a OrderId>,
    /// Why, for the record.
    pub error_code: Option<&'a str>,
    /// A clock for tests; `None` asks Redis.
    pub now_override: Option<TimestampMs>,
}

/// What the script did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransitionReply {
    /// The result.
    pub code: TransitionCode,
    /// Where the reservation stands now, if it is there.
    pub status: Option<ReservationStatus>,
}

impl Script for Transition<'_> {
    type Reply = TransitionReply;
    const KIND: Kind = Kind::Transition;
    const KEYS: usize = 3;
    const ARGS: usize = 7;

    fn keys(&self, out: &mut Vec<Value>) {
        out.extend([
            self.keys.reservation(self.reservation_id).into(),
            self.keys.send_pending().into(),
            self.keys.reservation_expiry().into(),
        ]);
    }

    fn args(&self, out: &mut Vec<Value>) {
        out.extend([
            self.reservation_id.as_str().into(),
            self.target.as_str().into(),
            override_arg(self.now_override),
            self.next_retry_at_ms
                .map_or_else(|| "".into(), |at| Value::Integer(at.get())),
            optional(self.message_id.map(MessageId::as_str)),
            optional(self.order_id.map(OrderId::as_str)),
            optional(self.error_code),
        ]);
    }

    fn parse(reply: Value) -> Result<TransitionReply, Error> {
        let mut reply = elements(WHAT, reply, 2)?.into_iter();
        let (code, word) = (reply.next(), reply.next());
        Ok(TransitionReply {
            code: TransitionCode::try_from(integer(WHAT, &code.unwrap_or(Value::Null))?)
                .map_err(|error| Error::malformed(WHAT, error.to_string()))?,
            status: status(WHAT, word.unwrap_or(Value::Null))?,
        })
    }
}

impl Redis {
    /// Moves a reservation one step.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn transition(&self, call: &Transition<'_>) -> Result<TransitionReply, Error> {
        self.run(call, call.keys).await
    }
}
