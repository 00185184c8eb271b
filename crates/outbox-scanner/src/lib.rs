//! Resends reservations whose order request may be lost, and relays the PostgreSQL outbox.
//!
//! Two loops that share nothing but a producer: one works on Redis alone and goes on while PostgreSQL
//! is away, the other on PostgreSQL alone. Both claim by lease, so that any number of replicas may
//! run and any of them may be killed at any instant.
//!
//! **Invariant:** nothing here decides about a reservation. A send is repeated under the id that it
//! has always had, and an outcome that is not a plain yes is recorded as unknown.

mod backoff;
mod clock;
mod pace;
mod relay;
mod resend;
mod run;
mod scopes;
mod settings;

pub use run::run;
pub use settings::Settings;
