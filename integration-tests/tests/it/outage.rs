//! A broker that is away: how often it is tried, and what is sent when it is back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use seckill_integration_tests::{Plan, Sale, Sandbox, Service};
use seckill_proto::v1::ReserveCode;
use seckill_test_support::remoting::answer_sends_with;
use seckill_test_support::{Content, Mode, ServiceProcess, at_full_length, at_length, eventually};

use crate::harness::{SETTLES, SOON, SendLog, buy_many, message_id, orders, reservations};

/// The broker's answer when it takes no more messages.
const SYSTEM_BUSY: i32 = 2;

/// The schedule of the scanner's attempts: its default in a soak, or one that shows within seconds.
struct Schedule {
    outage: Duration,
    first: Duration,
    longest: Duration,
    attempts: std::ops::RangeInclusive<usize>,
    drains_within: Duration,
}

fn schedule() -> Schedule {
    let seconds = Duration::from_secs;
    if at_full_length() {
        Schedule {
            outage: seconds(600),
            first: seconds(5),
            longest: seconds(60),
            attempts: 8..=15,
            drains_within: seconds(120),
        }
    } else {
        Schedule {
            outage: seconds(15),
            first: seconds(1),
            longest: seconds(4),
            attempts: 3..=10,
            drains_within: seconds(30),
        }
    }
}

/// Seconds of processor time that a process has used, by the kernel's clock of 100 ticks a second.
fn cpu_seconds(process: &ServiceProcess) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    // The name in parentheses may contain blanks; user and system time are 12 and 13 after it.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks = |at: usize| -> f64 { fields[at].parse().unwrap() };
    (ticks(11) + ticks(12)) / 100.0
}

/// OBX-06: while the broker refuses, attempts grow rarer, the due times move forward and the scanner
/// idles; then everything is sent, also after a broker that was not there at all.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_grow_rarer_and_everything_is_sent_after_the_outage() {
    const PENDING: usize = 100;
    let schedule = schedule();
    let sandbox = Sandbox::builder()
        .broker_proxy()
        .env(
            "SECKILL_OUTBOX_SCANNER_BACKOFF_FIRST_MS",
            schedule.first.as_millis(),
        )
        .env(
            "SECKILL_OUTBOX_SCANNER_BACKOFF_MAX_MS",
            schedule.longest.as_millis(),
        )
        .start()
        .await;
    let sale = sandbox
        .open(&Plan::new(1_000).term("reservation-ttl-ms", at_length(60_000, 3_600_000)))
        .await;
    let (front, scanner) = tokio::join!(sandbox.run(Service::Front), sandbox.run(Service::Scanner));
    let client = sandbox.client(&front);
    let refusing = answer_sends_with(SYSTEM_BUSY, false);
    let sends = SendLog::record_and(sandbox.broker_proxy(), refusing);
    let bought = buy_many(&client, &sale, "u", PENDING).await;
    let (began, cpu) = (Instant::now(), cpu_seconds(&scanner));
    tokio::time::sleep(schedule.outage).await;
    let busy = (cpu_seconds(&scanner) - cpu) / began.elapsed().as_secs_f64();
    assert!(busy < 0.3, "the scanner kept {busy:.2} of a processor busy");

    let attempts = reservations(&sandbox, &sale).await;
    for id in bought.values() {
        let times = sends.times(&message_id(id));
        assert_rarer(&times, &schedule);
        let counted: usize = attempts[id]["send_attempts"].parse().unwrap();
        assert!(
            schedule.attempts.contains(&counted),
            "{id} was tried {counted} times"
        );
    }
    let overdue = due_times(&sandbox, &sale.key(0, "send_pending")).await;
    assert_eq!(overdue.len(), PENDING);

    // Now nobody listens at all, as when the broker's machine is gone.
    sandbox.broker_proxy().set_mode(Mode::Refuse);
    let soon = schedule.longest * 2 + SOON;
    let later = eventually(soon, "due times move on", async || {
        let now = due_times(&sandbox, &sale.key(0, "send_pending")).await;
        let moved = overdue
            .iter()
            .all(|(id, due)| now.get(id).is_some_and(|next| next > due));
        if moved {
            Ok(now)
        } else {
            Err("some stand still")
        }
    })
    .await;
    assert_eq!(later.len(), PENDING);
    sandbox.broker_proxy().clear_hook();
    sandbox.broker_proxy().set_mode(Mode::Forward);
    all_sent(&sandbox, &sale, PENDING, schedule.drains_within).await;

    let (consumer, compensation) = tokio::join!(
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation)
    );
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(
        orders(&sandbox, &sale).await,
        i64::try_from(PENDING).unwrap()
    );
    for service in [&front, &scanner, &consumer, &compensation] {
        service.stop(SOON).await;
    }
}

/// S0-204. Goal: nothing is given back because the broker is away, for however long: each reservation is
/// an order afterwards. Method: everything else runs, for longer than patience and time limit together.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_longer_than_patience_gives_nothing_back() {
    const BUYERS: usize = 30;
    const PATIENCE: Duration = Duration::from_secs(15);
    const AWAY: Duration = Duration::from_secs(18);
    let sandbox = Sandbox::builder().broker_proxy().start().await;
    let plan = Plan::new(BUYERS as u64 + 1)
        .term("reservation-ttl-ms", 1_000)
        .term("patience-ms", PATIENCE.as_millis());
    let sale = sandbox.open(&plan).await;
    let services = sandbox.run_all().await;
    services.allow_errors("");
    let client = sandbox.client(&services.front);
    // All is well at first: patience runs.
    client.buy(&sale, "warm", "warm").await;
    sandbox.settle(SETTLES).await;
    let away = |mode: Mode| {
        sandbox.namesrv_proxy().set_mode(mode);
        sandbox.broker_proxy().set_mode(mode);
    };
    away(Mode::Refuse);
    buy_many(&client, &sale, "u", BUYERS).await;
    let gone = Instant::now();
    let given_up = "SELECT count(*) FROM compensation_task";
    while gone.elapsed() < AWAY {
        assert_eq!(sandbox.database().number(given_up).await, 0);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let late = client.reserve(&sale, "late", "late").await.unwrap();
    assert_eq!(late.code(), ReserveCode::SoldOut);
    away(Mode::Forward);
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(sandbox.database().number(given_up).await, 0);
    let all = i64::try_from(BUYERS + 1).unwrap();
    assert_eq!(orders(&sandbox, &sale).await, all);
    for service in services.all() {
        service.stop(SOON).await;
    }
}

async fn all_sent(sandbox: &Sandbox, sale: &Sale, count: usize, within: Duration) {
    eventually(within, "all are sent", async || {
        let now = reservations(sandbox, sale).await;
        let sent = now.values().filter(|r| r["status"] == "ENQUEUED").count();
        if sent == count {
            Ok(())
        } else {
            Err(format!("{sent} of {count}"))
        }
    })
    .await;
}

/// Each wait is longer than the one before, up to the cap and its jitter.
fn assert_rarer(times: &[Instant], schedule: &Schedule) {
    // The client repeats a send that the broker refuses once by itself, within milliseconds unless
    // the machine is busy. The shortest wait of ours is the first one less its jitter.
    let mut attempts = times.to_vec();
    attempts.dedup_by(|later, first| *later - *first < schedule.first.mul_f64(0.8));
    let waits: Vec<f64> = attempts
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs_f64())
        .collect();
    let most = *schedule.attempts.end();
    assert!(
        waits.len() <= most,
        "{} attempts: {waits:?}",
        attempts.len()
    );
    // The first wait is the front's own, before the scanner's schedule begins.
    let scheduled = waits.get(1..).unwrap_or_default();
    let longest = schedule.longest.as_secs_f64();
    for pair in scheduled.windows(2) {
        assert!(pair[1] > pair[0].min(longest * 0.75) * 0.85, "{waits:?}");
    }
    let reached = scheduled.iter().copied().fold(0.0, f64::max);
    assert!(reached > longest / 2.0, "{waits:?}");
}

async fn due_times(sandbox: &Sandbox, key: &str) -> BTreeMap<String, i64> {
    match sandbox.dump().await.get(key) {
        Some(Content::SortedSet(members)) => members
            .iter()
            .map(|(id, score)| (id.clone(), score.parse().unwrap()))
            .collect(),
        _ => BTreeMap::new(),
    }
}
