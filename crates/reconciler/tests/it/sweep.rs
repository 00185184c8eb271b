//! The slow pass while buyers keep a bucket moving, while PostgreSQL refuses, and after a clock fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use seckill_integration_tests::{Plan, Sandbox, Service};
use seckill_test_support::eventually;

use crate::{SOON, kind_is_open, nothing_is_open, open_kinds, ordered, reconciler, stranger};

/// Goal: a bucket that never stands still proves nothing about its sums and everything about its
/// reservations. Method: a counter that moves throughout, and damage of both sorts that is taken back.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_sells_hides_no_repair_but_that_of_its_sums() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(5)).await;
    ordered(&sandbox, &sale).await;
    let process = reconciler(&sandbox).await;
    process.allow_errors("redis and postgresql differ");
    let redis = sandbox.redis();
    let (stock, marker) = (sale.key(0, "stock"), sale.key(0, "user:u9"));
    let hold = async |units: &str, back: &str| {
        redis.cli(&["HINCRBY", &stock, "available", back]).await;
        redis.cli(&["HINCRBY", &stock, "reserved", units]).await;
    };
    hold("1", "-1").await;
    redis.cli(&["SET", &marker, &stranger(1)]).await;
    kind_is_open(&sandbox, "holders_differ").await;
    kind_is_open(&sandbox, "marker_stray").await;

    let selling = Arc::new(AtomicBool::new(true));
    let mut connection = redis.connection().await.unwrap();
    let mover = tokio::spawn({
        let (selling, stock) = (Arc::clone(&selling), stock.clone());
        async move {
            while selling.load(Ordering::Relaxed) {
                let moved = ["HINCRBY", &stock, "released_total", "1"];
                connection.call(&moved).await.unwrap();
            }
        }
    });
    eventually(SOON, "the counter moves", async || {
        let moved = redis.cli(&["HGET", &stock, "released_total"]).await.int();
        if moved > 0 {
            Ok(())
        } else {
            Err(moved.to_string())
        }
    })
    .await;
    redis.cli(&["DEL", &marker]).await;
    hold("-1", "1").await;
    eventually(SOON, "the marker's difference is gone", async || {
        let open = open_kinds(&sandbox).await;
        if open.iter().any(|kind| kind == "marker_stray") {
            return Err(format!("{open:?}"));
        }
        Ok(())
    })
    .await;
    kind_is_open(&sandbox, "holders_differ").await;
    selling.store(false, Ordering::Relaxed);
    mover.await.unwrap();
    nothing_is_open(&sandbox).await;
    process.stop(SOON).await;
}

/// Goal: what a pass found is recorded as soon as PostgreSQL takes it, and not a pass later. Method: a
/// trigger that refuses the first difference of the sweep; passes lie further apart than the recording.
#[tokio::test(flavor = "multi_thread")]
async fn a_round_that_could_not_be_recorded_is_recorded_next() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(5)).await;
    ordered(&sandbox, &sale).await;
    let database = sandbox.database();
    for statement in [
        "CREATE SEQUENCE refusals",
        "CREATE FUNCTION refuse_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF NEW.run_kind = 'holders' AND nextval('refusals') = 1 THEN \
         RAISE EXCEPTION 'not now'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER refuse_once BEFORE INSERT ON discrepancy \
         FOR EACH ROW EXECUTE FUNCTION refuse_once()",
        "GRANT USAGE ON SEQUENCE refusals TO PUBLIC",
    ] {
        database.execute(statement).await;
    }
    let marker = sale.key(0, "user:u9");
    sandbox.redis().cli(&["SET", &marker, &stranger(1)]).await;
    let process = sandbox
        .service(Service::Reconciler)
        .env("SECKILL_RECONCILER_GRACE_MS", 500)
        .env("SECKILL_RECONCILER_HOLDERS_INTERVAL_MS", 600_000)
        .env("SECKILL_RECONCILER_SCAN_PAUSE_MS", 2)
        .allow_errors("redis and postgresql differ")
        .start()
        .await;
    // The two passes after the start are the only ones.
    kind_is_open(&sandbox, "marker_stray").await;
    let refused = "SELECT last_value FROM refusals";
    assert!(database.number(refused).await >= 2);
    process.stop(SOON).await;
}

/// Goal: a reservation from the future is told, since nobody would lose patience with it, and is none
/// once its time is right.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_from_the_future_is_told() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(5)).await;
    let id = ordered(&sandbox, &sale).await;
    let process = reconciler(&sandbox).await;
    process.allow_errors("redis and postgresql differ");
    let (redis, record) = (sandbox.redis(), sale.key(0, &format!("resv:{id}")));
    let field = "reserved_at_ms";
    let accepted = redis.cli(&["HGET", &record, field]).await.text();
    let later = accepted.parse::<i64>().unwrap() + 600_000;
    redis
        .cli(&["HSET", &record, field, &later.to_string()])
        .await;
    kind_is_open(&sandbox, "reserved_in_future").await;
    redis.cli(&["HSET", &record, field, &accepted]).await;
    nothing_is_open(&sandbox).await;
    process.stop(SOON).await;
}
