//! A healthy sale under three reconcilers at their shortest intervals.

use std::time::Duration;

use seckill_integration_tests::{Plan, Sandbox, Service};
use seckill_test_support::{Dir, Mode, ServiceProcess};

use crate::SOON;

/// Things on their way take longer than a round here, and less than the grace.
const GRACE_MS: u64 = 8_000;

async fn hasty(sandbox: &Sandbox, instance: u32) -> ServiceProcess {
    let intervals = ["EXPIRY", "TOTALS", "HOLDERS", "WATCH", "RECOVERY"];
    let service = sandbox
        .service(Service::Reconciler)
        .instance(instance)
        .env("SECKILL_RECONCILER_GRACE_MS", GRACE_MS)
        .env("SECKILL_RECONCILER_SCAN_PAUSE_MS", 1);
    let service = intervals.iter().fold(service, |service, loop_name| {
        let name = format!("SECKILL_RECONCILER_{loop_name}_INTERVAL_MS");
        service.env(&name, 50)
    });
    service.start().await
}

/// Goal: BIZ-10: what is on its way is never touched. Method: traffic for ten seconds while commits,
/// sends and settlements are late, refused purchases among it; no errors are allowed in any log, no
/// difference and no action may be on record.
#[tokio::test(flavor = "multi_thread")]
async fn three_hasty_reconcilers_touch_nothing_that_is_on_its_way() {
    let sandbox = Sandbox::builder()
        .postgres_proxy()
        .redis_proxy()
        .start()
        .await;
    let plan = Plan::new(150)
        .buckets(2)
        .term("reservation-ttl-ms", 1_000)
        .term("patience-ms", 60_000);
    let sale = sandbox.open(&plan).await;
    let services = sandbox.run_all().await;
    let (a, b, c) = tokio::join!(hasty(&sandbox, 2), hasty(&sandbox, 3), hasty(&sandbox, 4),);
    let client = sandbox.client(&services.front);
    let begun = std::time::Instant::now();
    let late = Mode::Delay(Duration::from_millis(100), Dir::ToClient);
    sandbox.postgres_proxy().set_mode(late);
    let mut number = 0;
    while begun.elapsed() < Duration::from_secs(10) {
        number += 1;
        let (user, request) = (format!("u{number}"), format!("q{number}"));
        client.reserve(&sale, &user, &request).await.unwrap();
    }
    sandbox.postgres_proxy().set_mode(Mode::Forward);
    assert!(
        number > 150,
        "only {number} calls: the sale was not sold out"
    );
    sandbox.settle(SOON).await;
    let database = sandbox.database();
    for nothing in [
        "SELECT count(*) FROM discrepancy",
        "SELECT count(*) FROM reconciliation_action",
        "SELECT count(*) FROM compensation_task WHERE origin IN ('OVERDUE', 'HELD_AGAIN')",
        "SELECT count(*) FROM recovery_window WHERE opened_at IS NOT NULL",
    ] {
        assert_eq!(database.number(nothing).await, 0, "{nothing}");
    }
    sandbox.assert_settles_consistent(SOON).await;
    for process in [a, b, c] {
        process.stop(SOON).await;
    }
    for service in services.all() {
        service.stop(SOON).await;
    }
}
