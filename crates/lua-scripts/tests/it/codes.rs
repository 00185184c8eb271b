//! The codes of the reserve script, with the state and the expiry after each
//! (S0-058…085, S0-166…181).

use seckill_key_layout::request_shard;
use seckill_lua_scripts::{PreheatReply, ReplyStatus, Reserve, ReserveReply};
use seckill_state_machine::{
    ActivityState, CompensateCode, Quantity, ReservationStatus as S, ReserveCode, TimestampMs,
    Traceparent,
};
use seckill_test_support::Content;

use crate::world::{GRACE_MS, TTL_MS, World, derived, quantity, request, rid, user};

fn refusal(code: ReserveCode, remaining: u64) -> ReserveReply {
    ReserveReply {
        code,
        reservation_id: None,
        remaining,
        status: ReplyStatus::None,
        replay: false,
    }
}

#[tokio::test]
async fn an_acceptance_writes_every_key_with_the_retention_as_its_expiry() {
    let world = World::open(5).await;
    let id = derived("u1", "q1");
    let now = world.times.starts + 1;
    let trace = Traceparent::from_ids(7, 9).unwrap();
    let call = Reserve {
        keys: &world.keys,
        request_id: &request("q1"),
        reservation_id: &id,
        user_id: &user("u1"),
        quantity: Quantity::ONE,
        max_quantity: Quantity::ONE,
        reservation_ttl_ms: TTL_MS,
        first_send_grace_ms: GRACE_MS,
        negative_cache_max: 0,
        traceparent: Some(&trace),
        repeat: false,
        assume_window: false,
        now_override: Some(TimestampMs::new(now)),
    };
    let reply = world.redis.reserve(&call).await.unwrap();
    assert_eq!(
        reply,
        ReserveReply {
            code: ReserveCode::Accepted,
            reservation_id: Some(id.clone()),
            remaining: 4,
            status: ReplyStatus::Queued,
            replay: false,
        }
    );
    let dump = world.dump().await;
    for entry in dump.0.values() {
        assert_eq!(entry.expires_at_ms, Some(world.times.retention));
    }
    assert_eq!(dump.0.len(), 7);
    let record = world.redis.reservation(&world.keys, &id).await.unwrap();
    let record = record.unwrap();
    assert_eq!(record.status, S::Reserved);
    assert_eq!(record.reserved_at_ms.get(), now);
    assert_eq!(record.expires_at_ms.get(), now + TTL_MS);
    assert_eq!(record.traceparent, Some(trace));
    assert_eq!(record.order_request().user_id, user("u1"));
    let scores = |key: String| match dump.get(&key) {
        Some(Content::SortedSet(members)) => members.clone().into_iter().collect::<Vec<_>>(),
        other => panic!("{key}: {other:?}"),
    };
    assert_eq!(
        scores(world.keys.send_pending()),
        [(id.to_string(), (now + GRACE_MS).to_string())]
    );
    assert_eq!(
        scores(world.keys.reservation_expiry()),
        [(id.to_string(), (now + TTL_MS).to_string())]
    );
    assert_eq!(world.counters().await, (5, 4, 1));
}

#[tokio::test]
async fn before_the_start_after_the_end_and_paused_are_refused_and_remembered() {
    let world = World::open(5).await;
    let (starts, ends) = (world.times.starts, world.times.ends);
    let early = world.reserve_at("u1", "q1", starts - 1).await;
    assert_eq!(early, refusal(ReserveCode::ActivityNotStarted, 5));
    let late = world.reserve_at("u2", "q2", ends + 1).await;
    assert_eq!(late, refusal(ReserveCode::ActivityEnded, 5));
    world.set_state(ActivityState::Paused).await;
    let paused = world.reserve("u3", "q3").await;
    assert_eq!(paused, refusal(ReserveCode::ActivityNotActive, 5));
    world.set_state(ActivityState::Active).await;
    for (buyer, request_id, first) in [
        ("u1", "q1", early),
        ("u2", "q2", late),
        ("u3", "q3", paused),
    ] {
        let again = world.reserve(buyer, request_id).await;
        assert_eq!(
            again,
            ReserveReply {
                replay: true,
                ..first
            }
        );
    }
    assert_eq!(world.counters().await, (5, 5, 0));
    world.dump().await;
}

/// LUA-12: both ends belong to the sale, by the clock of Redis alone.
#[tokio::test]
async fn both_ends_of_the_sale_are_inclusive() {
    let world = World::open(5).await;
    let (starts, ends) = (world.times.starts, world.times.ends);
    assert_eq!(
        world.reserve_at("u1", "q1", starts).await.code,
        ReserveCode::Accepted
    );
    assert_eq!(
        world.reserve_at("u2", "q2", ends).await.code,
        ReserveCode::Accepted
    );
    let soon = world.redis.server_time(&world.keys).await.unwrap().get() + 300;
    world
        .cli(&[
            "HSET",
            &world.keys.meta(),
            "starts_at_ms",
            &soon.to_string(),
        ])
        .await;
    let mut attempt = 0;
    let accepted = loop {
        attempt += 1;
        let before = world.redis.server_time(&world.keys).await.unwrap().get();
        let (buyer, request_id) = (format!("v{attempt}"), format!("r{attempt}"));
        let reply = world.reserve(&buyer, &request_id).await;
        match reply.code {
            ReserveCode::ActivityNotStarted => assert!(before <= soon),
            ReserveCode::Accepted => break derived(&buyer, &request_id),
            other => panic!("{other}"),
        }
    };
    let record = world
        .redis
        .reservation(&world.keys, &accepted)
        .await
        .unwrap();
    let reserved_at = record.unwrap().reserved_at_ms.get();
    assert!(
        (soon..soon + 1_000).contains(&reserved_at),
        "{}",
        reserved_at - soon
    );
}

#[tokio::test]
async fn another_version_in_meta_is_a_mismatch() {
    let world = World::open(5).await;
    world
        .cli(&["HSET", &world.keys.meta(), "version", "8"])
        .await;
    assert_eq!(
        world.reserve("u1", "q1").await,
        refusal(ReserveCode::VersionMismatch, 5)
    );
    world
        .cli(&["HSET", &world.keys.meta(), "version", "7"])
        .await;
    assert_eq!(
        world.reserve("u1", "q1").await.code,
        ReserveCode::VersionMismatch
    );
    assert_eq!(world.reserve("u1", "q2").await.code, ReserveCode::Accepted);
}

#[tokio::test]
async fn without_stock_it_is_sold_out_and_marked() {
    let world = World::open(0).await;
    assert_eq!(
        world.reserve("u1", "q1").await,
        refusal(ReserveCode::SoldOut, 0)
    );
    let dump = world.dump().await;
    assert_eq!(
        dump.get(&world.keys.soldout()),
        Some(&Content::Text("1".to_owned()))
    );
    let again = world.reserve("u1", "q1").await;
    assert_eq!((again.code, again.replay), (ReserveCode::SoldOut, true));
    assert_eq!(world.dump().await, dump);
}

#[tokio::test]
async fn the_last_unit_marks_the_bucket_sold_out_and_a_release_clears_it() {
    let world = World::open(1).await;
    assert_eq!(world.reserve("u1", "q1").await.remaining, 0);
    assert!(world.dump().await.get(&world.keys.soldout()).is_some());
    assert_eq!(world.reserve("u2", "q2").await.code, ReserveCode::SoldOut);
    let id = derived("u1", "q1");
    world.to_release_pending(&id).await;
    assert_eq!(
        world.compensate(&id, "u1").await.code,
        CompensateCode::Released
    );
    assert!(world.dump().await.get(&world.keys.soldout()).is_none());
    assert_eq!(world.reserve("u2", "q3").await.code, ReserveCode::Accepted);
    assert_eq!(world.counters().await, (1, 0, 1));
}

/// M12: someone who wants two must not hide the last single unit from the others.
#[tokio::test]
async fn too_few_units_for_one_buyer_do_not_mark_the_bucket_sold_out() {
    let world = World::open(1).await;
    let reply = world
        .try_reserve_as("u1", "q1", &derived("u1", "q1"), |call| {
            call.quantity = quantity(2);
            call.max_quantity = quantity(2);
        })
        .await
        .unwrap();
    assert_eq!(reply, refusal(ReserveCode::SoldOut, 1));
    assert!(world.dump().await.get(&world.keys.soldout()).is_none());
    assert_eq!(world.reserve("u2", "q2").await.code, ReserveCode::Accepted);
}

#[tokio::test]
async fn a_repeated_request_gets_the_first_answer_and_takes_nothing() {
    let world = World::open(5).await;
    let first = world.reserve("u1", "q1").await;
    let before = world.dump().await;
    for _ in 0..3 {
        let again = world.reserve("u1", "q1").await;
        assert_eq!(again.code, ReserveCode::Accepted);
        assert_eq!(again.reservation_id, first.reservation_id);
        assert_eq!(again.remaining, first.remaining);
        assert_eq!(again.status, ReplyStatus::Status(S::Reserved));
        assert!(again.replay);
    }
    assert_eq!(world.dump().await, before);
}

/// S0-082: the memory of the request is lost, its reservation is not.
#[tokio::test]
async fn a_lost_request_result_is_rebuilt_from_the_reservation() {
    let world = World::open(5).await;
    let first = world.reserve("u1", "q1").await;
    world
        .cli(&["DEL", &world.keys.request(&request("q1"))])
        .await;
    let again = world.reserve("u1", "q1").await;
    assert_eq!((again.code, again.replay), (ReserveCode::Accepted, true));
    assert_eq!(again.reservation_id, first.reservation_id);
    assert_eq!(world.counters().await, (5, 4, 1));
    world.dump().await;
    let cached = world
        .redis
        .cached_request(&world.keys, &request("q1"))
        .await
        .unwrap();
    assert_eq!(cached.unwrap().user_id, user("u1"));
}

#[tokio::test]
async fn another_request_of_the_same_user_is_told_which_reservation_they_hold() {
    let world = World::open(5).await;
    world.reserve("u1", "q1").await;
    let second = world.reserve("u1", "q2").await;
    assert_eq!(second.code, ReserveCode::UserAlreadyReserved);
    assert_eq!(second.reservation_id, Some(derived("u1", "q1")));
    assert_eq!(
        (second.status.clone(), second.replay),
        (ReplyStatus::None, false)
    );
    let again = world.reserve("u1", "q2").await;
    assert_eq!(
        again,
        ReserveReply {
            replay: true,
            ..second
        }
    );
    assert_eq!(world.counters().await, (5, 4, 1));
}

/// FUZZ-12: the second user learns nothing, whatever the first one got.
#[tokio::test]
async fn a_request_id_of_another_user_is_a_conflict_that_tells_nothing() {
    let world = World::open(1).await;
    world.reserve("u1", "q1").await;
    world.reserve("u3", "q3").await;
    let before = world.dump().await;
    for request_id in ["q1", "q3"] {
        let reply = world.reserve("u2", request_id).await;
        assert_eq!(reply, refusal(ReserveCode::RequestIdConflict, 0));
    }
    let other_quantity = world
        .try_reserve_as("u1", "q1", &derived("u1", "q1"), |call| {
            call.quantity = quantity(2);
            call.max_quantity = quantity(2);
        })
        .await
        .unwrap();
    assert_eq!(other_quantity, refusal(ReserveCode::RequestIdConflict, 0));
    assert_eq!(world.dump().await, before);
}

#[tokio::test]
async fn a_reservation_id_of_another_request_is_a_conflict() {
    let world = World::open(5).await;
    let id = rid("shared");
    world.try_reserve_as("u1", "q1", &id, |_| {}).await.unwrap();
    let before = world.dump().await;
    let reply = world.try_reserve_as("u2", "q2", &id, |_| {}).await.unwrap();
    assert_eq!(reply, refusal(ReserveCode::ReservationIdConflict, 0));
    assert_eq!(world.dump().await, before);
}

/// S0-180: each request's answer is in the shard that its id hashes to.
#[tokio::test]
async fn answers_are_spread_over_the_request_shards() {
    let world = World::open(50).await;
    for index in 0..50 {
        world
            .reserve(&format!("u{index}"), &format!("q{index}"))
            .await;
    }
    let dump = world.dump().await;
    for index in 0..50 {
        let id = request(&format!("q{index}"));
        let shard = world.keys.request_shard(request_shard(&id));
        assert!(dump.hash(&shard).contains_key(id.as_str()), "{id:?}");
    }
}

/// S0-181, as the server counts slots.
#[tokio::test]
async fn all_keys_share_one_slot() {
    let cluster =
        seckill_test_support::PrivateRedis::start_with(&["--cluster-enabled", "yes"]).await;
    let keys = crate::world::bucket_keys();
    for key in [
        keys.meta(),
        keys.stock(),
        keys.request(&request("q1")),
        keys.user(&user("u1")),
        keys.reservation(&rid("r")),
        keys.send_pending(),
        keys.reservation_expiry(),
        keys.soldout(),
    ] {
        let slot = cluster.cli(&["CLUSTER", "KEYSLOT", &key]).await.int();
        assert_eq!(slot, i64::from(keys.slot()), "{key}");
    }
}

/// BIZ-12, the script's part: preheating again never resets a live bucket.
#[tokio::test]
async fn preheating_again_changes_nothing_and_missing_stock_is_not_made_up() {
    let world = World::open(5).await;
    world.reserve("u1", "q1").await;
    let before = world.dump().await;
    assert_eq!(
        world.preheat(9).await,
        PreheatReply::Preheated {
            meta_written: false,
            stock_written: false
        }
    );
    assert_eq!(world.dump().await, before);
    world.cli(&["DEL", &world.keys.stock()]).await;
    assert_eq!(
        world.preheat(9).await,
        PreheatReply::NotPrepared {
            state: "ACTIVE".to_owned()
        }
    );
    assert!(world.dump().await.get(&world.keys.stock()).is_none());
}
