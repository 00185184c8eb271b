//! What each step does to the state.

use seckill_state_machine::{DecisionKind, ReservationStatus};

use crate::model::{Stage, Worker};
use crate::slot::{Reply, Slot};
use crate::{Action, Protocol, Safeguard, State};

impl Protocol {
    pub(crate) fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Call {
                request,
                reply_lost,
            } => self.call(state, request, reply_lost),
            Action::FrontSend { request, dies } => {
                state.front[usize::from(request)] = false;
                self.send(state, request, !dies);
            }
            Action::FrontDies(request) => state.front[usize::from(request)] = false,
            Action::Scan(request) => self.send(state, request, true),
            Action::Record(request, status) => {
                self.slot(state, request).transition(request, status)
            }
            Action::Consume {
                request,
                acknowledged,
            } => {
                state.postgres.decide(&self.config, &self.domain, request);
                if acknowledged {
                    state.broker[usize::from(request)] -= 1;
                }
            }
            Action::Park(request) => self.park(state, request),
            Action::Settle(request) => self.settle(state, request),
            Action::HandOver(request) => state.postgres.open_task(&self.config, request),
            Action::Claim(request) => {
                let generation = state.postgres.tasks[usize::from(request)].generation;
                state.workers.push(Worker {
                    request,
                    generation,
                    stage: Stage::Claimed,
                });
            }
            Action::Work(index) => self.work(state, index),
            Action::WorkerDies(index) => {
                state.workers.remove(index);
            }
            Action::Cancel(request) => {
                state.cancels_left -= 1;
                state.postgres.cancel(&self.config, request);
            }
            Action::CancelScript(request) => {
                self.settle(state, request);
                self.slot(state, request).cancel(&self.config, request);
            }
            Action::Rebuild(request) => self.slot(state, request).rebuild(&self.config, request),
            Action::Tombstone(request) => self.tombstone(state, request),
            Action::RepairMarker(request) => {
                self.slot(state, request)
                    .repair_marker(&self.config, request);
            }
            Action::Failover { slot, to } => fail_over(state, slot, to),
            Action::Lose(slot) => lose(state, slot),
            Action::Initialise(slot) => {
                state.slots[slot].initialise(&self.config, self.config.stock[slot]);
            }
            Action::CloseWindow(slot) => state.slots[slot].window = false,
        }
    }

    /// Keeps the slots' earlier states while a failover may bring one back.
    pub(crate) fn remember(&self, last: &State, state: &mut State, action: Action) {
        if state.failovers_left == 0 {
            state.history.iter_mut().for_each(Vec::clear);
            return;
        }
        if matches!(action, Action::Failover { .. } | Action::Lose(_)) {
            return;
        }
        for (slot, history) in state.history.iter_mut().enumerate() {
            if state.slots[slot] != last.slots[slot] {
                history.push(last.slots[slot].clone());
            }
        }
    }

    fn slot<'s>(&self, state: &'s mut State, request: u8) -> &'s mut Slot {
        &mut state.slots[usize::from(self.config.requests[usize::from(request)].bucket)]
    }

    fn call(&self, state: &mut State, request: u8, reply_lost: bool) {
        let at = usize::from(request);
        let repeat = state.calls[at] > 0;
        state.calls[at] += 1;
        let slot = self.slot(state, request);
        let fresh = slot.reservations[at].is_none();
        let reply = slot.reserve(&self.config, request, repeat);
        if reply == Reply::Accepted && fresh && !reply_lost {
            state.front[at] = true;
        }
        // A caller that asks again has given its earlier refusal up: a result that a failover lost is
        // decided afresh (I4).
        state.told_refused[at] = reply == Reply::Refused && !reply_lost;
    }

    fn send(&self, state: &mut State, request: u8, sender_lives: bool) {
        let at = usize::from(request);
        state.sent[at] |= sender_lives;
        state.broker[at] = (state.broker[at] + 1).min(self.config.copies);
    }

    fn park(&self, state: &mut State, request: u8) {
        state.broker[usize::from(request)] -= 1;
        state.parks_left -= 1;
        state.parked[usize::from(request)] = true;
        if self.config.has(Safeguard::ParkOpensTask) {
            state.postgres.open_task(&self.config, request);
        }
    }

    fn settle(&self, state: &mut State, request: u8) {
        let outcome = match state.fact(&self.config, request) {
            Some((DecisionKind::Ordered, _)) => ReservationStatus::OrderCreated,
            Some((DecisionKind::Rejected, _)) => ReservationStatus::Rejected,
            Some((DecisionKind::Released, _)) | None => return,
        };
        let enqueued_first = self.config.has(Safeguard::EnqueuedFirst);
        let slot = self.slot(state, request);
        if enqueued_first {
            slot.transition(request, ReservationStatus::Enqueued);
        }
        slot.transition(request, outcome);
    }

    fn tombstone(&self, state: &mut State, request: u8) {
        let status = match state.postgres.decisions[usize::from(request)] {
            Some(DecisionKind::Ordered) => ReservationStatus::OrderCancelled,
            _ => ReservationStatus::Released,
        };
        self.slot(state, request).write_tombstone(request, status);
    }

    /// One step of a compensation worker.
    fn work(&self, state: &mut State, index: usize) {
        let Worker {
            request,
            generation,
            stage,
        } = state.workers[index].clone();
        let fence_first = self.config.has(Safeguard::FenceBeforePending);
        let fences = matches!(
            (stage, fence_first),
            (Stage::Claimed, true) | (Stage::Half, false)
        );
        let next = match stage {
            Stage::Claimed | Stage::Half if fences => {
                if state.postgres.fence(&self.config, request) == DecisionKind::Ordered {
                    // An order won: Redis is settled as ordered, and the task is done.
                    self.settle(state, request);
                    Stage::Compensated
                } else if stage == Stage::Claimed {
                    Stage::Half
                } else {
                    Stage::Fenced
                }
            }
            Stage::Claimed | Stage::Half => {
                self.slot(state, request)
                    .transition(request, ReservationStatus::ReleasePending);
                if stage == Stage::Claimed {
                    Stage::Half
                } else {
                    Stage::Fenced
                }
            }
            Stage::Fenced => {
                self.slot(state, request).compensate(&self.config, request);
                Stage::Compensated
            }
            Stage::Compensated => {
                state.postgres.finish_task(request, generation);
                state.workers.remove(index);
                return;
            }
        };
        state.workers[index].stage = next;
    }
}

/// A slot falls back to an earlier state, and its recovery window opens.
fn fail_over(state: &mut State, slot: usize, to: usize) {
    state.failovers_left -= 1;
    state.slots[slot] = state.history[slot][to].clone();
    state.slots[slot].window = true;
    state.history[slot].truncate(to);
}

/// A slot loses everything, also the states it could have fallen back to.
fn lose(state: &mut State, slot: usize) {
    state.losses_left -= 1;
    state.slots[slot].lose();
    state.history[slot].clear();
}
