//! The compensate script (S0-086…091, S0-176, S0-177).

use seckill_state_machine::{CompensateCode, ReservationStatus as S};
use seckill_test_support::Content;

use crate::world::{World, derived, rid, user};

#[tokio::test]
async fn a_second_compensation_changes_nothing() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    let id = derived("u1", "q1");
    world.to_release_pending(&id).await;
    let first = world.compensate(&id, "u1").await;
    assert_eq!(
        (first.code, first.status),
        (CompensateCode::Released, Some(S::Released))
    );
    let after = world.dump().await;
    assert_eq!(world.counters().await, (3, 3, 0));
    assert!(after.get(&world.keys.user(&user("u1"))).is_none());
    assert!(after.get(&world.keys.send_pending()).is_none());
    assert!(after.get(&world.keys.reservation_expiry()).is_none());
    let second = world.compensate(&id, "u1").await;
    assert_eq!(
        (second.code, second.status),
        (CompensateCode::AlreadyReleased, Some(S::Released))
    );
    assert_eq!(world.dump().await, after);
    let stock = world.redis.stock(&world.keys).await.unwrap().unwrap();
    assert_eq!(stock.released_total, 1);
    let record = world
        .redis
        .reservation(&world.keys, &id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(record.release_reason.as_deref(), Some("TEST"));
    assert!(record.released_at_ms.is_some());
}

#[tokio::test]
async fn only_rejected_and_release_pending_can_be_compensated() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    let id = derived("u1", "q1");
    for status in S::ALL {
        world
            .cli(&[
                "HSET",
                &world.keys.reservation(&id),
                "status",
                status.as_str(),
            ])
            .await;
        let before = world.dump().await;
        let expected = match status {
            S::Rejected | S::ReleasePending => continue,
            S::Released => CompensateCode::AlreadyReleased,
            _ => CompensateCode::NotCompensatable,
        };
        let reply = world.compensate(&id, "u1").await;
        assert_eq!((reply.code, reply.status), (expected, Some(status)));
        assert_eq!(world.dump().await, before, "{status}");
    }
}

#[tokio::test]
async fn a_compensation_that_cannot_be_right_changes_nothing() {
    let world = World::open(3).await;
    let missing = world.compensate(&rid("missing"), "u1").await;
    assert_eq!(
        (missing.code, missing.status),
        (CompensateCode::ReservationNotFound, None)
    );
    world.reserve("u1", "q1").await;
    let id = derived("u1", "q1");
    world.to_release_pending(&id).await;
    let before = world.dump().await;
    let stranger = world.compensate(&id, "u2").await;
    assert_eq!(stranger.code, CompensateCode::ReservationIdConflict);
    assert_eq!(world.dump().await, before);
    for (field, value) in [
        ("reserved", "0"),
        ("available", "-1"),
        ("initial", "x"),
        ("reserved", "01"),
    ] {
        let original = before.hash(&world.keys.stock())[field].clone();
        world
            .cli(&["HSET", &world.keys.stock(), field, value])
            .await;
        let broken = world.dump().await;
        let reply = world.compensate(&id, "u1").await;
        assert_eq!(
            reply.code,
            CompensateCode::InvariantViolation,
            "{field}={value}"
        );
        assert_eq!(world.dump().await, broken);
        world
            .cli(&["HSET", &world.keys.stock(), field, &original])
            .await;
    }
    assert_eq!(
        world.compensate(&id, "u1").await.code,
        CompensateCode::Released
    );
}

/// S0-091: the user has a newer reservation by now; its marker stays.
#[tokio::test]
async fn a_marker_that_points_elsewhere_is_kept() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    let id = derived("u1", "q1");
    world.to_release_pending(&id).await;
    let marker = world.keys.user(&user("u1"));
    world
        .cli(&["SET", &marker, rid("newer").as_str(), "KEEPTTL"])
        .await;
    assert_eq!(
        world.compensate(&id, "u1").await.code,
        CompensateCode::Released
    );
    assert_eq!(
        world.dump().await.get(&marker),
        Some(&Content::Text(rid("newer").to_string()))
    );
}
