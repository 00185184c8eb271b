//! What each step does.

use seckill_state_machine::{DecisionKind, ReservationStatus};

use crate::slot::{Recovery, Reply, Slot};
use crate::state::{Look, Stage, Worker};
use crate::{Action, Config, End, Protocol, Safeguard, State};

impl Protocol {
    pub(crate) fn apply(&self, state: &mut State, action: Action) {
        let config = &self.config;
        match action {
            Action::Call {
                request,
                reply_lost,
            } => call(config, state, request, reply_lost),
            Action::Send { request, dies } => send(state, request, !dies),
            Action::SenderDies(request) => state.holding[usize::from(request)] = false,
            Action::Scan(reservation) => scan(config, state, reservation),
            Action::Record(request, status) => state
                .slot_mut(config, request)
                .transition(config.reservation(request), status),
            Action::Consume { request, end } => self.consume(state, request, end),
            Action::Park(request) => park(config, state, request),
            Action::Drop(request) => {
                state.left.drops -= 1;
                state.broker[usize::from(request)] -= 1;
            }
            Action::Reconcile(reservation) => {
                if let Some(repair) = state.repair(config, reservation) {
                    state.perform(config, reservation, repair);
                }
            }
            Action::Look(reservation) => {
                let seen = state.repair(config, reservation);
                state.looks.extend(seen.map(|repair| Look {
                    reservation,
                    repair,
                }));
            }
            Action::Act(index) => {
                let look = state.looks.remove(index);
                state.perform(config, look.reservation, look.repair);
            }
            Action::HandOver(reservation) => state.postgres.open_task(config, reservation),
            Action::Claim(reservation) => state.workers.push(Worker {
                reservation,
                generation: state.postgres.tasks[usize::from(reservation)].generation,
                stage: Stage::Claimed,
            }),
            Action::Work(index) => work(config, state, index),
            Action::WorkerDies(index) => {
                state.workers.remove(index);
            }
            Action::Cancel(reservation) => {
                state.left.cancels -= 1;
                state.postgres.cancel(config, reservation);
            }
            Action::Failover { slot, to } => fail_over(config, state, slot, to),
            Action::Lose(slot) => lose(config, state, slot),
            Action::Initialise(slot) => {
                let (units, mark) = (
                    state.postgres.total[slot],
                    state.postgres.mark(config, slot),
                );
                state.slots[slot].initialise(config, units, mark);
            }
            Action::Resume(slot) => {
                state.slots[slot].recovery = match config.has(Safeguard::WindowAfterRebuild) {
                    true => Recovery::Window,
                    false => Recovery::Empty,
                };
            }
            Action::CloseWindow(slot) => state.slots[slot].recovery = Recovery::Empty,
            Action::Transfer(step) => self.transfer(state, step),
        }
    }

    /// Keeps the slots' earlier states while a failover may bring one back.
    pub(crate) fn remember(&self, last: &State, state: &mut State, action: Action) {
        if state.left.failovers == 0 {
            state.history.iter_mut().for_each(Vec::clear);
            return;
        }
        if matches!(action, Action::Failover { .. } | Action::Lose(_)) {
            return;
        }
        for (slot, history) in state.history.iter_mut().enumerate() {
            // With one failover left, a state that comes twice is as good as once.
            let known = state.left.failovers == 1 && history.contains(&last.slots[slot]);
            if state.slots[slot] != last.slots[slot] && !known {
                history.push(last.slots[slot]);
            }
        }
    }

    /// Drops what nobody can notice any more, so that states that differ in nothing else are one.
    pub(crate) fn forget(&self, state: &mut State) {
        let config = &self.config;
        // Who is the first of two workers makes no difference.
        state.workers.sort_unstable();
        state.looks.sort_unstable();
        let may_lose = state.left.failovers + state.left.losses > 0;
        for request in config.all_requests() {
            let at = usize::from(request);
            let status = state.status(config, config.reservation(request));
            // What is further than sent stays so, unless Redis forgets it.
            if !may_lose && status.is_some_and(|status| !status.awaits_send()) {
                state.sent[at] = false;
            }
            // A generation is compared with those that workers hold, and with nothing else.
            let is_worked_on = |w: &Worker| w.reservation == request;
            if !state.workers.iter().any(is_worked_on) {
                let generation = &mut state.postgres.tasks[at].generation;
                *generation = (*generation).min(1);
            }
        }
        // A window that no caller will ask through.
        for slot in 0..state.slots.len() {
            let may_ask = config
                .all_requests()
                .filter(|request| config.bucket(*request) == slot)
                .any(|request| state.calls[usize::from(request)] < config.calls);
            if !may_ask && state.slots[slot].recovery == Recovery::Window {
                state.slots[slot].recovery = Recovery::Empty;
            }
        }
    }

    fn consume(&self, state: &mut State, request: u8, end: End) {
        let config = &self.config;
        let reservation = config.reservation(request);
        let at = usize::from(request);
        if end == End::AcknowledgesEarly {
            state.broker[at] -= 1;
            let decided = state.postgres.decisions[usize::from(reservation)].is_some();
            state.witness.acknowledged_early |= !decided && !state.parked[at];
            return;
        }
        let duplicate = state.postgres.decide(config, &self.domain, request);
        if end != End::Dies {
            state.broker[at] -= 1;
        }
        if end == End::Settles && (!duplicate || config.has(Safeguard::DuplicatesSettle)) {
            state.settle(config, reservation);
            let decision = state.postgres.decisions[usize::from(reservation)];
            // Redis holds again what was decided away: a failover undid the release.
            if duplicate
                && decision != Some(DecisionKind::Ordered)
                && state.holds(config, reservation)
            {
                state.postgres.open_task(config, reservation);
            }
        }
    }
}

fn call(config: &Config, state: &mut State, request: u8, reply_lost: bool) {
    let at = usize::from(request);
    let reservation = config.reservation(request);
    let repeat = state.calls[at] > 0;
    state.calls[at] += 1;
    let fresh = state.status(config, reservation).is_none();
    let reply = state
        .slot_mut(config, request)
        .reserve(config, request, repeat);
    if reply == Reply::Accepted && fresh {
        state.holding[at] |= !reply_lost;
        let decided = state.postgres.decisions[usize::from(reservation)].is_some();
        let worked_on = state.postgres.tasks[usize::from(reservation)].open;
        state.witness.taken_hostage |=
            decided && !worked_on && state.is_plain(config.bucket(request));
    }
    let told = Some(reply)
        .filter(|reply| !reply_lost && matches!(reply, Reply::Accepted | Reply::Refused));
    let accepted_before = state.heard[at] == Some(Reply::Accepted);
    state.witness.contradicted |= accepted_before && told == Some(Reply::Refused);
    // A caller that asks again has given its earlier refusal up: a result that a failover lost is
    // decided afresh (I4). What was accepted counts as long as another answer can come.
    let may_ask_again = state.calls[at] < config.calls;
    state.heard[at] = match told {
        Some(Reply::Refused) => told,
        _ if may_ask_again => told.or(state.heard[at].filter(|_| accepted_before)),
        _ => None,
    };
}

fn send(state: &mut State, request: u8, sender_lives: bool) {
    let at = usize::from(request);
    state.holding[at] = false;
    state.sent[at] |= sender_lives;
    state.broker[at] += 1;
}

fn scan(config: &Config, state: &mut State, reservation: u8) {
    let record = state.slot(config, reservation).reservations[usize::from(reservation)];
    if let Some(record) = record {
        let message = config.message(reservation, record.quantity);
        state.holding[usize::from(message)] = true;
        if !config.late_scanner {
            send(state, message, true);
        }
    }
}

fn park(config: &Config, state: &mut State, request: u8) {
    state.broker[usize::from(request)] -= 1;
    state.left.parks -= 1;
    state.parked[usize::from(request)] = true;
    if config.has(Safeguard::ParkOpensTask) {
        state
            .postgres
            .open_task(config, config.reservation(request));
    }
}

/// One step of a compensation worker: fence, `RELEASE_PENDING`, compensate, close the task.
fn work(config: &Config, state: &mut State, index: usize) {
    let Worker {
        reservation,
        generation,
        stage,
    } = state.workers[index].clone();
    let fence_first = config.has(Safeguard::FenceBeforePending);
    let next = match stage {
        Stage::Claimed | Stage::Half => {
            let after = match stage {
                Stage::Claimed => Stage::Half,
                _ => Stage::Fenced,
            };
            if (stage == Stage::Claimed) == fence_first {
                fence(config, state, reservation, after)
            } else {
                state
                    .slot_mut(config, reservation)
                    .transition(reservation, ReservationStatus::ReleasePending);
                after
            }
        }
        Stage::Fenced => {
            release(config, state, reservation);
            Stage::Done
        }
        Stage::Ordered { cancelled } => {
            state.settle(config, reservation);
            match cancelled {
                true => Stage::Cancelling,
                false => Stage::Done,
            }
        }
        Stage::Cancelling => {
            state
                .slot_mut(config, reservation)
                .cancel(config, reservation);
            Stage::Done
        }
        Stage::Done => {
            state.postgres.finish_task(reservation, generation);
            state.workers.remove(index);
            return;
        }
    };
    state.workers[index].stage = next;
}

fn fence(config: &Config, state: &mut State, reservation: u8, after: Stage) -> Stage {
    match state.postgres.fence(config, reservation) {
        DecisionKind::Ordered => Stage::Ordered {
            cancelled: state.is_cancelled(config, reservation),
        },
        DecisionKind::Rejected | DecisionKind::Released => after,
    }
}

/// The compensate script; what Redis lost gets a tombstone instead.
fn release(config: &Config, state: &mut State, reservation: u8) {
    let has_tombstone = config.has(Safeguard::Tombstone);
    let slot: &mut Slot = state.slot_mut(config, reservation);
    slot.compensate(config, reservation);
    if has_tombstone {
        slot.write_tombstone(config, reservation, ReservationStatus::Released);
    }
}

/// A slot falls back to an earlier state, and its recovery window opens.
fn fail_over(config: &Config, state: &mut State, slot: usize, to: usize) {
    state.left.failovers -= 1;
    state.slots[slot] = state.history[slot][to];
    if state.slots[slot].recovery == Recovery::Empty && state.slots[slot].initial.is_some() {
        state.slots[slot].recovery = Recovery::Window;
    }
    state.history[slot].truncate(to);
    outdate_acceptances(config, state, slot);
}

/// A slot loses everything, also the states it could have fallen back to.
fn lose(config: &Config, state: &mut State, slot: usize) {
    state.left.losses -= 1;
    state.slots[slot] = Slot::lost();
    state.history[slot].clear();
    outdate_acceptances(config, state, slot);
}

fn outdate_acceptances(config: &Config, state: &mut State, slot: usize) {
    for request in config.all_requests().filter(|r| config.bucket(*r) == slot) {
        let heard = &mut state.heard[usize::from(request)];
        *heard = heard.filter(|reply| *reply != Reply::Accepted);
    }
}
