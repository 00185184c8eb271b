//! The PostgreSQL side: decisions, orders, stock, outbox, tasks.
//!
//! PostgreSQL holds the final truth. Everything that must be exact is a constraint of a table in
//! `migrations/`; this crate only words the transactions, in one lock order: inbox, decision, stock,
//! order, task.
//!
//! The key idea is [`Store::decide`]: a batch of order requests becomes orders, or refusals, in one
//! transaction, whose ruling is the domain's pure `rule`. The release fence ([`Store::fence`])
//! writes into the very table that `decide` writes first, so that a late message can never turn a
//! released unit into an order.
//!
//! Around it stands what an operator or the reconciler does about a version: cancelling an order,
//! patience that stands still while nobody could decide, recovery windows, differences and dead
//! letters with what was done about them, and the archive, which a version enters only when it has
//! nothing open and from which nothing can be sold.
//!
//! It never talks to Redis or to the message bus, and never takes a time-out for a refusal.

mod activities;
mod archive;
mod audit;
mod cancel;
mod decide;
mod error;
mod facts;
mod fence;
mod inspect;
mod letters;
mod migrate;
mod outbox;
mod parking;
mod patience;
mod pool;
mod recovery;
mod retention;
mod rows;
mod tasks;

pub use activities::{Created, StockRow};
pub use archive::{ArchivedVersion, Moved, VersionCounts, VersionResult};
pub use audit::{
    Action, ActionFilter, ActionRecord, BucketTotals, Discrepancy, DiscrepancyFilter, NewRun,
    Recorded, Repairable, RunOutcome,
};
pub use cancel::CancelOutcome;
pub use decide::Decided;
pub use error::{Cause, Error, ErrorKind};
pub use facts::{DecisionRecord, ReservationRef};
pub use fence::Fence;
pub use inspect::{LastRun, ServerFacts, Waiting};
pub use letters::{KeptLetter, LetterAction, LetterFilter, LetterStatus, ParkedLetter};
pub use migrate::{Migrated, migrate, schema_fingerprint};
pub use outbox::OutboxRow;
pub use parking::DeadLetter;
pub use patience::{Overdue, WatchNote};
pub use pool::{Store, StoreConfig};
pub use recovery::{QueueEnd, RecoveryWindow, ServerNames};
pub use retention::{LastSight, OpenWork};
pub use tasks::{Claim, CompensationTask, NewTask, TaskOrigin};
