//! The search itself: with every safeguard in place no violation is found, and with any one taken out
//! the search finds the one that it prevents.

mod safeguards;
mod whole;

use std::thread::available_parallelism;

use seckill_protocol_model::{Config, INVARIANTS, Protocol};
use stateright::{Checker, HasDiscoveries, Model};

/// States after which a search is given up as too large: a forgotten bound, not a result.
const STATES_MAX: usize = 20_000_000;

/// What a search found.
struct Outcome {
    /// Distinct states.
    states: usize,
    /// Invariants that some reachable state breaks, with the steps that lead there.
    violations: Vec<(&'static str, String)>,
}

/// Searches to the end, or until one of the named invariants is broken.
fn search(config: Config, until: &[&'static str]) -> Outcome {
    let threads = available_parallelism().map_or(1, std::num::NonZero::get);
    let checker = Protocol::new(config)
        .checker()
        .threads(threads)
        .target_state_count(STATES_MAX)
        .finish_when(HasDiscoveries::AnyOf(until.iter().copied().collect()))
        .spawn_bfs()
        .join();
    let violations = checker
        .discoveries()
        .into_iter()
        .map(|(name, path)| (name, format!("{:?}", path.into_actions())))
        .collect();
    Outcome {
        states: checker.unique_state_count(),
        violations,
    }
}

/// The full names of the invariants that begin with a text; all of them for an empty text.
fn invariants(prefix: &str) -> Vec<&'static str> {
    INVARIANTS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| name.starts_with(prefix))
        .collect()
}
