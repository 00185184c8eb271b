//! `cancel`: puts the units of a cancelled order back on sale, once.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{
    CancelCode, OrderId, ReservationId, ReservationStatus, TimestampMs, UserId,
};

use super::lost::LOST_ARGS;
use super::{Kind, OrderedReservation, Script, elements, flag, integer, override_arg, status};
use crate::{Error, Redis};

const WHAT: &str = "cancel reply";

/// A cancellation. The caller has made sure that PostgreSQL holds the order as cancelled.
#[derive(Debug, Clone, Copy)]
pub struct Cancel<'a> {
    /// The bucket that holds it.
    pub keys: &'a BucketKeys,
    /// What was ordered.
    pub reservation_id: &'a ReservationId,
    /// Who holds it.
    pub user_id: &'a UserId,
    /// The order, compared with the one on record, if any.
    pub order_id: &'a OrderId,
    /// An ordered reservation of the same bucket that waits for its rebuild, if there is one: the
    /// units go to it if they fit.
    pub waiting: Option<OrderedReservation<'a>>,
    /// A clock for tests; `None` asks Redis.
    pub now_override: Option<TimestampMs>,
}

/// What the script did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CancelReply {
    /// The result.
    pub code: CancelCode,
    /// Where the reservation stands now, if it is there.
    pub status: Option<ReservationStatus>,
    /// Whether the waiting reservation was rebuilt from the units.
    pub rebuilt: bool,
}

impl Script for Cancel<'_> {
    type Reply = CancelReply;
    const KIND: Kind = Kind::Cancel;
    const KEYS: usize = 10;
    const ARGS: usize = 4 + LOST_ARGS;

    fn keys(&self, out: &mut Vec<Value>) {
        out.extend([
            self.keys.stock().into(),
            self.keys.user(self.user_id).into(),
            self.keys.reservation(self.reservation_id).into(),
            self.keys.send_pending().into(),
            self.keys.reservation_expiry().into(),
            self.keys.soldout().into(),
        ]);
        if let Some(waiting) = &self.waiting {
            waiting.waiting_keys(self.keys, out);
        }
    }

    fn args(&self, out: &mut Vec<Value>) {
        out.extend([
            self.reservation_id.as_str().into(),
            self.order_id.as_str().into(),
            override_arg(self.now_override),
            self.user_id.as_str().into(),
        ]);
        if let Some(waiting) = &self.waiting {
            waiting.lost().args(self.keys, out);
        }
    }

    fn parse(reply: Value) -> Result<CancelReply, Error> {
        let mut reply = elements(WHAT, reply, 3)?.into_iter();
        let (code, word, rebuilt) = (reply.next(), reply.next(), reply.next());
        Ok(CancelReply {
            code: CancelCode::try_from(integer(WHAT, &code.unwrap_or(Value::Null))?)
                .map_err(|error| Error::malformed(WHAT, error.to_string()))?,
            status: status(WHAT, word.unwrap_or(Value::Null))?,
            rebuilt: flag(WHAT, &rebuilt.unwrap_or(Value::Null))?,
        })
    }
}

impl Redis {
    /// Cancels a reservation; a second call changes nothing and says so.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn cancel(&self, call: &Cancel<'_>) -> Result<CancelReply, Error> {
        self.run(call, call.keys).await
    }
}
