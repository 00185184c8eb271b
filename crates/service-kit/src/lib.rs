//! What every service binary shares: settings, bootstrap, readiness, loops, drain.
//!
//! A service's `main` is one call of [`main`], which parses the settings, sets up logging, builds the
//! runtimes, runs the service and turns its end into an exit code:
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | stopped as asked, with nothing left undone |
//! | 1 | failed: a loop died, work was cut off by the grace period, or a second signal came |
//! | 64 | a setting is wrong; the message names it |
//!
//! **Invariant:** no port is open before every setting was checked, and a dependency that is away,
//! at the start or later, makes a service not ready but never ends it.

pub mod values;

mod admin;
mod args;
mod backoff;
mod bootstrap;
mod context;
mod error;
mod loops;
mod readiness;
mod run_file;
mod settings;
mod signals;

pub use args::{BrokerArgs, PostgresArgs, ProcessArgs, RedisArgs, SecretArgs};
pub use backoff::Backoff;
pub use bootstrap::{EXIT_FAILED, EXIT_UNAVAILABLE, EXIT_USAGE, Settings, main};
pub use context::Context;
pub use error::{Error, ErrorKind};
pub use loops::LoopEnd;
pub use readiness::{DependencyState, Readiness};
pub use settings::{parse, redact_url};
