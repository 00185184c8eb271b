//! `remove_stray`: removes what names a reservation that does not need it.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{RequestId, ReservationId, UserId};

use super::{Kind, Script, elements, integer};
use crate::reads::index_key;
use crate::{Error, Index, Redis};

const WHAT: &str = "remove_stray reply";

/// What is to be removed.
#[derive(Debug, Clone, Copy)]
pub enum Stray<'a> {
    /// A member of an index.
    Member {
        /// The index.
        index: Index,
        /// Its member.
        reservation_id: &'a ReservationId,
    },
    /// A user's marker.
    Marker {
        /// The user.
        user_id: &'a UserId,
        /// What it names.
        reservation_id: &'a ReservationId,
    },
    /// The remembered answer to a request.
    Answer {
        /// The request.
        request_id: &'a RequestId,
        /// The reservation that the request made.
        reservation_id: &'a ReservationId,
    },
    /// The mark that a bucket is sold out.
    SoldOut,
}

/// Something that may be a stray, and its bucket.
#[derive(Debug, Clone, Copy)]
pub struct RemoveStray<'a> {
    /// The bucket that has it.
    pub keys: &'a BucketKeys,
    /// What it is.
    pub stray: Stray<'a>,
}

/// What the script did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoveStrayReply {
    /// It was one, and is gone now.
    Removed,
    /// It was not there.
    Gone,
    /// It is none: something behind it needs it.
    Needed,
}

impl Script for RemoveStray<'_> {
    type Reply = RemoveStrayReply;
    const KIND: Kind = Kind::RemoveStray;
    const KEYS: usize = 2;
    const ARGS: usize = 3;

    fn keys(&self, out: &mut Vec<Value>) {
        let keys = self.keys;
        let (holder, behind) = match self.stray {
            Stray::Member {
                index,
                reservation_id,
            } => (index_key(keys, index), keys.reservation(reservation_id)),
            Stray::Marker {
                user_id,
                reservation_id,
            } => (keys.user(user_id), keys.reservation(reservation_id)),
            Stray::Answer {
                request_id,
                reservation_id,
            } => (keys.request(request_id), keys.reservation(reservation_id)),
            Stray::SoldOut => (keys.soldout(), keys.stock()),
        };
        out.extend([holder.into(), behind.into()]);
    }

    fn args(&self, out: &mut Vec<Value>) {
        let (what, named, owner) = match &self.stray {
            Stray::Member { reservation_id, .. } => ("member", reservation_id.as_str(), ""),
            Stray::Marker {
                user_id,
                reservation_id,
            } => ("marker", reservation_id.as_str(), user_id.as_str()),
            Stray::Answer {
                request_id,
                reservation_id,
            } => ("answer", reservation_id.as_str(), request_id.as_str()),
            Stray::SoldOut => ("soldout", "", ""),
        };
        out.extend([what.into(), named.into(), owner.into()]);
    }

    fn parse(reply: Value) -> Result<RemoveStrayReply, Error> {
        let reply = elements(WHAT, reply, 1)?;
        match integer(WHAT, reply.first().unwrap_or(&Value::Null))? {
            0 => Ok(RemoveStrayReply::Removed),
            1 => Ok(RemoveStrayReply::Gone),
            2 => Ok(RemoveStrayReply::Needed),
            other => Err(Error::malformed(WHAT, format!("unknown code {other}"))),
        }
    }
}

impl Redis {
    /// Removes a stray, unless something behind it needs it.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn remove_stray(&self, call: &RemoveStray<'_>) -> Result<RemoveStrayReply, Error> {
        self.run(call, call.keys).await
    }
}
