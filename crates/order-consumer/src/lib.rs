//! Turns order requests into decisions and orders.
//!
//! A batch of messages becomes one transaction in PostgreSQL, whose ruling is the domain's; then Redis
//! is told. The order of these steps, and what is acknowledged when, is in `handler`; what happens
//! when the transaction fails, in `deciding`.
//!
//! **Invariant:** a message is acknowledged only after its effect is committed or the message is
//! parked (I8), and a fault never becomes a refusal (I9).

mod contention;
mod deciding;
mod handler;
mod run;
mod settings;
mod settling;
mod trouble;
mod work;

pub use run::run;
pub use settings::Settings;
