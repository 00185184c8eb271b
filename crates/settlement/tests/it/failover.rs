//! A bucket that fell back to an earlier state of itself converges by replay, whatever it did meanwhile.

use std::time::Duration;

use seckill_settlement::{Replayed, Replayer};
use seckill_state_machine::{ReservationStatus as S, ReserveCode};

use crate::world::{World, request, request_of};

/// Goal: a lost order takes its unit back from what is available; a second rebuild takes no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_order_is_rebuilt_once() {
    let world = World::open(2).await;
    let request = request(1);
    world.remember().await;
    world.bought(&request).await;
    world.fail_over().await;
    assert_eq!(world.units().await, (2, 0));
    let replays = tokio::join!(world.replay(&request), world.replay(&request));
    assert!(replays.0.agrees() && replays.1.agrees(), "{replays:?}");
    assert_eq!(world.status(&request).await, Some(S::OrderCreated));
    assert_eq!(
        world.marker(&request).await,
        Some(request.reservation_id.clone())
    );
    assert_eq!(world.units().await, (1, 1));
    world.assert_agreed(&request).await;
    // The buyer's repeat finds the purchase, and another request of theirs finds the marker.
    assert_eq!(world.reserve(&request).await, ReserveCode::Accepted);
    let other = request_of(2, 1);
    assert_eq!(
        world.reserve(&other).await,
        ReserveCode::UserAlreadyReserved
    );
}

/// The lost unit is resold: PostgreSQL refuses one of the two, and its release makes room for the
/// rebuild. In between the order waits, remembered by a task and by the process, and the freed unit goes
/// to it and not to the next buyer.
#[tokio::test(flavor = "multi_thread")]
async fn a_resold_unit_goes_back_to_the_order_that_lost_it() {
    let world = World::open(1).await;
    let (winner, loser, next) = (request(1), request(2), request(3));
    world.remember().await;
    world.bought(&winner).await;
    world.fail_over().await;
    world.accepted(&loser).await;
    world.decide(&loser).await;

    assert_eq!(world.replay(&winner).await, Replayed::Waits);
    let waiting = world.replayer.waiting().clone();
    assert_eq!(waiting.len(), 1);
    let id = winner.reservation_id.to_string();
    let tasks = world.open_tasks().await;
    assert!(tasks.iter().any(|task| task[0] == id), "{tasks:?}");

    assert_eq!(world.replay(&loser).await, Replayed::HandedOver);
    let order = waiting.next(&loser.bucket).unwrap();
    let call = seckill_lua_scripts::Compensate {
        keys: &world.keys,
        reservation_id: &loser.reservation_id,
        user_id: &loser.user_id,
        release_reason: "STOCK_EXHAUSTED",
        waiting: Some(order.reservation()),
        now_override: None,
    };
    let reply = world.redis.compensate(&call).await.unwrap();
    assert!(reply.rebuilt);
    assert_eq!(world.reserve(&next).await, ReserveCode::SoldOut);
    assert_eq!(world.status(&winner).await, Some(S::OrderCreated));
    world.assert_agreed(&winner).await;
    world.assert_agreed(&loser).await;
    assert_eq!(world.units().await, (0, 1));
    assert!(waiting.is_empty(), "agreement ends the wait");
}

/// M2 and the rebuild together: a cancelled order's unit, brought back by a failover, goes to the order
/// that waits in the same bucket.
#[tokio::test(flavor = "multi_thread")]
async fn the_unit_of_a_cancelled_order_goes_to_one_that_waits() {
    let world = World::open(1).await;
    let (lost, resold) = (request(1), request(2));
    let order_id = world.bought(&resold).await;
    world.remember().await;
    world.cancelled(&order_id).await;
    assert_eq!(world.replay(&resold).await, Replayed::Cancelled);
    world.bought(&lost).await;
    world.fail_over().await;

    assert_eq!(world.replay(&lost).await, Replayed::Waits);
    assert_eq!(world.replay(&resold).await, Replayed::Cancelled);
    assert_eq!(world.status(&lost).await, Some(S::OrderCreated));
    world.assert_agreed(&lost).await;
    world.assert_agreed(&resold).await;
    assert_eq!(world.units().await, (0, 1));
}

/// Goal: an order that another replica has brought back is offered units once more and then no longer, so
/// that the next release in its bucket goes to one that waits.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_another_replica_brought_back_is_offered_no_more_units() {
    let world = World::open(3).await;
    let sold: Vec<_> = (1..=3).map(request).collect();
    let mut orders = Vec::new();
    for request in &sold {
        orders.push(world.bought(request).await);
    }
    // An order that was lost and resold before: nothing is left to bring it back from.
    let back = request(4);
    let refit = "UPDATE activity_stock SET total = total + 2, available = available + 2";
    world.db.execute(refit).await;
    world.ordered(&back).await;
    assert_eq!(world.replay(&back).await, Replayed::Waits);

    let other = Replayer::new(world.redis.clone(), world.store.clone());
    world.cancelled(&orders[0]).await;
    let decision = world.decision(&sold[0]).await;
    assert_eq!(other.replay(&decision).await.unwrap(), Replayed::Cancelled);
    let decision = world.decision(&back).await;
    assert_eq!(other.replay(&decision).await.unwrap(), Replayed::Rebuilt);
    assert_eq!(world.replayer.waiting().len(), 1, "it does not know yet");

    world.cancelled(&orders[1]).await;
    assert_eq!(world.replay(&sold[1]).await, Replayed::Cancelled);
    assert!(world.replayer.waiting().is_empty());
    assert_eq!(world.units().await, (1, 2));
}

/// M3. Goal: a release that a failover undid is handed over again, although its task was closed, and
/// gives its unit back once.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_a_failover_undid_reopens_its_closed_task() {
    let world = World::open(1).await;
    let request = request(1);
    world.accepted(&request).await;
    world.fenced(&request).await;
    world.transition(&request, S::ReleasePending).await;
    world.remember().await;
    world.released(&request).await;
    assert!(world.open_tasks().await.is_empty());
    world.fail_over().await;
    assert_eq!(world.status(&request).await, Some(S::ReleasePending));

    assert_eq!(world.replay(&request).await, Replayed::HandedOver);
    let id = request.reservation_id.to_string();
    assert_eq!(world.open_tasks().await, [[id, "HELD_AGAIN".to_owned()]]);
    world.released(&request).await;
    world.assert_agreed(&request).await;
    assert_eq!(world.units().await, (1, 0));
}

/// Goal: an operator who deletes a record cannot make a unit appear: the rebuild takes another one, and
/// the totals still tell of the one that is held by nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_record_is_rebuilt_from_available_units_and_never_from_nothing() {
    let world = World::open(1).await;
    let request = request(1);
    world.bought(&request).await;
    world.lose(&request).await;
    assert_eq!(world.replay(&request).await, Replayed::Waits);
    assert_eq!(world.units().await, (0, 1));
    assert_eq!(world.status(&request).await, None);
}

/// Goal: a worker whose order waits for units does not void its own attempt, and any other replay of it
/// does.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_under_a_claim_leaves_that_claim_alone() {
    let world = World::open(1).await;
    let request = request(1);
    world.bought(&request).await;
    world.lose(&request).await;
    assert_eq!(world.replay(&request).await, Replayed::Waits);
    let lease = Duration::from_secs(60);
    let claim = async || world.store.claim_tasks(1, lease).await.unwrap().remove(0);
    let decision = world.decision(&request).await;
    let task = claim().await;
    let own = world.replayer.under(task.claim());
    assert_eq!(own.replay(&decision).await.unwrap(), Replayed::Waits);
    let later = world.store.retry_task(&task, "waits", Duration::ZERO).await;
    assert!(later.unwrap());
    let task = claim().await;
    assert_eq!(world.replay(&request).await, Replayed::Waits);
    assert!(!world.store.finish_task(&task, "done").await.unwrap());
    assert_eq!(world.open_tasks().await.len(), 1);
}
