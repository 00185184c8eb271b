//! The bus against a real broker. Every test has topics and groups of its own, by namespace.

#![recursion_limit = "512"]
#![expect(
    clippy::unwrap_used,
    reason = "a test ends with the first thing that is not as expected"
)]

mod delivery;
mod failure;
mod groups;
mod harness;
mod proxied;
mod redeliveries;
mod sending;
mod stopping;
