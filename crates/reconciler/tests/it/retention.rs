//! The end of a version's retention.

use seckill_integration_tests::{Plan, Sale, Sandbox, Service};
use seckill_test_support::{ServiceProcess, eventually};

use crate::{SOON, kind_is_open};

/// Puts the end of a version's retention so far from now; an interval of PostgreSQL.
async fn end_retention(sandbox: &Sandbox, sale: &Sale, from_now: &str) {
    let moved = format!(
        "UPDATE activity SET starts_at = starts_at - interval '1 day', \
         ends_at = date_trunc('second', now() - interval '1 minute'), \
         retention_until = date_trunc('second', now() + interval '{from_now}') WHERE {}",
        sale.sql()
    );
    sandbox.database().execute(&moved).await;
}

/// The same ten minutes ahead, on both sides.
async fn bring_near(sandbox: &Sandbox, sale: &Sale) {
    end_retention(sandbox, sale, "10 minutes").await;
    for (field, column) in [
        ("starts_at_ms", "starts_at"),
        ("ends_at_ms", "ends_at"),
        ("retention_until_ms", "retention_until"),
    ] {
        let query = format!(
            "SELECT (extract(epoch FROM {column}) * 1000)::bigint FROM activity WHERE {}",
            sale.sql()
        );
        let at = sandbox.database().number(&query).await.to_string();
        let meta = sale.key(0, "meta");
        sandbox.redis().cli(&["HSET", &meta, field, &at]).await;
    }
}

/// A reconciler that looks at ends of retention often and may not extend them.
async fn looking(sandbox: &Sandbox) -> ServiceProcess {
    sandbox
        .service(Service::Reconciler)
        .env("SECKILL_RECONCILER_GRACE_MS", 500)
        .env("SECKILL_RECONCILER_RETENTION_INTERVAL_MS", 200)
        .env("SECKILL_RECONCILER_RETENTION_MARGIN_MS", 3_600_000)
        .allow_errors("redis and postgresql differ")
        .start()
        .await
}

async fn becomes_one(sandbox: &Sandbox, what: &str, query: &str) {
    eventually(SOON, what, async || {
        match sandbox.database().number(query).await {
            1 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
}

/// Goal: S0-223: a version that is not done alarms and lives on, all its keys with it; once it is
/// closed and nothing is open it is archived with its result.
#[tokio::test(flavor = "multi_thread")]
async fn an_ending_version_is_extended_while_open_and_archived_when_done() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(5)).await;
    let services = sandbox.run_all().await;
    let id = sandbox.client(&services.front).buy(&sale, "u1", "q1").await;
    sandbox.settle(SOON).await;
    crate::stop(services).await;
    bring_near(&sandbox, &sale).await;
    let process = sandbox
        .service(Service::Reconciler)
        .env("SECKILL_RECONCILER_GRACE_MS", 500)
        .env("SECKILL_RECONCILER_RETENTION_INTERVAL_MS", 200)
        .env("SECKILL_RECONCILER_RETENTION_MARGIN_MS", 3_600_000)
        .env("SECKILL_RECONCILER_RETENTION_EXTENSION_MS", 1_000)
        .allow_errors("redis and postgresql differ")
        .start()
        .await;
    kind_is_open(&sandbox, "open_before_retention").await;
    let extended = format!(
        "SELECT count(*) FROM activity WHERE retention_until > now() + interval '59 minutes' AND {}",
        sale.sql()
    );
    becomes_one(&sandbox, "the retention is extended", &extended).await;
    let meta = sale.key(0, "meta");
    let redis = sandbox.redis();
    let until = redis
        .cli(&["HGET", &meta, "retention_until_ms"])
        .await
        .text();
    let key = sale.key(0, &format!("resv:{id}"));
    let expires = redis.cli(&["PEXPIRETIME", &key]).await;
    assert!(
        expires.text().parse::<i64>().unwrap() >= until.parse::<i64>().unwrap(),
        "{until}"
    );

    let closed = sandbox.step(&sale, "close").await;
    assert_eq!(closed.code, Some(0), "{closed:?}");
    let archived = "SELECT count(*) FROM version_result WHERE moved_at IS NOT NULL \
                    AND orders = 1 AND redis_left = 4 AND difference = 0 \
                    AND archived_by = 'reconciler'";
    becomes_one(&sandbox, "it is archived", archived).await;
    process.stop(SOON).await;
}

/// Goal: keys that expire with a unit held and nothing decided are no proof of anything: the version
/// waits for a person, with what was last seen of it on record.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_whose_keys_expired_with_units_held_waits_for_a_person() {
    let sandbox = Sandbox::start().await;
    let plan = Plan::new(5).term("patience-ms", 3_600_000);
    let sale = sandbox.open(&plan).await;
    let front = sandbox.run(Service::Front).await;
    sandbox.client(&front).buy(&sale, "u1", "q1").await;
    front.stop(SOON).await;
    let closed = sandbox.step(&sale, "close").await;
    assert_eq!(closed.code, Some(0), "{closed:?}");
    bring_near(&sandbox, &sale).await;
    let process = looking(&sandbox).await;
    kind_is_open(&sandbox, "open_before_retention").await;

    end_retention(&sandbox, &sale, "-1 second").await;
    let redis = sandbox.redis();
    let pattern = sale.key(0, "*");
    for key in redis.cli(&["KEYS", &pattern]).await.texts() {
        redis.cli(&["DEL", &key]).await;
    }
    // One row, seen again and again; what it says of Redis is what was there.
    let one = "SELECT count(*) FROM discrepancy WHERE kind = 'open_before_retention'";
    let stays = format!(
        "{one} AND resolved_at IS NULL AND evidence_redis LIKE '%open index members%' \
         AND evidence_postgres LIKE 'its keys have expired%' AND times_seen > 10"
    );
    becomes_one(&sandbox, "it waits", &stays).await;
    let database = sandbox.database();
    assert_eq!(
        database.number("SELECT count(*) FROM version_result").await,
        0
    );

    let id = "SELECT discrepancy_id FROM discrepancy WHERE kind = 'open_before_retention'";
    let id = database.number(id).await.to_string();
    let word = [
        "reconcile",
        "resolve",
        "--id",
        &id,
        "--actor",
        "ann",
        "--reason",
        "u1 was told",
    ];
    sandbox.ctl_ok(&word).await;
    let archived = "SELECT count(*) FROM version_result WHERE moved_at IS NOT NULL \
                    AND orders = 0 AND redis_left IS NULL";
    becomes_one(&sandbox, "it is archived", archived).await;
    assert_eq!(database.number(one).await, 1, "nothing was found again");
    process.stop(SOON).await;
}

/// Goal: a version that was never on sale has lost nothing with its keys, so nobody is called.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_was_never_on_sale_is_archived_without_a_word() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.create(&Plan::new(5)).await;
    let closed = format!("UPDATE activity SET state = 'CLOSED' WHERE {}", sale.sql());
    sandbox.database().execute(&closed).await;
    end_retention(&sandbox, &sale, "-1 second").await;
    let process = looking(&sandbox).await;
    let archived = "SELECT count(*) FROM version_result WHERE moved_at IS NOT NULL";
    becomes_one(&sandbox, "it is archived", archived).await;
    process.stop(SOON).await;
}
