//! What can happen next.

use seckill_state_machine::{OrderState, ReservationStatus};

use crate::slot::Recovery;
use crate::{Action, End, Protocol, Safeguard, State};

impl Protocol {
    pub(crate) fn enabled(&self, state: &State, actions: &mut Vec<Action>) {
        for request in self.config.all_requests() {
            self.callers_and_senders(state, request, actions);
            self.consumers(state, request, actions);
            self.repairers(state, request, actions);
        }
        for index in 0..state.looks.len() {
            actions.push(Action::Act(index));
        }
        for index in 0..state.workers.len() {
            actions.extend([Action::Work(index), Action::WorkerDies(index)]);
        }
        for slot in 0..self.config.stock.len() {
            self.slots(state, slot, actions);
        }
        let steps = self.transfer_steps(state);
        actions.extend(steps.into_iter().map(Action::Transfer));
    }

    fn callers_and_senders(&self, state: &State, request: u8, actions: &mut Vec<Action>) {
        let at = usize::from(request);
        let config = &self.config;
        if state.calls[at] < config.calls {
            actions.extend([false, true].map(|reply_lost| Action::Call {
                request,
                reply_lost,
            }));
        }
        if state.holding[at] {
            if state.broker[at] < config.copies {
                actions.extend([false, true].map(|dies| Action::Send { request, dies }));
            }
            actions.push(Action::SenderDies(request));
        }
        let slot = state.slot(config, request);
        if let Some(record) = slot.reservations[at].filter(|_| slot.send_pending[at])
            && config.has(Safeguard::Scanner)
        {
            let message = usize::from(config.message(request, record.quantity));
            let possible = match config.late_scanner {
                true => !state.holding[message],
                false => state.broker[message] < config.copies,
            };
            actions.extend(possible.then_some(Action::Scan(request)));
        }
        let awaits = slot.status(config.reservation(request));
        if state.sent[at] && awaits.is_some_and(ReservationStatus::awaits_send) {
            actions.push(Action::Record(request, ReservationStatus::Enqueued));
            actions.push(Action::Record(request, ReservationStatus::SendUnknown));
        }
    }

    fn consumers(&self, state: &State, request: u8, actions: &mut Vec<Action>) {
        let at = usize::from(request);
        let reservation = self.config.reservation(request);
        let decided = state.postgres.decisions[usize::from(reservation)].is_some();
        if state.broker[at] > 0 {
            let ends = [End::Settles, End::SettlementLost, End::Dies];
            actions.extend(ends.map(|end| Action::Consume { request, end }));
            if !self.config.has(Safeguard::AckAfterCommit) {
                let end = End::AcknowledgesEarly;
                actions.push(Action::Consume { request, end });
            }
            if state.left.parks > 0 && !decided {
                actions.push(Action::Park(request));
            }
            if state.left.drops > 0 {
                actions.push(Action::Drop(request));
            }
        }
        let order = state.postgres.orders[at];
        if state.left.cancels > 0 && order.is_some_and(|o| o.state == OrderState::Active) {
            actions.push(Action::Cancel(request));
        }
    }

    /// Reconcilers and compensation workers; here a request is a reservation.
    fn repairers(&self, state: &State, reservation: u8, actions: &mut Vec<Action>) {
        let config = &self.config;
        if let Some(repair) = state.repair(config, reservation) {
            let already = state
                .looks
                .iter()
                .any(|look| look.reservation == reservation && look.repair == repair);
            if config.reconcilers == 0 {
                actions.push(Action::Reconcile(reservation));
            } else if state.looks.len() < usize::from(config.reconcilers) && !already {
                actions.push(Action::Look(reservation));
            }
        }
        if state.is_overdue(config, reservation) {
            actions.push(Action::HandOver(reservation));
        }
        let open = state.postgres.tasks[usize::from(reservation)].open;
        if open && state.workers.len() < usize::from(config.workers) {
            actions.push(Action::Claim(reservation));
        }
    }

    fn slots(&self, state: &State, slot: usize, actions: &mut Vec<Action>) {
        let config = &self.config;
        if state.left.failovers > 0 {
            let earlier = 0..state.history[slot].len();
            actions.extend(earlier.map(|to| Action::Failover { slot, to }));
        }
        if state.left.losses > 0 {
            actions.push(Action::Lose(slot));
        }
        let recovery = state.slots[slot].recovery;
        // A second operator who does not look.
        let blind = !config.has(Safeguard::GuardedInitialise)
            && config.losses > state.left.losses
            && recovery != Recovery::Empty;
        if state.slots[slot].initial.is_none() || blind {
            actions.push(Action::Initialise(slot));
        }
        if recovery == Recovery::Rebuild && state.is_rebuilt(config, slot) {
            actions.push(Action::Resume(slot));
        }
        if recovery == Recovery::Window && state.is_recovered(config, slot) {
            actions.push(Action::CloseWindow(slot));
        }
    }
}
