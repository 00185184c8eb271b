//! The transition and claim scripts, settling, and the indexes (S0-095…103, S0-178).

use seckill_lua_scripts::{
    ClaimSendReply, Index, IndexMember, SetActivityState, SetActivityStateReply, Settle,
    SettleOutcome,
};
use seckill_state_machine::{
    ActivityState, MessageId, OrderId, RejectReason, ReservationStatus as S, TimestampMs,
    TransitionCode, Verdict, transition,
};
use seckill_test_support::Content;

use crate::world::{TTL_MS, World, derived, rid};

async fn set_status(world: &World, id: &seckill_state_machine::ReservationId, status: S) {
    world
        .cli(&[
            "HSET",
            &world.keys.reservation(id),
            "status",
            status.as_str(),
        ])
        .await;
}

/// The script's table is the domain's table, for every pair; and no step ever touches stock.
#[tokio::test]
async fn every_pair_of_states_answers_as_the_domain_says() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    let id = derived("u1", "q1");
    let retry = world.times.starts + 99_000;
    for from in S::ALL {
        for to in S::ALL {
            set_status(&world, &id, from).await;
            let before = world.dump().await;
            let reply = world
                .step_with(&id, to, |call| {
                    call.next_retry_at_ms = Some(TimestampMs::new(retry))
                })
                .await;
            let (code, status) = match transition(from, to) {
                Verdict::Update => (TransitionCode::Updated, to),
                Verdict::Idempotent => (TransitionCode::Idempotent, from),
                Verdict::Illegal => (TransitionCode::IllegalTransition, from),
            };
            assert_eq!(
                (reply.code, reply.status),
                (code, Some(status)),
                "{from} to {to}"
            );
            let after = world.dump().await;
            if code != TransitionCode::Updated {
                assert_eq!(after, before, "{from} to {to}");
            }
            assert_eq!(
                after.hash(&world.keys.stock()),
                before.hash(&world.keys.stock())
            );
        }
    }
}

fn member(world: &World, dump: &seckill_test_support::Dump, key: &str, id: &str) -> Option<String> {
    assert!(dump.get(&world.keys.meta()).is_some());
    match dump.get(key) {
        Some(Content::SortedSet(members)) => members.get(id).cloned(),
        _ => None,
    }
}

#[tokio::test]
async fn each_step_leaves_the_indexes_as_the_contract_says() {
    let world = World::open(3).await;
    let (pending, expiry) = (world.keys.send_pending(), world.keys.reservation_expiry());
    for (buyer, target) in [
        ("u1", S::OrderCreated),
        ("u2", S::Rejected),
        ("u3", S::ReleasePending),
    ] {
        world.reserve(buyer, buyer).await;
        let id = derived(buyer, buyer);
        let retry = world.times.ends;
        world
            .step_with(&id, S::SendUnknown, |call| {
                call.next_retry_at_ms = Some(TimestampMs::new(retry));
            })
            .await;
        let dump = world.dump().await;
        assert_eq!(
            member(&world, &dump, &pending, id.as_str()),
            Some(retry.to_string())
        );
        if target != S::ReleasePending {
            world.step(&id, S::Enqueued).await;
            let dump = world.dump().await;
            assert_eq!(member(&world, &dump, &pending, id.as_str()), None);
            assert!(member(&world, &dump, &expiry, id.as_str()).is_some());
        }
        world.step(&id, target).await;
        let dump = world.dump().await;
        assert_eq!(member(&world, &dump, &pending, id.as_str()), None);
        let still_checked = member(&world, &dump, &expiry, id.as_str()).is_some();
        assert_eq!(still_checked, target != S::OrderCreated, "{target}");
    }
}

#[tokio::test]
async fn a_repeated_unknown_send_moves_its_retry_time_and_needs_one() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    let id = derived("u1", "q1");
    for retry in [world.times.ends, world.times.ends + 5_000] {
        let reply = world
            .step_with(&id, S::SendUnknown, |call| {
                call.next_retry_at_ms = Some(TimestampMs::new(retry));
            })
            .await;
        assert_eq!(reply.code, TransitionCode::Updated);
        let dump = world.dump().await;
        let score = member(&world, &dump, &world.keys.send_pending(), id.as_str());
        assert_eq!(score, Some(retry.to_string()));
    }
    for bad in [None, Some(0), Some(-5)] {
        let before = world.dump().await;
        let reply = world
            .step_with(&id, S::SendUnknown, |call| {
                call.next_retry_at_ms = bad.map(TimestampMs::new);
            })
            .await;
        assert_eq!(reply.code, TransitionCode::IllegalTransition);
        assert_eq!(world.dump().await, before);
    }
}

#[tokio::test]
async fn another_message_or_order_on_record_is_a_conflict() {
    let world = World::open(3).await;
    let missing = world.step(&rid("missing"), S::Enqueued).await;
    assert_eq!(
        (missing.code, missing.status),
        (TransitionCode::NotFound, None)
    );
    world.reserve("u1", "q1").await;
    let id = derived("u1", "q1");
    let other_message = MessageId::of(&rid("other"));
    let reply = world
        .step_with(&id, S::Enqueued, |call| {
            call.message_id = Some(&other_message)
        })
        .await;
    assert_eq!(
        (reply.code, reply.status),
        (TransitionCode::IdConflict, Some(S::Reserved))
    );
    world.step(&id, S::Enqueued).await;
    let (first, second) = (OrderId::parse("o1").unwrap(), OrderId::parse("o2").unwrap());
    let reply = world
        .step_with(&id, S::OrderCreated, |call| call.order_id = Some(&first))
        .await;
    assert_eq!(reply.code, TransitionCode::Updated);
    let before = world.dump().await;
    let reply = world
        .step_with(&id, S::OrderCreated, |call| call.order_id = Some(&second))
        .await;
    assert_eq!(reply.code, TransitionCode::IdConflict);
    let reply = world
        .step_with(&id, S::OrderCreated, |call| call.order_id = Some(&first))
        .await;
    assert_eq!(reply.code, TransitionCode::Idempotent);
    assert_eq!(world.dump().await, before);
    let record = world
        .redis
        .reservation(&world.keys, &id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(record.order_id, Some(first));
}

/// The consumer may finish before the front has recorded `ENQUEUED`.
#[tokio::test]
async fn settling_works_from_every_earlier_state_and_twice() {
    let world = World::open(9).await;
    let order_id = OrderId::parse("o1").unwrap();
    for (index, start) in [S::Reserved, S::SendUnknown, S::Enqueued]
        .into_iter()
        .enumerate()
    {
        for ordered in [true, false] {
            let buyer = format!("u{index}{ordered}");
            world.reserve(&buyer, &buyer).await;
            let id = derived(&buyer, &buyer);
            set_status(&world, &id, start).await;
            let message_id = MessageId::of(&id);
            let outcome = if ordered {
                SettleOutcome::Ordered {
                    order_id: &order_id,
                }
            } else {
                SettleOutcome::Rejected {
                    reason: RejectReason::ALL[0],
                }
            };
            let call = Settle {
                keys: &world.keys,
                reservation_id: &id,
                message_id: &message_id,
                outcome,
            };
            let end = if ordered {
                S::OrderCreated
            } else {
                S::Rejected
            };
            let first = world.redis.settle(&call).await.unwrap();
            assert_eq!(
                (first.code, first.status),
                (TransitionCode::Updated, Some(end))
            );
            let again = world.redis.settle(&call).await.unwrap();
            assert_eq!(
                (again.code, again.status),
                (TransitionCode::Idempotent, Some(end))
            );
        }
    }
    assert_eq!(world.counters().await, (9, 3, 6));
    world.dump().await;
}

#[tokio::test]
async fn one_scanner_claims_a_due_reservation_and_the_other_is_told_so() {
    let world = World::open(3).await;
    let now = world.times.starts + 1;
    world.reserve_at("u1", "q1", now).await;
    let id = derived("u1", "q1");
    let due = world
        .redis
        .due(
            &world.keys,
            Index::SendPending,
            TimestampMs::new(now + TTL_MS),
            None,
            10,
        )
        .await
        .unwrap();
    let score = due[0].score;
    let lease = now + 60_000;
    let claimed = world.claim(&id, score, lease).await;
    let ClaimSendReply::Claimed(record) = claimed else {
        panic!("{claimed:?}");
    };
    assert_eq!(
        (record.send_attempts, record.reservation_id),
        (1, id.clone())
    );
    assert_eq!(
        world.claim(&id, score, lease + 1).await,
        ClaimSendReply::Moved { score: lease }
    );
    world.step(&id, S::Enqueued).await;
    assert_eq!(
        world.claim(&id, lease, lease + 1).await,
        ClaimSendReply::NotDue
    );
    let pending = world.keys.send_pending();
    world.cli(&["ZADD", &pending, "5", id.as_str()]).await;
    world
        .cli(&["PEXPIREAT", &pending, &world.times.retention.to_string()])
        .await;
    assert_eq!(
        world.claim(&id, 5, lease).await,
        ClaimSendReply::NotSendable(S::Enqueued)
    );
    assert!(world.dump().await.get(&pending).is_none());
}

/// A member that points at nothing stays for the reconciler, and does not stop the queue.
#[tokio::test]
async fn a_due_member_without_a_sound_reservation_is_postponed_and_reported() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    let id = derived("u1", "q1");
    let key = world.keys.reservation(&id);
    let pending = world.keys.send_pending();
    let mut score = 10;
    world.cli(&["ZADD", &pending, "10", id.as_str()]).await;
    let mut expect = async |reply: ClaimSendReply| {
        let before = world.server.dump().await;
        assert_eq!(world.claim(&id, score, score + 1).await, reply);
        score += 1;
        let mut after = world.server.dump().await;
        assert_eq!(
            member(&world, &after, &pending, id.as_str()),
            Some(score.to_string())
        );
        after.0.insert(pending.clone(), before.0[&pending].clone());
        assert_eq!(after, before);
    };
    world.cli(&["HSET", &key, "send_attempts", "x"]).await;
    expect(ClaimSendReply::Broken("CORRUPTED_SEND_ATTEMPTS".to_owned())).await;
    world
        .cli(&["HSET", &key, "send_attempts", "0", "status", "QUEUED"])
        .await;
    expect(ClaimSendReply::Broken("UNKNOWN_STATUS".to_owned())).await;
    world.cli(&["HSET", &key, "reservation_id", "other"]).await;
    expect(ClaimSendReply::Broken("RESERVATION_ID_CONFLICT".to_owned())).await;
    world.cli(&["SET", &key, "text"]).await;
    expect(ClaimSendReply::Broken("WRONG_TYPE".to_owned())).await;
    world.cli(&["DEL", &key]).await;
    expect(ClaimSendReply::Missing).await;
}

/// Members that stay cannot hide those behind them, not even thousands with one score.
#[tokio::test]
async fn an_index_is_paged_by_score_and_member() {
    let world = World::open(3).await;
    let key = world.keys.reservation_expiry();
    for index in 0..25 {
        let score = (index / 10).to_string();
        world
            .cli(&["ZADD", &key, &score, &format!("m{index:02}")])
            .await;
    }
    let until = TimestampMs::new(1);
    let mut seen: Vec<IndexMember> = Vec::new();
    loop {
        let page = world
            .redis
            .due(&world.keys, Index::ReservationExpiry, until, seen.last(), 4)
            .await
            .unwrap();
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 4);
        seen.extend(page);
    }
    let names: Vec<String> = seen.into_iter().map(|found| found.member).collect();
    let expected: Vec<String> = (0..20).map(|index| format!("m{index:02}")).collect();
    assert_eq!(names, expected);
    let len = world
        .redis
        .index_len(&world.keys, Index::ReservationExpiry)
        .await;
    assert_eq!(len.unwrap(), 25);
}

#[tokio::test]
async fn the_activity_state_follows_postgresql_and_never_leaves_closed() {
    let world = World::empty().await;
    let set = async |state| {
        let call = SetActivityState {
            keys: &world.keys,
            state,
        };
        world.redis.set_activity_state(&call).await.unwrap()
    };
    assert_eq!(
        set(ActivityState::Active).await,
        SetActivityStateReply::MetaMissing
    );
    world.preheat(3).await;
    let before = world.dump().await;
    assert_eq!(
        set(ActivityState::Prepared).await,
        SetActivityStateReply::Unchanged
    );
    assert_eq!(world.dump().await, before);
    let from = "PREPARED".to_owned();
    assert_eq!(
        set(ActivityState::Paused).await,
        SetActivityStateReply::Updated { from }
    );
    let refused = SetActivityStateReply::Refused {
        state: "PAUSED".to_owned(),
    };
    assert_eq!(set(ActivityState::Prepared).await, refused);
    set(ActivityState::Closed).await;
    let refused = SetActivityStateReply::Refused {
        state: "CLOSED".to_owned(),
    };
    assert_eq!(set(ActivityState::Active).await, refused);
    let meta = world.redis.meta(&world.keys).await.unwrap().unwrap();
    assert_eq!(meta.state, ActivityState::Closed);
    world
        .cli(&["HSET", &world.keys.meta(), "sku_id", "other"])
        .await;
    assert_eq!(
        set(ActivityState::Closed).await,
        SetActivityStateReply::ScopeMismatch
    );
}
