//! Fronts whose clocks are wrong sell by the clock of Redis alone (LUA-12).

use std::path::PathBuf;

use futures::StreamExt;
use seckill_proto::v1::ReserveCode;
use seckill_state_machine::TimestampMs;
use seckill_test_support::{PrivateRedis, ServiceProcess};

use crate::harness::{Client, PATIENCE, Sale, client, front, now_ms, reserve, settings};

/// Calls of one front in flight.
const CONCURRENT: usize = 4;

/// The library of Debian's `libfaketime`, which `make test` installs.
fn faketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap();
    folders
        .map(|folder| folder.unwrap().path().join("faketime/libfaketime.so.1"))
        .find(|library| library.exists())
        .expect("the package libfaketime is missing")
}

/// A front that believes it is `offset` later than it is. Its timers stay right: only the wall clock
/// of a badly kept host is wrong.
async fn front_at(redis: &PrivateRedis, offset: &str) -> ServiceProcess {
    front(redis.url())
        .env("LD_PRELOAD", faketime().display())
        .env("FAKETIME", offset)
        .env("SECKILL_LOG_FORMAT", "json")
        .env("DONT_FAKE_MONOTONIC", 1)
        .env("FAKETIME_DONT_FAKE_MONOTONIC", 1)
        .start()
        .await
}

/// How far the first line of a front's log is from when it was written, to prove that its clock is
/// wrong at all.
fn skew_in_minutes(front: &ServiceProcess, written_ms: i64) -> i64 {
    let log = front.log_text();
    let (_, rest) = log.split_once("\"timestamp\":\"").unwrap();
    let (_, time) = rest.split_once('T').unwrap();
    let part = |range: std::ops::Range<usize>| -> i64 { time.get(range).unwrap().parse().unwrap() };
    let minute = part(0..2) * 60 + part(3..5);
    let difference = (minute - written_ms / 60_000).rem_euclid(24 * 60);
    if difference > 12 * 60 {
        difference - 24 * 60
    } else {
        difference
    }
}

/// One call: when it began and ended by the clock that Redis has as well, and its answer.
struct Called {
    began: i64,
    ended: i64,
    code: ReserveCode,
}

/// Calls with new request ids until `until`.
async fn hammer(client: &Client, sale: &Sale, name: &str, until: i64) -> Vec<Called> {
    futures::stream::iter(0..)
        .take_while(|_| std::future::ready(now_ms() < until))
        .map(|n| {
            let (mut client, call) = (client.clone(), format!("{name}-{n}"));
            async move {
                let began = now_ms();
                let answer = reserve(&mut client, sale.call(&call, &call)).await;
                let (ended, code) = (now_ms(), answer.code());
                Called { began, ended, code }
            }
        })
        .buffer_unordered(CONCURRENT)
        .collect()
        .await
}

/// No tolerance is needed: a call that lies wholly inside the sale must be accepted, one that lies
/// wholly outside must not be.
fn assert_by_redis_clock(name: &str, calls: &[Called], (start, end): (i64, i64)) {
    let mut seen = (0, 0, 0);
    for Called { began, ended, code } in calls {
        if *ended < start {
            seen.0 += 1;
            assert_eq!(*code, ReserveCode::ActivityNotStarted, "{name} at {ended}");
        } else if *began > end {
            seen.2 += 1;
            assert_eq!(*code, ReserveCode::ActivityEnded, "{name} at {began}");
        } else if *began >= start && *ended <= end {
            seen.1 += 1;
            assert_eq!(*code, ReserveCode::Accepted, "{name} at {began}");
        }
    }
    eprintln!("{name}: {seen:?} calls before, during and after");
    assert!(
        seen.0 > 10 && seen.1 > 10 && seen.2 > 10,
        "{name}: {seen:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_fronts_with_skewed_clocks_open_and_close_at_the_same_instant() {
    let redis = PrivateRedis::start().await;
    let (slow, fast) = tokio::join!(front_at(&redis, "-5m"), front_at(&redis, "+5m"));
    let now = now_ms();
    let (start, end) = (now + 2_000, now + 4_000);
    let mut terms = settings(100_000);
    terms.starts_at_ms = TimestampMs::new(start);
    terms.ends_at_ms = TimestampMs::new(end);
    let sale = Sale::open(&redis, terms).await;
    let (to_slow, to_fast) = (client(&slow).await, client(&fast).await);
    let (slow_calls, fast_calls) = tokio::join!(
        hammer(&to_slow, &sale, "slow", end + 1_500),
        hammer(&to_fast, &sale, "fast", end + 1_500),
    );
    assert_by_redis_clock("slow", &slow_calls, (start, end));
    assert_by_redis_clock("fast", &fast_calls, (start, end));

    let dump = redis.dump().await;
    for key in dump.0.keys().filter(|key| key.contains(":resv:")) {
        let at: i64 = dump.hash(key)["reserved_at_ms"].parse().unwrap();
        assert!((start..=end).contains(&at), "{key} was accepted at {at}");
    }
    for (front, offset) in [(&slow, -5), (&fast, 5)] {
        let skew = skew_in_minutes(front, now);
        assert!((skew - offset).abs() <= 1, "its clock is {skew} min off");
        front.stop(PATIENCE).await;
    }
}
