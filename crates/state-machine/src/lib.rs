//! The flash sale's domain: identifiers, codes, states, transitions and the order decision.
//!
//! Everything here is pure. There is no I/O, no clock and no async runtime, so that the rules can be
//! property-tested, model-checked and compared with the Lua scripts; every service calls these very
//! functions.
//!
//! **Invariant:** this crate depends on `std`, `serde` and `thiserror` alone.

pub mod invariants;

mod activity;
mod codes;
mod decision;
mod ids;
mod messages;
mod numbers;
mod replay;
mod scope;
mod settlement;
mod status;
mod traceparent;

pub use activity::{Activity, ActivitySettings, ActivityState, UnknownActivityState};
pub use codes::{
    CancelCode, CompensateCode, RebuildCode, RepairMarkerCode, ReserveCode, TombstoneCode,
    TransitionCode, UnknownCode,
};
pub use decision::{DecisionBook, DecisionKind, RejectReason, Ruling, UnknownDecision, rule};
pub use ids::{
    ActivityId, ID_LEN_MAX, IdError, MessageId, OrderId, RequestId, ReservationId, SkuId, UserId,
    is_id_byte,
};
pub use messages::{OrderEvent, OrderEventKind, OrderRequest, SCHEMA_VERSION};
pub use numbers::{
    ActivityVersion, BUCKET_COUNT_MAX, BucketCount, BucketId, EXACT_INTEGER_MAX, NumberError,
    QUANTITY_MAX, Quantity, TimestampMs,
};
pub use replay::{OrderState, Replay, replay};
pub use scope::{BucketScope, Scope};
pub use settlement::{Settlement, settlement};
pub use status::{ReservationStatus, UnknownStatus, Verdict, transition};
pub use traceparent::{Traceparent, TraceparentError};
