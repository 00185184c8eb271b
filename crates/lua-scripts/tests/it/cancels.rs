//! The cancel script, and the units that a release hands to an order that waits.

use seckill_lua_scripts::CompensateReply;
use seckill_state_machine::{
    CancelCode, CompensateCode, RebuildCode, RepairMarkerCode, ReservationStatus as S, ReserveCode,
};

use crate::orders::Order;
use crate::world::{World, rid};

#[tokio::test]
async fn a_cancelled_order_gives_its_units_back_once() {
    let world = World::open(1).await;
    let order = world.order("u1", "q1").await;
    assert!(world.dump().await.get(&world.keys.soldout()).is_some());
    let reply = world.cancel(&order, None).await;
    assert_eq!(
        (reply.code, reply.status),
        (CancelCode::Cancelled, Some(S::OrderCancelled))
    );
    assert!(!reply.rebuilt);
    let dump = world.sound_dump().await;
    assert_eq!(world.counters().await, (1, 1, 0));
    assert!(dump.get(&world.keys.user(&order.user_id)).is_none());
    assert!(dump.get(&world.keys.soldout()).is_none());
    let stock = world.redis.stock(&world.keys).await.unwrap().unwrap();
    assert_eq!(stock.released_total, 1);
    let found = world.redis.reservation(&world.keys, &order.reservation_id);
    let record = found.await.unwrap().unwrap();
    assert_eq!(record.order_id.as_ref(), Some(&order.order_id));
    assert!(record.released_at_ms.is_some());
    let again = world.cancel(&order, None).await;
    assert_eq!(
        (again.code, again.status),
        (CancelCode::AlreadyCancelled, Some(S::OrderCancelled))
    );
    assert_eq!(world.dump().await, dump);
    assert_eq!(world.reserve("u1", "q2").await.code, ReserveCode::Accepted);
}

#[tokio::test]
async fn only_an_order_can_be_cancelled() {
    let world = World::open(3).await;
    let missing = world.cancel(&Order::of("u9", "q9"), None).await;
    assert_eq!(
        (missing.code, missing.status),
        (CancelCode::ReservationNotFound, None)
    );
    let order = world.order("u1", "q1").await;
    let key = world.keys.reservation(&order.reservation_id);
    for status in S::ALL {
        world.cli(&["HSET", &key, "status", status.as_str()]).await;
        let before = world.dump().await;
        let expected = match status {
            S::OrderCreated => continue,
            S::OrderCancelled => CancelCode::AlreadyCancelled,
            _ => CancelCode::NotCancellable,
        };
        let reply = world.cancel(&order, None).await;
        assert_eq!((reply.code, reply.status), (expected, Some(status)));
        assert_eq!(world.dump().await, before, "{status}");
    }
    world.cli(&["HSET", &key, "status", "ORDER_CREATED"]).await;
    let before = world.dump().await;
    let mut strangers = [order.clone(), order.clone()];
    strangers[0].user_id = Order::of("u2", "q2").user_id;
    strangers[1].order_id = Order::of("u2", "q2").order_id;
    for stranger in strangers {
        let reply = world.cancel(&stranger, None).await;
        assert_eq!(reply.code, CancelCode::ReservationIdConflict);
    }
    assert_eq!(world.dump().await, before);
    world
        .cli(&["HSET", &world.keys.stock(), "reserved", "0"])
        .await;
    assert_eq!(
        world.cancel(&order, None).await.code,
        CancelCode::InvariantViolation
    );
    world
        .cli(&["HSET", &world.keys.stock(), "reserved", "1"])
        .await;
    // A newer reservation's marker stays.
    let marker = world.keys.user(&order.user_id);
    world
        .cli(&["SET", &marker, rid("newer").as_str(), "KEEPTTL"])
        .await;
    assert_eq!(world.cancel(&order, None).await.code, CancelCode::Cancelled);
    assert!(world.sound_dump().await.get(&marker).is_some());
}

/// A bucket whose one unit was ordered, lost by a failover, and sold again: the order, and the
/// reservation that PostgreSQL has refused since.
async fn resold(buyer: &str) -> (World, Order, Order) {
    let world = World::open(1).await;
    let earlier = world.dump().await;
    let order = world.order("u1", "q1").await;
    world.fail_over_to(&earlier).await;
    world.reserve(buyer, "q2").await;
    let rival = Order::of(buyer, "q2");
    assert_eq!(world.rebuild(&order).await.code, RebuildCode::Waits);
    world.to_release_pending(&rival.reservation_id).await;
    (world, order, rival)
}

#[tokio::test]
async fn freed_units_go_to_the_order_that_waits_before_any_buyer_can_take_them() {
    let (world, order, rival) = resold("u2").await;
    let reply = world.release(&rival, Some(&order)).await;
    assert_eq!(
        reply,
        CompensateReply {
            code: CompensateCode::Released,
            status: Some(S::Released),
            rebuilt: true
        }
    );
    let dump = world.sound_dump().await;
    assert_eq!(world.counters().await, (1, 0, 1));
    assert_eq!(world.status(&order).await, Some(S::OrderCreated));
    assert!(dump.get(&world.keys.soldout()).is_some(), "nothing is left");
    assert!(dump.get(&world.keys.user(&rival.user_id)).is_none());
    assert_eq!(
        world
            .redis
            .stock(&world.keys)
            .await
            .unwrap()
            .unwrap()
            .released_total,
        1
    );
    assert_eq!(world.reserve("u3", "q3").await.code, ReserveCode::SoldOut);
    assert_eq!(
        world.reserve("u1", "q1").await.reservation_id,
        Some(order.reservation_id.clone())
    );
    let dump = world.dump().await;
    let again = world.release(&rival, Some(&order)).await;
    assert_eq!(
        (again.code, again.rebuilt),
        (CompensateCode::AlreadyReleased, false)
    );
    assert_eq!(world.rebuild(&order).await.code, RebuildCode::AlreadyThere);
    assert_eq!(world.dump().await, dump);
}

/// The commonest case: the buyer of the lost order asked again, and PostgreSQL refused the second.
#[tokio::test]
async fn the_same_users_marker_moves_on_to_the_order_that_comes_back() {
    let (world, order, rival) = resold("u1").await;
    assert!(world.release(&rival, Some(&order)).await.rebuilt);
    let marker = world
        .redis
        .marker(&world.keys, &order.user_id)
        .await
        .unwrap();
    assert_eq!(marker.as_ref(), Some(&order.reservation_id));
    world.sound_dump().await;
}

#[tokio::test]
async fn a_cancelled_order_gives_way_to_one_that_waits_as_well() {
    let world = World::open(3).await;
    let cancelled = world.order("u1", "q1").await;
    world.order("u2", "q2").await;
    // Two units are wanted and one is left: they come together only now.
    let waiting = Order::of("u3", "q3").units(2);
    assert_eq!(world.rebuild(&waiting).await.code, RebuildCode::Waits);
    let reply = world.cancel(&cancelled, Some(&waiting)).await;
    assert_eq!((reply.code, reply.rebuilt), (CancelCode::Cancelled, true));
    assert_eq!(world.counters().await, (3, 0, 3));
    assert!(
        world
            .sound_dump()
            .await
            .get(&world.keys.soldout())
            .is_some()
    );
}

#[tokio::test]
async fn an_order_that_does_not_fit_goes_on_waiting_and_the_units_go_on_sale() {
    let world = World::open(2).await;
    world.reserve("u1", "q1").await;
    world.order("u2", "q2").await;
    let rival = Order::of("u1", "q1");
    world.to_release_pending(&rival.reservation_id).await;
    let waiting = Order::of("u3", "q3").units(2);
    let reply = world.release(&rival, Some(&waiting)).await;
    assert_eq!(
        (reply.code, reply.rebuilt),
        (CompensateCode::Released, false)
    );
    assert_eq!(world.counters().await, (2, 1, 1));
    assert_eq!(world.status(&waiting).await, None);
    assert!(
        world
            .sound_dump()
            .await
            .get(&world.keys.soldout())
            .is_none()
    );
}

#[tokio::test]
async fn what_is_back_already_is_not_given_units_again() {
    let world = World::open(3).await;
    let present = world.order("u1", "q1").await;
    world.reserve("u2", "q2").await;
    let rival = Order::of("u2", "q2");
    world.to_release_pending(&rival.reservation_id).await;
    assert!(!world.release(&rival, Some(&present)).await.rebuilt);
    assert_eq!(world.counters().await, (3, 2, 1));
    world.sound_dump().await;
}

/// Damage in what belongs to the waiting order alone does not hold up the release of another.
#[tokio::test]
async fn damage_of_the_order_that_waits_does_not_hold_up_the_release() {
    let keys = crate::world::bucket_keys();
    let waiting = Order::of("u1", "q1");
    let wrong_type = |key: String| {
        vec![
            vec!["DEL".to_owned(), key.clone()],
            vec!["RPUSH".to_owned(), key, "x".to_owned()],
        ]
    };
    let set = |field: &str, value: &str| {
        vec![
            ["HSET", &keys.meta(), field, value]
                .map(str::to_owned)
                .to_vec(),
        ]
    };
    for damage in [
        wrong_type(keys.request(&waiting.request_id)),
        wrong_type(keys.user(&waiting.user_id)),
        wrong_type(keys.reservation(&waiting.reservation_id)),
        wrong_type(keys.meta()),
        vec![vec!["DEL".to_owned(), keys.meta()]],
        set("retention_until_ms", "x"),
        set("retention_until_ms", "1"),
        set("version", "8"),
    ] {
        let (world, order, rival) = resold("u2").await;
        for command in &damage {
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            world.cli(&command).await;
            let retention = world.times.retention.to_string();
            world.cli(&["PEXPIREAT", command[1], &retention]).await;
        }
        let reply = world.release(&rival, Some(&order)).await;
        assert_eq!(
            (reply.code, reply.rebuilt),
            (CompensateCode::Released, false),
            "{damage:?}"
        );
        assert_eq!(world.counters().await, (1, 1, 0));
        assert!(world.dump().await.get(&world.keys.soldout()).is_none());
    }
}

/// The order comes back in any case; its marker only where no other reservation is named.
#[tokio::test]
async fn a_return_in_a_release_keeps_a_marker_of_another() {
    let world = World::open(2).await;
    world.reserve("u1", "q9").await;
    world.reserve("u2", "q2").await;
    let (order, other, rival) = (
        Order::of("u1", "q1"),
        Order::of("u1", "q9"),
        Order::of("u2", "q2"),
    );
    world.to_release_pending(&rival.reservation_id).await;
    assert!(world.release(&rival, Some(&order)).await.rebuilt);
    let marker = world
        .redis
        .marker(&world.keys, &order.user_id)
        .await
        .unwrap();
    assert_eq!(marker.as_ref(), Some(&other.reservation_id));
    let held = world.try_repair(&order, marker.as_ref()).await.unwrap();
    assert_eq!(held.code, RepairMarkerCode::HeldByAnother);
    world.sound_dump().await;
}
