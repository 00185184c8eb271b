//! A model of the protocol between Redis, the broker and PostgreSQL, searched to the end.
//!
//! Scripts and transactions are atomic steps; everything between them can be cut, repeated, reordered
//! or delayed: callers repeat, a front dies anywhere, a Redis slot fails over to any earlier state, the
//! broker duplicates and redelivers, workers go stale between any two steps. The order decision, the
//! transition table and the settlement are production's own functions of `seckill-state-machine`; what
//! the scripts do beyond them is written down once more in [`Slot`], as plain rules.
//!
//! Each safeguard of the design can be taken out ([`Safeguard`]): the search must then find a
//! violation, or the safeguard is not worth its cost.
//!
//! Not modelled: time, retention, weaker isolation of PostgreSQL, split brain, limits above one.

mod config;
mod model;
mod postgres;
mod properties;
mod slot;
mod steps;

pub use config::{Config, Request, Safeguard};
pub use model::{Action, Protocol, State};
pub use postgres::Postgres;
pub use properties::INVARIANTS;
pub use slot::Slot;
