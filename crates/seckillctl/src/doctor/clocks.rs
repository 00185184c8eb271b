//! Whether the clocks agree.
//!
//! Redis's clock times the sale, reservations and resends; PostgreSQL's times patience and leases; a
//! front's own only drops first sends that are older than 10 s. No decision depends on two of them, but
//! an operator reads times of all, and a sale opens by Redis's.

use std::time::{SystemTime, UNIX_EPOCH};

use seckill_lua_scripts::Redis;
use seckill_order_store::Store;
use seckill_state_machine::TimestampMs;

use super::finding::{Area, Finding, Grade};

/// Above this, times of different logs can no longer be put in order.
const SKEW_LOOK_MS: i64 = 500;

/// Above this, the grace of a first send (2 s) and with it the order of sends is void.
const SKEW_MAX_MS: i64 = 2_000;

/// Reads all clocks that can be read.
pub async fn check(redis: Option<&Redis>, store: Option<&Store>) -> Finding {
    let mut ahead = vec![("this machine", 0)];
    if let Some(redis) = redis
        && let Some(skew) = skew(async || redis_clock(redis).await).await
    {
        ahead.push(("Redis", skew));
    }
    if let Some(store) = store {
        // The first question opens the connection, which takes longer than the answer.
        let _ = store.ping().await;
        let clock = async || store.server_facts().await.ok().map(|facts| facts.now);
        if let Some(skew) = skew(clock).await {
            ahead.push(("PostgreSQL", skew));
        }
    }
    judge(&ahead)
}

async fn redis_clock(redis: &Redis) -> Option<TimestampMs> {
    let nodes = redis.server_nodes().await.ok()?;
    redis.server_clock(nodes.first()?).await.ok()
}

/// By how many milliseconds a clock is ahead of this machine's, taken in the middle of the question.
async fn skew(clock: impl AsyncFn() -> Option<TimestampMs>) -> Option<i64> {
    let before = now_ms()?;
    let there = clock().await?.get();
    let after = now_ms()?;
    let between = before + (after - before) / 2;
    // What lies within the question's own duration is no difference.
    let skew = there - between;
    let doubt = (after - before) / 2;
    Some(if skew.abs() <= doubt { 0 } else { skew })
}

fn now_ms() -> Option<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok()
}

fn judge(ahead: &[(&str, i64)]) -> Finding {
    let values = || ahead.iter().map(|(_, skew)| *skew);
    let spread = values().max().unwrap_or(0) - values().min().unwrap_or(0);
    let grade = if spread <= SKEW_LOOK_MS {
        Grade::Ok
    } else if spread <= SKEW_MAX_MS {
        Grade::Warn
    } else {
        Grade::Fail
    };
    let found: Vec<String> = ahead
        .iter()
        .map(|(name, skew)| format!("{name} {skew:+} ms"))
        .collect();
    Finding::of(
        grade,
        Area::Clocks,
        "skew",
        found.join(", "),
        format!("at most {SKEW_LOOK_MS} ms apart"),
        "let all machines follow one time server (chrony, ntpd)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_that_are_furthest_apart_count() {
        let graded = |redis, postgres| {
            judge(&[
                ("this machine", 0),
                ("Redis", redis),
                ("PostgreSQL", postgres),
            ])
            .verdict
        };
        assert_eq!(graded(0, 0), Grade::Ok);
        assert_eq!(graded(250, -250), Grade::Ok);
        assert_eq!(graded(300, -300), Grade::Warn);
        assert_eq!(graded(-2_001, 0), Grade::Fail);
    }
}
