//! Everything that is stored, on its way, or remembered by somebody.

use seckill_state_machine::{DecisionKind, OrderState, ReservationStatus};

use crate::config::{BUCKETS, PerRequest};
use crate::repair::Repair;
use crate::slot::{Recovery, Reply};
use crate::{Config, Postgres, Safeguard, Slot};

/// How far a compensation worker has come with a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Claimed.
    Claimed,
    /// The first of fence and `RELEASE_PENDING` is done.
    Half,
    /// Both are done.
    Fenced,
    /// The fence found an order; whether it was a cancelled one.
    Ordered {
        /// Whether the units are to go back.
        cancelled: bool,
    },
    /// Redis says ordered; the cancel script is next.
    Cancelling,
    /// Redis is as it should be.
    Done,
}

/// A compensation worker in the middle of a task; one that died simply never moves again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Worker {
    pub(crate) reservation: u8,
    pub(crate) generation: u8,
    pub(crate) stage: Stage,
}

/// What a reconciler has seen and not yet acted on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Look {
    pub(crate) reservation: u8,
    pub(crate) repair: Repair,
}

/// How often each fault can still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FaultsLeft {
    pub(crate) failovers: u8,
    pub(crate) losses: u8,
    pub(crate) cancels: u8,
    pub(crate) parks: u8,
    pub(crate) drops: u8,
}

/// What was once observed and must never be: no store holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Witness {
    /// A client was told "accepted", then "refused", with no failover in between (I4).
    pub(crate) contradicted: bool,
    /// After a clean replay, a repeat took units for what PostgreSQL had decided away (I4).
    pub(crate) taken_hostage: bool,
    /// A message was acknowledged without a decision and without being parked (I8).
    pub(crate) acknowledged_early: bool,
}

/// One state of the whole system.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) slots: [Slot; BUCKETS],
    /// Earlier states of each slot, kept while a failover can still bring one back.
    pub(crate) history: [Vec<Slot>; BUCKETS],
    pub(crate) postgres: Postgres,
    /// Copies of each message in the broker.
    pub(crate) broker: PerRequest<u8>,
    /// Whether the message lies in `dead_letter`.
    pub(crate) parked: PerRequest<bool>,
    /// Whether somebody alive knows that it was sent: only then can that be recorded.
    pub(crate) sent: PerRequest<bool>,
    /// Sends that a live front or scanner still holds in memory.
    pub(crate) holding: PerRequest<bool>,
    /// Whether the mover saw the donor give its units.
    pub(crate) donor_gave: bool,
    pub(crate) workers: Vec<Worker>,
    pub(crate) looks: Vec<Look>,
    /// Calls made by each client.
    pub(crate) calls: PerRequest<u8>,
    /// The last that each client heard, and a failover has not outdated.
    pub(crate) heard: PerRequest<Option<Reply>>,
    pub(crate) left: FaultsLeft,
    pub(crate) witness: Witness,
}

impl State {
    /// Everything preheated, nothing done.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let postgres = Postgres::new(config);
        Self {
            slots: postgres.total.map(Slot::preheated),
            history: Default::default(),
            postgres,
            broker: PerRequest::default(),
            parked: PerRequest::default(),
            sent: PerRequest::default(),
            holding: PerRequest::default(),
            donor_gave: false,
            workers: Vec::new(),
            looks: Vec::new(),
            calls: PerRequest::default(),
            heard: PerRequest::default(),
            left: FaultsLeft {
                failovers: config.failovers,
                losses: config.losses,
                cancels: config.cancels,
                parks: config.parks,
                drops: config.drops,
            },
            witness: Witness::default(),
        }
    }

    /// The slot of a request.
    #[must_use]
    pub fn slot(&self, config: &Config, request: u8) -> &Slot {
        &self.slots[config.bucket(request)]
    }

    pub(crate) fn slot_mut(&mut self, config: &Config, request: u8) -> &mut Slot {
        &mut self.slots[config.bucket(request)]
    }

    /// Where a reservation stands in Redis.
    #[must_use]
    pub fn status(&self, config: &Config, reservation: u8) -> Option<ReservationStatus> {
        self.slot(config, reservation).status(reservation)
    }

    /// Whether Redis holds units for a reservation.
    pub(crate) fn holds(&self, config: &Config, reservation: u8) -> bool {
        self.status(config, reservation)
            .is_some_and(ReservationStatus::holds_units)
    }

    /// The decision and the order's state, from which replay works.
    pub(crate) fn fact(
        &self,
        config: &Config,
        reservation: u8,
    ) -> Option<(DecisionKind, Option<OrderState>)> {
        let at = usize::from(reservation);
        let decision = self.postgres.decisions[at]?;
        let order = self.postgres.orders[at].map(|order| match config.has(Safeguard::OrderState) {
            true => order.state,
            false => OrderState::Active,
        });
        Some((decision, order))
    }

    /// Whether the message can no longer come from anywhere: what waiting for patience stands for, as
    /// long as scanner, broker and consumers run.
    pub(crate) fn is_quiet(&self, config: &Config, reservation: u8) -> bool {
        let at = usize::from(reservation);
        let due = self.slot(config, reservation).send_pending[at];
        self.broker[at] == 0 && !self.holding[at] && !(due && config.has(Safeguard::Scanner))
    }

    /// Whether nothing from before a failover can still surprise a caller of this slot: no send in
    /// anybody's memory, no message in the broker, and a clean round of replay.
    pub(crate) fn is_recovered(&self, config: &Config, slot: usize) -> bool {
        config
            .all_requests()
            .filter(|request| config.bucket(*request) == slot)
            .all(|request| {
                let at = usize::from(request);
                self.broker[at] == 0 && !self.holding[at] && self.is_replayed(config, request)
            })
    }

    /// Whether every decision of a slot stands in Redis: what an operator looks for before opening.
    pub(crate) fn is_rebuilt(&self, config: &Config, slot: usize) -> bool {
        config
            .all_requests()
            .filter(|request| config.bucket(*request) == slot)
            .all(|request| self.is_replayed(config, request))
    }

    /// Whether the slot's callers may be refused as ever.
    pub(crate) fn is_plain(&self, slot: usize) -> bool {
        self.slots[slot].recovery == Recovery::Empty
    }
}
