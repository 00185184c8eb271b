//! The end of a version's retention.

use seckill_integration_tests::{Plan, Sale, Sandbox, Service};
use seckill_test_support::eventually;

use crate::{SOON, kind_is_open};

/// Puts the end of a version's retention ten minutes ahead, on both sides.
async fn bring_near(sandbox: &Sandbox, sale: &Sale) {
    let database = sandbox.database();
    let near = format!(
        "UPDATE activity SET ends_at = date_trunc('second', now()), \
         retention_until = date_trunc('second', now() + interval '10 minutes') WHERE {}",
        sale.sql()
    );
    database.execute(&near).await;
    for (field, column) in [
        ("ends_at_ms", "ends_at"),
        ("retention_until_ms", "retention_until"),
    ] {
        let query = format!(
            "SELECT (extract(epoch FROM {column}) * 1000)::bigint FROM activity WHERE {}",
            sale.sql()
        );
        let at = database.number(&query).await.to_string();
        let meta = sale.key(0, "meta");
        sandbox.redis().cli(&["HSET", &meta, field, &at]).await;
    }
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
    eventually(SOON, "the retention is extended", async || {
        match sandbox.database().number(&extended).await {
            1 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
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
    eventually(SOON, "it is archived", async || {
        match sandbox.database().number(archived).await {
            1 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    process.stop(SOON).await;
}
