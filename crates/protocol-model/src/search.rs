//! One search: everything that can happen, within a budget.

use std::num::NonZero;
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::{Action, INVARIANTS, Protocol};

/// When a search ends that has not seen everything.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// States visited, repeated visits included.
    pub visits: usize,
    /// Wall time.
    pub time: Duration,
    /// How often progress is printed, if at all.
    pub report_every: Option<Duration>,
}

/// What a search found.
#[derive(Debug)]
pub struct Outcome {
    /// Distinct states.
    pub states: usize,
    /// The longest path walked.
    pub depth: usize,
    /// Wall time.
    pub wall: Duration,
    /// Whether every reachable state was visited.
    pub whole: bool,
    /// Invariants that some reachable state breaks, with the steps that lead there.
    pub violations: Vec<(&'static str, Vec<Action>)>,
}

/// Searches to the end, or until one of the named invariants is broken, or to the end of the budget.
#[must_use]
pub fn search(model: Protocol, until: &[&'static str], budget: Budget) -> Outcome {
    let began = Instant::now();
    let threads = available_parallelism().map_or(1, NonZero::get);
    let checker = model
        .checker()
        .threads(threads)
        .target_state_count(budget.visits)
        .timeout(budget.time)
        .finish_when(HasDiscoveries::AnyOf(until.iter().copied().collect()))
        .spawn_bfs();
    if let Some(every) = budget.report_every {
        report(&checker, began, every);
    }
    let checker = checker.join();
    let wall = began.elapsed();
    let mut violations: Vec<_> = checker
        .discoveries()
        .into_iter()
        .map(|(name, path)| (name, path.into_actions()))
        .collect();
    violations.sort_by_key(|(name, _)| *name);
    Outcome {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        wall,
        whole: violations.is_empty() && wall < budget.time && checker.state_count() < budget.visits,
        violations,
    }
}

fn report<M: Model>(checker: &impl Checker<M>, began: Instant, every: Duration) {
    /// Between two looks at whether the search is over.
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    let mut next = every;
    while !checker.is_done() {
        sleep(LOOK_EVERY);
        if began.elapsed() >= next {
            next += every;
            println!(
                "    {:>11} states, depth {:>3}, {:>5.0} s, {} properties hold so far",
                checker.unique_state_count(),
                checker.max_depth(),
                began.elapsed().as_secs_f64(),
                INVARIANTS.len(),
            );
        }
    }
}
