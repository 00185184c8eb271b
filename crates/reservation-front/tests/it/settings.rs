//! Wrong settings are named before any port opens, and no secret is ever printed (OPS-05).

use std::time::Duration;

use seckill_test_support::{PrivateRedis, eventually};

use crate::harness::{NOWHERE, PATIENCE, SECRET, front};

const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_setting_is_named_and_ends_the_start() {
    let wrong = [
        ("SECKILL_REDIS_URL", "127.0.0.1:6379"),
        ("SECKILL_REDIS_COMMAND_TIMEOUT_MS", "-40"),
        ("SECKILL_REDIS_COMMAND_TIMEOUT_MS", "5000"),
        ("SECKILL_REDIS_CONNECTIONS", "0"),
        ("SECKILL_DATABASE_URL", "mysql://hunter2@host/db"),
        ("SECKILL_DATABASE_POOL_SIZE", "0"),
        ("SECKILL_ROCKETMQ_NAMESRV", "nowhere"),
        ("SECKILL_ROCKETMQ_SEND_TIMEOUT_MS", "1"),
        ("SECKILL_HMAC_SECRETS", "1:aHVudGVyMg=="),
        ("SECKILL_HMAC_SECRETS", ""),
        ("SECKILL_FRONT_LISTEN", "localhost"),
        ("SECKILL_FRONT_CALL_BUDGET_MS", "60000"),
        ("SECKILL_FRONT_SENDERS", "many"),
        ("SECKILL_ADMIN_ADDR", "127.0.0.1"),
        ("SECKILL_LOG_FORMAT", "yaml"),
        ("RUST_LOG", "info,=nonsense=x"),
    ];
    for (name, value) in wrong {
        let finished = front(format!("redis://{NOWHERE}"))
            .env(name, value)
            .run(LIMIT)
            .await;
        assert_eq!(
            finished.code,
            Some(64),
            "{name}={value}: {}",
            finished.stderr
        );
        assert!(
            finished.stderr.contains(name),
            "{name}={value}: {}",
            finished.stderr
        );
        for secret in ["hunter2", "aHVudGVyMg", SECRET] {
            assert!(
                !finished.stderr.contains(secret),
                "{name}: {}",
                finished.stderr
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_flags_are_refused_and_help_tells_of_every_setting() {
    let unknown = front(format!("redis://{NOWHERE}"))
        .arg("--redis-ulr=x")
        .run(LIMIT)
        .await;
    assert_eq!(unknown.code, Some(64));
    assert!(unknown.stderr.contains("--redis-ulr"), "{}", unknown.stderr);
    let help = front(format!("redis://{NOWHERE}"))
        .arg("--help")
        .run(LIMIT)
        .await;
    assert_eq!(help.code, Some(0));
    for name in [
        "SECKILL_FRONT_LISTEN",
        "SECKILL_REDIS_URL",
        "SECKILL_GRACE_PERIOD_MS",
    ] {
        assert!(help.stdout.contains(name), "{}", help.stdout);
    }
    assert!(!help.stdout.contains(SECRET));
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_variables_count_as_unset_and_the_start_line_hides_secrets() {
    let redis = PrivateRedis::start().await;
    let front = front(redis.url())
        .env("SECKILL_FRONT_ADDR", "")
        .env("SECKILL_FRONT_SENDERS", "")
        .env("SECKILL_OTLP_ENDPOINT", "")
        .start()
        .await;
    let log = front.log_text();
    let start = log
        .lines()
        .find(|line| line.contains("\"starting\""))
        .unwrap();
    assert!(start.contains("hmac-secrets=***"), "{start}");
    assert!(start.contains("postgres://***@127.0.0.1:1/none"), "{start}");
    assert!(
        !log.contains("nothing@") && !log.contains(SECRET),
        "{start}"
    );
    eventually(PATIENCE, "a database that is away is named", async || {
        let report = front
            .readyz()
            .await
            .map_err(|error| error.to_string())?
            .body;
        let named = report.contains("\"postgres\":{\"required\":false,\"up\":false")
            && report.contains("(see SECKILL_DATABASE_URL)");
        if named { Ok(()) } else { Err(report) }
    })
    .await;
}
