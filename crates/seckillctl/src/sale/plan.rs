//! Who calls when: the whole sale as a list of steps, made before the first call.
//!
//! A pure function of the mix and the seed, so that a run can be repeated and the figures that it
//! must end with are known beforehand. Workers take the steps in order; a repeat stands behind its
//! first attempt, half of them so close that both are in flight at once, as after a double click,
//! and half far behind, where the sale has long sold out.

use rand::rngs::StdRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};

/// How far behind its first attempt an impatient repeat stands, in buyers: a few concurrencies.
const NEAR_MAX: u32 = 1_000;

/// What the buyers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// Buyers, each with one first request.
    pub buyers: u32,
    /// Requests that are sent a second time under the same id, of a hundred.
    pub repeat_percent: u32,
    /// Buyers who also send another request under a new id, of a hundred.
    pub second_percent: u32,
    /// Malformed calls in all.
    pub invalid: u32,
    /// What the order is drawn from.
    pub seed: u64,
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The first attempt of a request.
    First(u32),
    /// The same request again.
    Repeat(u32),
    /// A malformed call; the number chooses what is wrong with it.
    Invalid(u32),
}

/// The sale as it will be called.
#[derive(Debug, Clone)]
pub struct Plan {
    steps: Vec<Step>,
    buyers: u32,
    second_buyers: Vec<u32>,
}

impl Plan {
    /// Draws the steps.
    #[must_use]
    pub fn new(mix: Mix) -> Self {
        let mut rng = StdRng::seed_from_u64(mix.seed);
        let seconds = part(mix.buyers, mix.second_percent);
        let second_buyers = draw(&mut rng, mix.buyers, seconds);
        let mut plan = Self {
            steps: Vec::new(),
            buyers: mix.buyers,
            second_buyers,
        };

        // A key is a place in the queue of buyers; the sort is stable, so that what belongs behind
        // a first attempt stays there also when both get the same place.
        let mut keyed: Vec<(u32, Step)> = (0..plan.requests())
            .map(|request| (0, Step::First(request)))
            .collect();
        for (request, entry) in keyed.iter_mut().enumerate() {
            let request = u32::try_from(request).unwrap_or(u32::MAX);
            let delay = if request < mix.buyers {
                0
            } else {
                rng.random_range(0..=mix.buyers / 4)
            };
            entry.0 = plan.buyer(request) + delay;
        }
        let repeats = part(plan.requests(), mix.repeat_percent);
        for request in draw(&mut rng, plan.requests(), repeats) {
            let far = (mix.buyers / 2).max(NEAR_MAX);
            let delay = if rng.random_bool(0.5) {
                rng.random_range(0..=NEAR_MAX)
            } else {
                rng.random_range(0..=far)
            };
            let first = keyed.get(request as usize).map_or(0, |(place, _)| *place);
            keyed.push((first + delay, Step::Repeat(request)));
        }
        for number in 0..mix.invalid {
            keyed.push((
                rng.random_range(0..mix.buyers.max(1)),
                Step::Invalid(number),
            ));
        }
        keyed.sort_by_key(|(place, _)| *place);
        plan.steps = keyed.into_iter().map(|(_, step)| step).collect();
        plan
    }

    /// The calls in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Requests: every buyer's first, then the second ones.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.buyers + u32::try_from(self.second_buyers.len()).unwrap_or(u32::MAX)
    }

    /// The buyer of a request.
    #[must_use]
    pub fn buyer(&self, request: u32) -> u32 {
        match request.checked_sub(self.buyers) {
            None => request,
            Some(second) => self
                .second_buyers
                .get(second as usize)
                .copied()
                .unwrap_or_default(),
        }
    }
}

fn part(whole: u32, percent: u32) -> u32 {
    u32::try_from(u64::from(whole) * u64::from(percent) / 100).unwrap_or(u32::MAX)
}

/// Draws `count` different numbers below `limit`, in ascending order.
fn draw(rng: &mut StdRng, limit: u32, count: u32) -> Vec<u32> {
    let drawn = sample(rng, limit as usize, count.min(limit) as usize);
    let mut drawn: Vec<u32> = drawn
        .into_iter()
        .filter_map(|index| u32::try_from(index).ok())
        .collect();
    drawn.sort_unstable();
    drawn
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    const MIX: Mix = Mix {
        buyers: 10_000,
        repeat_percent: 20,
        second_percent: 5,
        invalid: 100,
        seed: 7,
    };

    #[test]
    fn the_mix_is_met_exactly() {
        let plan = Plan::new(MIX);
        let count = |wanted: fn(&Step) -> bool| plan.steps().iter().filter(|s| wanted(s)).count();
        assert_eq!(plan.requests(), 10_500);
        assert_eq!(count(|step| matches!(step, Step::First(_))), 10_500);
        assert_eq!(count(|step| matches!(step, Step::Repeat(_))), 2_100);
        assert_eq!(count(|step| matches!(step, Step::Invalid(_))), 100);
    }

    #[test]
    fn a_repeat_stands_behind_its_first_attempt() {
        let plan = Plan::new(MIX);
        let mut place = BTreeMap::new();
        for (at, step) in plan.steps().iter().enumerate() {
            match step {
                Step::First(request) => assert!(place.insert(*request, at).is_none()),
                Step::Repeat(request) => assert!(place[request] < at),
                Step::Invalid(_) => {}
            }
        }
    }

    #[test]
    fn second_requests_come_from_different_buyers_after_their_first() {
        let plan = Plan::new(MIX);
        let buyers: BTreeSet<u32> = (10_000..10_500)
            .map(|request| plan.buyer(request))
            .collect();
        assert_eq!(buyers.len(), 500);
        let place = |wanted| {
            plan.steps()
                .iter()
                .position(|step| *step == Step::First(wanted))
        };
        for request in 10_000..10_010 {
            assert!(place(plan.buyer(request)) < place(request));
        }
    }

    #[test]
    fn a_seed_always_draws_the_same_plan() {
        assert_eq!(Plan::new(MIX).steps(), Plan::new(MIX).steps());
        assert_ne!(
            Plan::new(MIX).steps(),
            Plan::new(Mix { seed: 8, ..MIX }).steps()
        );
    }

    #[test]
    fn a_tiny_sale_has_a_plan_too() {
        let plan = Plan::new(Mix {
            buyers: 1,
            repeat_percent: 100,
            second_percent: 100,
            ..MIX
        });
        assert_eq!(plan.requests(), 2);
        assert_eq!(
            plan.steps()
                .iter()
                .filter(|s| matches!(s, Step::Repeat(_)))
                .count(),
            2
        );
        assert_eq!(
            Plan::new(Mix {
                buyers: 0,
                invalid: 0,
                ..MIX
            })
            .steps(),
            []
        );
    }
}
