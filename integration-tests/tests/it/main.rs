//! End-to-end tests: the executables as they are shipped, on real servers, with faults in between.
//!
//! One executable holds all of them, since each would link every client anew. A test has an
//! installation of its own, so they run side by side, and after each the same checks of both stores
//! follow (F1 to F8 of the fault cases).

#![recursion_limit = "512"]
#![expect(
    clippy::unwrap_used,
    reason = "a test ends with the first thing that is not as expected"
)]

mod boot;
mod cancelling;
mod committing;
mod fence;
mod ha;
mod harness;
mod identity;
mod leaving;
mod operating;
mod outage;
mod poison;
mod purchase;
mod released;
mod replicas;
mod sandbox;
mod sending;
mod settings;
mod slow_disk;
mod stopping;
mod versions;
mod windows;
