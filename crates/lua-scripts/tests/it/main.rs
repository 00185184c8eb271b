//! The scripts and their client against real servers.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "all of this is test code; outside of test functions the lints' own exception ends"
)]

mod answers;
mod cancels;
mod client;
mod cluster;
mod codes;
mod concurrency;
mod control;
mod damage;
mod differential;
mod faults;
mod model;
mod orders;
mod refusals;
mod releases;
mod returns;
mod shards;
mod strays;
mod transitions;
mod world;
