//! `compensate`: puts the units of a reservation that will not become an order back on sale, once.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{
    CompensateCode, ReservationId, ReservationStatus, TimestampMs, UserId,
};

use super::lost::LOST_ARGS;
use super::{Kind, OrderedReservation, Script, elements, flag, integer, override_arg, status};
use crate::{Error, Redis};

const WHAT: &str = "compensate reply";

/// A release. The caller has made sure that PostgreSQL can never order it.
#[derive(Debug, Clone, Copy)]
pub struct Compensate<'a> {
    /// The bucket that holds it.
    pub keys: &'a BucketKeys,
    /// What to release.
    pub reservation_id: &'a ReservationId,
    /// Who holds it.
    pub user_id: &'a UserId,
    /// Why, for the record.
    pub release_reason: &'a str,
    /// An ordered reservation of the same bucket that waits for its rebuild, if there is one: the
    /// units go to it if they fit.
    pub waiting: Option<OrderedReservation<'a>>,
    /// A clock for tests; `None` asks Redis.
    pub now_override: Option<TimestampMs>,
}

/// What the script did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompensateReply {
    /// The result.
    pub code: CompensateCode,
    /// Where the reservation stands now, if it is there.
    pub status: Option<ReservationStatus>,
    /// Whether the waiting reservation was rebuilt from the units.
    pub rebuilt: bool,
}

impl Script for Compensate<'_> {
    type Reply = CompensateReply;
    const KIND: Kind = Kind::Compensate;
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
            self.release_reason.into(),
            override_arg(self.now_override),
            self.user_id.as_str().into(),
        ]);
        if let Some(waiting) = &self.waiting {
            waiting.lost().args(self.keys, out);
        }
    }

    fn parse(reply: Value) -> Result<CompensateReply, Error> {
        let mut reply = elements(WHAT, reply, 3)?.into_iter();
        let (code, word, rebuilt) = (reply.next(), reply.next(), reply.next());
        Ok(CompensateReply {
            code: CompensateCode::try_from(integer(WHAT, &code.unwrap_or(Value::Null))?)
                .map_err(|error| Error::malformed(WHAT, error.to_string()))?,
            status: status(WHAT, word.unwrap_or(Value::Null))?,
            rebuilt: flag(WHAT, &rebuilt.unwrap_or(Value::Null))?,
        })
    }
}

impl Redis {
    /// Releases a reservation; a second call changes nothing and says so.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn compensate(&self, call: &Compensate<'_>) -> Result<CompensateReply, Error> {
        self.run(call, call.keys).await
    }
}
