//! Replay on a real Redis and a real PostgreSQL. Every test has its own of both.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends with the first thing that is not as expected"
)]

mod buckets;
mod failover;
mod replay;
mod world;
