//! Wrong types and a full memory for the scripts that recover a bucket: none has a half effect.

use std::future::Future;
use std::pin::Pin;

use seckill_lua_scripts::{
    Error, ErrorKind, ExtendRetention, InitialiseBucket, Recovery, SetRecovery,
};
use seckill_state_machine::{
    ActivityState, CancelCode, RebuildCode, RepairMarkerCode, TimestampMs, TombstoneCode,
};

use crate::orders::Order;
use crate::world::World;

/// Puts a list at each key in turn: the call fails, and nothing but that list has changed.
async fn each_wrong_type_fails_whole<F, R>(world: &World, keys: &[String], call: F)
where
    F: AsyncFn() -> Result<R, Error>,
{
    let retention = world.times.retention.to_string();
    for key in keys {
        let kept = format!("{key}:kept");
        let existed = world.server.cli(&["EXISTS", key]).await.int() == 1;
        if existed {
            world.cli(&["RENAME", key, &kept]).await;
        }
        world.cli(&["RPUSH", key, "x"]).await;
        world.cli(&["PEXPIREAT", key, &retention]).await;
        let before = world.dump().await;
        let Err(error) = call().await else {
            panic!("{key}: the call did not fail");
        };
        assert_eq!(error.kind(), ErrorKind::Broken, "{key}: {error}");
        assert_eq!(world.dump().await, before, "{key}");
        world.cli(&["DEL", key]).await;
        if existed {
            world.cli(&["RENAME", &kept, key]).await;
        }
    }
}

#[tokio::test]
async fn a_wrong_type_leaves_no_trace_of_a_return() {
    let world = World::open(3).await;
    let keys = &world.keys;
    let (lost, ended) = (Order::of("u1", "q1"), Order::of("u2", "q2"));
    let of = |order: &Order| {
        [
            keys.user(&order.user_id),
            keys.meta(),
            keys.stock(),
            keys.request(&order.request_id),
            keys.reservation(&order.reservation_id),
            keys.send_pending(),
            keys.reservation_expiry(),
        ]
    };
    let places = of(&lost);
    each_wrong_type_fails_whole(&world, &places, async || {
        world.rebuild_at(&lost, None).await
    })
    .await;
    each_wrong_type_fails_whole(&world, &of(&ended), async || {
        world.tombstone_at(&ended, ended.cancelled(), None).await
    })
    .await;
    assert_eq!(world.rebuild(&lost).await.code, RebuildCode::Rebuilt);
    let reply = world.tombstone(&ended, ended.cancelled()).await;
    assert_eq!(reply.code, TombstoneCode::Written);

    let other = Order::of("u1", "q3");
    world.tombstone(&other, other.released()).await;
    let marker = keys.user(&lost.user_id);
    world
        .cli(&["SET", &marker, other.reservation_id.as_str(), "KEEPTTL"])
        .await;
    let places = [
        marker.clone(),
        keys.reservation(&lost.reservation_id),
        keys.reservation(&other.reservation_id),
    ];
    let repair = async || world.try_repair(&lost, Some(&other.reservation_id)).await;
    each_wrong_type_fails_whole(&world, &places, repair).await;
    assert_eq!(repair().await.unwrap().code, RepairMarkerCode::Repaired);

    let places = [
        keys.stock(),
        marker,
        keys.reservation(&lost.reservation_id),
        keys.send_pending(),
        keys.reservation_expiry(),
    ];
    each_wrong_type_fails_whole(&world, &places, async || {
        world.try_cancel(&lost, None).await
    })
    .await;
    assert_eq!(world.cancel(&lost, None).await.code, CancelCode::Cancelled);
    world.sound_dump().await;
}

/// A call that a full memory refuses whole.
fn refused<'a, R: 'a>(
    world: &'a World,
    what: &'a str,
    call: impl Future<Output = Result<R, Error>> + 'a,
) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
    Box::pin(async move {
        let before = world.dump().await;
        world.cli(&["CONFIG", "SET", "maxmemory", "1"]).await;
        let result = call.await;
        world.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
        let Err(error) = result else {
            panic!("{what} was not refused");
        };
        assert_eq!(error.kind(), ErrorKind::Refused, "{what}: {error}");
        assert_eq!(world.dump().await, before, "{what}");
    })
}

#[tokio::test]
async fn a_full_memory_refuses_every_return_and_cancellation_whole() {
    let world = World::open(3).await;
    let order = world.order("u1", "q1").await;
    let (lost, ended) = (Order::of("u2", "q2"), Order::of("u3", "q3"));
    refused(&world, "rebuild", world.rebuild_at(&lost, None)).await;
    refused(
        &world,
        "tombstone",
        world.tombstone_at(&ended, ended.released(), None),
    )
    .await;
    refused(&world, "cancel", world.try_cancel(&order, None)).await;
    refused(
        &world,
        "handing over",
        world.try_cancel(&order, Some(&lost)),
    )
    .await;
    world.cli(&["DEL", &world.keys.user(&order.user_id)]).await;
    refused(&world, "repair", world.try_repair(&order, None)).await;
    let rival = Order::of("u4", "q4");
    world.reserve("u4", "q4").await;
    world.to_release_pending(&rival.reservation_id).await;
    refused(&world, "release", world.try_release(&rival, Some(&lost))).await;
    // With room again each works.
    assert!(world.release(&rival, Some(&lost)).await.rebuilt);
    assert!(!world.cancel(&order, Some(&lost)).await.rebuilt);
    assert_eq!(
        world.tombstone(&ended, ended.released()).await.code,
        TombstoneCode::Written
    );
    world.sound_dump().await;
}

#[tokio::test]
async fn a_full_memory_refuses_the_control_of_a_bucket_whole() {
    let world = World::open(3).await;
    let keys = &world.keys;
    let settings = world.settings(3);
    let initialise = InitialiseBucket {
        keys,
        settings: &settings,
        held: Some(0),
        now_override: None,
    };
    world.set_state(ActivityState::Paused).await;
    refused(
        &world,
        "closing",
        world.redis.initialise_bucket(&initialise),
    )
    .await;
    let recovery = SetRecovery {
        keys,
        recovery: Recovery::Window,
        expected: None,
    };
    refused(&world, "recovery", world.redis.set_recovery(&recovery)).await;
    let names = [keys.stock(), keys.meta()];
    let mut extend = ExtendRetention {
        keys,
        names: &names,
        until: TimestampMs::new(world.times.retention + 1),
        now_override: None,
    };
    refused(&world, "extension", world.redis.extend_retention(&extend)).await;
    world.cli(&["FLUSHALL"]).await;
    refused(
        &world,
        "initialising",
        world.redis.initialise_bucket(&initialise),
    )
    .await;
    // An expiry needs no memory, so keys without meta are lengthened even then.
    world.preheat(3).await;
    world.cli(&["CONFIG", "SET", "maxmemory", "1"]).await;
    extend.names = &names[..1];
    assert_eq!(world.redis.extend_retention(&extend).await.unwrap(), 1);
    world.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
}
