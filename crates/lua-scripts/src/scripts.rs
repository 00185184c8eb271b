//! One typed struct per script: its keys, its arguments, its answer.

mod cancel;
mod claim_send;
mod compensate;
mod extend_retention;
mod initialise_bucket;
mod lost;
mod preheat_bucket;
mod rebuild_reservation;
mod remove_stray;
mod repair_marker;
mod reserve;
mod set_activity_state;
mod set_recovery;
mod settle;
mod transition;
mod write_tombstone;

use fred::types::Value;
use seckill_state_machine::{ReservationStatus, TimestampMs};

use crate::Error;

pub use cancel::{Cancel, CancelReply};
pub use claim_send::{ClaimSend, ClaimSendReply};
pub use compensate::{Compensate, CompensateReply};
pub use extend_retention::{EXTEND_KEYS_MAX, ExtendRetention};
pub use initialise_bucket::{InitialiseBucket, InitialiseReply};
pub use lost::OrderedReservation;
pub use preheat_bucket::{PreheatBucket, PreheatReply};
pub use rebuild_reservation::{RebuildReply, RebuildReservation};
pub use remove_stray::{RemoveStray, RemoveStrayReply, Stray};
pub use repair_marker::{RepairMarker, RepairMarkerReply};
pub use reserve::{ReplyStatus, Reserve, ReserveReply};
pub use set_activity_state::{SetActivityState, SetActivityStateReply};
pub use set_recovery::{SetRecovery, SetRecoveryReply};
pub use settle::{Settle, SettleOutcome};
pub use transition::{Transition, TransitionReply};
pub use write_tombstone::{TombstoneEnd, TombstoneReply, WriteTombstone};

/// Which script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Reserve,
    Compensate,
    Transition,
    ClaimSend,
    PreheatBucket,
    SetActivityState,
    Cancel,
    RebuildReservation,
    WriteTombstone,
    RepairMarker,
    InitialiseBucket,
    SetRecovery,
    ExtendRetention,
    RemoveStray,
}

/// A script's file, with the parts that it uses in front of it.
macro_rules! source {
    ($($part:literal)* + $name:literal) => {
        concat!(
            $(include_str!(concat!("../../../lua/parts/", $part, ".lua")),)*
            include_str!(concat!("../../../lua/", $name, ".lua"))
        )
    };
}

impl Kind {
    pub(crate) const ALL: [Self; 14] = [
        Self::Reserve,
        Self::Compensate,
        Self::Transition,
        Self::ClaimSend,
        Self::PreheatBucket,
        Self::SetActivityState,
        Self::Cancel,
        Self::RebuildReservation,
        Self::WriteTombstone,
        Self::RepairMarker,
        Self::InitialiseBucket,
        Self::SetRecovery,
        Self::ExtendRetention,
        Self::RemoveStray,
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
            Self::Cancel => "cancel",
            Self::RebuildReservation => "rebuild_reservation",
            Self::WriteTombstone => "write_tombstone",
            Self::RepairMarker => "repair_marker",
            Self::InitialiseBucket => "initialise_bucket",
            Self::SetRecovery => "set_recovery",
            Self::ExtendRetention => "extend_retention",
            Self::RemoveStray => "remove_stray",
        }
    }

    pub(crate) const fn source(self) -> &'static str {
        match self {
            Self::Reserve => source!(+ "reserve"),
            Self::Compensate => source!("lost" "ordered" "give_back" + "compensate"),
            Self::Transition => source!(+ "transition_reservation"),
            Self::ClaimSend => source!(+ "claim_send"),
            Self::PreheatBucket => source!(+ "preheat_bucket"),
            Self::SetActivityState => source!(+ "set_activity_state"),
            Self::Cancel => source!("lost" "ordered" "give_back" + "cancel"),
            Self::RebuildReservation => source!("lost" "ordered" + "rebuild_reservation"),
            Self::WriteTombstone => source!("lost" + "write_tombstone"),
            Self::RepairMarker => source!(+ "repair_marker"),
            Self::InitialiseBucket => source!(+ "initialise_bucket"),
            Self::SetRecovery => source!(+ "set_recovery"),
            Self::ExtendRetention => source!(+ "extend_retention"),
            Self::RemoveStray => source!(+ "remove_stray"),
        }
    }
}

/// A call of one script.
pub(crate) trait Script {
    /// What it answers.
    type Reply;
    /// Which script.
    const KIND: Kind;
    /// How many keys its header documents; some calls declare fewer.
    const KEYS: usize;
    /// How many arguments its header documents; some calls take fewer.
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

/// An element that is 0 or 1.
fn flag(what: &'static str, value: &Value) -> Result<bool, Error> {
    match integer(what, value)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::malformed(what, "an element is neither 0 nor 1")),
    }
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
