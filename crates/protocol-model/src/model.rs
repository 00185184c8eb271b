//! The steps that can happen next, and what each does.

use seckill_state_machine::{DecisionKind, OrderState, ReservationStatus, Settlement, settlement};
use stateright::{Model, Property};

use crate::postgres::{Domain, Postgres};
use crate::slot::Slot;
use crate::{Config, INVARIANTS, Safeguard};

/// The protocol under one configuration.
pub struct Protocol {
    pub(crate) config: Config,
    pub(crate) domain: Domain,
}

impl Protocol {
    /// A search of a configuration.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let domain = Domain::new(&config);
        Self { config, domain }
    }
}

/// How far a compensation worker has come with a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Claimed.
    Claimed,
    /// The first of fence and `RELEASE_PENDING` is done.
    Half,
    /// Both are done.
    Fenced,
    /// The compensate script ran.
    Compensated,
}

/// A compensation worker in the middle of a task; one that died simply never moves again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Worker {
    pub(crate) request: u8,
    pub(crate) generation: u8,
    pub(crate) stage: Stage,
}

/// Everything that is stored or on its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) slots: Vec<Slot>,
    /// Earlier states of each slot, kept while a failover can still bring one back.
    pub(crate) history: Vec<Vec<Slot>>,
    pub(crate) postgres: Postgres,
    /// Copies of each order request in the broker.
    pub(crate) broker: Vec<u8>,
    /// Whether the message lies in `dead_letter`.
    pub(crate) parked: Vec<bool>,
    /// Whether a live front or scanner knows that it was sent: only then can that be recorded.
    pub(crate) sent: Vec<bool>,
    /// First sends that a live front still holds in memory.
    pub(crate) front: Vec<bool>,
    pub(crate) workers: Vec<Worker>,
    /// Calls made by each client.
    pub(crate) calls: Vec<u8>,
    /// Whether the last that a client heard was a refusal.
    pub(crate) told_refused: Vec<bool>,
    pub(crate) failovers_left: u8,
    pub(crate) losses_left: u8,
    pub(crate) cancels_left: u8,
    pub(crate) parks_left: u8,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A client calls; the reply arrives or is lost.
    Call {
        /// Whose request.
        request: u8,
        /// Whether the caller learns nothing.
        reply_lost: bool,
    },
    /// The front sends what it holds in memory.
    FrontSend {
        /// Whose message.
        request: u8,
        /// Whether it dies before it records the outcome.
        dies: bool,
    },
    /// The front dies before the send.
    FrontDies(u8),
    /// The scanner sends a member of `send_pending`.
    Scan(u8),
    /// Somebody records the outcome of a send.
    Record(u8, ReservationStatus),
    /// The consumer commits; the message is acknowledged or comes again.
    Consume {
        /// Whose message.
        request: u8,
        /// Whether the broker learns that it was handled.
        acknowledged: bool,
    },
    /// The consumer parks the message undecided.
    Park(u8),
    /// Whoever knows the decision settles Redis.
    Settle(u8),
    /// The reconciler hands an undecided or unreleased reservation to the worker.
    HandOver(u8),
    /// A worker claims a task.
    Claim(u8),
    /// A worker does its next step.
    Work(usize),
    /// A worker is gone for good.
    WorkerDies(usize),
    /// PostgreSQL cancels an order.
    Cancel(u8),
    /// The cancel script runs.
    CancelScript(u8),
    /// An ordered reservation that Redis lost is rebuilt.
    Rebuild(u8),
    /// A decided one that Redis lost gets a tombstone.
    Tombstone(u8),
    /// A user marker is repaired.
    RepairMarker(u8),
    /// A slot falls back to an earlier state.
    Failover {
        /// Which slot.
        slot: usize,
        /// Which of its earlier states.
        to: usize,
    },
    /// A slot loses everything.
    Lose(usize),
    /// An operator initialises a slot again.
    Initialise(usize),
    /// The reconciler ends a slot's recovery window.
    CloseWindow(usize),
}

impl State {
    /// The facts that replay works from.
    pub(crate) fn fact(
        &self,
        config: &Config,
        request: u8,
    ) -> Option<(DecisionKind, Option<OrderState>)> {
        let at = usize::from(request);
        let decision = self.postgres.decisions[at]?;
        let mut order = self.postgres.orders[at];
        if !config.has(Safeguard::OrderState) {
            order = order.map(|_| OrderState::Active);
        }
        Some((decision, order))
    }

    fn status(&self, config: &Config, request: u8) -> Option<ReservationStatus> {
        let at = usize::from(request);
        self.slots[usize::from(config.requests[at].bucket)].reservations[at]
    }

    /// What is to be done in Redis for a decided reservation that it has.
    fn step(&self, config: &Config, request: u8) -> Option<Settlement> {
        let (decision, order) = self.fact(config, request)?;
        Some(settlement(decision, order, self.status(config, request)?))
    }

    /// Whether nothing from before a failover can still surprise a caller of this slot: no first send
    /// in a front's memory, no message in the broker, and a clean round of replay.
    fn may_close_window(&self, config: &Config, slot: usize) -> bool {
        (0..config.requests.len())
            .filter(|at| usize::from(config.requests[*at].bucket) == slot)
            .all(|at| self.broker[at] == 0 && !self.front[at] && self.is_replayed(config, at))
    }

    fn is_replayed(&self, config: &Config, at: usize) -> bool {
        let Ok(request) = u8::try_from(at) else {
            return false;
        };
        self.fact(config, request).is_none()
            || self.step(config, request) == Some(Settlement::Agreed)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let config = &self.config;
        let requests = config.requests.len();
        let users = config
            .requests
            .iter()
            .map(|r| usize::from(r.user) + 1)
            .max()
            .unwrap_or(0);
        let slots: Vec<Slot> = config
            .stock
            .iter()
            .map(|units| Slot::preheated(*units, requests, users))
            .collect();
        vec![State {
            history: vec![Vec::new(); slots.len()],
            slots,
            postgres: Postgres::new(config),
            broker: vec![0; requests],
            parked: vec![false; requests],
            sent: vec![false; requests],
            front: vec![false; requests],
            workers: Vec::new(),
            calls: vec![0; requests],
            told_refused: vec![false; requests],
            failovers_left: config.failovers,
            losses_left: config.losses,
            cancels_left: config.cancels,
            parks_left: config.parks,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for request in 0..u8::try_from(self.config.requests.len()).unwrap_or(u8::MAX) {
            self.purchase_actions(state, request, actions);
            self.repair_actions(state, request, actions);
        }
        for index in 0..state.workers.len() {
            actions.extend([Action::Work(index), Action::WorkerDies(index)]);
        }
        for slot in 0..state.slots.len() {
            self.slot_actions(state, slot, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.apply(&mut state, action);
        self.remember(last, &mut state, action);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        INVARIANTS
            .iter()
            .map(|(name, holds)| Property::always(name, *holds))
            .collect()
    }
}

impl Protocol {
    fn purchase_actions(&self, state: &State, request: u8, actions: &mut Vec<Action>) {
        let at = usize::from(request);
        let config = &self.config;
        if state.calls[at] < config.calls {
            for reply_lost in [false, true] {
                actions.push(Action::Call {
                    request,
                    reply_lost,
                });
            }
        }
        let room = state.broker[at] < config.copies;
        if state.front[at] {
            if room {
                for dies in [false, true] {
                    actions.push(Action::FrontSend { request, dies });
                }
            }
            actions.push(Action::FrontDies(request));
        }
        let slot = &state.slots[usize::from(config.requests[at].bucket)];
        if slot.send_pending[at] && room && config.has(Safeguard::Scanner) {
            actions.push(Action::Scan(request));
        }
        if state.sent[at] && slot.reservations[at].is_some_and(ReservationStatus::awaits_send) {
            actions.push(Action::Record(request, ReservationStatus::Enqueued));
            actions.push(Action::Record(request, ReservationStatus::SendUnknown));
        }
        if state.broker[at] > 0 {
            for acknowledged in [true, false] {
                actions.push(Action::Consume {
                    request,
                    acknowledged,
                });
            }
            if state.parks_left > 0 && state.postgres.decisions[at].is_none() {
                actions.push(Action::Park(request));
            }
        }
        if state.cancels_left > 0 && state.postgres.orders[at] == Some(OrderState::Active) {
            actions.push(Action::Cancel(request));
        }
    }

    fn repair_actions(&self, state: &State, request: u8, actions: &mut Vec<Action>) {
        let at = usize::from(request);
        let config = &self.config;
        let slot = &state.slots[usize::from(config.requests[at].bucket)];
        let status = slot.reservations[at];
        if config.has(Safeguard::Settlement) {
            match state.step(config, request) {
                Some(Settlement::MarkOrdered | Settlement::MarkRejected) => {
                    actions.push(Action::Settle(request));
                }
                Some(Settlement::Release) if !state.postgres.tasks[at].open => {
                    actions.push(Action::HandOver(request));
                }
                Some(Settlement::Cancel) => actions.push(Action::CancelScript(request)),
                _ => {}
            }
        }
        let undecided = state.postgres.decisions[at].is_none();
        let held = status.is_some_and(ReservationStatus::holds_units);
        if undecided && held && !state.postgres.tasks[at].open {
            actions.push(Action::HandOver(request));
        }
        if state.postgres.tasks[at].open && state.workers.len() < usize::from(config.workers) {
            actions.push(Action::Claim(request));
        }
        match state.fact(config, request) {
            Some((DecisionKind::Ordered, Some(OrderState::Active))) => {
                if config.has(Safeguard::Rebuild) && slot.can_rebuild(config, request) {
                    actions.push(Action::Rebuild(request));
                }
                if config.has(Safeguard::MarkerRepair) && slot.marker_is_broken(config, request) {
                    actions.push(Action::RepairMarker(request));
                }
            }
            Some(_) if status.is_none() && slot.initial.is_some() => {
                actions.push(Action::Tombstone(request));
            }
            _ => {}
        }
    }

    fn slot_actions(&self, state: &State, slot: usize, actions: &mut Vec<Action>) {
        if state.failovers_left > 0 {
            for to in 0..state.history[slot].len() {
                actions.push(Action::Failover { slot, to });
            }
        }
        if state.losses_left > 0 {
            actions.push(Action::Lose(slot));
        }
        let blind = !self.config.has(Safeguard::GuardedInitialise)
            && self.config.losses > state.losses_left
            && state.slots[slot].window;
        if state.slots[slot].initial.is_none() || blind {
            actions.push(Action::Initialise(slot));
        }
        if state.slots[slot].window && state.may_close_window(&self.config, slot) {
            actions.push(Action::CloseWindow(slot));
        }
    }
}
