//! The scripts of `lua/`, embedded, each with a typed call, and the Redis handle that runs them.
//!
//! One key idea: a call either has an answer of the script, or an [`Error`] whose [`ErrorKind`] says
//! whether the script may have run. Nothing here repeats a call that may have run, because only the
//! caller knows the ids that make a repeat safe.
//!
//! **Invariant:** no key is named here; all come from `seckill_key_layout`. Only this crate knows the
//! order of KEYS and ARGV and the numbers that the scripts answer with.

mod cluster;
mod config;
mod error;
mod inspect;
mod node;
mod reads;
mod record;
mod redis;
mod runner;
mod scripts;
mod silence;
mod supervisor;

pub use config::RedisConfig;
pub use error::{Error, ErrorKind};
pub use inspect::ServerNode;
pub use reads::{BucketPage, Expiry, Index, IndexMember, SCAN_STEP, ScanCursor, Server};
pub use record::{CachedResult, Meta, Recovery, ReservationRecord, Stock};
pub use redis::Redis;
pub use scripts::{
    Cancel, CancelReply, ClaimSend, ClaimSendReply, Compensate, CompensateReply, EXTEND_KEYS_MAX,
    ExtendRetention, InitialiseBucket, InitialiseReply, OrderedReservation, PreheatBucket,
    PreheatReply, RebuildReply, RebuildReservation, RemoveStray, RemoveStrayReply, RepairMarker,
    RepairMarkerReply, ReplyStatus, Reserve, ReserveReply, SetActivityState, SetActivityStateReply,
    SetRecovery, SetRecoveryReply, Settle, SettleOutcome, Stray, TombstoneEnd, TombstoneReply,
    Transition, TransitionReply, WriteTombstone,
};
