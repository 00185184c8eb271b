//! The protocol as a stateright model.

use stateright::{Model, Property};

use crate::domain::Domain;
use crate::{Action, Config, INVARIANTS, State};

/// The protocol under one configuration.
pub struct Protocol {
    pub(crate) config: Config,
    pub(crate) domain: Domain,
    start: State,
    faults: bool,
}

impl Protocol {
    /// Everything that can happen from the first call on.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let start = State::new(&config);
        Self {
            domain: Domain::new(&config),
            config,
            start,
            faults: true,
        }
    }

    /// What the system does by itself from some state on: no caller, no fault.
    #[must_use]
    pub fn left_alone(config: Config, start: State) -> Self {
        Self {
            start,
            faults: false,
            ..Self::new(config)
        }
    }

    /// What is searched.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.enabled(state, actions);
        if !self.faults {
            actions.retain(|action| action.is_own_step());
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.apply(&mut state, action);
        self.remember(last, &mut state, action);
        self.forget(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        INVARIANTS
            .iter()
            .map(|(name, holds)| Property::always(name, *holds))
            .collect()
    }
}
