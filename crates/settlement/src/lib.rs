//! Tells Redis what PostgreSQL decided, and reports where the two contradict.
//!
//! The order consumer settles right after its commit, the compensation worker repeats it for every
//! event, and the reconciler once more for what is still open when its time is up. All three run the
//! same step ([`settle_ordered`], [`settle_rejected`]) and read its answer in the same way, here. What a
//! failover has lost or brought back takes more than that step: [`Replayer`] looks at both sides and
//! goes on until they agree.
//!
//! **Invariant:** nothing here decides anything; it only applies what PostgreSQL has committed. Units
//! move in scripts alone, each of which looks at the state itself. An undecided reservation is never
//! given up here: that is the compensation worker's, behind its fence.

mod class;
mod discrepancies;
mod error;
mod facts;
mod repair;
mod replaying;
mod settle;
mod strays;
mod tally;
mod waiting;

pub use class::{Class, Entry, Right};
pub use discrepancies::{Discrepancies, Evidence, discrepancy, kind, run_kind};
pub use error::{Error, ErrorKind};
pub use facts::Facts;
pub use repair::{RepairOutcome, Repairer, repair};
pub use replaying::{PAGE_SIZE, Replayed, Replayer};
pub use settle::{Settled, settle_ordered, settle_rejected};
pub use strays::remembered_wrongly;
pub use tally::Tally;
pub use waiting::{WAITING_MAX, Waiting, WaitingOrder};
