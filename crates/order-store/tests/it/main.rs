//! The store on a real PostgreSQL. Every test has a database of its own.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends with the first thing that is not as expected"
)]

mod activities;
mod archive;
mod audit;
mod cancel;
mod concurrency;
mod decide;
mod faults;
mod fence;
mod fixture;
mod letters;
mod outbox;
mod parking;
mod patience;
mod recovery;
mod schema;
mod tasks;
mod upgrade;
