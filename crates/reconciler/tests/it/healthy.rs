//! A healthy sale under three reconcilers that hardly pause between rounds, for as many rounds as an hour
//! has, or in an ordinary run ten minutes.

use std::time::{Duration, Instant};

use seckill_integration_tests::{FrontClient, Plan, Sale, Sandbox, Service};
use seckill_test_support::{Dir, Mode, ServiceProcess, at_length, eventually};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::{SOON, rounds};

/// From one tick of each loop to the next. A round takes longer than that here.
const INTERVAL_MS: u64 = 10;

/// Rounds of an hour at the default intervals: every 5 s, every 30 s, and a pass every 10 minutes.
const HOUR: Rounds = Rounds {
    expiry: 3_600 / 5,
    totals: 3_600 / 30,
    passes: 3_600 / 600,
};

/// The links that are slow in turn.
const LINKS: u64 = 3;

/// Repeats of a call that was not answered in time by a busy machine.
const REPEATS_MAX: usize = 5;

/// An ordinary run has a sixth of an hour's rounds.
const PARTS: u64 = 6;

/// How often the three reconcilers together have gone through everything.
#[derive(Debug, Clone, Copy, Default)]
struct Rounds {
    expiry: u64,
    totals: u64,
    passes: u64,
}

impl Rounds {
    /// Whether so many have come since as one link has to see.
    fn is_enough_since(&self, earlier: &Self) -> bool {
        let shares = LINKS * at_length(PARTS, 1);
        (self.expiry - earlier.expiry) * shares >= HOUR.expiry
            && (self.totals - earlier.totals) * shares >= HOUR.totals
            && (self.passes - earlier.passes) * shares >= HOUR.passes
    }
}

/// How slow things are: in a soak as slow as in BIZ-10, whose commits take half a second, five answers of
/// PostgreSQL. What is on its way takes longer than a round here, and less than the grace.
struct Pace {
    postgres_ms: u64,
    redis_ms: u64,
    broker_ms: u64,
    send_timeout_ms: u64,
    grace_ms: u64,
    link: Duration,
    calls_per_second: u32,
}

impl Pace {
    fn of_this_run() -> Self {
        Self {
            postgres_ms: at_length(40, 100),
            redis_ms: 600,
            broker_ms: at_length(300, 2_000),
            send_timeout_ms: at_length(2_000, 5_000),
            grace_ms: at_length(8_000, 30_000),
            link: at_length(Duration::from_secs(4), Duration::from_secs(60)),
            calls_per_second: at_length(12, 30),
        }
    }
}

async fn hasty(sandbox: &Sandbox, instance: u32, grace_ms: u64) -> ServiceProcess {
    let intervals = ["EXPIRY", "TOTALS", "HOLDERS", "WATCH", "RECOVERY"];
    let service = sandbox
        .service(Service::Reconciler)
        .instance(instance)
        .env("SECKILL_RECONCILER_GRACE_MS", grace_ms)
        .env("SECKILL_RECONCILER_SCAN_PAUSE_MS", 1)
        // Past the proxy: what is late for those who settle, this one sees undone in round after round.
        .env("SECKILL_REDIS_URL", sandbox.redis().url())
        // A busy machine is no fault here.
        .env("SECKILL_REDIS_COMMAND_TIMEOUT_MS", 5_000);
    let service = intervals.iter().fold(service, |service, loop_name| {
        let name = format!("SECKILL_RECONCILER_{loop_name}_INTERVAL_MS");
        service.env(&name, INTERVAL_MS)
    });
    service.start().await
}

/// Goal: BIZ-10: what is on its way is never touched, in as many rounds as an hour has (in a soak; in an
/// ordinary run ten minutes). Method: traffic, refused purchases among it, while first Redis, then
/// PostgreSQL, then the broker answers late, each for a third of the rounds; no errors are allowed in any
/// log, no difference and no action may be on record.
#[tokio::test(flavor = "multi_thread")]
async fn three_hasty_reconcilers_touch_nothing_that_is_on_its_way() {
    let pace = Pace::of_this_run();
    let lease_ms = pace.send_timeout_ms * 3;
    let sandbox = Sandbox::builder()
        .postgres_proxy()
        .redis_proxy()
        .broker_proxy()
        .env("SECKILL_ROCKETMQ_SEND_TIMEOUT_MS", pace.send_timeout_ms)
        .env("SECKILL_OUTBOX_SCANNER_LEASE_MS", lease_ms)
        .env("SECKILL_OUTBOX_SCANNER_RELAY_LEASE_MS", lease_ms)
        .start()
        .await;
    let plan = |stock| {
        Plan::new(stock)
            .buckets(2)
            .term("reservation-ttl-ms", 1_000)
            .term("patience-ms", at_length(60_000, 600_000))
    };
    let sales = [
        sandbox.open(&plan(100_000)).await,
        sandbox.open(&plan(20)).await,
    ];
    let services = sandbox.run_all().await;
    let reconcilers: [ServiceProcess; 3] = tokio::join!(
        hasty(&sandbox, 2, pace.grace_ms),
        hasty(&sandbox, 3, pace.grace_ms),
        hasty(&sandbox, 4, pace.grace_ms),
    )
    .into();
    let client = sandbox.client(&services.front);
    let traffic = tokio::spawn(traffic(client, sales.clone(), pace.calls_per_second));
    make_each_link_late(&sandbox, &pace, &reconcilers, &sales[0]).await;
    assert!(!traffic.is_finished(), "the traffic has ended early");
    traffic.abort();
    sandbox.settle(SOON).await;
    nothing_was_done(&sandbox, &sales).await;
    sandbox.assert_settles_consistent(SOON).await;
    for process in &reconcilers {
        // A tick that fails is no round.
        let log = process.log_text();
        assert!(!log.contains("failed, will be repeated"), "{log}");
        process.stop(SOON).await;
    }
    for service in services.all() {
        service.stop(SOON).await;
    }
}

/// One link after the other, each for its share of the rounds. What Redis is told comes late, so that
/// PostgreSQL has decided and Redis does not know.
async fn make_each_link_late(
    sandbox: &Sandbox,
    pace: &Pace,
    reconcilers: &[ServiceProcess],
    sale: &Sale,
) {
    let links = [
        ("redis", sandbox.redis_proxy(), pace.redis_ms, Dir::ToServer),
        (
            "postgresql",
            sandbox.postgres_proxy(),
            pace.postgres_ms,
            Dir::ToClient,
        ),
        (
            "broker",
            sandbox.broker_proxy(),
            pace.broker_ms,
            Dir::ToClient,
        ),
    ];
    for (link, proxy, late_ms, dir) in links {
        proxy.set_mode(Mode::Delay(Duration::from_millis(late_ms), dir));
        let begun = Instant::now();
        let before = done(sandbox, reconcilers, sale).await;
        let limit = SOON + pace.link * 4;
        eventually(limit, "its share of rounds", async || {
            let now = done(sandbox, reconcilers, sale).await;
            if begun.elapsed() >= pace.link && now.is_enough_since(&before) {
                Ok(())
            } else {
                Err(format!("{before:?}, {now:?}"))
            }
        })
        .await;
        proxy.set_mode(Mode::Forward);
        let now = done(sandbox, reconcilers, sale).await;
        eprintln!(
            "{link} late for {:?}: {before:?} to {now:?}",
            begun.elapsed()
        );
    }
}

/// Purchases at a steady pace, whatever each takes: most of them of a large stock, some of a small one
/// that is soon sold out, some by buyers who have bought. A call without an answer is repeated.
async fn traffic(client: FrontClient, sales: [Sale; 2], calls_per_second: u32) {
    let mut ticks = interval(Duration::from_secs(1) / calls_per_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut calls = JoinSet::new();
    for number in 0_u64.. {
        ticks.tick().await;
        let (client, sales) = (client.clone(), sales.clone());
        calls.spawn(async move {
            let sale = &sales[usize::from(number % 5 == 1)];
            // Every seventh comes from the buyer of the one before.
            let buyer = number - u64::from(number % 7 == 3);
            let (user, request) = (format!("u{buyer}"), format!("q{number}"));
            let mut answer = client.reserve(sale, &user, &request).await;
            for _ in 0..REPEATS_MAX {
                if answer.is_ok() {
                    break;
                }
                answer = client.repeat(sale, &user, &request).await;
            }
            answer.map(drop)
        });
        while let Some(ended) = calls.try_join_next() {
            ended.unwrap().unwrap();
        }
    }
}

async fn done(sandbox: &Sandbox, reconcilers: &[ServiceProcess], sale: &Sale) -> Rounds {
    let mut done = Rounds::default();
    for process in reconcilers {
        done.expiry += rounds(process, "expiry").await.unwrap_or_default();
        done.totals += rounds(process, "totals").await.unwrap_or_default();
    }
    let passes = format!(
        "SELECT count(*) FROM reconciliation_run WHERE kind = 'holders' \
         AND finished_at IS NOT NULL AND instance <> 'reconciler-1' AND {}",
        sale.sql()
    );
    let passes = sandbox.database().number(&passes).await;
    done.passes = passes.unsigned_abs();
    done
}

async fn nothing_was_done(sandbox: &Sandbox, sales: &[Sale; 2]) {
    let database = sandbox.database();
    for nothing in [
        "SELECT count(*) FROM discrepancy",
        "SELECT count(*) FROM reconciliation_action",
        "SELECT count(*) FROM compensation_task WHERE origin IN ('OVERDUE', 'HELD_AGAIN')",
        "SELECT count(*) FROM reservation_decision WHERE kind = 'RELEASED'",
        "SELECT count(*) FROM recovery_window WHERE opened_at IS NOT NULL",
    ] {
        assert_eq!(database.number(nothing).await, 0, "{nothing}");
    }
    for (sale, least) in sales.iter().zip([100, 20]) {
        let sold = format!("SELECT count(*) FROM orders WHERE {}", sale.sql());
        let sold = database.number(&sold).await;
        assert!(sold >= least, "only {sold} of {least} orders");
    }
}
