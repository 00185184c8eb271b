//! The invariants, as conditions on a state.

use seckill_state_machine::{DecisionKind, OrderState, ReservationStatus};
use stateright::Model;

use crate::{Protocol, State};

/// A named condition that every reachable state fulfils.
pub type Invariant = (&'static str, fn(&Protocol, &State) -> bool);

/// I1 to I7 and I9. I5 is judged where nothing can happen any more.
pub const INVARIANTS: &[Invariant] = &[
    ("I1 no oversell", no_oversell),
    ("I2 one active order per user", one_order_per_user),
    ("I3 conserved and held", conserved),
    ("I5 settled at the end", settled_at_the_end),
    ("I6 released only when decided", released_only_when_decided),
    ("I7 decisions are written once", decided_once),
    ("I9 refused means no order", refused_means_no_order),
];

fn no_oversell(model: &Protocol, state: &State) -> bool {
    let config = &model.config;
    let total: i32 = config.stock.iter().copied().map(i32::from).sum();
    let sold: i32 = (0..config.stock.len())
        .map(|bucket| i32::from(state.postgres.sold(config, bucket)))
        .sum();
    sold <= total && state.postgres.available.iter().all(|units| *units >= 0)
}

fn one_order_per_user(model: &Protocol, state: &State) -> bool {
    let mut seen = [false; 256];
    model
        .config
        .requests
        .iter()
        .zip(&state.postgres.orders)
        .all(|(request, order)| {
            let active = *order == Some(OrderState::Active);
            !active || !std::mem::replace(&mut seen[usize::from(request.user)], true)
        })
}

fn conserved(model: &Protocol, state: &State) -> bool {
    state.slots.iter().all(|slot| {
        let Some(initial) = slot.initial else {
            return true;
        };
        slot.available >= 0
            && slot.reserved >= 0
            && slot.available + slot.reserved == initial
            && slot.reserved == slot.held(&model.config)
    })
}

fn released_only_when_decided(_: &Protocol, state: &State) -> bool {
    state.slots.iter().all(|slot| {
        slot.reservations
            .iter()
            .enumerate()
            .all(|(at, status)| match status {
                Some(ReservationStatus::Released) => matches!(
                    state.postgres.decisions[at],
                    Some(DecisionKind::Rejected | DecisionKind::Released)
                ),
                Some(ReservationStatus::OrderCancelled) => {
                    state.postgres.orders[at] == Some(OrderState::Cancelled)
                }
                _ => true,
            })
    })
}

fn decided_once(_: &Protocol, state: &State) -> bool {
    !state.postgres.overwritten
}

fn refused_means_no_order(_: &Protocol, state: &State) -> bool {
    state
        .told_refused
        .iter()
        .zip(&state.postgres.orders)
        .all(|(refused, order)| !*refused || order.is_none())
}

/// I5: where no step is left, both sides agree and nothing is open.
fn settled_at_the_end(model: &Protocol, state: &State) -> bool {
    let mut actions = Vec::new();
    model.actions(state, &mut actions);
    let moves = actions
        .into_iter()
        .any(|action| model.next_state(state, action).is_some());
    moves || is_settled(model, state)
}

fn is_settled(model: &Protocol, state: &State) -> bool {
    let config = &model.config;
    let agreed = config.requests.iter().enumerate().all(|(at, request)| {
        let status = state.slots[usize::from(request.bucket)].reservations[at];
        let ordered = state.postgres.orders[at] == Some(OrderState::Active);
        (status == Some(ReservationStatus::OrderCreated)) == ordered
            && status.is_none_or(ReservationStatus::is_settled)
    });
    let marked = (0..).zip(&config.requests).all(|(at, request)| {
        !state.slots[usize::from(request.bucket)].marker_is_broken(config, at)
    });
    // A parked message is a trace too: it must have been decided.
    let parked_decided = state
        .parked
        .iter()
        .zip(&state.postgres.decisions)
        .all(|(parked, decision)| !parked || decision.is_some());
    let same_stock = state
        .slots
        .iter()
        .zip(&state.postgres.available)
        .all(|(slot, available)| slot.initial.is_some() && slot.available == *available);
    agreed
        && marked
        && parked_decided
        && same_stock
        && state.broker.iter().all(|copies| *copies == 0)
        && state.postgres.tasks.iter().all(|task| !task.open)
}
