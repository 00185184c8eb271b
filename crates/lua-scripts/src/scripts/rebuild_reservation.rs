//! `rebuild_reservation`: brings an ordered reservation back that Redis lost.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{RebuildCode, ReservationStatus, TimestampMs};

use super::lost::LOST_ARGS;
use super::{Kind, OrderedReservation, Script, elements, integer, override_arg, status, text};
use crate::{Error, Redis};

const WHAT: &str = "rebuild reply";

/// What the script says when it left a marker that names another reservation.
const MARKER_KEPT: &str = "MARKER_KEPT";

/// A reservation whose order PostgreSQL holds as active.
#[derive(Debug, Clone, Copy)]
pub struct RebuildReservation<'a> {
    /// The bucket that held it.
    pub keys: &'a BucketKeys,
    /// What PostgreSQL knows of it.
    pub order: OrderedReservation<'a>,
    /// A clock for tests; `None` asks Redis.
    pub now_override: Option<TimestampMs>,
}

/// What the script did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildReply {
    /// The result.
    pub code: RebuildCode,
    /// Where the reservation stands now, if it is there.
    pub status: Option<ReservationStatus>,
    /// Rebuilt, but the user's marker names another reservation: see [`crate::RepairMarker`].
    pub marker_kept: bool,
    /// What is missing or contradicts itself, else empty.
    pub detail: String,
}

impl Script for RebuildReservation<'_> {
    type Reply = RebuildReply;
    const KIND: Kind = Kind::RebuildReservation;
    const KEYS: usize = 8;
    const ARGS: usize = LOST_ARGS + 1;

    fn keys(&self, out: &mut Vec<Value>) {
        out.extend([
            self.keys.meta().into(),
            self.keys.stock().into(),
            self.keys.request(self.order.request_id).into(),
            self.keys.user(self.order.user_id).into(),
            self.keys.reservation(self.order.reservation_id).into(),
            self.keys.send_pending().into(),
            self.keys.reservation_expiry().into(),
            self.keys.soldout().into(),
        ]);
    }

    fn args(&self, out: &mut Vec<Value>) {
        self.order.lost().args(self.keys, out);
        out.push(override_arg(self.now_override));
    }

    fn parse(reply: Value) -> Result<RebuildReply, Error> {
        let mut reply = elements(WHAT, reply, 3)?.into_iter();
        let mut next = || reply.next().unwrap_or(Value::Null);
        let code = RebuildCode::try_from(integer(WHAT, &next())?)
            .map_err(|error| Error::malformed(WHAT, error.to_string()))?;
        let status = status(WHAT, next())?;
        let detail = text(WHAT, next())?;
        let marker_kept = detail == MARKER_KEPT;
        Ok(RebuildReply {
            code,
            status,
            marker_kept,
            detail: if marker_kept { String::new() } else { detail },
        })
    }
}

impl Redis {
    /// Brings an ordered reservation back, if its units are available; a second call changes nothing.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn rebuild_reservation(
        &self,
        call: &RebuildReservation<'_>,
    ) -> Result<RebuildReply, Error> {
        self.run(call, call.keys).await
    }
}
