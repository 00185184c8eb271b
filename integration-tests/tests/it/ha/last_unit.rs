//! The last unit, with releases in flight (LUA-15).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use seckill_integration_tests::{FrontClient, Plan, Sale, Sandbox};
use seckill_test_support::at_length;

use crate::harness::{SETTLES, bucket, is_accepted, orders, set_postgres_stock};

/// Calls in flight.
const AT_ONCE: usize = 200;

/// How long a released unit may take to be sold again.
const ROUND: Duration = Duration::from_secs(30);

/// Looks at the counters as often as it can; `available` is 0 or 1 and both add up, at any instant.
async fn watch(sandbox: &Sandbox, sale: &Sale, end: &AtomicBool) -> u64 {
    let mut redis = sandbox.redis().connection().await.unwrap();
    let stock = sale.key(0, "stock");
    let mut looks = 0;
    while !end.load(Ordering::SeqCst) {
        let read = ["HMGET", &stock, "initial", "available", "reserved"];
        let found = redis.call(&read).await.unwrap();
        let counters: Vec<i64> = found.list().iter().map(|value| value.int()).collect();
        let [initial, available, reserved] = counters[..] else {
            panic!("{counters:?}");
        };
        assert_eq!(initial, 1);
        assert!(available == 0 || available == 1, "{counters:?}");
        assert_eq!(available + reserved, 1, "{counters:?}");
        looks += 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    looks
}

/// One wave of buyers; how many were accepted.
async fn wave(client: &FrontClient, sale: &Sale, users: usize, round: usize) -> usize {
    let calls = (0..users).map(|user| async move {
        let (user, request) = (format!("u{user}"), format!("r{round}-u{user}"));
        // A fault is repeated by the next wave; it is not what this test is about.
        let answer = client.reserve(sale, &user, &request).await.ok();
        usize::from(answer.is_some_and(|answer| is_accepted(answer.code)))
    });
    let calls = futures::stream::iter(calls).buffer_unordered(AT_ONCE);
    calls.fold(0, async |sum, accepted| sum + accepted).await
}

/// One unit, many buyers, and a PostgreSQL that refuses each order, so that the unit comes back and is
/// fought for again; then it stops refusing. At the end there is one order.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_unit_is_sold_once_while_releases_are_in_flight() {
    let (users, rounds) = (at_length(300, 10_000), at_length(6, 50));
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(1)).await;
    set_postgres_stock(&sandbox, &sale, 0).await;
    let services = sandbox.run_all().await;
    services
        .reconciler
        .allow_errors("redis and postgresql differ");
    let client = sandbox.client(&services.front);
    let end = Arc::new(AtomicBool::new(false));
    let selling = async {
        let mut accepted = 0;
        for round in 0..rounds {
            accepted += one_round(&client, &sale, users, round).await;
        }
        // What is on its way is refused, too; the unit is back.
        sandbox.settle(SETTLES).await;
        set_postgres_stock(&sandbox, &sale, 1).await;
        accepted += one_round(&client, &sale, users, rounds).await;
        sandbox.settle(SETTLES).await;
        end.store(true, Ordering::SeqCst);
        accepted
    };
    let (accepted, looks) = tokio::join!(selling, watch(&sandbox, &sale, &end));
    assert_eq!(orders(&sandbox, &sale).await, 1);
    let rejected = format!(
        "SELECT count(*) FROM reservation_decision WHERE kind = 'REJECTED' AND {}",
        sale.sql()
    );
    let rejected = sandbox.database().number(&rejected).await;
    let stock = bucket(&sandbox, &sale, 0).await.stock;
    assert_eq!(stock["released_total"], rejected.to_string());
    assert!(
        rejected >= i64::try_from(rounds).unwrap(),
        "{rejected} releases"
    );
    eprintln!("last unit: {accepted} acceptances, {rejected} releases, {looks} looks");
    sandbox.assert_settles_consistent(SETTLES).await;
}

/// Waves of all buyers until one of them has got the unit.
async fn one_round(client: &FrontClient, sale: &Sale, users: usize, round: usize) -> usize {
    let mut wave_number = 0;
    let won = async {
        loop {
            let accepted = wave(client, sale, users, round * 1_000 + wave_number).await;
            if accepted > 0 {
                return accepted;
            }
            wave_number += 1;
        }
    };
    let won = tokio::time::timeout(ROUND, won).await;
    won.unwrap_or_else(|_| panic!("the unit did not come back within {ROUND:?}"))
}
