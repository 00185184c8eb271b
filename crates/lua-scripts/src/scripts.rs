//! One typed struct per script: its keys, its arguments, its answer.

mod claim_send;
mod compensate;
mod preheat_bucket;
mod reserve;
mod set_activity_state;
mod settle;
mod transition;

use fred::types::Value;
use seckill_state_machine::{ReservationStatus, TimestampMs};

use crate::Error;

pub use claim_send::{ClaimSend, ClaimSendReply};
pub use compensate::{Compensate, CompensateReply};
pub use preheat_bucket::{PreheatBucket, PreheatReply};
pub use reserve::{ReplyStatus, Reserve, ReserveReply};
pub use set_activity_state::{SetActivityState, SetActivityStateReply};
pub use settle::{Settle, SettleOutcome};
pub use transition::{Transition, TransitionReply};

/// Which script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Reserve,
    Compensate,
    Transition,
    ClaimSend,
    PreheatBucket,
    SetActivityState,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Reserve,
        Self::Compensate,
        Self::Transition,
        Self::ClaimSend,
        Self::PreheatBucket,
        Self::SetActivityState,
    ];

    /// The file's name without its extension; also the name in errors.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Reserve => "reserve",
            Self::Compensate => "compensate",
            Self::Transition => "transition_reservation",
            Self::ClaimSend => "claim_send",
            Self::PreheatBucket => "preheat_bucket",
            Self::SetActivityState => "set_activity_state",
        }
    }

    pub(crate) const fn source(self) -> &'static str {
        match self {
            Self::Reserve => include_str!("../../../lua/reserve.lua"),
            Self::Compensate => include_str!("../../../lua/compensate.lua"),
            Self::Transition => include_str!("../../../lua/transition_reservation.lua"),
            Self::ClaimSend => include_str!("../../../lua/claim_send.lua"),
            Self::PreheatBucket => include_str!("../../../lua/preheat_bucket.lua"),
            Self::SetActivityState => include_str!("../../../lua/set_activity_state.lua"),
        }
    }
}

/// A call of one script.
pub(crate) trait Script {
    /// What it answers.
    type Reply;
    /// Which script.
    const KIND: Kind;
    /// How many keys it declares.
    const KEYS: usize;
    /// How many arguments it takes.
    const ARGS: usize;

    /// Appends the keys, in order.
    fn keys(&self, out: &mut Vec<Value>);
    /// Appends the arguments, in order.
    fn args(&self, out: &mut Vec<Value>);
    /// Reads the answer.
    fn parse(reply: Value) -> Result<Self::Reply, Error>;
}

/// The clock override that tests pass; 0 lets the script ask Redis.
fn override_arg(now: Option<TimestampMs>) -> Value {
    Value::Integer(now.map_or(0, TimestampMs::get))
}

/// An argument that may be absent; scripts read the empty text as "not given".
fn optional(text: Option<&str>) -> Value {
    text.unwrap_or_default().into()
}

/// The elements of an array answer, of which there must be at least `count`.
fn elements(what: &'static str, reply: Value, count: usize) -> Result<Vec<Value>, Error> {
    let Value::Array(elements) = reply else {
        return Err(Error::malformed(what, "the answer is no array"));
    };
    if elements.len() < count {
        let reason = format!("{} elements instead of {count}", elements.len());
        return Err(Error::malformed(what, reason));
    }
    Ok(elements)
}

fn integer(what: &'static str, value: &Value) -> Result<i64, Error> {
    value
        .as_i64()
        .ok_or_else(|| Error::malformed(what, "an element is no integer"))
}

fn text(what: &'static str, value: Value) -> Result<String, Error> {
    value
        .into_string()
        .ok_or_else(|| Error::malformed(what, "an element is no text"))
}

/// A state word, or `None` for the empty text.
fn status(what: &'static str, value: Value) -> Result<Option<ReservationStatus>, Error> {
    let word = text(what, value)?;
    if word.is_empty() {
        return Ok(None);
    }
    let status = word
        .parse()
        .map_err(|_| Error::malformed(what, "unknown reservation status"))?;
    Ok(Some(status))
}

#[cfg(test)]
mod tests;
