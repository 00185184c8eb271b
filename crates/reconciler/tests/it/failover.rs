//! A Redis that comes back as an earlier state of itself.

use seckill_integration_tests::{Plan, Sandbox};
use seckill_test_support::eventually;

use crate::{SOON, reconciler_with, stop};

/// Goal: RC-09, M7: after a failover that lost acknowledged reservations the orders' reservations come
/// back, the state of the activity too, and the recovery window opens and ends. Method: a snapshot,
/// further purchases and a pause, then the server starts again from the snapshot with another run id.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_lost_writes_is_replayed_inside_a_recovery_window() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(10)).await;
    let services = sandbox.run_all().await;
    services.allow_errors("");
    let process = reconciler_with(&sandbox, 1_500).await;
    process.allow_errors("");
    let client = sandbox.client(&services.front);
    client.buy(&sale, "u0", "q0").await;
    sandbox.settle(SOON).await;
    let seen = "SELECT count(*) FROM recovery_window WHERE opened_at IS NULL";
    eventually(SOON, "the run id is known", async || {
        match sandbox.database().number(seen).await {
            1 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    let redis = sandbox.redis();
    redis.cli(&["SAVE"]).await;
    let mut lost = Vec::new();
    for number in 1..=5 {
        let (user, request) = (format!("u{number}"), format!("q{number}"));
        lost.push(client.buy(&sale, &user, &request).await);
    }
    sandbox.settle(SOON).await;
    let paused = sandbox.step(&sale, "pause").await;
    assert_eq!(paused.code, Some(0), "{paused:?}");
    redis.restart().await;

    let database = sandbox.database();
    let ended = "SELECT count(*) FROM recovery_window \
                 WHERE closed_at IS NOT NULL AND opened_at IS NULL AND reason <> ''";
    eventually(
        SOON,
        "the window has opened and ended",
        async || match database.number(ended).await {
            1 => Ok(()),
            other => Err(other.to_string()),
        },
    )
    .await;
    let meta = sale.key(0, "meta");
    let field = async |name: &str| redis.cli(&["HGET", &meta, name]).await.text();
    assert_eq!(field("recovery").await, "");
    assert_eq!(field("state").await, "PAUSED");
    for id in &lost {
        let reservation = sale.key(0, &format!("resv:{id}"));
        let status = redis.cli(&["HGET", &reservation, "status"]).await.text();
        assert_eq!(status, "ORDER_CREATED", "{id}");
    }
    sandbox.assert_settles_consistent(SOON).await;
    process.stop(SOON).await;
    stop(services).await;
}
