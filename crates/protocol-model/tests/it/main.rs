//! The search itself: with every safeguard in place no violation is found, and with any one taken out
//! the search finds the one that it prevents.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod document;
mod eventual;
mod interleavings;
mod removals;
mod whole;

use std::time::Duration;

use seckill_protocol_model::Budget;

/// After which a search is given up as too large: a forgotten bound, not a result.
const SMALL: Budget = Budget {
    visits: 20_000_000,
    time: Duration::from_secs(240),
    report_every: None,
};

/// Makes one test of each name, which calls a function with the name, or with what stands beside it.
macro_rules! named_tests {
    ($run:path: $(fn $name:ident)+) => {
        $(#[test]
        fn $name() {
            $run(stringify!($name));
        })+
    };
    ($run:path: $(fn $name:ident = $of:expr,)+) => {
        $(#[test]
        fn $name() {
            $run($of);
        })+
    };
}
use named_tests;
