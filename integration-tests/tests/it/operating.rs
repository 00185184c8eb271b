//! What an operator does during a sale, and what the store refuses to take.

use std::time::Duration;

use futures::future::join_all;
use seckill_integration_tests::{Plan, Sandbox};
use seckill_proto::v1::ReserveCode;
use seckill_test_support::{at_length, eventually};
use tonic::Code;

use crate::harness::{
    SETTLES, SOON, all_reach, bucket, buy_many, is_accepted, orders, reservations,
    set_postgres_stock,
};

/// BIZ-12: preheating again during the sale, twice at once, changes nothing; after a lost stock key
/// nobody is sold anything, and preheat refuses and names the way out.
#[tokio::test(flavor = "multi_thread")]
async fn preheating_during_the_sale_never_resets_the_stock() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(100)).await;
    let services = sandbox.run_all().await;
    services
        .reconciler
        .allow_errors("redis and postgresql differ");
    let client = sandbox.client(&services.front);
    buy_many(&client, &sale, "u", 60).await;
    all_reach(&sandbox, &sale, "ORDER_CREATED", 60).await;
    let before = bucket(&sandbox, &sale, 0).await;
    let (one, two, opened) = tokio::join!(
        sandbox.step(&sale, "preheat"),
        sandbox.step(&sale, "preheat"),
        sandbox.step(&sale, "open"),
    );
    for output in [one, two, opened] {
        assert!(matches!(output.code, Some(0 | 1)), "{output:?}");
    }
    let after = bucket(&sandbox, &sale, 0).await;
    assert_eq!((after.stock, after.meta), (before.stock, before.meta));
    buy_many(&client, &sale, "more", 10).await;
    sandbox.assert_settles_consistent(SETTLES).await;

    sandbox.redis().cli(&["DEL", &sale.key(0, "stock")]).await;
    let refused = client.reserve(&sale, "late", "late").await.unwrap();
    assert_eq!(refused.code(), ReserveCode::ConfigMissing);
    assert!(refused.retryable, "{refused:?}");
    let preheat = sandbox.step(&sale, "preheat").await;
    assert_eq!(preheat.code, Some(1), "{preheat:?}");
    let said = format!("{}{}", preheat.stdout, preheat.stderr);
    assert!(said.contains("rebuild"), "{said}");
    assert!(bucket(&sandbox, &sale, 0).await.stock.is_empty());
    let still = client.reserve(&sale, "late", "late").await.unwrap();
    assert_eq!(still.code(), ReserveCode::ConfigMissing);
    assert_eq!(orders(&sandbox, &sale).await, 70);
    let audit = sandbox.audit(&sale, &[]).await;
    assert_eq!(
        audit.code,
        Some(1),
        "the missing counters are a difference: {audit:?}"
    );
}

/// Commands that Redis has run since its start.
async fn commands(sandbox: &Sandbox) -> i64 {
    let info = sandbox.redis().cli(&["INFO", "stats"]).await.text();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.unwrap().parse().unwrap()
}

/// The commands a second, those of scripts included, that five services may send to a Redis that refuses
/// their writes. Their looks at it cost some 70 with the timers of a test, and what they try again 30 to
/// 90 once they try more and more rarely, which takes longer than the short test does. A scanner that
/// claims its ten members anew in every pass would add 400: ten times a second each, with three commands
/// in the script.
fn rate_max() -> i64 {
    at_length(500, 300)
}

/// LUA-06: Redis takes no more writes in the middle of the sale. Callers are told of a fault and
/// nothing else, what PostgreSQL decides meanwhile waits, and all of it is settled afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_is_a_fault_and_never_an_answer() {
    const CALLS: usize = 200;
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(50)).await;
    set_postgres_stock(&sandbox, &sale, 7).await;
    let services = sandbox.run_all().await;
    services.allow_errors("");
    let client = sandbox.client(&services.front);
    services.consumer.pause();
    let first = buy_many(&client, &sale, "first", 10).await;
    sandbox
        .redis()
        .cli(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    services.consumer.resume();
    eventually(SOON, "ten decisions", async || {
        let query = "SELECT count(*) FROM reservation_decision";
        let now = sandbox.database().number(query).await;
        if now == 10 {
            Ok(())
        } else {
            Err(now.to_string())
        }
    })
    .await;

    let calls = (0..CALLS).map(|number| format!("next-{number}"));
    let calls: Vec<String> = calls.collect();
    let answers = join_all(calls.iter().map(|user| client.reserve(&sale, user, user))).await;
    for answer in answers {
        let status = answer.expect_err("a full store decides nothing");
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    }
    let full = bucket(&sandbox, &sale, 0).await;
    assert_eq!(full.reservations.len(), 10, "no call left a trace");
    assert_eq!((full.markers.len(), &*full.stock["reserved"]), (10, "10"));
    let before = commands(&sandbox).await;
    let full_for: u32 = at_length(3, 60);
    tokio::time::sleep(Duration::from_secs(full_for.into())).await;
    let rate = (commands(&sandbox).await - before) / i64::from(full_for);
    assert!(
        rate < rate_max(),
        "{rate} commands a second against a store that is full"
    );

    set_postgres_stock(&sandbox, &sale, 50).await;
    sandbox
        .redis()
        .cli(&["CONFIG", "SET", "maxmemory", "0"])
        .await;
    sandbox.settle(SETTLES).await;
    let settled = reservations(&sandbox, &sale).await;
    let released = first
        .values()
        .filter(|id| settled[*id]["status"] == "RELEASED")
        .count();
    assert_eq!(released, 3, "{settled:?}");
    let answers = join_all(calls.iter().map(|user| client.reserve(&sale, user, user))).await;
    let accepted = answers
        .iter()
        .flatten()
        .filter(|answer| is_accepted(answer.code))
        .count();
    assert_eq!(
        accepted, 43,
        "all that is left is sold under the same request ids"
    );
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 50);
}
