//! End-to-end tests against the built executables.
//!
//! A [`Sandbox`] is one installation of its own: a Redis, a database and a namespace on the shared
//! broker, with fault proxies in front where a test asks for them. Services run in it as the processes
//! that are shipped. What is asserted is read from the stores by this crate's own queries ([`checks`]),
//! not by the code under test.

mod answers;
mod broker;
pub mod checks;
mod ctl;
mod front;
mod sale;
mod sandbox;
mod settings;
mod settled;
mod store;
mod users;

pub use answers::AnswerBook;
pub use broker::lag;
pub use ctl::CtlOutput;
pub use front::FrontClient;
pub use sale::{Plan, Sale};
pub use sandbox::{Sandbox, SandboxBuilder, Services};
pub use settings::{HMAC_SECRETS, Service, timers};
pub use users::{RedisUsers, shipped};
