//! `repair_marker`: points a user's marker at their ordered reservation.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{
    RepairMarkerCode, ReservationId, ReservationStatus, TimestampMs, UserId,
};

use super::{Kind, Script, elements, integer, optional, override_arg, status};
use crate::{Error, Redis};

const WHAT: &str = "repair_marker reply";

/// An ordered reservation, and the marker as it was read.
#[derive(Debug, Clone, Copy)]
pub struct RepairMarker<'a> {
    /// The bucket that holds both.
    pub keys: &'a BucketKeys,
    /// The ordered reservation.
    pub reservation_id: &'a ReservationId,
    /// Who ordered.
    pub user_id: &'a UserId,
    /// What [`Redis::marker`] answered.
    pub marker: Option<&'a ReservationId>,
    /// A clock for tests; `None` asks Redis.
    pub now_override: Option<TimestampMs>,
}

/// What the script did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepairMarkerReply {
    /// The result.
    pub code: RepairMarkerCode,
    /// Where the reservation that decided it stands: the ordered one, or for `HELD_BY_ANOTHER` the
    /// one that the marker names.
    pub status: Option<ReservationStatus>,
}

impl Script for RepairMarker<'_> {
    type Reply = RepairMarkerReply;
    const KIND: Kind = Kind::RepairMarker;
    const KEYS: usize = 3;
    const ARGS: usize = 4;

    fn keys(&self, out: &mut Vec<Value>) {
        out.extend([
            self.keys.user(self.user_id).into(),
            self.keys.reservation(self.reservation_id).into(),
        ]);
        if let Some(marker) = self.marker {
            out.push(self.keys.reservation(marker).into());
        }
    }

    fn args(&self, out: &mut Vec<Value>) {
        out.extend([
            self.reservation_id.as_str().into(),
            self.user_id.as_str().into(),
            optional(self.marker.map(ReservationId::as_str)),
            override_arg(self.now_override),
        ]);
    }

    fn parse(reply: Value) -> Result<RepairMarkerReply, Error> {
        let mut reply = elements(WHAT, reply, 2)?.into_iter();
        let mut next = || reply.next().unwrap_or(Value::Null);
        Ok(RepairMarkerReply {
            code: RepairMarkerCode::try_from(integer(WHAT, &next())?)
                .map_err(|error| Error::malformed(WHAT, error.to_string()))?,
            status: status(WHAT, next())?,
        })
    }
}

impl Redis {
    /// Points a user's marker at their ordered reservation, unless it names one that has not ended.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn repair_marker(&self, call: &RepairMarker<'_>) -> Result<RepairMarkerReply, Error> {
        self.run(call, call.keys).await
    }
}
