//! A primary that hangs instead of dying (RC-03).

use std::time::{Duration, Instant};

use seckill_integration_tests::{Plan, Sandbox};
use seckill_test_support::Loss;

use super::{ask, buy_until_accepted, names};
use crate::harness::{SETTLES, orders};

/// How long the service may take after the promotion.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// Every call is answered in time, the sale goes on after the promotion without a restart, and what the
/// old primary still finds in its sockets when it wakes up takes no unit.
#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_primary_costs_time_and_no_unit() {
    const CALLS: usize = 10;
    let sandbox = Sandbox::builder()
        .replicated()
        .env("SECKILL_REDIS_COMMAND_TIMEOUT_MS", 300)
        .start()
        .await;
    let sale = sandbox.open(&Plan::new(100)).await;
    let services = sandbox.run_all().await;
    let client = sandbox.client(&services.front);
    let pair = sandbox.redis_pair();
    for name in names("before", CALLS) {
        buy_until_accepted(&client, &sale, &name).await;
    }
    pair.caught_up().await;
    pair.lose_primary(Loss::Hang).await;
    let hung = Instant::now();
    let during = names("during", CALLS);
    let calls = during.iter().map(|name| ask(&client, &sale, name));
    for answer in futures::future::join_all(calls).await {
        assert!(answer.is_err(), "sold without a primary: {answer:?}");
    }
    pair.promote().await;
    let promoted = Instant::now();
    let first = buy_until_accepted(&client, &sale, &during[0]).await;
    let back = promoted.elapsed();
    assert!(back < BACK_WITHIN, "back only {back:?} after the promotion");
    for name in &during {
        buy_until_accepted(&client, &sale, name).await;
    }
    // It wakes up as the primary that it was, runs what had queued up, and is then told to follow.
    pair.replica().resume();
    let again = buy_until_accepted(&client, &sale, &during[0]).await;
    assert_eq!(first, again);
    pair.rejoin().await;
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 20);
    eprintln!(
        "hang: {:?} until the promotion, back {back:?} after it",
        promoted - hung
    );
}
