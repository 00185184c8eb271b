//! The built front against a real Redis, over gRPC.
//!
//! Each test has a Redis of its own, preheated through the scripts, and starts the executable. Where
//! PostgreSQL or the broker is not part of the question, the front runs without: it sells with Redis
//! alone.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends with the first thing that is not as expected"
)]

mod boot;
mod clocks;
mod damage;
mod deadlines;
mod first_sends;
mod harness;
mod idempotency;
mod leaving;
mod lost_replies;
mod overload;
mod presale;
mod queries;
mod redis_cluster;
mod redis_errors;
mod scenarios;
mod settings;
mod shutdown;
mod transport;
mod validation;
