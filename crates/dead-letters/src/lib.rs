//! Keeps messages that cannot be processed, whole and before they are acknowledged.
//!
//! Each consuming service parks what it cannot understand or keeps failing at, and drains what the
//! broker moved to its group's dead-letter topic. A reservation behind such a message is not lost
//! with it: parking opens its compensation task, which waits for the activity's patience and then
//! fences it. What is parked can be sent again by an operator, or given up.
//!
//! **Invariant:** a message is acknowledged only after its row is committed (I8).

mod drain;
mod parking;
mod resend;

pub use drain::DeadLetterHandler;
pub use parking::{Parker, Reason};
pub use resend::{Fate, Operator, as_message, discard, discardable, replay, replayable};
