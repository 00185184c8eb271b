//! A failover forgets acknowledged reservations (RC-09, S0-201), with figures.

use std::time::Instant;

use seckill_integration_tests::{Plan, Sale, Sandbox, Service};
use seckill_proto::v1::ReserveCode;
use seckill_test_support::{Loss, eventually};

use super::{ask, ask_until_answered, buy_until_accepted, names};
use crate::harness::{SETTLES, SOON, bucket, orders};

/// Units, and buyers of each of the two rounds.
const UNITS: usize = 10;

/// Ten buyers are accepted, their messages are with the broker, and the failover forgets all of them. Ten
/// others buy the same units. PostgreSQL gives ten orders, none to anybody twice, and refuses the rest.
#[tokio::test(flavor = "multi_thread")]
async fn acceptances_that_a_failover_forgot_and_resold_never_oversell() {
    let sandbox = Sandbox::builder().replicated().start().await;
    let sale = sandbox.open(&Plan::new(10)).await;
    let front = sandbox.run(Service::Front).await;
    let client = sandbox.client(&front);
    let pair = sandbox.redis_pair();
    let forgotten = names("forgotten", UNITS);
    let sent = format!(
        "SELECT count(*) FROM reservation_decision WHERE {}",
        sale.sql()
    );

    pair.hold_replication().await;
    for name in &forgotten {
        buy_until_accepted(&client, &sale, name).await;
    }
    all_are_sent(&sandbox, &sale).await;
    let lost = pair.lose_primary(Loss::Kill).await;
    let dead = Instant::now();
    assert!(lost > 0, "nothing was lost");
    for name in ["nobody-1", "nobody-2", "nobody-3"] {
        assert!(
            ask(&client, &sale, name).await.is_err(),
            "sold without a primary"
        );
    }
    pair.promote().await;
    let promoted = Instant::now();
    assert!(bucket(&sandbox, &sale, 0).await.reservations.is_empty());

    let later = names("later", UNITS);
    for name in &later {
        buy_until_accepted(&client, &sale, name).await;
    }
    let resold = promoted.elapsed();
    let late = ask_until_answered(&client, &sale, "too-late").await;
    assert_eq!(late.code(), ReserveCode::SoldOut);
    assert_eq!(
        sandbox.database().number(&sent).await,
        0,
        "nothing is decided yet"
    );

    let (consumer, scanner) = tokio::join!(
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Scanner)
    );
    // It says what it finds: orders whose reservations Redis has forgotten.
    consumer.allow_errors("redis and postgresql differ");
    eventually(SETTLES, "twenty decisions", async || {
        match sandbox.database().number(&sent).await {
            20 => Ok(()),
            decided => Err(format!("{decided} decisions")),
        }
    })
    .await;
    assert_eq!(orders(&sandbox, &sale).await, 10);
    nobody_has_two(&sandbox, &sale).await;
    sandbox.assert_consistent().await;
    eprintln!(
        "failover: {lost} bytes of {UNITS} acceptances lost; {:?} without a primary; {UNITS} units resold \
         within {resold:?} of the promotion; 20 decisions {:?} after the loss",
        promoted - dead,
        dead.elapsed()
    );
    for service in [&front, &consumer, &scanner] {
        service.stop(SOON).await;
    }
}

/// The front has sent everything: nothing is left for the scanner.
async fn all_are_sent(sandbox: &Sandbox, sale: &Sale) {
    let pending = sale.key(0, "send_pending");
    eventually(SOON, "the first sends", async || {
        let left = sandbox.redis().cli(&["ZCARD", &pending]).await.int();
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} are not sent"))
        }
    })
    .await;
}

async fn nobody_has_two(sandbox: &Sandbox, sale: &Sale) {
    let twice = format!(
        "SELECT count(*) FROM (SELECT user_id FROM orders WHERE state = 'ACTIVE' AND {} \
         GROUP BY user_id HAVING count(*) > 1) AS twice",
        sale.sql()
    );
    assert_eq!(sandbox.database().number(&twice).await, 0);
}

/// Without a loss a failover costs time and nothing else: the same request ids lead to the same
/// reservations, and all of them become orders.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_without_a_loss_keeps_every_reservation() {
    let sandbox = Sandbox::builder().replicated().start().await;
    let sale = sandbox.open(&Plan::new(30)).await;
    let services = sandbox.run_all().await;
    let client = sandbox.client(&services.front);
    let pair = sandbox.redis_pair();
    let mut held = Vec::new();
    for name in names("before", UNITS) {
        held.push((
            name.clone(),
            buy_until_accepted(&client, &sale, &name).await,
        ));
    }
    pair.caught_up().await;
    let lost = pair.lose_primary(Loss::Kill).await;
    let during = names("during", UNITS);
    for name in &during[..3] {
        assert!(ask(&client, &sale, name).await.is_err());
    }
    pair.promote().await;
    let promoted = Instant::now();
    for name in &during {
        buy_until_accepted(&client, &sale, name).await;
    }
    let back = promoted.elapsed();
    for (name, reservation) in &held {
        assert_eq!(buy_until_accepted(&client, &sale, name).await, *reservation);
    }
    pair.rejoin().await;
    for name in names("after", UNITS) {
        buy_until_accepted(&client, &sale, &name).await;
    }
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 30);
    eprintln!("failover: {lost} bytes lost, {UNITS} calls answered {back:?} after the promotion");
}
