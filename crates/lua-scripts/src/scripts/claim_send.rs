//! `claim_send`: takes one due reservation for sending, so that two scanners never send it at once.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{ReservationId, ReservationStatus, TimestampMs};

use super::{Kind, Script, elements, integer, status, text};
use crate::record::Fields;
use crate::{Error, Redis, ReservationRecord};

const WHAT: &str = "claim_send reply";

/// One due member of `send_pending`.
#[derive(Debug, Clone, Copy)]
pub struct ClaimSend<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// The member.
    pub reservation_id: &'a ReservationId,
    /// Its score when it was read.
    pub expected_score: i64,
    /// Until when nobody else may claim it.
    pub lease_until: TimestampMs,
}

/// Who has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimSendReply {
    /// The caller: send it.
    Claimed(Box<ReservationRecord>),
    /// Somebody else moved it.
    Moved {
        /// Its score now.
        score: i64,
    },
    /// It is no member any more.
    NotDue,
    /// It needs no sending; it was removed from the index.
    NotSendable(ReservationStatus),
    /// The reservation is gone. Postponed to the lease's end; report it.
    Missing,
    /// The reservation is damaged. Postponed to the lease's end; report it.
    Broken(String),
}

impl Script for ClaimSend<'_> {
    type Reply = ClaimSendReply;
    const KIND: Kind = Kind::ClaimSend;
    const KEYS: usize = 2;
    const ARGS: usize = 3;

    fn keys(&self, out: &mut Vec<Value>) {
        out.extend([
            self.keys.reservation(self.reservation_id).into(),
            self.keys.send_pending().into(),
        ]);
    }

    fn args(&self, out: &mut Vec<Value>) {
        out.extend([
            self.reservation_id.as_str().into(),
            Value::Integer(self.expected_score),
            Value::Integer(self.lease_until.get()),
        ]);
    }

    fn parse(reply: Value) -> Result<ClaimSendReply, Error> {
        let mut reply = elements(WHAT, reply, 2)?.into_iter();
        let code = integer(WHAT, &reply.next().unwrap_or(Value::Null))?;
        let detail = reply.next().unwrap_or(Value::Null);
        Ok(match code {
            0 => match ReservationRecord::read(&Fields::from_pairs(WHAT, detail)?) {
                Ok(record) => ClaimSendReply::Claimed(Box::new(record)),
                Err(error) => ClaimSendReply::Broken(error.to_string()),
            },
            1 => ClaimSendReply::Moved {
                score: integer(WHAT, &detail)?,
            },
            2 => ClaimSendReply::NotDue,
            3 => ClaimSendReply::NotSendable(
                status(WHAT, detail)?.ok_or_else(|| Error::malformed(WHAT, "no status"))?,
            ),
            4 => ClaimSendReply::Missing,
            5 => ClaimSendReply::Broken(text(WHAT, detail)?),
            _ => return Err(Error::malformed(WHAT, format!("unknown code {code}"))),
        })
    }
}

impl Redis {
    /// Claims one due reservation for sending.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn claim_send(&self, call: &ClaimSend<'_>) -> Result<ClaimSendReply, Error> {
        self.run(call, call.keys).await
    }
}
