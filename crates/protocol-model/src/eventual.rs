//! I5 as an eventual property: from every reachable state, also in the middle of a fault, the system's
//! own steps alone lead to a state where both sides agree and nothing is open.
//!
//! The search for invariants looks at the ends of runs. This one shows that no run is caught in a
//! circle that has no way out: it keeps the graph and walks it backwards from the settled states.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use stateright::Model;

use crate::properties::is_settled;
use crate::{Action, Protocol, State};

/// What the walk found.
#[derive(Debug)]
pub struct Reach {
    /// Distinct states.
    pub states: usize,
    /// States from which the system's own steps never lead to a settled one.
    pub stuck: usize,
    /// The steps to one of them.
    pub path: Vec<Action>,
    /// Whether every reachable state was visited.
    pub whole: bool,
}

/// The part of the graph that is known.
struct Graph {
    hasher: RandomState,
    numbers: HashMap<u64, u32>,
    /// How each state was first reached.
    parents: Vec<(u32, Option<Action>)>,
    /// For each state, those that lead to it by one of the system's own steps.
    sources: Vec<Vec<u32>>,
    settled: Vec<u32>,
}

impl Graph {
    /// The number of a state, and whether it is new.
    fn number(&mut self, state: &State, parent: u32, by: Option<Action>) -> (u32, bool) {
        let next = u32::try_from(self.parents.len()).unwrap_or(u32::MAX);
        let number = *self
            .numbers
            .entry(self.hasher.hash_one(state))
            .or_insert(next);
        if number == next {
            self.parents.push((parent, by));
            self.sources.push(Vec::new());
        }
        (number, number == next)
    }

    fn path(&self, mut number: u32) -> Vec<Action> {
        let mut path = Vec::new();
        while let (parent, Some(action)) = self.parents[number as usize] {
            path.push(action);
            number = parent;
        }
        path.reverse();
        path
    }

    /// Which states lead to a settled one.
    fn can_settle(&self) -> Vec<bool> {
        let mut can = vec![false; self.parents.len()];
        let mut open = self.settled.clone();
        for number in &open {
            can[*number as usize] = true;
        }
        while let Some(number) = open.pop() {
            for source in &self.sources[number as usize] {
                if !std::mem::replace(&mut can[*source as usize], true) {
                    open.push(*source);
                }
            }
        }
        can
    }
}

/// Walks up to `states_max` states.
#[must_use]
pub fn can_always_settle(model: &Protocol, states_max: usize) -> Reach {
    let mut graph = Graph {
        hasher: RandomState::new(),
        numbers: HashMap::new(),
        parents: Vec::new(),
        sources: Vec::new(),
        settled: Vec::new(),
    };
    let mut open = VecDeque::new();
    for start in model.init_states() {
        let (number, _) = graph.number(&start, 0, None);
        open.push_back((number, start));
    }
    let mut actions = Vec::new();
    while let Some((number, state)) = open.pop_front() {
        if graph.parents.len() > states_max {
            break;
        }
        if is_settled(&model.config, &state) {
            graph.settled.push(number);
        }
        model.actions(&state, &mut actions);
        for action in actions.drain(..) {
            let Some(next) = model.next_state(&state, action) else {
                continue;
            };
            let (target, is_new) = graph.number(&next, number, Some(action));
            if action.is_own_step() {
                graph.sources[target as usize].push(number);
            }
            if is_new {
                open.push_back((target, next));
            }
        }
    }
    let can = graph.can_settle();
    let first_stuck = (0..).zip(&can).find(|(_, can)| !**can);
    Reach {
        states: graph.parents.len(),
        stuck: can.iter().filter(|can| !**can).count(),
        path: first_stuck.map_or_else(Vec::new, |(number, _)| graph.path(number)),
        whole: open.is_empty(),
    }
}
