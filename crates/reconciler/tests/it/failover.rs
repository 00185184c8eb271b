//! A Redis that comes back as an earlier state of itself.

use seckill_integration_tests::{FrontClient, Plan, Sale, Sandbox, Service};
use seckill_test_support::{ServiceProcess, eventually};

use crate::{GRACE_MS, SOON, reconciler_builder, reconciler_with, stop};

const KNOWN: &str = "SELECT count(*) FROM recovery_window WHERE opened_at IS NULL";
const OPEN: &str = "SELECT count(*) FROM recovery_window WHERE opened_at IS NOT NULL";
const ENDED: &str = "SELECT count(*) FROM recovery_window \
                     WHERE closed_at IS NOT NULL AND opened_at IS NULL AND reason <> ''";

/// Awaits that one row fits.
async fn one_row(sandbox: &Sandbox, what: &str, query: &str) {
    eventually(SOON, what, async || {
        match sandbox.database().number(query).await {
            1 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
}

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
    one_row(&sandbox, "the server is known", KNOWN).await;
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

    one_row(&sandbox, "the window has opened and ended", ENDED).await;
    let meta = sale.key(0, "meta");
    let field = async |name: &str| redis.cli(&["HGET", &meta, name]).await.text();
    // A loop that had read of the window writes its word once more; then it opens and ends again.
    eventually(SOON, "no window in meta", async || {
        match field("recovery").await {
            none if none.is_empty() => Ok(()),
            other => Err(other),
        }
    })
    .await;
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

/// The answer to the repeat of a request, in a word.
async fn repeated(client: &FrontClient, sale: &Sale, user: &str, request: &str) -> String {
    match client.repeat(sale, user, request).await {
        Ok(answer) => answer.code().as_str_name().to_owned(),
        Err(status) => {
            let details = String::from_utf8_lossy(status.details()).into_owned();
            let words = ["OUTCOME_UNKNOWN", "SYSTEM_BUSY"];
            let word = words.into_iter().find(|word| details.contains(word));
            word.map_or_else(|| status.to_string(), str::to_owned)
        }
    }
}

/// How often the consumer has handed requests back.
fn handed_back(consumer: &ServiceProcess) -> usize {
    let line = "order requests could not be decided together";
    consumer.log_text().matches(line).count()
}

/// M7, I9. Goal: an order request that the consumer has handed back keeps the window open wherever it
/// waits, so that its buyer is not told a final no that an order contradicts. Method: a stock row that
/// is locked, so that nothing can be decided while everything else is well; Redis forgets the one
/// reservation, and somebody else takes the unit.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_handed_back_keeps_the_window_open() {
    const FURTHER: usize = 4;
    let sandbox = Sandbox::builder()
        .env("SECKILL_DATABASE_LOCK_TIMEOUT_MS", 300)
        .env("SECKILL_FRONT_ASSUME_WINDOW_MS", 0)
        .start()
        .await;
    let plan = Plan::new(1)
        .term("reservation-ttl-ms", 600_000)
        .term("patience-ms", 600_000);
    let sale = sandbox.open(&plan).await;
    let (front, scanner, consumer, compensation) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation),
    );
    let process = reconciler_with(&sandbox, GRACE_MS).await;
    let processes = [&process, &consumer, &compensation, &scanner, &front];
    for process in processes {
        process.allow_errors("");
    }
    let client = sandbox.client(&front);
    one_row(&sandbox, "the server is known", KNOWN).await;
    sandbox.redis().cli(&["SAVE"]).await;
    let holder = sandbox.database().client().await;
    let lock = format!(
        "BEGIN; SELECT 1 FROM activity_stock WHERE {} FOR UPDATE",
        sale.sql()
    );
    holder.batch_execute(&lock).await.unwrap();
    client.buy(&sale, "u1", "q1").await;
    consumer
        .wait_for_log("order requests could not be decided together", SOON)
        .await;
    sandbox.redis().restart().await;
    eventually(SOON, "somebody else takes the unit", async || match client
        .reserve(&sale, "u2", "q2")
        .await
    {
        Ok(answer) if !answer.reservation_id.is_empty() => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    process
        .wait_for_log("a recovery waits for redeliveries", SOON)
        .await;
    let before = handed_back(&consumer);
    eventually(SOON, "some rounds of redelivery", async || {
        assert_eq!(sandbox.database().number(OPEN).await, 1);
        assert_eq!(
            repeated(&client, &sale, "u1", "q1").await,
            "OUTCOME_UNKNOWN"
        );
        match handed_back(&consumer) - before {
            FURTHER.. => Ok(()),
            fewer => Err(fewer.to_string()),
        }
    })
    .await;

    holder.batch_execute("ROLLBACK").await.unwrap();
    one_row(&sandbox, "the window has ended", ENDED).await;
    let orders = "SELECT count(*) FROM orders";
    assert_eq!(sandbox.database().number(orders).await, 1);
    for (user, request) in [("u1", "q1"), ("u2", "q2")] {
        let answer = repeated(&client, &sale, user, request).await;
        assert!(answer.starts_with("RESERVE_CODE"), "{answer}");
    }
    for process in processes {
        process.stop(SOON).await;
    }
}

/// The line that tells of a failover.
const TAKEN_OVER: &str = "another redis serves a bucket";

/// Goal: two reconcilers that see different primaries, as behind a divided network, open one window and
/// not one after the other; when nobody sees the new primary any more, going back to the old one is a
/// failover. Method: one of them is bound to the server that was replaced and lives on.
#[tokio::test(flavor = "multi_thread")]
async fn two_views_of_a_divided_network_open_one_window() {
    let sandbox = Sandbox::builder().replicated().start().await;
    sandbox.open(&Plan::new(3)).await;
    let pair = sandbox.redis_pair();
    pair.caught_up().await;
    // A busy machine must not look like a server that nobody sees any more: that is three looks.
    let builder = |instance: u32| {
        reconciler_builder(&sandbox, GRACE_MS)
            .env("SECKILL_RECONCILER_RECOVERY_INTERVAL_MS", 2_000)
            .instance(instance)
    };
    let behind = builder(1)
        .env("SECKILL_REDIS_URL", pair.primary().url())
        .start()
        .await;
    behind.allow_errors("");
    one_row(&sandbox, "the server is known", KNOWN).await;
    pair.promote().await;
    let ahead = builder(2).start().await;
    ahead.allow_errors("");
    let steady = format!("{ENDED} AND sighted_at > closed_at + interval '4 s'");
    one_row(
        &sandbox,
        "the window has ended and nothing follows",
        &steady,
    )
    .await;
    let told = |process: &ServiceProcess| process.log_text().matches(TAKEN_OVER).count();
    assert_eq!((told(&behind), told(&ahead)), (0, 1));

    ahead.stop(SOON).await;
    behind.wait_for_log(TAKEN_OVER, SOON).await;
    behind.stop(SOON).await;
}

/// Goal: a primary that was demoted and is promoted again may have lost writes in between, although it
/// is the same process.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_demoted_and_promoted_again_has_failed_over() {
    let sandbox = Sandbox::start().await;
    sandbox.open(&Plan::new(3)).await;
    let process = reconciler_with(&sandbox, GRACE_MS).await;
    process.allow_errors("");
    one_row(&sandbox, "the server is known", KNOWN).await;
    let run_id = async || {
        let run_id = "SELECT run_id FROM recovery_window";
        sandbox.database().texts(run_id).await.concat()
    };
    let before = run_id().await;
    let redis = sandbox.redis();
    redis.cli(&["REPLICAOF", "127.0.0.1", "1"]).await;
    redis.cli(&["REPLICAOF", "NO", "ONE"]).await;
    process.wait_for_log(TAKEN_OVER, SOON).await;
    one_row(&sandbox, "the window has opened and ended", ENDED).await;
    assert_eq!(run_id().await, before);
    process.stop(SOON).await;
}
