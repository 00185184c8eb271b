//! What a reconciler does about a decided reservation: production's own `replay`, step by step.

use seckill_state_machine::{DecisionKind, OrderState, Replay, ReservationStatus, replay};

use crate::slot::Slot;
use crate::{Config, Safeguard, State};

/// A step that a reconciler has found necessary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Repair {
    /// Tell Redis the outcome.
    Settle,
    /// Hand the reservation to the compensation worker.
    HandOver,
    /// Rebuild an ordered reservation that Redis lost.
    Rebuild,
    /// Write what holds nothing in the place of what Redis lost.
    Tombstone(ReservationStatus),
    /// Point the user marker at the ordered reservation.
    Marker,
}

impl State {
    fn replay(&self, config: &Config, reservation: u8) -> Option<Replay> {
        let (decision, order) = self.fact(config, reservation)?;
        Some(replay(decision, order, self.status(config, reservation)))
    }

    /// The step that would do something now.
    pub(crate) fn repair(&self, config: &Config, reservation: u8) -> Option<Repair> {
        let at = usize::from(reservation);
        let slot = self.slot(config, reservation);
        if !config.has(Safeguard::Reconciler) || slot.initial.is_none() {
            return None;
        }
        let hand_over = (!self.postgres.tasks[at].open).then_some(Repair::HandOver);
        let tombstone = |status| {
            config
                .has(Safeguard::Tombstone)
                .then_some(Repair::Tombstone(status))
        };
        match self.replay(config, reservation)? {
            Replay::Agreed => (config.has(Safeguard::MarkerRepair)
                && slot.marker_is_broken(config, reservation))
            .then_some(Repair::Marker),
            Replay::MarkOrdered | Replay::MarkRejected => Some(Repair::Settle),
            Replay::Release | Replay::Cancel => hand_over,
            Replay::Rebuild => {
                let quantity = self.postgres.orders[at].map_or(0, |order| order.quantity);
                (config.has(Safeguard::Rebuild) && slot.can_rebuild(config, reservation, quantity))
                    .then_some(Repair::Rebuild)
            }
            Replay::TombstoneReleased => tombstone(ReservationStatus::Released),
            Replay::TombstoneCancelled => tombstone(ReservationStatus::OrderCancelled),
            Replay::Contradiction => None,
        }
    }

    /// Does a step that was found necessary, perhaps long ago: each script looks for itself.
    pub(crate) fn perform(&mut self, config: &Config, reservation: u8, repair: Repair) {
        match repair {
            Repair::Settle => self.settle(config, reservation),
            Repair::HandOver => self.postgres.open_task(config, reservation),
            Repair::Rebuild => {
                let order = self.postgres.orders[usize::from(reservation)];
                let quantity = order.map_or(0, |order| order.quantity);
                self.slot_mut(config, reservation)
                    .rebuild(config, reservation, quantity);
            }
            Repair::Tombstone(status) => {
                self.slot_mut(config, reservation)
                    .write_tombstone(config, reservation, status);
            }
            Repair::Marker => self
                .slot_mut(config, reservation)
                .repair_marker(config, reservation),
        }
    }

    /// Tells Redis an outcome. `ENQUEUED` first: what was decided has been sent.
    pub(crate) fn settle(&mut self, config: &Config, reservation: u8) {
        let outcome = match self.fact(config, reservation) {
            Some((DecisionKind::Ordered, _)) => ReservationStatus::OrderCreated,
            Some((DecisionKind::Rejected, _)) => ReservationStatus::Rejected,
            Some((DecisionKind::Released, _)) | None => return,
        };
        let enqueued_first = config.has(Safeguard::EnqueuedFirst);
        let slot: &mut Slot = self.slot_mut(config, reservation);
        if enqueued_first {
            slot.transition(reservation, ReservationStatus::Enqueued);
        }
        slot.transition(reservation, outcome);
    }

    /// Whether Redis says what PostgreSQL has decided; also where nothing is decided.
    pub(crate) fn is_replayed(&self, config: &Config, reservation: u8) -> bool {
        match self.replay(config, reservation) {
            None | Some(Replay::Agreed) => true,
            Some(Replay::TombstoneReleased | Replay::TombstoneCancelled) => {
                !config.has(Safeguard::Tombstone)
            }
            Some(_) => false,
        }
    }

    /// Whether undecided work may be handed over: it is held, and patience has passed.
    pub(crate) fn is_overdue(&self, config: &Config, reservation: u8) -> bool {
        let at = usize::from(reservation);
        let waited = config.overdue
            || !config.has(Safeguard::Patience)
            || self.is_quiet(config, reservation);
        config.has(Safeguard::Reconciler)
            && config.has(Safeguard::Overdue)
            && waited
            && self.postgres.decisions[at].is_none()
            && self.holds(config, reservation)
            && !self.postgres.tasks[at].open
    }

    /// Whether the order behind a decision was cancelled, as far as replay looks.
    pub(crate) fn is_cancelled(&self, config: &Config, reservation: u8) -> bool {
        matches!(
            self.fact(config, reservation),
            Some((_, Some(OrderState::Cancelled)))
        )
    }
}
