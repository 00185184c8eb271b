//! The order consumer as a process of its own, on real servers, with the faults that it must bear.

mod poison;

use std::time::Duration;

use seckill_integration_tests::checks::buckets;
use seckill_integration_tests::{Plan, Sale, Sandbox, Service};
use seckill_test_support::{Dir, Mode, TestStack, at_length, eventually};

/// Longer than any step takes on a machine that compiles meanwhile.
pub const SOON: Duration = Duration::from_secs(60);

/// Sets what PostgreSQL has to sell, whatever Redis sells.
async fn set_postgres_stock(sandbox: &Sandbox, sale: &Sale, units: u64) {
    let set = format!(
        "UPDATE activity_stock SET total = sold + {units}, available = {units} WHERE {}",
        sale.sql()
    );
    sandbox.database().execute(&set).await;
}

/// Goal: SIGTERM ends it with code 0. Method: `stop` asserts the code.
#[tokio::test(flavor = "multi_thread")]
async fn it_gets_ready_and_stops_when_told() {
    let sandbox = Sandbox::start().await;
    let consumer = sandbox.run(Service::Consumer).await;
    consumer.stop(SOON).await;
}

/// MQ-10. Goal: a consumer that is faster than the front's bookkeeping settles all the same, and
/// nothing moves back. Method: answers to the front's sends come two seconds late, so that orders
/// exist before the front has recorded a single send.
#[tokio::test(flavor = "multi_thread")]
async fn orders_made_before_their_sends_are_recorded_stay_orders() {
    const BUYERS: usize = 100;
    let sandbox = Sandbox::builder().broker_proxy().start().await;
    let sale = sandbox.open(&Plan::new(1_000)).await;
    // The consumer reaches the broker past the proxy.
    let consumer = sandbox
        .service(Service::Consumer)
        .env("SECKILL_ROCKETMQ_NAMESRV", TestStack::shared().namesrv())
        .start()
        .await;
    let front = sandbox
        .service(Service::Front)
        .env("SECKILL_ROCKETMQ_SEND_TIMEOUT_MS", 5_000)
        .start()
        .await;
    let client = sandbox.client(&front);
    // The route is known before answers get slow.
    client.buy(&sale, "first", "first").await;
    sandbox
        .broker_proxy()
        .set_mode(Mode::Delay(Duration::from_secs(2), Dir::ToClient));
    for buyer in 0..BUYERS {
        client
            .buy(&sale, &format!("u{buyer}"), &format!("q{buyer}"))
            .await;
    }
    eventually(SOON, "all orders settled", async || {
        let created = statuses(&sandbox)
            .await
            .iter()
            .filter(|s| *s == "ORDER_CREATED")
            .count();
        if created == BUYERS + 1 {
            Ok(())
        } else {
            Err(created.to_string())
        }
    })
    .await;
    sandbox.broker_proxy().set_mode(Mode::Forward);
    front.stop(SOON).await;
    // The front has written its late word on every send by now.
    assert!(
        statuses(&sandbox)
            .await
            .iter()
            .all(|status| status == "ORDER_CREATED")
    );
    let pending = sandbox
        .redis()
        .cli(&["ZCARD", &sale.key(0, "send_pending")])
        .await;
    assert_eq!(pending.text(), "0");
    consumer.stop(SOON).await;
}

async fn statuses(sandbox: &Sandbox) -> Vec<String> {
    let found = buckets(&sandbox.dump().await);
    found
        .into_iter()
        .flat_map(|bucket| bucket.reservations.into_values())
        .map(|reservation| reservation["status"].clone())
        .collect()
}

/// PG-01. Goal: a buyer who got an order on another way is refused and their unit comes back, and the
/// next buyer is not harmed.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_from_elsewhere_refuses_its_buyer_alone() {
    let sandbox = Sandbox::start().await;
    let first = sandbox.open(&Plan::new(5)).await;
    let services = sandbox.run_all().await;
    let client = sandbox.client(&services.front);
    client.buy(&first, "u1", "q1").await;
    sandbox.settle(SOON).await;
    // The same buyer, by the next version: their order stands, whatever Redis knows there.
    assert_eq!(sandbox.step(&first, "close").await.code, Some(0));
    let second = sandbox.open(&Plan::next_version_of(&first, 5)).await;
    client.buy(&second, "u1", "q2").await;
    client.buy(&second, "u2", "q1").await;
    sandbox.assert_settles_consistent(SOON).await;
    let decided = "SELECT user_id || ' ' || kind || ' ' || coalesce(reason, '') \
                   FROM reservation_decision ORDER BY version, user_id";
    let decided = sandbox.database().texts(decided).await.concat();
    assert_eq!(
        decided,
        ["u1 ORDERED ", "u1 REJECTED USER_HAS_ORDER", "u2 ORDERED "]
    );
    for service in services.all() {
        service.stop(SOON).await;
    }
}

/// PG-18. Goal: a refusal does not stand in the way of the same buyer's later purchase.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_buyer_can_buy_later() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(5)).await;
    set_postgres_stock(&sandbox, &sale, 0).await;
    let services = sandbox.run_all().await;
    services
        .reconciler
        .allow_errors("redis and postgresql differ");
    let client = sandbox.client(&services.front);
    client.buy(&sale, "u1", "q1").await;
    sandbox.settle(SOON).await;
    set_postgres_stock(&sandbox, &sale, 5).await;
    client.buy(&sale, "u1", "q2").await;
    sandbox.assert_settles_consistent(SOON).await;
    let decided = "SELECT kind FROM reservation_decision ORDER BY decided_at";
    let decided = sandbox.database().texts(decided).await.concat();
    assert_eq!(decided, ["REJECTED", "ORDERED"]);
    for service in services.all() {
        service.stop(SOON).await;
    }
}

/// MQ-12 and PG-11. Goal: while one SKU's stock row is locked, another SKU's orders are made, none of
/// the locked one's is refused, and all of them are made after the lock is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_stock_row_holds_back_its_own_orders_only() {
    const LOCKED: usize = 20;
    const FREE: usize = 100;
    let sandbox = Sandbox::builder()
        .env("SECKILL_DATABASE_LOCK_TIMEOUT_MS", 1_000)
        .start()
        .await;
    // Waiting for the row is no reason to give any of these reservations up.
    let terms = |stock| {
        Plan::new(stock)
            .term("reservation-ttl-ms", at_length(60_000, 600_000))
            .term("patience-ms", 600_000)
    };
    let locked = sandbox.open(&terms(100)).await;
    let free = sandbox.open(&terms(1_000)).await;
    let services = sandbox.run_all().await;
    let client = sandbox.client(&services.front);
    let holder = sandbox.database().client().await;
    let lock = format!(
        "BEGIN; SELECT 1 FROM activity_stock WHERE {} FOR UPDATE",
        locked.sql()
    );
    holder.batch_execute(&lock).await.unwrap();
    for buyer in 0..FREE {
        if buyer < LOCKED {
            client
                .buy(&locked, &format!("a{buyer}"), &format!("qa{buyer}"))
                .await;
        }
        client
            .buy(&free, &format!("b{buyer}"), &format!("qb{buyer}"))
            .await;
    }
    let orders = async |sale: &Sale| {
        let count = format!("SELECT count(*) FROM orders WHERE {}", sale.sql());
        sandbox.database().number(&count).await
    };
    eventually(SOON, "the free SKU's orders", async || {
        match orders(&free).await {
            count if count == FREE as i64 => Ok(()),
            count => Err(count.to_string()),
        }
    })
    .await;
    tokio::time::sleep(at_length(Duration::ZERO, Duration::from_secs(180))).await;
    assert_eq!(orders(&locked).await, 0);
    holder.batch_execute("ROLLBACK").await.unwrap();
    sandbox.assert_settles_consistent(SOON).await;
    assert_eq!(orders(&locked).await, LOCKED as i64);
    for service in services.all() {
        service.stop(SOON).await;
    }
}
