//! Moving stock from one bucket to another: a saga of three stores, each step replayed from PostgreSQL.
//!
//! The donor gives its units up first, so that in between they are unsellable and never sellable twice.

use std::fmt;

use crate::config::Transfer;
use crate::{Config, Postgres, Protocol, Safeguard, Slot, State};

/// A bucket's own record of its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mark {
    /// It has done nothing.
    None,
    /// It has given or received the units.
    Applied,
    /// The donor has them back, or will never give them; a receiver has added twice.
    Undone,
}

/// PostgreSQL's row of the transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Saga {
    /// No row.
    None,
    /// Begun: the donor may give.
    Started,
    /// The rows of both buckets are changed.
    Moved,
    /// It will not happen.
    Aborted,
    /// The receiver was seen to have its units.
    Finished,
    /// The donor was seen to have its units back.
    GivenUp,
}

/// One step of the saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferStep {
    /// PostgreSQL: the row.
    Start,
    /// The donor's script.
    Give,
    /// PostgreSQL: both rows, or an abort if the donor's row has too little.
    Move,
    /// PostgreSQL: an abort.
    Abort,
    /// The receiver's script.
    Receive,
    /// The donor's script that undoes.
    TakeBack,
    /// PostgreSQL: the end.
    Finish,
}

impl fmt::Display for TransferStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "a transfer starts",
            Self::Give => "the donor gives",
            Self::Move => "PostgreSQL moves the units",
            Self::Abort => "PostgreSQL aborts the transfer",
            Self::Receive => "the receiver adds",
            Self::TakeBack => "the donor takes back",
            Self::Finish => "PostgreSQL finishes the transfer",
        })
    }
}

impl Slot {
    fn can_give(&self, units: i8) -> bool {
        self.transfer == Mark::None && self.initial.is_some() && self.available >= units
    }

    fn add(&mut self, units: i8, mark: Mark) {
        self.initial = self.initial.map(|initial| initial + units);
        self.available += units;
        self.soldout = self.available == 0;
        self.transfer = mark;
    }
}

impl Postgres {
    fn move_units(&mut self, transfer: Transfer) {
        let (from, to) = (usize::from(transfer.from), usize::from(transfer.to));
        let units = transfer.units.cast_signed();
        if self.available[from] < units {
            self.saga = Saga::Aborted;
            return;
        }
        for (bucket, change) in [(from, -units), (to, units)] {
            self.available[bucket] += change;
            self.total[bucket] += change;
        }
        self.saga = Saga::Moved;
    }

    /// The part that a bucket has in the transfer, as far as PostgreSQL knows.
    #[must_use]
    pub fn mark(&self, config: &Config, bucket: usize) -> Mark {
        let takes_part = config
            .transfer
            .is_some_and(|t| [t.from, t.to].into_iter().any(|b| usize::from(b) == bucket));
        match self.saga {
            Saga::Moved | Saga::Finished if takes_part => Mark::Applied,
            Saga::Aborted | Saga::GivenUp if takes_part => Mark::Undone,
            _ => Mark::None,
        }
    }
}

impl Protocol {
    /// The steps that can happen next. A step that was done and undone by a failover is replayed.
    pub(crate) fn transfer_steps(&self, state: &State) -> Vec<TransferStep> {
        use TransferStep as Step;
        let Some(transfer) = self.config.transfer else {
            return Vec::new();
        };
        let donor = &state.slots[usize::from(transfer.from)];
        let receiver = &state.slots[usize::from(transfer.to)];
        let replays = self.config.has(Safeguard::TransferReplay);
        let saga = state.postgres.saga;
        // After an abort only a stale mover still gives; TakeBack puts that right.
        let gives = match saga {
            Saga::None => false,
            Saga::Started | Saga::Aborted => true,
            Saga::Moved | Saga::Finished | Saga::GivenUp => replays,
        };
        let receives = saga == Saga::Moved || (saga == Saga::Finished && replays);
        let twice = receiver.transfer == Mark::Applied && !self.config.has(Safeguard::TransferOnce);
        let takes_back = saga == Saga::Aborted || (saga == Saga::GivenUp && replays);
        let finished = match saga {
            Saga::Moved => receiver.transfer != Mark::None,
            Saga::Aborted => donor.transfer == Mark::Undone,
            _ => false,
        };
        let possible = [
            (Step::Start, saga == Saga::None),
            (
                Step::Give,
                gives && donor.can_give(transfer.units.cast_signed()),
            ),
            (Step::Move, saga == Saga::Started && state.donor_gave),
            (Step::Abort, saga == Saga::Started),
            (
                Step::Receive,
                receives
                    && receiver.initial.is_some()
                    && (receiver.transfer == Mark::None || twice),
            ),
            (
                Step::TakeBack,
                takes_back && donor.initial.is_some() && donor.transfer != Mark::Undone,
            ),
            (Step::Finish, finished),
        ];
        possible
            .into_iter()
            .filter_map(|(step, possible)| possible.then_some(step))
            .collect()
    }

    pub(crate) fn transfer(&self, state: &mut State, step: TransferStep) {
        let Some(transfer) = self.config.transfer else {
            return;
        };
        let units = transfer.units.cast_signed();
        let donor = &mut state.slots[usize::from(transfer.from)];
        match step {
            TransferStep::Start => state.postgres.saga = Saga::Started,
            TransferStep::Give => {
                donor.add(-units, Mark::Applied);
                state.donor_gave = true;
            }
            TransferStep::Move => state.postgres.move_units(transfer),
            TransferStep::Abort => state.postgres.saga = Saga::Aborted,
            TransferStep::Receive => {
                let receiver = &mut state.slots[usize::from(transfer.to)];
                let mark = match receiver.transfer {
                    Mark::None => Mark::Applied,
                    Mark::Applied | Mark::Undone => Mark::Undone,
                };
                receiver.add(units, mark);
            }
            TransferStep::TakeBack => {
                let back = match donor.transfer {
                    Mark::Applied => units,
                    Mark::None | Mark::Undone => 0,
                };
                donor.add(back, Mark::Undone);
            }
            TransferStep::Finish => {
                state.postgres.saga = match state.postgres.saga {
                    Saga::Aborted => Saga::GivenUp,
                    _ => Saga::Finished,
                };
            }
        }
    }
}
