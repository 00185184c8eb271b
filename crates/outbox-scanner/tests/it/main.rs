//! The scanner as a process of its own, on real servers, with the faults that it exists for.

use std::collections::BTreeMap;
use std::time::Duration;

use seckill_integration_tests::checks::{Fields, buckets};
use seckill_integration_tests::{FrontClient, Plan, Sale, Sandbox, Service};
use seckill_test_support::{Mode, ServiceProcess, eventually};

/// Longer than any step takes on a machine that compiles meanwhile.
const SOON: Duration = Duration::from_secs(60);

/// Where no name server listens.
const NOWHERE: &str = "127.0.0.1:9";

/// A front that accepts and never gets a message out, as one that dies between script and send.
async fn front_without_broker(sandbox: &Sandbox) -> (ServiceProcess, FrontClient) {
    let front = sandbox
        .service(Service::Front)
        .env("SECKILL_ROCKETMQ_NAMESRV", NOWHERE)
        .env("SECKILL_FRONT_FIRST_SEND_GRACE_MS", 100)
        .start()
        .await;
    front.allow_errors("");
    let client = sandbox.client(&front);
    (front, client)
}

async fn buy(client: &FrontClient, sale: &Sale, buyers: u32) {
    for buyer in 0..buyers {
        client
            .buy(sale, &format!("u{buyer}"), &format!("q{buyer}"))
            .await;
    }
}

/// All reservations by id.
async fn reservations(sandbox: &Sandbox) -> BTreeMap<String, Fields> {
    let found = buckets(&sandbox.dump().await);
    found
        .into_iter()
        .flat_map(|bucket| bucket.reservations)
        .collect()
}

fn attempts(reservation: &Fields) -> u32 {
    reservation["send_attempts"].parse().unwrap_or_default()
}

async fn all_have_status(sandbox: &Sandbox, count: usize, status: &str) {
    eventually(SOON, status, async || {
        let reservations = reservations(sandbox).await;
        let reached = reservations
            .values()
            .filter(|r| r["status"] == status)
            .count();
        if reached == count {
            Ok(())
        } else {
            Err(format!("{reached} of {count} of {}", reservations.len()))
        }
    })
    .await;
}

/// Goal: SIGTERM ends it with code 0. Method: `stop` asserts the code.
#[tokio::test(flavor = "multi_thread")]
async fn it_gets_ready_and_stops_when_told() {
    let sandbox = Sandbox::start().await;
    let scanner = sandbox.run(Service::Scanner).await;
    scanner.stop(SOON).await;
}

/// OBX-03. Goal: two replicas share the due reservations and never both send one. Method: every claim
/// counts on the reservation, so one attempt each means one sender each.
#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_never_send_one_reservation_both() {
    const BUYERS: u32 = 300;
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(1_000).buckets(2)).await;
    let (front, client) = front_without_broker(&sandbox).await;
    buy(&client, &sale, BUYERS).await;
    front.kill();
    let replica = |number| sandbox.service(Service::Scanner).instance(number);
    let (first, second) = (replica(1), replica(2));
    let (first, second) = tokio::join!(first.start(), second.start());
    all_have_status(&sandbox, BUYERS as usize, "ENQUEUED").await;
    for (id, reservation) in reservations(&sandbox).await {
        assert_eq!(attempts(&reservation), 1, "{id}");
    }
    first.stop(SOON).await;
    second.stop(SOON).await;
    let consumer = sandbox.run(Service::Consumer).await;
    let scanner = sandbox.run(Service::Scanner).await;
    let compensation = sandbox.run(Service::Compensation).await;
    sandbox.assert_settles_consistent(SOON).await;
    for service in [consumer, scanner, compensation] {
        service.stop(SOON).await;
    }
}

/// OBX-06. Goal: while the broker refuses, attempts grow apart and retry times move forward; after
/// its return all are sent. Method: waits of 500 ms that triple up to 2 s.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_grow_apart_while_the_broker_refuses() {
    const BUYERS: u32 = 100;
    let sandbox = Sandbox::builder().broker_proxy().start().await;
    let sale = sandbox.open(&Plan::new(1_000)).await;
    let (front, client) = front_without_broker(&sandbox).await;
    buy(&client, &sale, BUYERS).await;
    front.kill();
    sandbox.broker_proxy().set_mode(Mode::Refuse);
    let scanner = sandbox.service(Service::Scanner).spawn();
    scanner.allow_errors("");
    let started = std::time::Instant::now();
    all_have_status(&sandbox, BUYERS as usize, "SEND_UNKNOWN").await;
    eventually(SOON, "a fifth attempt", async || {
        let tried = reservations(&sandbox).await.values().map(attempts).max();
        if tried >= Some(5) {
            Ok(())
        } else {
            Err(format!("{tried:?}"))
        }
    })
    .await;
    // One at once, one after half a second, then one every two seconds less their jitter.
    let most = 3 + started.elapsed().as_millis() / 1_700;
    for (id, reservation) in reservations(&sandbox).await {
        assert!(
            u128::from(attempts(&reservation)) <= most,
            "{id}: {reservation:?}, {most}"
        );
    }
    sandbox.broker_proxy().set_mode(Mode::Forward);
    all_have_status(&sandbox, BUYERS as usize, "ENQUEUED").await;
    scanner.stop(SOON).await;
}

/// OBX-07. Goal: what an earlier version accepted, in whatever bucket, is sent although a newer one
/// is on sale.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_version_is_sent_from_every_bucket() {
    const BUYERS: u32 = 40;
    let sandbox = Sandbox::start().await;
    let earlier = sandbox.open(&Plan::new(400).buckets(4).version(7)).await;
    let (front, client) = front_without_broker(&sandbox).await;
    buy(&client, &earlier, BUYERS).await;
    front.kill();
    assert_eq!(sandbox.step(&earlier, "close").await.code, Some(0));
    sandbox.open(&Plan::next_version_of(&earlier, 400)).await;
    let scanner = sandbox.run(Service::Scanner).await;
    all_have_status(&sandbox, BUYERS as usize, "ENQUEUED").await;
    let used = buckets(&sandbox.dump().await)
        .iter()
        .filter(|bucket| !bucket.reservations.is_empty())
        .count();
    assert_eq!(used, 4);
    scanner.stop(SOON).await;
}

/// Goal: a member without its reservation is reported and stays; those behind it are sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_its_reservation_hides_nobody_and_is_never_dropped() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(10)).await;
    let (front, client) = front_without_broker(&sandbox).await;
    let lost = client.buy(&sale, "u1", "q1").await;
    client.buy(&sale, "u2", "q2").await;
    front.kill();
    sandbox
        .redis()
        .cli(&["DEL", &sale.key(0, &format!("resv:{lost}"))])
        .await;
    let scanner = sandbox.run(Service::Scanner).await;
    scanner.allow_errors("cannot be read");
    all_have_status(&sandbox, 1, "ENQUEUED").await;
    scanner.wait_for_log("cannot be read", SOON).await;
    let score = sandbox
        .redis()
        .cli(&["ZSCORE", &sale.key(0, "send_pending"), &lost])
        .await;
    assert!(!score.text().is_empty(), "{score:?}");
    scanner.stop(SOON).await;
}
