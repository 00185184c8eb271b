use super::*;
use crate::{ReservationStatus as S, Verdict, transition};

/// Every decision with every state of an order, possible ones and others.
fn facts() -> Vec<(DecisionKind, Option<OrderState>)> {
    let orders = [None, Some(OrderState::Active), Some(OrderState::Cancelled)];
    DecisionKind::ALL
        .iter()
        .flat_map(|decision| orders.map(|order| (*decision, order)))
        .collect()
}

/// Every state of a reservation, and none.
fn states() -> impl Iterator<Item = Option<S>> {
    std::iter::once(None).chain(S::ALL.map(Some))
}

fn every_case() -> impl Iterator<Item = (DecisionKind, Option<OrderState>, Option<S>)> {
    facts()
        .into_iter()
        .flat_map(|(decision, order)| states().map(move |redis| (decision, order, redis)))
}

/// Whether PostgreSQL's constraints allow it.
fn is_possible(decision: DecisionKind, order: Option<OrderState>) -> bool {
    (decision == DecisionKind::Ordered) == order.is_some()
}

/// Plays the scripts that a step stands for, as far as each one's own guard lets it.
fn play(step: Replay, from: Option<S>) -> Option<S> {
    let walk = |path: &[S]| {
        path.iter().fold(from, |at, to| match at {
            Some(at) if transition(at, *to) == Verdict::Update => Some(*to),
            at => at,
        })
    };
    match step {
        Replay::Agreed | Replay::Contradiction => from,
        Replay::MarkOrdered => walk(&[S::Enqueued, S::OrderCreated]),
        Replay::MarkRejected => walk(&[S::Enqueued, S::Rejected]),
        Replay::Release => match walk(&[S::ReleasePending]) {
            Some(S::ReleasePending | S::Rejected) => Some(S::Released),
            refused => refused,
        },
        Replay::Cancel => match walk(&[S::Enqueued, S::OrderCreated]) {
            Some(S::OrderCreated) => Some(S::OrderCancelled),
            refused => refused,
        },
        Replay::Rebuild => from.or(Some(S::OrderCreated)),
        Replay::TombstoneReleased => from.or(Some(S::Released)),
        Replay::TombstoneCancelled => from.or(Some(S::OrderCancelled)),
    }
}

fn holds_units(redis: Option<S>) -> bool {
    redis.is_some_and(S::holds_units)
}

/// A refusal takes two steps, `REJECTED` and its release; everything else one.
#[test]
fn taking_the_step_and_looking_again_ends_in_agreement_from_every_state() {
    const STEPS_MAX: usize = 2;
    for (decision, order, start) in every_case() {
        if replay(decision, order, start) == Replay::Contradiction {
            continue;
        }
        let mut at = start;
        for _ in 0..STEPS_MAX {
            at = play(replay(decision, order, at), at);
        }
        let end = replay(decision, order, at);
        assert_eq!(end, Replay::Agreed, "{decision} {order:?} from {start:?}");
    }
}

#[test]
fn units_of_an_active_order_are_never_given_back() {
    for (decision, order, redis) in every_case() {
        if order != Some(OrderState::Active) {
            continue;
        }
        let step = replay(decision, order, redis);
        let after = play(step, redis);
        assert!(
            !holds_units(redis) || holds_units(after),
            "{decision}: {redis:?} becomes {after:?}"
        );
        assert!(
            !matches!(step, Replay::TombstoneReleased | Replay::TombstoneCancelled),
            "{decision}, nothing in redis: a tombstone would keep its buyer's units from coming back"
        );
    }
}

#[test]
fn units_come_to_be_held_only_for_an_active_order() {
    for (decision, order, redis) in every_case() {
        let after = play(replay(decision, order, redis), redis);
        if !holds_units(redis) && holds_units(after) {
            assert_eq!(
                (decision, order, redis),
                (DecisionKind::Ordered, Some(OrderState::Active), None)
            );
        }
    }
}

#[test]
fn a_cancelled_order_is_never_rebuilt() {
    for redis in states() {
        let order = Some(OrderState::Cancelled);
        let step = replay(DecisionKind::Ordered, order, redis);
        assert_ne!(step, Replay::Rebuild, "{redis:?}");
        assert!(!holds_units(play(step, redis)) || step == Replay::Contradiction);
    }
}

#[test]
fn a_tombstone_is_written_for_nothing_alone_and_never_holds_units() {
    for (decision, order, redis) in every_case() {
        let step = replay(decision, order, redis);
        if matches!(step, Replay::TombstoneReleased | Replay::TombstoneCancelled) {
            assert_eq!(redis, None, "{decision}");
            assert!(!holds_units(play(step, redis)), "{decision}");
        }
    }
}

#[test]
fn what_redis_lost_always_has_a_step_of_its_own() {
    for (decision, order) in facts() {
        let step = replay(decision, order, None);
        let rewrites = matches!(
            step,
            Replay::Rebuild | Replay::TombstoneReleased | Replay::TombstoneCancelled
        );
        assert_eq!(
            rewrites,
            is_possible(decision, order),
            "{decision} {order:?}"
        );
    }
}

#[test]
fn facts_that_postgresql_cannot_hold_call_for_a_person() {
    for (decision, order, redis) in every_case() {
        if !is_possible(decision, order) {
            let step = replay(decision, order, redis);
            assert_eq!(
                step,
                Replay::Contradiction,
                "{decision} {order:?} {redis:?}"
            );
        }
    }
}

/// A final state of one kind under a decision of another is what no crash and no failover leaves.
#[test]
fn no_earlier_state_of_a_healthy_bucket_is_a_contradiction() {
    let lives: [(DecisionKind, Option<OrderState>, &[S]); 4] = [
        (
            DecisionKind::Ordered,
            Some(OrderState::Active),
            &[S::Reserved, S::SendUnknown, S::Enqueued, S::OrderCreated],
        ),
        (
            DecisionKind::Ordered,
            Some(OrderState::Cancelled),
            &[
                S::Reserved,
                S::SendUnknown,
                S::Enqueued,
                S::OrderCreated,
                S::OrderCancelled,
            ],
        ),
        (
            DecisionKind::Rejected,
            None,
            &[
                S::Reserved,
                S::SendUnknown,
                S::Enqueued,
                S::Rejected,
                S::ReleasePending,
                S::Released,
            ],
        ),
        (
            DecisionKind::Released,
            None,
            &[
                S::Reserved,
                S::SendUnknown,
                S::Enqueued,
                S::ReleasePending,
                S::Released,
            ],
        ),
    ];
    for (decision, order, life) in lives {
        for state in life {
            let step = replay(decision, order, Some(*state));
            assert_ne!(step, Replay::Contradiction, "{decision} {order:?} {state}");
        }
    }
}
