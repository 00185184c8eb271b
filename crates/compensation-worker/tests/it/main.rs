//! The compensation worker as a process of its own, on real servers.

use std::time::Duration;

use seckill_integration_tests::{Plan, Sale, Sandbox, Service};
use seckill_test_support::{ServiceProcess, eventually};

/// Longer than any step takes on a machine that compiles meanwhile.
const SOON: Duration = Duration::from_secs(60);

/// Takes the units away that Redis still sells, so that PostgreSQL refuses every order.
async fn empty_postgres_stock(sandbox: &Sandbox, sale: &Sale) {
    let empty = format!(
        "UPDATE activity_stock SET total = 0, available = 0 WHERE {}",
        sale.sql()
    );
    sandbox.database().execute(&empty).await;
}

async fn stock(sandbox: &Sandbox, sale: &Sale, field: &str) -> i64 {
    let value = sandbox
        .redis()
        .cli(&["HGET", &sale.key(0, "stock"), field])
        .await;
    value.text().parse().unwrap_or(-1)
}

/// Goal: SIGTERM ends it with code 0. Method: `stop` asserts the code.
#[tokio::test(flavor = "multi_thread")]
async fn it_gets_ready_and_stops_when_told() {
    let sandbox = Sandbox::start().await;
    let worker = sandbox.run(Service::Compensation).await;
    worker.stop(SOON).await;
}

/// BIZ-01, S0-205. Goal: 50 refused reservations come back once each, whatever is killed and repeated. Method:
/// four workers of which one is killed every 300 ms and started again, and every event relayed again
/// and again.
#[tokio::test(flavor = "multi_thread")]
async fn four_workers_release_each_reservation_once() {
    const BUYERS: u32 = 50;
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(100)).await;
    empty_postgres_stock(&sandbox, &sale).await;
    let front = sandbox.run(Service::Front).await;
    let client = sandbox.client(&front);
    for buyer in 0..BUYERS {
        client
            .buy(&sale, &format!("u{buyer}"), &format!("q{buyer}"))
            .await;
    }
    let scanner = sandbox.run(Service::Scanner).await;
    let replica = |number| {
        sandbox
            .service(Service::Compensation)
            .instance(number)
            .env("SECKILL_COMPENSATION_WORKER_LEASE_MS", 1_000)
    };
    let mut workers: Vec<ServiceProcess> = Vec::new();
    for number in 1..=4 {
        workers.push(replica(number).spawn());
    }
    let consumer = sandbox.run(Service::Consumer).await;
    for round in 0..8 {
        sandbox
            .database()
            .execute(
                "UPDATE outbox SET published_at = NULL, lease_until = NULL, lease_token = NULL",
            )
            .await;
        let victim = workers.remove(0);
        victim.kill();
        drop(victim);
        workers.push(replica(1 + round % 4).spawn());
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    sandbox.settle(SOON).await;
    assert_eq!(stock(&sandbox, &sale, "available").await, 100);
    assert_eq!(stock(&sandbox, &sale, "reserved").await, 0);
    assert_eq!(
        stock(&sandbox, &sale, "released_total").await,
        i64::from(BUYERS)
    );
    for service in workers.into_iter().chain([consumer, scanner, front]) {
        service.stop(SOON).await;
    }
}

/// Goal: a task about an order settles it instead of releasing its units. Method: a task for an
/// ordered reservation that Redis has as `ENQUEUED`.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_about_an_order_releases_nothing() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(5)).await;
    let services = sandbox.run_all().await;
    let id = sandbox.client(&services.front).buy(&sale, "u1", "q1").await;
    sandbox.settle(SOON).await;
    let reservation = sale.key(0, &format!("resv:{id}"));
    let redis = sandbox.redis();
    redis
        .cli(&["HSET", &reservation, "status", "ENQUEUED", "order_id", ""])
        .await;
    let open = format!(
        "INSERT INTO compensation_task (reservation_id, request_id, user_id, activity_id, sku_id, \
         version, bucket_id, quantity, reserved_at, origin, next_attempt_at, updated_by) \
         SELECT reservation_id, request_id, user_id, activity_id, sku_id, version, bucket_id, \
         quantity, now(), 'OVERDUE', now(), 'test' FROM reservation_decision \
         WHERE reservation_id = '{id}'"
    );
    sandbox.database().execute(&open).await;
    eventually(SOON, "the order is settled again", async || {
        let status = redis.cli(&["HGET", &reservation, "status"]).await.text();
        if status == "ORDER_CREATED" {
            Ok(())
        } else {
            Err(status)
        }
    })
    .await;
    sandbox.assert_settles_consistent(SOON).await;
    assert_eq!(stock(&sandbox, &sale, "released_total").await, 0);
    for service in services.all() {
        service.stop(SOON).await;
    }
}

/// Goal: a reservation that Redis has lost gives back nothing; it is recorded as ended, which ends its
/// task without a difference.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reservation_is_recorded_as_ended_and_adds_no_stock() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(5)).await;
    empty_postgres_stock(&sandbox, &sale).await;
    let front = sandbox.run(Service::Front).await;
    let id = sandbox.client(&front).buy(&sale, "u1", "q1").await;
    let consumer = sandbox.run(Service::Consumer).await;
    let rejected = "SELECT count(*) FROM compensation_task WHERE closed_at IS NULL";
    eventually(SOON, "a task", async || {
        match sandbox.database().number(rejected).await {
            1 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    let reservation = sale.key(0, &format!("resv:{id}"));
    sandbox.redis().cli(&["DEL", &reservation]).await;
    let worker = sandbox.run(Service::Compensation).await;
    eventually(SOON, "the task's end", async || {
        let results = sandbox
            .database()
            .texts("SELECT result FROM compensation_task")
            .await;
        if results == [["tombstoned"]] {
            Ok(())
        } else {
            Err(format!("{results:?}"))
        }
    })
    .await;
    let status = sandbox.redis().cli(&["HGET", &reservation, "status"]).await;
    assert_eq!(status.text(), "RELEASED");
    assert_eq!(stock(&sandbox, &sale, "available").await, 4);
    assert_eq!(stock(&sandbox, &sale, "released_total").await, 0);
    let noted = "SELECT count(*) FROM discrepancy";
    assert_eq!(sandbox.database().number(noted).await, 0);
    for service in [worker, consumer, front] {
        service.stop(SOON).await;
    }
}

/// Goal: a reservation that cannot be read is told once as damage and holds up no other release. Method:
/// the record of one of two refused reservations is of a wrong type while both have a task.
#[tokio::test(flavor = "multi_thread")]
async fn damage_is_on_record_and_the_other_releases_go_on() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(5)).await;
    empty_postgres_stock(&sandbox, &sale).await;
    let front = sandbox.run(Service::Front).await;
    let client = sandbox.client(&front);
    let damaged = client.buy(&sale, "u1", "q1").await;
    client.buy(&sale, "u2", "q2").await;
    let consumer = sandbox.run(Service::Consumer).await;
    let open = "SELECT count(*) FROM compensation_task WHERE closed_at IS NULL";
    eventually(SOON, "two tasks", async || {
        match sandbox.database().number(open).await {
            2 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    consumer.stop(SOON).await;
    let record = sale.key(0, &format!("resv:{damaged}"));
    let kept = sale.key(0, "kept");
    let redis = sandbox.redis();
    redis.cli(&["RENAME", &record, &kept]).await;
    redis.cli(&["RPUSH", &record, "x"]).await;
    let worker = sandbox.service(Service::Compensation).unjudged().spawn();
    let noted =
        "SELECT kind, coalesce(reservation_id, '') FROM discrepancy WHERE resolved_at IS NULL";
    eventually(SOON, "the damage on record", async || {
        let found = sandbox.database().texts(noted).await;
        if found == [["unreadable".to_owned(), damaged.to_string()]] {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
    eventually(SOON, "the other release", async || {
        match stock(&sandbox, &sale, "available").await {
            4 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    assert_eq!(sandbox.database().number(open).await, 1);
    redis.cli(&["DEL", &record]).await;
    redis.cli(&["RENAME", &kept, &record]).await;
    eventually(SOON, "the release after the repair", async || match stock(
        &sandbox,
        &sale,
        "available",
    )
    .await
    {
        5 => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
    worker.stop(SOON).await;
    front.stop(SOON).await;
}
