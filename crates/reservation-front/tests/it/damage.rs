//! Damaged data or a wrong deployment stops one activity, alarms once, and leaves its neighbours alone
//! (S0-068, S0-138).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use seckill_proto::v1::get_reservation_request::Key;
use seckill_proto::v1::{ReservationStatus, ReserveCode};
use seckill_state_machine::ActivityId;
use seckill_test_support::{
    Dir, FaultProxy, FrameAction, Framing, PrivateRedis, ServiceProcess, eventually,
};
use tonic::Status;

use crate::harness::{
    Client, PATIENCE, Sale, assert_honest, client, find, front, reason, reserve, settings,
};

/// Long enough that calls of one step fall into it, short enough to wait for.
const PAUSE: Duration = Duration::from_millis(1_500);

/// What the alarm says.
const ALARM: &str = "operators must look at this activity";

async fn two_sales(redis: &PrivateRedis) -> [Sale; 2] {
    let mut neighbour = settings(100);
    neighbour.scope.activity_id = ActivityId::parse("act-2").unwrap();
    [
        Sale::open(redis, settings(100)).await,
        Sale::open(redis, neighbour).await,
    ]
}

fn alarms(front: &ServiceProcess) -> usize {
    let log = front.log_text();
    log.lines()
        .filter(|line| line.contains("ERROR") && line.contains(ALARM))
        .count()
}

async fn busy(client: &mut Client, sale: &Sale, request: &str) -> Status {
    let status = client
        .reserve(sale.call(request, request))
        .await
        .unwrap_err();
    assert_honest(&status, request);
    assert_eq!(reason(&status), "SYSTEM_BUSY");
    status
}

async fn accept(client: &mut Client, sale: &Sale, request: &str) {
    let answer = reserve(client, sale.call(request, request)).await;
    assert_eq!(answer.code(), ReserveCode::Accepted, "{request}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_counters_stop_one_activity_and_no_other() {
    let redis = PrivateRedis::start().await;
    let [sale, neighbour] = two_sales(&redis).await;
    let front = front(redis.url())
        .env("SECKILL_FRONT_DAMAGE_PAUSE_MS", PAUSE.as_millis())
        .start()
        .await;
    front.allow_errors(ALARM);
    let mut client = client(&front).await;
    let held = reserve(&mut client, sale.call("held", "held")).await;
    let stock = sale.keys().stock();
    redis.cli(&["HINCRBY", &stock, "available", "1"]).await;

    let told = reserve(&mut client, sale.call("first", "first")).await;
    assert_eq!(told.code(), ReserveCode::InvariantViolation);
    for request in ["second", "third"] {
        busy(&mut client, &sale, request).await;
        accept(&mut client, &neighbour, request).await;
    }
    let mut repeat = sale.call("held", "held");
    repeat.repeat = true;
    let unknown = client.reserve(repeat).await.unwrap_err();
    assert_eq!(reason(&unknown), "OUTCOME_UNKNOWN");
    let query = sale.query("held", Key::ReservationId(held.reservation_id));
    let found = find(&mut client, query).await.unwrap();
    assert_eq!(found.status(), ReservationStatus::Queued);

    // Still damaged after the pause: one call finds that out, and the next are refused again.
    eventually(PATIENCE, "one call is let through", async || {
        let call = sale.call("probe", "probe");
        let answer = client.clone().reserve(call).await;
        answer.map(|answer| assert_eq!(answer.get_ref().code(), ReserveCode::InvariantViolation))
    })
    .await;
    busy(&mut client, &sale, "fourth").await;
    assert_eq!(alarms(&front), 1, "one alarm for one damage");

    redis.cli(&["HINCRBY", &stock, "available", "-1"]).await;
    let repaired = Instant::now();
    for request in ["first", "second", "third", "fourth", "probe"] {
        eventually(PATIENCE, "it is sold again", async || {
            let answer = client.clone().reserve(sale.call(request, request)).await;
            answer.map(|answer| {
                let answer = answer.into_inner();
                assert_eq!(
                    (answer.code(), answer.replay),
                    (ReserveCode::Accepted, false)
                );
            })
        })
        .await;
    }
    assert!(repaired.elapsed() < PAUSE + Duration::from_secs(5));
    assert_eq!(sale.stock().await, (94, 6));
    assert_eq!(neighbour.stock().await, (98, 2));
}

/// The server's answer to keys of more than one slot is put into its mouth: the front never sends such a
/// command.
#[tokio::test(flavor = "multi_thread")]
async fn crossed_slots_stop_one_activity_and_are_never_split_into_plain_commands() {
    let redis = PrivateRedis::start().await;
    let [sale, neighbour] = two_sales(&redis).await;
    let proxy = FaultProxy::start(redis.address(), Framing::Resp).await;
    let front = front(format!("redis://{}", proxy.addr()))
        .env("SECKILL_FRONT_DAMAGE_PAUSE_MS", PAUSE.as_millis())
        .start()
        .await;
    front.allow_errors(ALARM);
    let mut client = client(&front).await;
    sale.warm_up(&mut client).await;

    let (scripts, writes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (asked, written) = (Arc::clone(&scripts), Arc::clone(&writes));
    let before = redis.dump().await;
    proxy.on_frame(move |dir, _, frame| {
        if dir == Dir::ToClient || !frame.contains(b"{a:act-1:") {
            return FrameAction::Forward;
        }
        match frame.redis_command().as_deref() {
            Some("EVALSHA") => {
                asked.fetch_add(1, Ordering::SeqCst);
                let crossed = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
                FrameAction::ReplyWith(crossed.into())
            }
            Some("HSET" | "SET" | "DEL" | "ZADD" | "HINCRBY" | "EVAL") => {
                written.fetch_add(1, Ordering::SeqCst);
                FrameAction::Forward
            }
            _ => FrameAction::Forward,
        }
    });
    for request in ["first", "second", "third"] {
        busy(&mut client, &sale, request).await;
    }
    assert_eq!(
        scripts.load(Ordering::SeqCst),
        1,
        "only the first was asked"
    );
    assert_eq!(writes.load(Ordering::SeqCst), 0);
    assert_eq!(redis.dump().await, before);
    accept(&mut client, &neighbour, "first").await;
    assert_eq!(alarms(&front), 1);

    proxy.clear_hook();
    for request in ["first", "second", "third"] {
        eventually(PATIENCE, "it is sold again", async || {
            let answer = client.clone().reserve(sale.call(request, request)).await;
            answer.map(|answer| assert_eq!(answer.get_ref().code(), ReserveCode::Accepted))
        })
        .await;
    }
    assert_eq!(sale.stock().await, (96, 4));
}
