//! A version is restored after Redis has lost everything, from wherever a crash left the restoring.

use std::process::Stdio;
use std::time::{Duration, Instant};

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Cancel, Settle, SettleOutcome};
use seckill_order_store::{CancelOutcome, Decided};
use seckill_state_machine::{
    CancelCode, MessageId, OrderRequest, RequestId, ReservationId, ReserveCode, UserId,
};
use serde_json::Value;

use crate::world::{ACTIVITY, Ended, World, request, reserve};

const LEASE: Duration = Duration::from_secs(30);

fn rebuilding<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let command = [
        "activity",
        "rebuild",
        "--activity-id",
        ACTIVITY,
        "--actor",
        "op",
        "--reason",
        "the disk died",
        "--recheck-ms",
        "50",
    ];
    [&command[..], more].concat()
}

async fn rebuild(world: &World) -> Ended {
    world.ctl(&rebuilding(&["--output", "json"])).await
}

/// A sale with every kind of decision: two orders told to Redis, one that was not, one refused, one
/// released and one cancelled.
async fn every_kind() -> World {
    let world = World::on_sale(1).await;
    world.buy(0).await;
    world.buy(1).await;
    world.order(&world.reserve(2).await).await;
    let second_of_a_buyer = OrderRequest {
        user_id: request(0).user_id,
        ..request(3)
    };
    let decided = world.store.decide(&[second_of_a_buyer]).await.unwrap();
    assert!(
        matches!(decided[0], Decided::Rejected { .. }),
        "{decided:?}"
    );
    let given_up = world.reserve(4).await;
    world.store.hand_over(&given_up, None).await.unwrap();
    for task in world.store.claim_tasks(10, LEASE).await.unwrap() {
        if task.request.reservation_id == given_up.reservation_id {
            world.store.fence(&task).await.unwrap();
        }
    }
    let order_id = world.order(&world.reserve(5).await).await;
    let cancelled = world
        .store
        .cancel_order(&order_id, "op", "test")
        .await
        .unwrap();
    assert!(
        matches!(cancelled, CancelOutcome::Cancelled(_)),
        "{cancelled:?}"
    );
    world
}

#[tokio::test]
async fn every_kind_of_decision_comes_back_and_only_an_operator_sells_again() {
    let world = every_kind().await;
    world.plant(&["FLUSHALL"]).await;
    let nothing = reserve(&world.redis, &request(6)).await;
    assert_eq!(nothing.code, ReserveCode::ConfigMissing);
    for step in ["preheat", "open", "resume"] {
        let ended = world.activity(step).await;
        assert_eq!(ended.code, Some(1), "{step}: {ended:?}");
        let hint = if step == "resume" {
            "PAUSED"
        } else {
            "activity rebuild"
        };
        assert!(
            ended.stderr.contains(hint) || ended.stderr.contains("activity rebuild"),
            "{step}: {ended:?}"
        );
    }

    let result = rebuild(&world).await.ok().json();
    assert_eq!(result["ok"], true, "{result}");
    assert_eq!(result["state"], "PAUSED");
    assert_eq!(result["reservations"], 3, "{result}");
    assert_eq!(result["tombstones"], 3, "{result}");
    assert_eq!(result["open"], 0, "{result}");
    let audit = world.audit().await.ok().json();
    assert_eq!(
        audit[0]["buckets"][0]["redis"],
        serde_json::json!({"initial": 10, "available": 7, "open": 0, "ordered": 3})
    );
    let dump = world.server.dump().await;
    assert_eq!(dump.keys_without_expiry(), [""; 0]);
    let keys = world.keys(0);
    let meta = dump.hash(&keys.meta());
    assert_eq!(
        (meta["state"].as_str(), meta["recovery"].as_str()),
        ("PAUSED", "window")
    );
    for (n, status) in [
        (0, "ORDER_CREATED"),
        (1, "ORDER_CREATED"),
        (2, "ORDER_CREATED"),
        (3, "RELEASED"),
        (4, "RELEASED"),
        (5, "ORDER_CANCELLED"),
    ] {
        let record = dump.hash(&keys.reservation(&request(n).reservation_id));
        assert_eq!(record["status"], status, "{n}: {record:?}");
    }
    let reasons = "SELECT reason FROM recovery_window";
    let reasons = world.db.texts(reasons).await;
    assert_eq!(reasons, [["rebuilt by op: the disk died".to_owned()]]);

    // A buyer's repeat must not be sold to before somebody says so, nor be refused afresh.
    let early = reserve(&world.redis, &request(6)).await;
    assert_ne!(early.code, ReserveCode::Accepted, "{early:?}");
    assert_eq!(rebuild(&world).await.ok().json()["stock_written"], 0);
    world.activity("resume").await.ok();
    let repeated = reserve(&world.redis, &request(0)).await;
    assert_eq!(
        (repeated.code, repeated.replay),
        (ReserveCode::Accepted, true)
    );
    let fresh = reserve(&world.redis, &request(7)).await;
    assert_eq!((fresh.code, fresh.remaining), (ReserveCode::Accepted, 6));
}

/// Goal: a loss that no restart shows starts an open window afresh: how far it had to wait was noted
/// before messages that have lost their reservation now. Method: all keys are deleted between two
/// rebuilds.
#[tokio::test]
async fn a_loss_without_a_restart_starts_the_window_afresh() {
    let world = every_kind().await;
    world.plant(&["FLUSHALL"]).await;
    rebuild(&world).await.ok();
    let noted = "UPDATE recovery_window \
                 SET end_queues = '{b/0}', end_offsets = '{1}', opened_at = opened_at - interval '1 h'";
    world.db.execute(noted).await;
    world.plant(&["FLUSHALL"]).await;
    rebuild(&world).await.ok();
    let afresh = "SELECT count(*) FROM recovery_window \
                  WHERE end_queues IS NULL AND opened_at > now() - interval '30 min'";
    assert_eq!(world.db.number(afresh).await, 1);
}

#[tokio::test]
async fn a_version_that_is_whole_or_was_never_sold_is_left_alone() {
    let world = World::start().await;
    world.create(10, 1).await.ok();
    rebuild(&world)
        .await
        .refused(1, &["PREPARED", "preheat it"]);
    world.activity("preheat").await.ok();
    world.activity("open").await.ok();
    world.buy(0).await;
    let dump = world.server.dump().await;
    rebuild(&world)
        .await
        .refused(1, &["ACTIVE", "nothing is missing"]);
    assert_eq!(world.server.dump().await, dump);
    let nameless = ["activity", "rebuild", "--activity-id", ACTIVITY];
    world
        .ctl(&nameless)
        .await
        .refused(64, &["--actor", "--reason"]);
}

#[tokio::test]
async fn the_loss_of_some_buckets_leaves_the_others_as_they_are() {
    let world = World::on_sale(3).await;
    let kept = world.server.dump().await.hash(&world.keys(2).stock());
    for bucket in [0, 1] {
        let keys = world.keys(bucket);
        world.plant(&["DEL", &keys.meta(), &keys.stock()]).await;
    }
    let result = rebuild(&world).await.ok().json();
    assert_eq!(
        (&result["stock_written"], &result["buckets"]),
        (&2.into(), &3.into())
    );
    assert_eq!(world.server.dump().await.hash(&world.keys(2).stock()), kept);
    world.activity("resume").await.ok();
}

/// A sale of 70 of 100 units of which 65 are ordered and 5 on their way; one more was ordered and cancelled.
async fn seventy_of_a_hundred(world: &World) {
    world.create(100, 1).await.ok();
    world.activity("preheat").await.ok();
    world.activity("open").await.ok();
    let keys = world.keys(0);
    for n in 0..71 {
        let request = many(n);
        let reply = reserve(&world.redis, &request).await;
        assert_eq!(reply.code, ReserveCode::Accepted, "{reply:?}");
        if n < 66 {
            let order_id = world.order(&request).await;
            let settle = Settle {
                keys: &keys,
                reservation_id: &request.reservation_id,
                message_id: &MessageId::of(&request.reservation_id),
                outcome: SettleOutcome::Ordered {
                    order_id: &order_id,
                },
            };
            world.redis.settle(&settle).await.unwrap();
        }
    }
    let cancelled = many(0);
    let order = world.store.decide(std::slice::from_ref(&cancelled)).await;
    let Decided::Ordered { order_id, .. } = order.unwrap().remove(0) else {
        panic!("it was ordered");
    };
    let done = world.store.cancel_order(&order_id, "op", "test").await;
    assert!(matches!(done, Ok(CancelOutcome::Cancelled(_))), "{done:?}");
    let cancel = Cancel {
        keys: &keys,
        reservation_id: &cancelled.reservation_id,
        user_id: &cancelled.user_id,
        order_id: &order_id,
        waiting: None,
        now_override: None,
    };
    let reply = world.redis.cancel(&cancel).await.unwrap();
    assert_eq!(reply.code, CancelCode::Cancelled);
}

/// Goal: lost counters come back less what the reservations that are left hold, so that no unit is sold
/// twice (I1).
#[tokio::test]
async fn lost_counters_are_written_less_what_a_sale_holds() {
    let world = World::start().await;
    seventy_of_a_hundred(&world).await;
    let keys = world.keys(0);
    let figures = serde_json::json!({"initial": 100, "available": 30, "open": 5, "ordered": 65});
    let audit = world.audit().await.ok().json();
    assert_eq!(audit[0]["buckets"][0]["redis"], figures);
    for lost in [vec![keys.stock()], vec![keys.meta(), keys.stock()]] {
        for key in &lost {
            assert_eq!(world.plant(&["DEL", key]).await.int(), 1);
        }
        let result = rebuild(&world).await.ok().json();
        assert_eq!(
            (
                &result["ok"],
                &result["stock_written"],
                &result["reservations"]
            ),
            (&true.into(), &1.into(), &0.into()),
            "{result}"
        );
        let audit = world.audit().await.ok().json();
        assert_eq!(audit[0]["buckets"][0]["redis"], figures, "{lost:?}");
        world.activity("resume").await.ok();
    }
    for n in 100..130 {
        let reply = reserve(&world.redis, &many(n)).await;
        assert_eq!(reply.code, ReserveCode::Accepted, "{n}: {reply:?}");
    }
    let beyond = reserve(&world.redis, &many(130)).await;
    assert_eq!(beyond.code, ReserveCode::SoldOut, "{beyond:?}");
}

/// Goal: a reservation that may hold units and cannot be read is no reason to guess.
#[tokio::test]
async fn counters_are_not_written_beside_a_reservation_that_cannot_be_read() {
    let world = World::on_sale(1).await;
    world.buy(0).await;
    let keys = world.keys(0);
    let reservation = keys.reservation(&request(0).reservation_id);
    world
        .plant(&["HSET", &reservation, "quantity", "many"])
        .await;
    world.plant(&["DEL", &keys.stock()]).await;
    let ended = rebuild(&world).await;
    assert_ne!(ended.code, Some(0), "{ended:?}");
    assert_eq!(world.plant(&["EXISTS", &keys.stock()]).await.int(), 0);
    world.plant(&["HSET", &reservation, "quantity", "1"]).await;
    rebuild(&world).await.ok();
    assert_eq!(reserved(&world).await, 1);
}

#[tokio::test]
async fn what_cannot_be_brought_together_stays_closed_to_buyers() {
    let world = World::on_sale(1).await;
    world.buy(0).await;
    // Of the bucket only the reservation is left, in a state that no script undoes.
    let keys = world.keys(0);
    let reservation = keys.reservation(&request(0).reservation_id);
    world
        .plant(&["HSET", &reservation, "status", "RELEASED"])
        .await;
    world.plant(&["DEL", &keys.meta(), &keys.stock()]).await;
    let ended = rebuild(&world).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let result = ended.json();
    assert_eq!(result["ok"], false);
    assert!(
        !result["differences"].as_array().unwrap().is_empty(),
        "{result}"
    );
    world.activity("resume").await.refused(1, &["recovery"]);
    let refused = reserve(&world.redis, &request(6)).await;
    assert_eq!(refused.code, ReserveCode::ConfigMissing, "{refused:?}");
}

/// Buyer `n` of many: letters alone, as ids are.
fn many(n: u32) -> OrderRequest {
    let mut digits = String::new();
    let mut rest = n;
    for _ in 0..6 {
        digits.push(char::from(b'a' + (rest % 26) as u8));
        rest /= 26;
    }
    OrderRequest {
        reservation_id: ReservationId::parse(format!("{digits}{}", "m".repeat(20))).unwrap(),
        request_id: RequestId::parse(format!("many-{n}")).unwrap(),
        user_id: UserId::parse(format!("user-many-{n}")).unwrap(),
        ..request(0)
    }
}

async fn reserved(world: &World) -> u64 {
    let keys = BucketKeys::new(&request(0).bucket);
    let stock = world.redis.stock(&keys).await.unwrap();
    stock.map_or(0, |stock| stock.counters.reserved)
}

#[tokio::test]
async fn ten_thousand_orders_come_back_at_once_and_after_a_kill() {
    const ORDERS: u32 = 10_000;
    let world = World::start().await;
    world.create(u64::from(ORDERS), 1).await.ok();
    world.activity("preheat").await.ok();
    world.activity("open").await.ok();
    let all: Vec<OrderRequest> = (0..ORDERS).map(many).collect();
    for batch in all.chunks(250) {
        let decided = world.store.decide(batch).await.unwrap();
        assert!(
            decided
                .iter()
                .all(|one| matches!(one, Decided::Ordered { .. }))
        );
    }
    world.plant(&["FLUSHALL"]).await;

    let mut command = world.command(&rebuilding(&[]));
    let mut half_done = command.stdout(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while reserved(&world).await < 500 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it does not begin"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    half_done.kill().await.unwrap();
    let at_the_kill = reserved(&world).await;
    assert!(at_the_kill < u64::from(ORDERS), "it was done already");
    world.activity("resume").await.refused(1, &["recovery"]);
    let answer = reserve(&world.redis, &request(1)).await;
    assert_eq!(answer.code, ReserveCode::ConfigMissing);
    let finished = rebuild(&world).await.ok().json();
    let brought_back = finished["reservations"].as_u64().unwrap();
    assert!(
        brought_back + at_the_kill >= u64::from(ORDERS),
        "{finished}"
    );
    assert!(brought_back <= u64::from(ORDERS) - 500, "{finished}");
    assert_eq!(reserved(&world).await, u64::from(ORDERS));

    world.plant(&["FLUSHALL"]).await;
    let whole: Value = rebuild(&world).await.ok().json();
    println!("rebuilt 10,000 orders in {} ms", whole["took_ms"]);
    assert_eq!(whole["reservations"], ORDERS);
    // Ten seconds on a quiet machine; here others may use most of it.
    assert!(whole["took_ms"].as_u64().unwrap() <= 60_000, "{whole}");
    world.activity("resume").await.ok();
    world.audit().await.ok();
}
