//! The reconciler as a process of its own, on real servers, with damage that the tests plant.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends with the first thing that is not as expected"
)]

mod failover;
mod healthy;
mod patience;
mod planted;
mod retention;
mod sweep;

use std::time::Duration;

use seckill_integration_tests::{Plan, Sale, Sandbox, Service, Services};
use seckill_test_support::{ServiceBuilder, ServiceProcess, eventually};

/// Longer than any step takes on a machine that compiles meanwhile.
const SOON: Duration = Duration::from_secs(60);

/// How long these tests let a difference stay before it counts.
const GRACE_MS: u64 = 1_500;

async fn reconciler(sandbox: &Sandbox) -> ServiceProcess {
    reconciler_with(sandbox, GRACE_MS).await
}

/// A reconciler whose loops run as often as tests can wait for.
async fn reconciler_with(sandbox: &Sandbox, grace_ms: u64) -> ServiceProcess {
    reconciler_builder(sandbox, grace_ms).start().await
}

fn reconciler_builder(sandbox: &Sandbox, grace_ms: u64) -> ServiceBuilder {
    sandbox
        .service(Service::Reconciler)
        .env("SECKILL_RECONCILER_GRACE_MS", grace_ms)
        .env("SECKILL_RECONCILER_EXPIRY_INTERVAL_MS", 200)
        .env("SECKILL_RECONCILER_TOTALS_INTERVAL_MS", 300)
        .env("SECKILL_RECONCILER_HOLDERS_INTERVAL_MS", 500)
        .env("SECKILL_RECONCILER_SCAN_PAUSE_MS", 2)
        .env("SECKILL_RECONCILER_WATCH_INTERVAL_MS", 200)
        .env("SECKILL_RECONCILER_RECOVERY_INTERVAL_MS", 200)
        .env("SECKILL_RECONCILER_WINDOW_DELAY_MS", 500)
        .env("SECKILL_RECONCILER_RETENTION_INTERVAL_MS", 300)
        .env("SECKILL_RECONCILER_RETENTION_MARGIN_MS", 1_000)
}

/// Buys one unit, lets everything settle and stops all services.
async fn ordered(sandbox: &Sandbox, sale: &Sale) -> String {
    let services = sandbox.run_all().await;
    let id = sandbox.client(&services.front).buy(sale, "u1", "q1").await;
    sandbox.settle(SOON).await;
    stop(services).await;
    id
}

async fn stop(services: Services) {
    for service in services.all() {
        service.stop(SOON).await;
    }
}

/// How often a loop has gone through everything.
async fn rounds(process: &ServiceProcess, loop_name: &str) -> Result<u64, String> {
    let reply = process.readyz().await.map_err(|error| error.to_string())?;
    let report: serde_json::Value =
        serde_json::from_str(&reply.body).map_err(|error| error.to_string())?;
    let ticks = &report["loops"][loop_name]["ticks"];
    ticks
        .as_u64()
        .ok_or_else(|| format!("{loop_name}: {}", reply.body))
}

async fn open_kinds(sandbox: &Sandbox) -> Vec<String> {
    let query = "SELECT DISTINCT kind FROM discrepancy WHERE resolved_at IS NULL ORDER BY kind";
    sandbox.database().texts(query).await.concat()
}

async fn kind_is_open(sandbox: &Sandbox, kind: &str) {
    eventually(SOON, kind, async || {
        let open = open_kinds(sandbox).await;
        if open.iter().any(|open| open == kind) {
            Ok(())
        } else {
            Err(format!("{open:?}"))
        }
    })
    .await;
}

async fn nothing_is_open(sandbox: &Sandbox) {
    eventually(SOON, "no open differences", async || {
        let open = open_kinds(sandbox).await;
        if open.is_empty() {
            Ok(())
        } else {
            Err(format!("{open:?}"))
        }
    })
    .await;
}

/// Goal: SIGTERM ends it with code 0. Method: `stop` asserts the code.
#[tokio::test(flavor = "multi_thread")]
async fn it_gets_ready_and_stops_when_told() {
    let sandbox = Sandbox::start().await;
    let process = sandbox.run(Service::Reconciler).await;
    process.stop(SOON).await;
}

/// Goal: an order whose settlement was lost is settled once its time is up, behind members that stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_settlement_is_made_up_for_behind_members_that_stay() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(5)).await;
    let id = ordered(&sandbox, &sale).await;
    let redis = sandbox.redis();
    let (reservation, expiry) = (
        sale.key(0, &format!("resv:{id}")),
        sale.key(0, "reservation_expiry"),
    );
    redis
        .cli(&["HSET", &reservation, "status", "ENQUEUED", "order_id", ""])
        .await;
    redis.cli(&["ZADD", &expiry, "2", &id]).await;
    // Members that nobody knows lie before it, more than a page holds.
    for page in 0..3 {
        let members: Vec<String> = (0..100)
            .flat_map(|number| ["1".to_owned(), stranger(page * 100 + number)])
            .collect();
        let command: Vec<&str> = ["ZADD", expiry.as_str()]
            .into_iter()
            .chain(members.iter().map(String::as_str))
            .collect();
        redis.cli(&command).await;
    }
    let process = reconciler(&sandbox).await;
    process.allow_errors("redis and postgresql differ");
    eventually(SOON, "the order is settled again", async || {
        let status = redis.cli(&["HGET", &reservation, "status"]).await.text();
        if status == "ORDER_CREATED" {
            Ok(())
        } else {
            Err(status)
        }
    })
    .await;
    kind_is_open(&sandbox, "index_stray").await;
    process.stop(SOON).await;
}

/// A reservation id that no request derives.
fn stranger(number: u32) -> String {
    let digits = number
        .to_string()
        .bytes()
        .map(|digit| char::from(b'a' + digit - b'0'))
        .collect::<String>();
    format!("{digits:z>26}")
}

/// Goal: planted damage is named, and a repaired bucket is no difference any more.
#[tokio::test(flavor = "multi_thread")]
async fn planted_damage_is_named_and_its_repair_seen() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(5)).await;
    ordered(&sandbox, &sale).await;
    let process = reconciler(&sandbox).await;
    process.allow_errors("redis and postgresql differ");
    let stock = sale.key(0, "stock");
    let redis = sandbox.redis();
    // A unit from nowhere.
    redis.cli(&["HINCRBY", &stock, "available", "1"]).await;
    kind_is_open(&sandbox, "redis_not_conserved").await;
    redis.cli(&["HINCRBY", &stock, "available", "-1"]).await;
    nothing_is_open(&sandbox).await;
    // A unit that was released although it is sold: the sum alone does not show it.
    redis.cli(&["HINCRBY", &stock, "available", "1"]).await;
    redis.cli(&["HINCRBY", &stock, "reserved", "-1"]).await;
    kind_is_open(&sandbox, "held_below_orders").await;
    kind_is_open(&sandbox, "holders_differ").await;
    redis.cli(&["HINCRBY", &stock, "available", "-1"]).await;
    redis.cli(&["HINCRBY", &stock, "reserved", "1"]).await;
    nothing_is_open(&sandbox).await;
    // Counters and an index that nobody can read are differences and keep nothing from being told.
    let available = redis.cli(&["HGET", &stock, "available"]).await.text();
    redis.cli(&["HSET", &stock, "available", "many"]).await;
    kind_is_open(&sandbox, "unreadable").await;
    redis.cli(&["HSET", &stock, "available", &available]).await;
    nothing_is_open(&sandbox).await;
    let expiry = sale.key(0, "reservation_expiry");
    redis.cli(&["DEL", &expiry]).await;
    redis.cli(&["SET", &expiry, "1"]).await;
    kind_is_open(&sandbox, "unreadable").await;
    redis.cli(&["DEL", &expiry]).await;
    nothing_is_open(&sandbox).await;
    process.stop(SOON).await;
}

/// Goal: whatever Redis still holds of what was given up is handed over as often as its task is
/// closed, not only once. Method: a task that is closed by hand twice, while no worker runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_was_closed_too_early_is_opened_every_time() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox
        .open(&Plan::new(5).term("reservation-ttl-ms", 1_000))
        .await;
    let empty = format!(
        "UPDATE activity_stock SET total = 0, available = 0 WHERE {}",
        sale.sql()
    );
    sandbox.database().execute(&empty).await;
    let front = sandbox.run(Service::Front).await;
    sandbox.client(&front).buy(&sale, "u1", "q1").await;
    let consumer = sandbox.run(Service::Consumer).await;
    let task_opens = async || {
        let open = "SELECT count(*) FROM compensation_task WHERE closed_at IS NULL";
        eventually(SOON, "an open task", async || {
            match sandbox.database().number(open).await {
                1 => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await;
    };
    task_opens().await;
    consumer.stop(SOON).await;
    let process = reconciler(&sandbox).await;
    process.allow_errors("redis and postgresql differ");
    for _ in 0..2 {
        let close = "UPDATE compensation_task SET closed_at = now(), result = 'by hand', \
                     lease_until = NULL, lease_token = NULL";
        sandbox.database().execute(close).await;
        task_opens().await;
    }
    kind_is_open(&sandbox, "not_released").await;
    for service in [process, front] {
        service.stop(SOON).await;
    }
}
