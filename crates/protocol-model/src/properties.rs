//! The invariants, as conditions on a state.

use seckill_state_machine::{DecisionKind, OrderState, ReservationStatus};
use stateright::Model;

use crate::slot::{Reply, Slot};
use crate::transfer::Saga;
use crate::{Config, Protocol, State};

/// A named condition that every reachable state fulfils.
pub type Invariant = (&'static str, fn(&Protocol, &State) -> bool);

/// What must hold. I5 is judged where nothing can happen any more; that such an end can be reached
/// from everywhere is a search of its own ([`crate::can_always_settle`]). I10 to I12 are about expiry,
/// traces and secrets, of which the model knows nothing.
pub const INVARIANTS: &[Invariant] = &[
    ("I1 no oversell", no_oversell),
    ("I2 one active order per user", one_order_per_user),
    ("I3 conserved and held", conserved),
    ("I4 one effect per request", one_effect),
    ("I5 settled at the end", settled_at_the_end),
    ("I6 released only when decided", released_only_when_decided),
    ("I7 decisions are written once", decided_once),
    ("I8 acknowledged when decided or parked", acknowledged_late),
    ("I9 refused means no order", refused_means_no_order),
    ("S1 sold out means none left", sold_out_means_none_left),
    ("S2 served in time is not released", served_in_time),
];

/// The full names of the invariants that begin with a text; all of them for an empty text.
#[must_use]
pub fn invariants(prefix: &str) -> Vec<&'static str> {
    INVARIANTS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| name.starts_with(prefix))
        .collect()
}

fn no_oversell(model: &Protocol, state: &State) -> bool {
    let total: i32 = model.config.stock.iter().copied().map(i32::from).sum();
    let rows = state.postgres.total.iter().copied().map(i32::from);
    state.postgres.sold() <= total
        && rows.sum::<i32>() == total
        && state.postgres.available.iter().all(|units| *units >= 0)
}

fn one_order_per_user(model: &Protocol, state: &State) -> bool {
    let mut seen = [false; crate::USERS];
    model.config.all_requests().all(|request| {
        let active = state.postgres.is_ordered(usize::from(request));
        let user = usize::from(model.config.request(request).user);
        !active || !std::mem::replace(&mut seen[user], true)
    })
}

fn conserved(_: &Protocol, state: &State) -> bool {
    state.slots.iter().all(|slot| {
        let Some(initial) = slot.initial else {
            return true;
        };
        slot.available >= 0
            && slot.reserved >= 0
            && slot.available + slot.reserved == initial
            && slot.reserved == slot.held()
    })
}

/// I4: answers do not contradict each other, an acceptance has its reservation, and one `request_id`
/// becomes one order at most.
fn one_effect(model: &Protocol, state: &State) -> bool {
    let config = &model.config;
    let same_id = |a: u8, b: u8| config.request_id(a) == config.request_id(b);
    let backed = |slot: &Slot, id: u8| {
        let accepted =
            slot.results[usize::from(id)].is_some_and(|result| result.reply == Reply::Accepted);
        let mut reservations = config.all_requests().filter(|r| same_id(*r, id));
        !accepted || reservations.any(|r| slot.status(config.reservation(r)).is_some())
    };
    let ordered_once = config.all_requests().all(|first| {
        config.all_requests().all(|second| {
            let both = [first, second].map(|r| state.postgres.orders[usize::from(r)].is_some());
            first == second || !same_id(first, second) || both != [true, true]
        })
    });
    !state.witness.contradicted
        && !state.witness.taken_hostage
        && ordered_once
        && config
            .all_requests()
            .all(|id| backed(state.slot(config, id), id))
}

fn released_only_when_decided(model: &Protocol, state: &State) -> bool {
    model.config.all_requests().all(|reservation| {
        let at = usize::from(reservation);
        match state.status(&model.config, reservation) {
            Some(ReservationStatus::Released) => matches!(
                state.postgres.decisions[at],
                Some(DecisionKind::Rejected | DecisionKind::Released)
            ),
            Some(ReservationStatus::OrderCancelled) => {
                state.postgres.orders[at].is_some_and(|order| order.state == OrderState::Cancelled)
            }
            _ => true,
        }
    })
}

fn decided_once(_: &Protocol, state: &State) -> bool {
    !state.postgres.decided_twice
}

fn acknowledged_late(_: &Protocol, state: &State) -> bool {
    !state.witness.acknowledged_early
}

fn refused_means_no_order(_: &Protocol, state: &State) -> bool {
    state
        .heard
        .iter()
        .zip(&state.postgres.orders)
        .all(|(heard, order)| *heard != Some(Reply::Refused) || order.is_none())
}

fn sold_out_means_none_left(_: &Protocol, state: &State) -> bool {
    state
        .slots
        .iter()
        .all(|slot| !slot.soldout || slot.available == 0)
}

fn served_in_time(model: &Protocol, state: &State) -> bool {
    let released = |decision: &Option<DecisionKind>| *decision == Some(DecisionKind::Released);
    !model.config.is_healthy() || !state.postgres.decisions.iter().any(released)
}

/// I5: where no step is left, both sides agree and nothing is open.
fn settled_at_the_end(model: &Protocol, state: &State) -> bool {
    if is_settled(&model.config, state) {
        return true;
    }
    let mut actions = Vec::new();
    model.actions(state, &mut actions);
    actions
        .into_iter()
        .any(|action| model.next_state(state, action).is_some())
}

/// Both sides agree, and nothing is open.
pub fn is_settled(config: &Config, state: &State) -> bool {
    let agreed = config.all_requests().all(|reservation| {
        let status = state.status(config, reservation);
        let ordered = state.postgres.is_ordered(usize::from(reservation));
        (status == Some(ReservationStatus::OrderCreated)) == ordered
            && status.is_none_or(ReservationStatus::is_settled)
            && !state
                .slot(config, reservation)
                .marker_is_broken(config, reservation)
    });
    // A parked message is a trace too: it must have been decided.
    let parked_decided = config.all_requests().all(|request| {
        let decision = state.postgres.decisions[usize::from(config.reservation(request))];
        !state.parked[usize::from(request)] || decision.is_some()
    });
    let same_stock = state.slots.iter().enumerate().all(|(bucket, slot)| {
        slot.initial == Some(state.postgres.total[bucket])
            && slot.available == state.postgres.available[bucket]
    });
    let moved = matches!(
        state.postgres.saga,
        Saga::None | Saga::Finished | Saga::GivenUp
    );
    agreed
        && parked_decided
        && same_stock
        && moved
        && state.broker.iter().all(|copies| *copies == 0)
        && state.postgres.tasks.iter().all(|task| !task.open)
}
