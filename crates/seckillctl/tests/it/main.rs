//! The operator's command line on real servers: what it does, what it refuses, and how it ends.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends with the first thing that is not as expected"
)]

mod audit;
mod cli;
mod dlq;
mod doctor;
mod lifecycle;
mod rebuild;
mod reconcile;
mod sale;
mod world;
