//! The rules of the design as plain Rust on a dump of the server, written without the Lua.
//!
//! Each function takes the state before a call, changes it to the state after it, and returns the
//! answer. [`Damaged`] stands for a call that fails while nothing is written: a key of a wrong type,
//! or an answer that names an unknown state.

mod control;
mod lost;
mod release;
mod reserve;
mod steps;
mod store;

pub use control::{extend, initialise, preheat, set_recovery, set_state};
pub use lost::{rebuild, repair_marker, tombstone};
pub use release::{cancel, compensate};
pub use reserve::reserve;
pub use steps::{Claim, claim_send, transition};
pub use store::{Damaged, has_wrong_type, holders_match};
