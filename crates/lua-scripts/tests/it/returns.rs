//! What brings back what a failover lost: rebuild, tombstone and marker repair (M6, M10, M11).

use seckill_lua_scripts::ReplyStatus;
use seckill_state_machine::{
    ActivityState, RebuildCode, RepairMarkerCode, ReservationStatus as S, ReserveCode,
    TombstoneCode,
};
use seckill_test_support::Content;

use crate::orders::Order;
use crate::world::{World, rid, user};

#[tokio::test]
async fn an_ordered_reservation_that_a_failover_lost_comes_back_whole() {
    let world = World::open(3).await;
    let earlier = world.dump().await;
    let order = world.order("u1", "q1").await;
    world.fail_over_to(&earlier).await;
    // A refusal of the same request is remembered by now.
    world.set_state(ActivityState::Paused).await;
    assert_eq!(
        world.reserve("u1", "q1").await.code,
        ReserveCode::ActivityNotActive
    );
    let reply = world.rebuild(&order).await;
    assert_eq!(
        (reply.code, reply.status),
        (RebuildCode::Rebuilt, Some(S::OrderCreated))
    );
    assert!(!reply.marker_kept && reply.detail.is_empty());
    let dump = world.sound_dump().await;
    assert_eq!(world.counters().await, (3, 2, 1));
    assert!(dump.get(&world.keys.send_pending()).is_none());
    assert!(dump.get(&world.keys.reservation_expiry()).is_none());
    assert!(dump.get(&world.keys.soldout()).is_none());
    let marker = world
        .redis
        .marker(&world.keys, &order.user_id)
        .await
        .unwrap();
    assert_eq!(marker.as_ref(), Some(&order.reservation_id));
    let found = world.redis.reservation(&world.keys, &order.reservation_id);
    let record = found.await.unwrap().unwrap();
    assert_eq!(record.order_id.as_ref(), Some(&order.order_id));
    assert_eq!(record.reserved_at_ms, order.reserved_at_ms);
    assert_eq!(record.traceparent.as_ref(), Some(&order.traceparent));
    assert_eq!(record.request_id, order.request_id);
    // The repeat gets its reservation back, and not the refusal.
    let repeat = world.reserve("u1", "q1").await;
    assert_eq!((repeat.code, repeat.replay), (ReserveCode::Accepted, true));
    assert_eq!(repeat.reservation_id, Some(order.reservation_id.clone()));
    assert_eq!(repeat.status, ReplyStatus::Status(S::OrderCreated));
    let again = world.rebuild(&order).await;
    assert_eq!(
        (again.code, again.status),
        (RebuildCode::AlreadyThere, Some(S::OrderCreated))
    );
    assert_eq!(world.dump().await, dump);
}

/// M6: never more than is available, and never less than the whole quantity.
#[tokio::test]
async fn an_order_whose_units_were_sold_again_waits() {
    let world = World::open(2).await;
    let order = Order::of("u1", "q1").units(2);
    world.reserve("u2", "q2").await;
    let before = world.sound_dump().await;
    let reply = world.rebuild(&order).await;
    assert_eq!((reply.code, reply.status), (RebuildCode::Waits, None));
    assert_eq!(world.dump().await, before);
    let other = Order::of("u2", "q2");
    world.to_release_pending(&other.reservation_id).await;
    world.release(&other, None).await;
    assert_eq!(world.rebuild(&order).await.code, RebuildCode::Rebuilt);
    assert_eq!(world.counters().await, (2, 0, 2));
    let dump = world.sound_dump().await;
    assert_eq!(
        dump.get(&world.keys.soldout()),
        Some(&Content::Text("1".to_owned()))
    );
}

#[tokio::test]
async fn a_rebuild_sets_the_sold_out_mark_as_available_says() {
    let world = World::open(2).await;
    let retention = world.times.retention.to_string();
    world
        .cli(&["SET", &world.keys.soldout(), "1", "PXAT", &retention])
        .await;
    world.rebuild(&Order::of("u1", "q1")).await;
    assert!(
        world
            .sound_dump()
            .await
            .get(&world.keys.soldout())
            .is_none()
    );
    world.rebuild(&Order::of("u2", "q2")).await;
    assert!(
        world
            .sound_dump()
            .await
            .get(&world.keys.soldout())
            .is_some()
    );
}

/// Index members of a reservation that was lost alone would otherwise stay for ever.
#[tokio::test]
async fn a_return_leaves_no_member_in_an_index() {
    let world = World::open(2).await;
    for (order, rebuilt) in [
        (Order::of("u1", "q1"), true),
        (Order::of("u2", "q2"), false),
    ] {
        let retention = world.times.retention.to_string();
        for key in [world.keys.send_pending(), world.keys.reservation_expiry()] {
            world
                .cli(&["ZADD", &key, "1", order.reservation_id.as_str()])
                .await;
            world.cli(&["PEXPIREAT", &key, &retention]).await;
        }
        if rebuilt {
            assert_eq!(world.rebuild(&order).await.code, RebuildCode::Rebuilt);
        } else {
            let reply = world.tombstone(&order, order.released()).await;
            assert_eq!(reply.code, TombstoneCode::Written);
        }
        let dump = world.sound_dump().await;
        assert!(dump.get(&world.keys.send_pending()).is_none());
        assert!(dump.get(&world.keys.reservation_expiry()).is_none());
    }
}

#[tokio::test]
async fn what_is_not_this_very_reservation_is_a_conflict() {
    let world = World::open(3).await;
    let order = world.order("u1", "q1").await;
    let before = world.sound_dump().await;
    let mut strangers = vec![order.clone().units(2)];
    for other in [Order::of("u2", "q1"), Order::of("u1", "q2")] {
        strangers.push(Order {
            reservation_id: order.reservation_id.clone(),
            order_id: order.order_id.clone(),
            ..other
        });
    }
    let mut other_order = order.clone();
    other_order.order_id = Order::of("u9", "q9").order_id;
    strangers.push(other_order);
    for stranger in strangers {
        let reply = world.rebuild(&stranger).await;
        assert_eq!(
            reply.code,
            RebuildCode::ReservationIdConflict,
            "{stranger:?}"
        );
        assert_eq!(reply.status, Some(S::OrderCreated));
        let reply = world.tombstone(&stranger, stranger.cancelled()).await;
        assert_eq!(
            reply.code,
            TombstoneCode::ReservationIdConflict,
            "{stranger:?}"
        );
        assert_eq!(world.dump().await, before);
    }
}

/// A bucket that is gone or contradicts itself is left as it is.
#[tokio::test]
async fn a_bucket_that_cannot_hold_a_return_is_left_alone() {
    let world = World::open(3).await;
    let order = Order::of("u1", "q1");
    let (meta, stock) = (world.keys.meta(), world.keys.stock());
    let sound = world.dump().await;
    let (gone, broken) = (RebuildCode::ConfigMissing, RebuildCode::InvariantViolation);
    let cases: [(&[&str], RebuildCode, &str); 7] = [
        (&["DEL", &meta], gone, "META_MISSING"),
        (&["DEL", &stock], gone, "STOCK_MISSING"),
        (&["HDEL", &stock, "reserved"], gone, "STOCK_MISSING"),
        (
            &["HSET", &meta, "sku_id", "S2"],
            broken,
            "META_SCOPE_MISMATCH",
        ),
        (
            &["HSET", &meta, "version", "8"],
            broken,
            "META_SCOPE_MISMATCH",
        ),
        (
            &["HSET", &meta, "retention_until_ms", "01"],
            broken,
            "INVALID_META_TIME",
        ),
        (
            &["HSET", &stock, "available", "9"],
            broken,
            "STOCK_INVARIANT_VIOLATION",
        ),
    ];
    for (damage, code, detail) in cases {
        world.cli(damage).await;
        let before = world.dump().await;
        let reply = world.rebuild(&order).await;
        assert_eq!(
            (reply.code, reply.detail.as_str()),
            (code, detail),
            "{damage:?}"
        );
        if detail.starts_with("META") || detail.starts_with("INVALID") {
            let reply = world.tombstone(&order, order.released()).await;
            assert_eq!(
                (reply.code.code(), reply.detail.as_str()),
                (code.code(), detail)
            );
        }
        assert_eq!(world.dump().await, before, "{damage:?}");
        world.fail_over_to(&sound).await;
    }
    // Keys written at the retention would vanish at once, and the counters would stay moved.
    let late = Some(world.times.retention);
    let reply = world.rebuild_at(&order, late).await.unwrap();
    assert_eq!(
        (reply.code, reply.detail.as_str()),
        (gone, "RETENTION_PASSED")
    );
    let reply = world
        .tombstone_at(&order, order.released(), late)
        .await
        .unwrap();
    assert_eq!(reply.code, TombstoneCode::ConfigMissing);
    assert_eq!(world.dump().await, sound);
    let mut timeless = order;
    timeless.reserved_at_ms = seckill_state_machine::TimestampMs::new(-1);
    let reply = world.rebuild(&timeless).await;
    assert_eq!(
        (reply.code, reply.detail.as_str()),
        (broken, "BAD_ARGUMENT")
    );
}

/// M10: the repeat finds the end, whatever the server remembers, and takes no unit hostage.
#[tokio::test]
async fn a_repeat_finds_the_end_that_a_tombstone_records() {
    let world = World::open(3).await;
    let (released, cancelled) = (Order::of("u1", "q1"), Order::of("u2", "q2"));
    for (order, end, status) in [
        (&released, released.released(), S::Released),
        (&cancelled, cancelled.cancelled(), S::OrderCancelled),
    ] {
        let reply = world.tombstone(order, end).await;
        assert_eq!(
            (reply.code, reply.status),
            (TombstoneCode::Written, Some(status))
        );
        let dump = world.sound_dump().await;
        assert_eq!(world.counters().await, (3, 3, 0));
        assert!(dump.get(&world.keys.user(&order.user_id)).is_none());
        let again = world.tombstone(order, end).await;
        assert_eq!(
            (again.code, again.status),
            (TombstoneCode::AlreadyThere, Some(status))
        );
        assert_eq!(world.dump().await, dump);
        let buyer = order.user_id.as_str();
        let request_id = order.request_id.as_str();
        let remembered = world.reserve(buyer, request_id).await;
        let shard = world.keys.request(&order.request_id);
        world.cli(&["HDEL", &shard, request_id]).await;
        // Without the remembered answer the record alone leads to the same one.
        let afresh = world.reserve(buyer, request_id).await;
        for reply in [remembered, afresh] {
            assert_eq!((reply.code, reply.replay), (ReserveCode::Accepted, true));
            assert_eq!(reply.status, ReplyStatus::Status(status));
            assert_eq!(reply.remaining, 3);
        }
        let anew = world.reserve(buyer, &format!("{request_id}b")).await;
        assert_eq!((anew.code, anew.replay), (ReserveCode::Accepted, false));
        let other = Order::of(buyer, &format!("{request_id}b"));
        world.to_release_pending(&other.reservation_id).await;
        world.release(&other, None).await;
    }
    let record = world
        .redis
        .reservation(&world.keys, &released.reservation_id);
    let record = record.await.unwrap().unwrap();
    assert_eq!(record.release_reason.as_deref(), Some("NO_STOCK"));
    assert_eq!(
        (record.order_id, record.released_at_ms.is_some()),
        (None, true)
    );
    let record = world
        .redis
        .reservation(&world.keys, &cancelled.reservation_id);
    assert_eq!(
        record.await.unwrap().unwrap().order_id,
        Some(cancelled.order_id.clone())
    );
}

#[tokio::test]
async fn a_tombstone_replaces_only_the_refusal_of_its_own_user() {
    let world = World::open(3).await;
    world.set_state(ActivityState::Paused).await;
    let own = Order::of("u1", "q1");
    world.reserve("u1", "q1").await;
    world.tombstone(&own, own.released()).await;
    assert_eq!(world.reserve("u1", "q1").await.code, ReserveCode::Accepted);
    // Another user took the same request id, and was refused or accepted.
    world.reserve("u2", "q2").await;
    let lost = Order::of("u3", "q2");
    world.tombstone(&lost, lost.released()).await;
    assert_eq!(
        world.reserve("u2", "q2").await.code,
        ReserveCode::ActivityNotActive
    );
    assert_eq!(
        world.reserve("u3", "q2").await.code,
        ReserveCode::RequestIdConflict
    );
    world.set_state(ActivityState::Active).await;
    world.reserve("u4", "q4").await;
    let lost = Order::of("u5", "q4");
    world.tombstone(&lost, lost.cancelled()).await;
    assert!(world.reserve("u4", "q4").await.replay);
    // An order is the one that PostgreSQL has for the request id: its user gets the answer.
    let ordered = Order::of("u6", "q4");
    assert_eq!(world.rebuild(&ordered).await.code, RebuildCode::Rebuilt);
    assert_eq!(
        world.reserve("u6", "q4").await.reservation_id,
        Some(ordered.reservation_id)
    );
    assert_eq!(
        world.reserve("u4", "q4").await.code,
        ReserveCode::RequestIdConflict
    );
    world.sound_dump().await;
}

/// A reservation that was lost alone leaves its marker, which would keep its user out for ever.
#[tokio::test]
async fn a_tombstone_takes_its_own_marker_away_and_no_other() {
    let world = World::open(3).await;
    let retention = world.times.retention.to_string();
    let order = Order::of("u1", "q1");
    let marker = world.keys.user(&order.user_id);
    for (named, stays) in [(&order.reservation_id, false), (&rid("another"), true)] {
        world
            .cli(&["SET", &marker, named.as_str(), "PXAT", &retention])
            .await;
        world.tombstone(&order, order.released()).await;
        assert_eq!(world.sound_dump().await.get(&marker).is_some(), stays);
        let record = world.keys.reservation(&order.reservation_id);
        world.cli(&["DEL", &record]).await;
    }
}

/// M11: an order is rebuilt although its user holds another reservation by now; once that one has
/// ended, and not before, the marker is put right.
#[tokio::test]
async fn a_marker_follows_the_order_once_the_other_reservation_has_ended() {
    let world = World::open(3).await;
    let order = Order::of("u1", "q1");
    let other = Order::of("u1", "q2");
    world.reserve("u1", "q2").await;
    let reply = world.rebuild(&order).await;
    assert_eq!(
        (reply.code, reply.marker_kept),
        (RebuildCode::Rebuilt, true)
    );
    let marker = || async { world.redis.marker(&world.keys, &user("u1")).await.unwrap() };
    assert_eq!(marker().await.as_ref(), Some(&other.reservation_id));
    let before = world.sound_dump().await;
    let held = world
        .try_repair(&order, Some(&other.reservation_id))
        .await
        .unwrap();
    assert_eq!(
        (held.code, held.status),
        (RepairMarkerCode::HeldByAnother, Some(S::Reserved))
    );
    let stale = world.try_repair(&order, None).await.unwrap();
    assert_eq!((stale.code, stale.status), (RepairMarkerCode::Retry, None));
    assert_eq!(world.dump().await, before);
    // Its end leaves no marker.
    world.to_release_pending(&other.reservation_id).await;
    world.release(&other, None).await;
    assert_eq!(marker().await, None);
    let repaired = world.try_repair(&order, None).await.unwrap();
    assert_eq!(
        (repaired.code, repaired.status),
        (RepairMarkerCode::Repaired, Some(S::OrderCreated))
    );
    assert_eq!(marker().await.as_ref(), Some(&order.reservation_id));
    let dump = world.sound_dump().await;
    let again = world
        .try_repair(&order, Some(&order.reservation_id))
        .await
        .unwrap();
    assert_eq!(again.code, RepairMarkerCode::AlreadyRight);
    assert_eq!(world.dump().await, dump);
    assert_eq!(
        world.reserve("u1", "q3").await.code,
        ReserveCode::UserAlreadyReserved
    );
}

#[tokio::test]
async fn a_marker_of_what_holds_nothing_is_replaced() {
    let world = World::open(3).await;
    let order = world.order("u1", "q1").await;
    let marker = world.keys.user(&order.user_id);
    let (released, cancelled) = (Order::of("u1", "q2"), Order::of("u1", "q3"));
    world.tombstone(&released, released.released()).await;
    world.tombstone(&cancelled, cancelled.cancelled()).await;
    for named in [
        &released.reservation_id,
        &cancelled.reservation_id,
        &rid("missing"),
    ] {
        world
            .cli(&["SET", &marker, named.as_str(), "KEEPTTL"])
            .await;
        let reply = world.try_repair(&order, Some(named)).await.unwrap();
        assert_eq!(reply.code, RepairMarkerCode::Repaired, "{named}");
        let dump = world.sound_dump().await;
        let expected = Content::Text(order.reservation_id.to_string());
        assert_eq!(dump.get(&marker), Some(&expected));
    }
    // Only an order deserves it.
    let stranger = Order {
        user_id: user("u2"),
        ..order.clone()
    };
    let unknown = Order::of("u3", "q3");
    world.reserve("u4", "q4").await;
    let open = Order::of("u4", "q4");
    let before = world.dump().await;
    for (order, status) in [
        (&stranger, Some(S::OrderCreated)),
        (&unknown, None),
        (&open, Some(S::Reserved)),
        (&released, Some(S::Released)),
    ] {
        let reply = world.try_repair(order, None).await.unwrap();
        assert_eq!(
            (reply.code, reply.status),
            (RepairMarkerCode::NotOrdered, status)
        );
    }
    assert_eq!(world.dump().await, before);
    // A reservation that lost its own expiry makes no marker that lives for ever.
    world
        .cli(&["PERSIST", &world.keys.reservation(&order.reservation_id)])
        .await;
    world.cli(&["DEL", &marker]).await;
    assert_eq!(
        world.try_repair(&order, None).await.unwrap().code,
        RepairMarkerCode::Repaired
    );
    assert!(world.server.dump().await.0[&marker].expires_at_ms.is_some());
}
