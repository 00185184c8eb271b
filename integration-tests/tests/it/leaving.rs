//! Callers who do not wait for their answer, and callers who were told of a fault: what they hold is
//! sold or given back, without them.

use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::join_all;
use seckill_integration_tests::{FrontClient, Plan, Sandbox};
use seckill_test_support::{Dir, Mode, at_length, eventually};

use crate::harness::{SETTLES, SOON, all_reach, bucket, orders};

/// A moment between 0 and 60 ms, spread evenly and the same in every run.
fn moment(number: usize) -> Duration {
    Duration::from_micros(u64::try_from(number * 7_919 % 60_000).unwrap())
}

/// GRPC-01: two thousand callers cancel or hang up while Redis answers slowly. Every unit that was
/// taken becomes an order.
#[tokio::test(flavor = "multi_thread")]
async fn what_callers_who_left_have_taken_becomes_orders() {
    const CALLS: usize = 2_000;
    const PER_CONNECTION: usize = 100;
    let sandbox = Sandbox::builder().redis_proxy().start().await;
    let sale = sandbox.open(&Plan::new(5_000)).await;
    let services = sandbox.run_all().await;
    let address = services.front.grpc_addr();
    FrontClient::connect(address)
        .buy(&sale, "warm", "warm")
        .await;
    sandbox
        .redis_proxy()
        .set_mode(Mode::Delay(Duration::from_millis(30), Dir::ToClient));
    for first in (0..CALLS).step_by(PER_CONNECTION) {
        // Every other group hangs up at once, the others cancel call by call.
        let client = FrontClient::connect(address);
        let hangs_up = (first / PER_CONNECTION).is_multiple_of(2);
        let calls = (first..first + PER_CONNECTION).map(async |number| {
            let user = format!("u-{number}");
            let leaves = moment(if hangs_up { first } else { number });
            let _ = tokio::time::timeout(leaves, client.reserve(&sale, &user, &user)).await;
        });
        join_all(calls).await;
    }
    sandbox.redis_proxy().set_mode(Mode::Forward);
    // No connection is left in a state that harms the next buyer.
    FrontClient::connect(address)
        .buy(&sale, "next", "next")
        .await;
    sandbox.assert_settles_consistent(SETTLES).await;
    let held = bucket(&sandbox, &sale, 0).await;
    let ordered = orders(&sandbox, &sale).await;
    assert_eq!(held.stock["reserved"], ordered.to_string());
    assert!(
        ordered > 100,
        "{ordered} of {CALLS} callers who left got through"
    );
    for service in services.all() {
        service.stop(SOON).await;
    }
}

/// RC-07: Redis is away under load, for five seconds or, in a soak, a minute. Calls are shed at once, no flood of old
/// calls runs afterwards, and what did run becomes orders.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_redis_leaves_no_flood_behind() {
    let outage = at_length(Duration::from_secs(5), Duration::from_secs(60));
    const IN_FLIGHT_MAX: usize = 2_048;
    let sandbox = Sandbox::builder().redis_proxy().start().await;
    let sale = sandbox.open(&Plan::new(100_000)).await;
    let services = sandbox.run_all().await;
    services.allow_errors("");
    let client = sandbox.client(&services.front);
    client.buy(&sale, "warm", "warm").await;
    all_reach(&sandbox, &sale, "ORDER_CREATED", 1).await;

    sandbox.redis_proxy().set_mode(Mode::Refuse);
    let end = Instant::now() + outage;
    let deadline = Duration::from_millis(200);
    let (told, slowest) = futures::stream::iter(0_usize..)
        .take_while(|_| std::future::ready(Instant::now() < end))
        .map(|number| {
            let (client, sale) = (client.clone(), sale.clone());
            async move {
                let (began, user) = (Instant::now(), format!("u-{number}"));
                let answer = client.reserve_within(&sale, &user, &user, deadline).await;
                assert!(answer.is_err(), "{user}: {answer:?}");
                began.elapsed()
            }
        })
        .buffer_unordered(64)
        .fold((0_usize, Duration::ZERO), async |(told, slowest), took| {
            (told + 1, slowest.max(took))
        })
        .await;
    assert!(told > 1_000, "{told} calls in {outage:?}");
    assert!(slowest < Duration::from_secs(2), "a call took {slowest:?}");

    sandbox.redis_proxy().set_mode(Mode::Forward);
    services.front.wait_until_ready(SOON).await;
    eventually(SOON, "a purchase after the outage", async || {
        let answer = client.reserve(&sale, "after", "after").await;
        answer.map(|_| ())
    })
    .await;
    sandbox.assert_settles_consistent(SETTLES).await;
    let ordered = usize::try_from(orders(&sandbox, &sale).await).unwrap();
    assert!(
        (2..=2 + IN_FLIGHT_MAX).contains(&ordered),
        "{ordered} orders after {told} faults"
    );
    for service in services.all() {
        service.stop(SOON).await;
    }
}
