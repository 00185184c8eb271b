//! Tells Redis what PostgreSQL decided, and reports where the two contradict.
//!
//! The order consumer settles right after its commit, the compensation worker repeats it for every
//! event, and the reconciler once more for what is still open when its time is up. All three run the
//! same step and read its answer in the same way, here.
//!
//! **Invariant:** nothing here moves stock or decides anything; it only applies a decision that
//! PostgreSQL has committed.

mod discrepancies;
mod settle;

pub use discrepancies::{Discrepancies, kind, run_kind};
pub use settle::{Settled, settle_ordered, settle_rejected};
