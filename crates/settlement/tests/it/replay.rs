//! One decision at a time: every row of the table, on the servers that it is about.

use seckill_settlement::Replayed;
use seckill_state_machine::{DecisionKind, ReservationStatus as S, ReserveCode};

use crate::world::{World, request, request_of};

/// Every state that comes before an order's end is settled, and a second replay finds agreement.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_settled_from_every_earlier_state() {
    let world = World::open(10).await;
    for (n, state) in [(1, None), (2, Some(S::SendUnknown)), (3, Some(S::Enqueued))] {
        let request = request(n);
        world.accepted(&request).await;
        if let Some(state) = state {
            world.transition(&request, state).await;
        }
        world.ordered(&request).await;
        assert_eq!(world.replay(&request).await, Replayed::Settled, "{state:?}");
        assert_eq!(world.status(&request).await, Some(S::OrderCreated));
        world.assert_agreed(&request).await;
    }
    assert_eq!(world.units().await, (7, 3));
}

/// Goal: what PostgreSQL refused is marked and left to the worker, whose task is open; nothing moves.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_handed_over_and_gives_nothing_back_by_itself() {
    let world = World::open(2).await;
    let (first, second) = (request_of(1, 1), request_of(2, 2));
    world.bought(&first).await;
    world.accepted(&second).await;
    let refuse = "UPDATE activity_stock SET total = 1, available = 0";
    world.db.execute(refuse).await;
    world.decide(&second).await;
    let close = "UPDATE compensation_task SET closed_at = now(), result = 'lost'";
    world.db.execute(close).await;
    assert_eq!(world.decision(&second).await.kind, DecisionKind::Rejected);

    assert_eq!(world.replay(&second).await, Replayed::HandedOver);
    assert_eq!(world.status(&second).await, Some(S::Rejected));
    assert_eq!(world.open_tasks().await.len(), 1);
    assert_eq!(world.units().await, (0, 2));
    world.released(&second).await;
    world.assert_agreed(&second).await;
    assert_eq!(world.units().await, (1, 1));
}

/// M10. Goal: a reservation that was given up and that Redis lost is recorded as ended, so that a repeat
/// of its request takes no unit hostage.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_after_a_tombstone_takes_no_unit() {
    let world = World::open(3).await;
    let request = request(1);
    world.remember().await;
    world.accepted(&request).await;
    world.fenced(&request).await;
    world.fail_over().await;

    assert_eq!(world.replay(&request).await, Replayed::Tombstoned);
    assert_eq!(world.status(&request).await, Some(S::Released));
    assert_eq!(world.units().await, (3, 0));
    // The repeat gets its first answer, with the end that it came to.
    assert_eq!(world.reserve(&request).await, ReserveCode::Accepted);
    assert_eq!(world.status(&request).await, Some(S::Released));
    assert_eq!(world.units().await, (3, 0));
    world.assert_agreed(&request).await;
    // The buyer is free to try again under another request.
    world.accepted(&request_of(2, 1)).await;
}

/// M2. Goal: an order that PostgreSQL cancelled is cancelled in Redis, once, from whatever state a lost
/// settlement left, and its unit is sold again.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_order_is_restocked_from_every_earlier_state() {
    let world = World::open(2).await;
    let (settled, unsettled) = (request(1), request(2));
    let first = world.bought(&settled).await;
    world.accepted(&unsettled).await;
    let second = world.ordered(&unsettled).await;
    assert_eq!(world.reserve(&request(3)).await, ReserveCode::SoldOut);
    for (request, order_id) in [(&settled, first), (&unsettled, second)] {
        world.cancelled(&order_id).await;
        assert_eq!(world.replay(request).await, Replayed::Cancelled);
        assert_eq!(world.status(request).await, Some(S::OrderCancelled));
        assert_eq!(world.marker(request).await, None);
        world.assert_agreed(request).await;
    }
    assert_eq!(world.units().await, (2, 0));
    world.bought(&request_of(4, 4)).await;
}

/// Goal: a cancelled order that Redis lost is recorded as cancelled and never rebuilt.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_order_is_never_rebuilt() {
    let world = World::open(2).await;
    let request = request(1);
    world.remember().await;
    let order_id = world.bought(&request).await;
    world.cancelled(&order_id).await;
    world.fail_over().await;
    assert_eq!(world.replay(&request).await, Replayed::Tombstoned);
    assert_eq!(world.status(&request).await, Some(S::OrderCancelled));
    assert_eq!(world.units().await, (2, 0));
    world.assert_agreed(&request).await;
}

/// Goal: a replay that works from what PostgreSQL said a while ago reports no contradiction, and the
/// order's cancellation stands.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_from_an_order_state_that_has_changed_agrees_all_the_same() {
    let world = World::open(2).await;
    let request = request(1);
    let order_id = world.bought(&request).await;
    let outdated = world.decision(&request).await;
    world.cancelled(&order_id).await;
    assert_eq!(world.replay(&request).await, Replayed::Cancelled);
    let replayed = world.replayer.replay(&outdated).await.unwrap();
    assert_eq!(replayed, Replayed::Agreed);
    assert_eq!(world.status(&request).await, Some(S::OrderCancelled));
    assert_eq!(world.units().await, (2, 0));
}

/// M11. Goal: the marker of an ordered user who has none, or one that names nothing held, names the
/// order again; one that names units of another reservation is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_marker_that_names_nothing_held_is_repaired() {
    let world = World::open(5).await;
    let request = request(1);
    world.bought(&request).await;
    let marker = world.keys.user(&request.user_id);

    world.server.cli(&["DEL", &marker]).await;
    assert_eq!(world.replay(&request).await, Replayed::MarkerRepaired);
    assert_eq!(
        world.marker(&request).await,
        Some(request.reservation_id.clone())
    );
    world.assert_agreed(&request).await;

    // The user gets a second reservation while the marker is lost; it holds a unit, until it is
    // refused and released.
    world.server.cli(&["DEL", &marker]).await;
    let second = request_of(2, 1);
    world.accepted(&second).await;
    assert_eq!(world.replay(&request).await, Replayed::Moving);
    assert_eq!(
        world.marker(&request).await,
        Some(second.reservation_id.clone())
    );
    world.decide(&second).await;
    assert_eq!(world.replay(&second).await, Replayed::HandedOver);
    world.released(&second).await;
    assert_eq!(world.replay(&request).await, Replayed::MarkerRepaired);
    assert_eq!(world.units().await, (4, 1));
    assert_eq!(
        world.reserve(&request_of(3, 1)).await,
        ReserveCode::UserAlreadyReserved
    );
}

/// M11. Goal: whoever hears that an order is back looks no more, so its marker is right by then, or it is
/// not told as back. Method: the lost order's user has a second reservation, which holds a unit at first.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_comes_back_with_its_marker_or_is_looked_at_again() {
    let world = World::open(5).await;
    let (request, second) = (request(1), request_of(2, 1));
    world.remember().await;
    world.bought(&request).await;
    world.fail_over().await;
    world.accepted(&second).await;

    let held = world.replay(&request).await;
    assert_eq!(held, Replayed::Moving);
    assert!(!held.agrees() && held.difference().is_none());
    assert_eq!(world.status(&request).await, Some(S::OrderCreated));
    world.decide(&second).await;
    assert_eq!(world.replay(&second).await, Replayed::HandedOver);

    // The same loss again, with a marker that names the other one after its end.
    world.released(&second).await;
    let marker = world.keys.user(&request.user_id);
    let named = second.reservation_id.as_str();
    assert_eq!(
        world.server.cli(&["SET", &marker, named]).await.error(),
        None
    );
    world.lose(&request).await;
    assert_eq!(world.replay(&request).await, Replayed::Rebuilt);
    assert_eq!(
        world.marker(&request).await,
        Some(request.reservation_id.clone())
    );
    world.assert_agreed(&request).await;
}

/// Goal: a bucket that has lost its counters alone is neither gone nor in order: nothing is written, and
/// the order stays to be looked at.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_without_counters_is_neither_gone_nor_agreed_on() {
    let world = World::open(5).await;
    let (lost, kept) = (request(1), request(2));
    world.bought(&lost).await;
    world.bought(&kept).await;
    world.lose(&lost).await;
    let stock = world.keys.stock();
    assert_eq!(world.server.cli(&["DEL", &stock]).await.int(), 1);
    let replayed = world.replay(&lost).await;
    assert_eq!(replayed, Replayed::NoCounters);
    assert!(!replayed.agrees() && replayed.difference().is_none());
    assert_eq!(world.status(&lost).await, None);
    world.assert_agreed(&kept).await;
    let tally = world
        .replayer
        .replay_bucket(&lost.bucket, |_, _| {})
        .await
        .unwrap();
    assert_eq!((tally.no_counters, tally.agreed), (1, 1));
    assert!(!tally.is_clean());
}

/// Goal: what no step can cure is said, and nothing moves.
#[tokio::test(flavor = "multi_thread")]
async fn a_contradiction_is_told_and_moves_nothing() {
    let world = World::open(5).await;
    let request = request(1);
    world.bought(&request).await;
    let record = world.keys.reservation(&request.reservation_id);
    let before = world.units().await;

    world
        .server
        .cli(&["HSET", &record, "status", "RELEASED"])
        .await;
    let Replayed::Contradiction { detail } = world.replay(&request).await else {
        panic!("no contradiction");
    };
    assert_eq!(detail, "postgresql: ordered; redis: RELEASED");

    let fields = ["HSET", &record, "status", "ORDER_CREATED", "quantity", "2"];
    world.server.cli(&fields).await;
    let Replayed::Contradiction { detail } = world.replay(&request).await else {
        panic!("no contradiction");
    };
    assert!(detail.ends_with("another quantity"), "{detail}");

    world
        .server
        .cli(&["HSET", &record, "quantity", "many"])
        .await;
    let unreadable = world.replay(&request).await;
    assert!(
        matches!(unreadable, Replayed::Unreadable { .. }),
        "{unreadable:?}"
    );
    assert_eq!(world.units().await, before);
}

/// Goal: a bucket that Redis does not have gets nothing written, by no step.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_into_a_bucket_that_is_gone() {
    let world = World::open(5).await;
    let (active, cancelled, given_up) = (request(1), request(2), request(3));
    world.bought(&active).await;
    let order_id = world.bought(&cancelled).await;
    world.cancelled(&order_id).await;
    world.accepted(&given_up).await;
    world.fenced(&given_up).await;
    world.lose_all().await;
    for request in [&active, &cancelled, &given_up] {
        assert_eq!(world.replay(request).await, Replayed::BucketGone);
    }
    assert_eq!(world.server.cli(&["DBSIZE"]).await.int(), 0);
}
