//! `write_tombstone`: records the end of a reservation that Redis lost, so that a repeat finds it.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{
    OrderId, Quantity, RequestId, ReservationId, ReservationStatus, TimestampMs, TombstoneCode,
    Traceparent, UserId,
};

use super::lost::{LOST_ARGS, Lost};
use super::{Kind, Script, elements, integer, optional, override_arg, status, text};
use crate::{Error, Redis};

const WHAT: &str = "tombstone reply";

/// A reservation that holds nothing any more, as PostgreSQL knows it.
#[derive(Debug, Clone, Copy)]
pub struct WriteTombstone<'a> {
    /// The bucket that held it.
    pub keys: &'a BucketKeys,
    /// Its id.
    pub reservation_id: &'a ReservationId,
    /// The request that took it.
    pub request_id: &'a RequestId,
    /// Who held it.
    pub user_id: &'a UserId,
    /// Units that it held.
    pub quantity: Quantity,
    /// When Redis accepted it.
    pub reserved_at_ms: TimestampMs,
    /// The purchase's trace.
    pub traceparent: Option<&'a Traceparent>,
    /// How it ended.
    pub end: TombstoneEnd<'a>,
    /// A clock for tests; `None` asks Redis.
    pub now_override: Option<TimestampMs>,
}

/// How a reservation ended. Never `REJECTED`: that one counts as holding units.
#[derive(Debug, Clone, Copy)]
pub enum TombstoneEnd<'a> {
    /// PostgreSQL rejected or released it.
    Released {
        /// Why, for the record.
        reason: &'a str,
    },
    /// It was ordered, and the order was cancelled.
    OrderCancelled {
        /// The order.
        order_id: &'a OrderId,
    },
}

/// What the script did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TombstoneReply {
    /// The result.
    pub code: TombstoneCode,
    /// Where the reservation stands now, if it is there.
    pub status: Option<ReservationStatus>,
    /// What is missing or contradicts itself, else empty.
    pub detail: String,
}

impl Script for WriteTombstone<'_> {
    type Reply = TombstoneReply;
    const KIND: Kind = Kind::WriteTombstone;
    const KEYS: usize = 7;
    const ARGS: usize = LOST_ARGS + 2;

    fn keys(&self, out: &mut Vec<Value>) {
        out.extend([
            self.keys.meta().into(),
            self.keys.stock().into(),
            self.keys.request(self.request_id).into(),
            self.keys.user(self.user_id).into(),
            self.keys.reservation(self.reservation_id).into(),
            self.keys.send_pending().into(),
            self.keys.reservation_expiry().into(),
        ]);
    }

    fn args(&self, out: &mut Vec<Value>) {
        let (order_id, reason) = match self.end {
            TombstoneEnd::Released { reason } => (None, Some(reason)),
            TombstoneEnd::OrderCancelled { order_id } => (Some(order_id), None),
        };
        let lost = Lost {
            reservation_id: self.reservation_id,
            request_id: self.request_id,
            user_id: self.user_id,
            quantity: self.quantity,
            order_id,
            reserved_at_ms: self.reserved_at_ms,
            traceparent: self.traceparent,
        };
        lost.args(self.keys, out);
        out.extend([override_arg(self.now_override), optional(reason)]);
    }

    fn parse(reply: Value) -> Result<TombstoneReply, Error> {
        let mut reply = elements(WHAT, reply, 3)?.into_iter();
        let mut next = || reply.next().unwrap_or(Value::Null);
        Ok(TombstoneReply {
            code: TombstoneCode::try_from(integer(WHAT, &next())?)
                .map_err(|error| Error::malformed(WHAT, error.to_string()))?,
            status: status(WHAT, next())?,
            detail: text(WHAT, next())?,
        })
    }
}

impl Redis {
    /// Records the end of a lost reservation; a second call changes nothing.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn write_tombstone(
        &self,
        call: &WriteTombstone<'_>,
    ) -> Result<TombstoneReply, Error> {
        self.run(call, call.keys).await
    }
}
