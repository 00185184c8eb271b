//! Wrong types, a full memory, and keys that lose their expiry: no script has a half effect.

use seckill_lua_scripts::{Error, ErrorKind, Settle, SettleOutcome, TransitionReply};
use seckill_state_machine::{
    CompensateCode, MessageId, OrderId, RejectReason, ReservationId, ReservationStatus as S,
    ReserveCode, TimestampMs, TransitionCode,
};

use crate::world::{World, derived, request, user};

impl World {
    async fn settle(
        &self,
        id: &ReservationId,
        outcome: SettleOutcome<'_>,
    ) -> Result<TransitionReply, Error> {
        let call = Settle {
            keys: &self.keys,
            reservation_id: id,
            message_id: &MessageId::of(id),
            outcome,
        };
        self.redis.settle(&call).await
    }
}

/// LUA-01: a wrong type on any key stops the acceptance before its first write, and after the repair
/// exactly the stock is sold.
#[tokio::test]
async fn a_wrong_type_on_any_key_leaves_no_trace() {
    let world = World::open(5).await;
    let keys = &world.keys;
    let id = derived("u1", "q1");
    let places = [
        keys.meta(),
        keys.stock(),
        keys.request(&request("q1")),
        keys.user(&user("u1")),
        keys.reservation(&id),
        keys.send_pending(),
        keys.reservation_expiry(),
        keys.soldout(),
    ];
    let retention = world.times.retention.to_string();
    for key in &places {
        let held = format!("{key}:kept");
        let existed = world.server.cli(&["EXISTS", key]).await.int() == 1;
        if existed {
            world.cli(&["RENAME", key, &held]).await;
        }
        world.cli(&["RPUSH", key, "x"]).await;
        world.cli(&["PEXPIREAT", key, &retention]).await;
        let before = world.dump().await;
        let error = world.try_reserve("u1", "q1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{key}: {error}");
        assert_eq!(world.dump().await, before, "{key}");
        world.cli(&["DEL", key]).await;
        if existed {
            world.cli(&["RENAME", &held, key]).await;
        }
    }
    let mut accepted = 0;
    for buyer in 1..=9 {
        let (name, request_id) = (format!("u{buyer}"), format!("q{buyer}"));
        let reply = world.reserve(&name, &request_id).await;
        accepted += usize::from(reply.code == ReserveCode::Accepted);
    }
    assert_eq!(accepted, 5);
    assert_eq!(world.counters().await, (5, 0, 5));
    world.dump().await;
}

/// The same for the release and for each step.
#[tokio::test]
async fn a_wrong_type_stops_a_release_and_a_step_as_well() {
    let world = World::open(5).await;
    let keys = &world.keys;
    world.reserve("u1", "q1").await;
    world.reserve("u2", "q2").await;
    let (id, other) = (derived("u1", "q1"), derived("u2", "q2"));
    world.to_release_pending(&id).await;
    let retention = world.times.retention.to_string();
    for key in [
        keys.stock(),
        keys.user(&user("u1")),
        keys.reservation(&id),
        keys.send_pending(),
        keys.reservation_expiry(),
    ] {
        let held = format!("{key}:kept");
        world.cli(&["RENAME", &key, &held]).await;
        world.cli(&["RPUSH", &key, "x"]).await;
        world.cli(&["PEXPIREAT", &key, &retention]).await;
        let before = world.dump().await;
        let error = world.try_compensate(&id, "u1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{key}: {error}");
        if key == keys.send_pending() || key == keys.reservation_expiry() {
            let step = seckill_lua_scripts::Transition {
                keys,
                reservation_id: &other,
                target: S::SendUnknown,
                next_retry_at_ms: Some(TimestampMs::new(1)),
                message_id: None,
                order_id: None,
                error_code: None,
                now_override: None,
            };
            let error = world.redis.transition(&step).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Broken, "{key}: {error}");
        }
        assert_eq!(world.dump().await, before, "{key}");
        world.cli(&["DEL", &key]).await;
        world.cli(&["RENAME", &held, &key]).await;
    }
    assert_eq!(
        world.compensate(&id, "u1").await.code,
        CompensateCode::Released
    );
}

/// LUA-06: with a full memory every script is refused whole, and works again afterwards.
#[tokio::test]
async fn a_full_memory_refuses_every_script_whole() {
    let world = World::open(50).await;
    for buyer in 0..10 {
        world
            .reserve(&format!("u{buyer}"), &format!("u{buyer}"))
            .await;
    }
    let released = derived("u0", "u0");
    world.to_release_pending(&released).await;
    let open = derived("u1", "u1");
    let before = world.dump().await;
    world.cli(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for buyer in 0..20 {
        let error = world
            .try_reserve(&format!("v{buyer}"), &format!("v{buyer}"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    }
    let error = world.try_compensate(&released, "u0").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    let message_id = MessageId::of(&open);
    for target in [S::SendUnknown, S::Enqueued, S::ReleasePending] {
        let step = seckill_lua_scripts::Transition {
            keys: &world.keys,
            reservation_id: &open,
            target,
            next_retry_at_ms: Some(TimestampMs::new(1)),
            message_id: Some(&message_id),
            order_id: None,
            error_code: None,
            now_override: None,
        };
        let error = world.redis.transition(&step).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
    }
    claim_and_state_are_refused(&world).await;
    assert_eq!(world.dump().await, before);
    // What is only read is still answered: a repeat gets its reservation back.
    assert!(world.reserve("u1", "u1").await.replay);
    world
        .cli(&["DEL", &world.keys.meta(), &world.keys.stock()])
        .await;
    let preheat = seckill_lua_scripts::PreheatBucket {
        keys: &world.keys,
        settings: &world.settings(50),
        now_override: None,
    };
    let error = world.redis.preheat_bucket(&preheat).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(world.dump().await.get(&world.keys.meta()).is_none());
    world.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(world.redis.preheat_bucket(&preheat).await.is_ok());
}

/// The two other scripts that write to a live bucket.
async fn claim_and_state_are_refused(world: &World) {
    let due = world
        .redis
        .due(
            &world.keys,
            seckill_lua_scripts::Index::SendPending,
            TimestampMs::new(world.times.retention),
            None,
            1,
        )
        .await
        .unwrap();
    let claim = seckill_lua_scripts::ClaimSend {
        keys: &world.keys,
        reservation_id: &seckill_state_machine::ReservationId::parse(due[0].member.clone())
            .unwrap(),
        expected_score: due[0].score,
        lease_until: TimestampMs::new(world.times.ends),
    };
    assert_eq!(
        world.redis.claim_send(&claim).await.unwrap_err().kind(),
        ErrorKind::Refused
    );
    let set_state = seckill_lua_scripts::SetActivityState {
        keys: &world.keys,
        state: seckill_state_machine::ActivityState::Paused,
    };
    let error = world
        .redis
        .set_activity_state(&set_state)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
}

/// Goal: a settlement whose first step a full memory refused is an error and never a word against the
/// decision; with room again the same call settles.
#[tokio::test]
async fn a_full_memory_refuses_a_settlement_and_contradicts_nothing() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    world.reserve("u2", "q2").await;
    let (id, unknown) = (derived("u1", "q1"), derived("u2", "q2"));
    world
        .step_with(&unknown, S::SendUnknown, |call| {
            call.next_retry_at_ms = Some(TimestampMs::new(world.times.ends));
        })
        .await;
    let order_id = OrderId::parse("o1").unwrap();
    let before = world.dump().await;
    world.cli(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for id in [&id, &unknown] {
        for outcome in [
            SettleOutcome::Ordered {
                order_id: &order_id,
            },
            SettleOutcome::Rejected {
                reason: RejectReason::StockExhausted,
            },
        ] {
            let error = world.settle(id, outcome).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{outcome:?}: {error}");
        }
    }
    assert_eq!(world.dump().await, before);
    world.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let ordered = SettleOutcome::Ordered {
        order_id: &order_id,
    };
    let reply = world.settle(&id, ordered).await.unwrap();
    assert_eq!(reply.code, TransitionCode::Updated);
}

/// The memory is full, then there is room again: the same requests are accepted once each.
#[tokio::test]
async fn the_same_requests_are_accepted_after_the_memory_was_full() {
    let world = World::open(50).await;
    world.cli(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for buyer in 0..20 {
        assert!(
            world
                .try_reserve(&format!("u{buyer}"), &format!("u{buyer}"))
                .await
                .is_err()
        );
    }
    world.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
    for buyer in 0..20 {
        let reply = world
            .reserve(&format!("u{buyer}"), &format!("u{buyer}"))
            .await;
        assert_eq!((reply.code, reply.replay), (ReserveCode::Accepted, false));
    }
    assert_eq!(world.counters().await, (50, 30, 20));
    world.dump().await;
}

/// LUA-11: an index that drained and is created again, by each script that can.
#[tokio::test]
async fn an_index_that_is_created_again_expires_like_the_rest() {
    let world = World::open(3).await;
    let (pending, expiry) = (world.keys.send_pending(), world.keys.reservation_expiry());
    world.reserve("u1", "q1").await;
    let id = derived("u1", "q1");
    world.cli(&["ZREM", &pending, id.as_str()]).await;
    world
        .step_with(&id, S::SendUnknown, |call| {
            call.next_retry_at_ms = Some(TimestampMs::new(world.times.ends));
        })
        .await;
    let dump = world.dump().await;
    assert_eq!(dump.0[&pending].expires_at_ms, Some(world.times.retention));
    let order_id = OrderId::parse("o1").unwrap();
    world.step(&id, S::Enqueued).await;
    world
        .step_with(&id, S::OrderCreated, |call| call.order_id = Some(&order_id))
        .await;
    let dump = world.dump().await;
    assert!(!dump.0.contains_key(&pending) && !dump.0.contains_key(&expiry));
    world.reserve("u2", "q2").await;
    world.reserve("u3", "q3").await;
    let other = derived("u3", "q3");
    world.to_release_pending(&other).await;
    world.compensate(&other, "u3").await;
    world.reserve("u4", "q4").await;
    world.reserve("u5", "q5").await;
    world.dump().await;
}

/// A reservation whose own expiry was lost must not make an index that lives for ever.
#[tokio::test]
async fn an_index_gets_an_expiry_even_when_its_reservation_lost_its_own() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    let id = derived("u1", "q1");
    world.cli(&["PERSIST", &world.keys.reservation(&id)]).await;
    world.cli(&["DEL", &world.keys.send_pending()]).await;
    world
        .step_with(&id, S::SendUnknown, |call| {
            call.next_retry_at_ms = Some(TimestampMs::new(world.times.ends));
        })
        .await;
    let dump = world.server.dump().await;
    assert!(dump.0[&world.keys.send_pending()].expires_at_ms.is_some());
}
