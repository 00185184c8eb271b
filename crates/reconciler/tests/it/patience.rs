//! Undecided reservations: left alone while patience lasts, which it does while they could not be
//! decided, and handed to the fence afterwards.

use std::time::{Duration, Instant};

use seckill_integration_tests::{Plan, Sandbox, Service};
use seckill_test_support::eventually;

use crate::{SOON, nothing_is_open, reconciler};

/// Goal: BIZ-08, MQ-02: past its check time and its patience an undecided reservation stays as long as
/// no consumer is there, and nobody is alarmed. Its decision, however late, is an order.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_consumer_patience_stands_still_and_nothing_is_released() {
    let sandbox = Sandbox::start().await;
    let plan = Plan::new(5)
        .term("reservation-ttl-ms", 500)
        // A consumer that is connected gets its first message within this.
        .term("patience-ms", 6_000);
    let sale = sandbox.open(&plan).await;
    let front = sandbox.run(Service::Front).await;
    let worker = sandbox.run(Service::Compensation).await;
    let id = sandbox.client(&front).buy(&sale, "u1", "q1").await;
    // No errors are allowed: within patience there is nothing to tell.
    let process = reconciler(&sandbox).await;
    let observed = "SELECT count(*) FROM patience_watch WHERE NOT healthy \
                    AND observed_at > '-infinity'";
    eventually(SOON, "a watcher has looked", async || {
        match sandbox.database().number(observed).await {
            1 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    let begun = Instant::now();
    let runs = "SELECT count(*) FROM compensation_task";
    while begun.elapsed() < Duration::from_secs(7) {
        assert_eq!(sandbox.database().number(runs).await, 0);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let reservation = sale.key(0, &format!("resv:{id}"));
    let status = sandbox
        .redis()
        .cli(&["HGET", &reservation, "status"])
        .await
        .text();
    assert_eq!(status, "ENQUEUED");
    // The scanner publishes what the decision has to tell.
    let (consumer, scanner) = tokio::join!(
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Scanner)
    );
    sandbox.settle(SOON).await;
    let orders = "SELECT count(*) FROM orders";
    assert_eq!(sandbox.database().number(orders).await, 1);
    nothing_is_open(&sandbox).await;
    for service in [scanner, consumer, process, worker, front] {
        service.stop(SOON).await;
    }
}

/// Goal: with a live consumer that never gets the message, patience ends: the reservation is fenced in
/// PostgreSQL, released once, and its unit is for sale again. Method: an accepted reservation whose
/// message went to a namespace that nobody reads, as if the broker had lost it.
#[tokio::test(flavor = "multi_thread")]
async fn an_overdue_reservation_is_fenced_and_released() {
    let sandbox = Sandbox::start().await;
    let plan = Plan::new(5)
        .term("reservation-ttl-ms", 500)
        .term("patience-ms", 2_000);
    let sale = sandbox.open(&plan).await;
    let consumer = sandbox.run(Service::Consumer).await;
    let worker = sandbox.run(Service::Compensation).await;
    let process = reconciler(&sandbox).await;
    let front = sandbox
        .service(Service::Front)
        .env("SECKILL_ROCKETMQ_NAMESPACE", "nobody-reads-this")
        .allow_errors("")
        .spawn();
    front.wait_until_open().await;
    let id = sandbox.client(&front).buy(&sale, "u1", "q1").await;
    let reservation = sale.key(0, &format!("resv:{id}"));
    eventually(SOON, "it is released", async || {
        let status = sandbox.redis().cli(&["HGET", &reservation, "status"]).await;
        match status.text().as_str() {
            "RELEASED" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await;
    let fenced = "SELECT count(*) FROM reservation_decision WHERE kind = 'RELEASED'";
    assert_eq!(sandbox.database().number(fenced).await, 1);
    let origin = "SELECT count(*) FROM compensation_task WHERE origin = 'OVERDUE'";
    assert_eq!(sandbox.database().number(origin).await, 1);
    let available = sandbox
        .redis()
        .cli(&["HGET", &sale.key(0, "stock"), "available"])
        .await;
    assert_eq!(available.text(), "5");
    for service in [consumer, process, worker, front] {
        service.stop(SOON).await;
    }
}
