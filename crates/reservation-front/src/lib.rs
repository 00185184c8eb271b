//! The gRPC reservation front: asks the reserve script, tells what it said, and makes the first send.
//!
//! One call passes these steps, in order of cost: validation, the room for one more call, the cached
//! activity, the script. From the script on the work runs in a task of its own, so that a caller who
//! leaves stops nothing half way. An accepted reservation is queued for its first send; whatever the
//! queue cannot take stays in `send_pending`, where the outbox scanner finds it.
//!
//! **Invariant:** no answer says that nothing happened after a script call whose outcome is unknown
//! (I9), and the front never sells from PostgreSQL: no Redis, no sale.

mod activities;
mod answer;
mod breaker;
mod counters;
mod deadline;
mod faults;
mod first_send;
mod health;
mod incoming;
mod layer;
mod log_limit;
mod query;
mod reserve;
mod run;
mod server;
mod service;
mod settings;
mod trace;

pub use run::run;
pub use settings::FrontSettings;
