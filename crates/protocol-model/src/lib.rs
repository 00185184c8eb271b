//! A model of the protocol between Redis, the broker and PostgreSQL, searched to the end.
//!
//! Scripts and transactions are atomic steps; everything between them can be cut, repeated, reordered,
//! delayed or done by somebody who is late: callers repeat, a sender dies anywhere, a Redis slot fails
//! over to any earlier state or loses everything, the broker duplicates, reorders, redelivers and loses,
//! workers and reconcilers act on what they read long ago. The order decision, the transition table and
//! the replay are production's own functions of `seckill-state-machine`; what the scripts do beyond them
//! is written down once more in [`Slot`], and the transactions in [`Postgres`], as plain rules.
//!
//! Read [`Slot`] and [`Postgres`] first, then `enabled.rs` (what can happen next) and `steps.rs` (what it
//! does). [`INVARIANTS`] says what must hold. Each safeguard of the design can be taken out
//! ([`Safeguard`]): [`REMOVALS`] tells what the search then finds, and [`INTERLEAVINGS`] the shortest
//! runs that broke an earlier wording of the design. `docs/protocol-model.md` is the account of it all.
//!
//! Not modelled: time (a wait may always be over, except in the search for a healthy run), retention,
//! weaker isolation of PostgreSQL and its failover, split brain, payments, limits above one.

mod action;
mod config;
mod domain;
mod enabled;
mod eventual;
mod interleavings;
mod model;
mod postgres;
mod properties;
mod removals;
mod repair;
mod safeguard;
mod search;
mod slot;
mod state;
mod steps;
mod transfer;
mod whole;

pub use action::{Action, End};
pub use config::{BUCKETS, Config, REQUESTS, Request, Transfer, USERS};
pub use eventual::{Reach, can_always_settle};
pub use interleavings::{INTERLEAVINGS, Interleaving, Play, Verdict};
pub use model::Protocol;
pub use postgres::Postgres;
pub use properties::{INVARIANTS, invariants};
pub use removals::{Cover, REMOVALS, Removal};
pub use safeguard::Safeguard;
pub use search::{Budget, Outcome, search};
pub use slot::{Reply, Slot};
pub use state::State;
pub use transfer::TransferStep;
pub use whole::{Whole, large, small};
