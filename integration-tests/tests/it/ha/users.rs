//! The users of `deploy/redis`: each service does its work as itself, and can do nothing else.

use std::time::Duration;

use seckill_integration_tests::{Plan, RedisUsers, Sandbox};
use seckill_test_support::{PrivateRedis, RedisConnection, TempDir, Value, eventually};

use super::{buy_until_accepted, names};
use crate::harness::{SETTLES, SOON, orders, set_postgres_stock, tally};

/// The users of services, who work on keys.
const WORKERS: [&str; 7] = [
    "reservation-front",
    "outbox-scanner",
    "order-consumer",
    "compensation-worker",
    "reconciler",
    "activity-controller",
    "seckillctl",
];

/// What no service may do.
const NOBODY: [&[&str]; 22] = [
    &["FLUSHALL"],
    &["FLUSHDB"],
    &["KEYS", "*"],
    &["CONFIG", "SET", "maxmemory", "1"],
    &["CONFIG", "GET", "masterauth"],
    &["SCRIPT", "FLUSH"],
    &["SCRIPT", "KILL"],
    &["EVAL", "return 1", "0"],
    &["MIGRATE", "127.0.0.1", "1", "x", "0", "1"],
    &["SHUTDOWN"],
    &["REPLICAOF", "NO", "ONE"],
    &["ACL", "LIST"],
    &["ACL", "SETUSER", "x"],
    &["MONITOR"],
    &["DEL", "seckill:{a:x:s:x:v:1:b:0}:stock"],
    &["DEL", "seckill:{a:x:s:x:v:1:b:0}:meta"],
    &["DEL", "seckill:{a:x:s:x:v:1:b:0}:resv:r"],
    &["UNLINK", "seckill:{a:x:s:x:v:1:b:0}:stock"],
    &["RENAME", "seckill:{a:x:s:x:v:1:b:0}:stock", "x"],
    &["SET", "seckill:{a:x:s:x:v:1:b:0}:stock", "x"],
    &["SET", "another", "x"],
    &["HGETALL", "another"],
];

/// What one user alone must not do.
const SOMEBODY: [(&str, &[&str]); 18] = [
    (
        "reservation-front",
        &["DEL", "seckill:{a:x:s:x:v:1:b:0}:user:u"],
    ),
    (
        "reservation-front",
        &["HSET", "seckill:{a:x:s:x:v:1:b:0}:meta", "f", "v"],
    ),
    (
        "reservation-front",
        &["SET", "seckill:activity:x:current_version", "2"],
    ),
    ("reservation-front", &["PUBLISH", "seckill:soldout", "x"]),
    ("reservation-front", &["SCAN", "0"]),
    (
        "outbox-scanner",
        &["HSET", "seckill:{a:x:s:x:v:1:b:0}:stock", "f", "v"],
    ),
    (
        "outbox-scanner",
        &["HGETALL", "seckill:{a:x:s:x:v:1:b:0}:stock"],
    ),
    (
        "outbox-scanner",
        &["EVALSHA", "x", "1", "seckill:{a:x:s:x:v:1:b:0}:stock"],
    ),
    (
        "outbox-scanner",
        &["SET", "seckill:{a:x:s:x:v:1:b:0}:user:u", "r"],
    ),
    (
        "order-consumer",
        &["HSET", "seckill:{a:x:s:x:v:1:b:0}:meta", "f", "v"],
    ),
    (
        "order-consumer",
        &["DEL", "seckill:{a:x:s:x:v:1:b:0}:stock"],
    ),
    ("order-consumer", &["SCAN", "0"]),
    (
        "compensation-worker",
        &["HSET", "seckill:{a:x:s:x:v:1:b:0}:meta", "f", "v"],
    ),
    ("compensation-worker", &["SCAN", "0"]),
    (
        "reconciler",
        &["SET", "seckill:activity:x:current_version", "2"],
    ),
    ("exporter", &["HGETALL", "seckill:{a:x:s:x:v:1:b:0}:stock"]),
    ("exporter", &["SLOWLOG", "GET"]),
    ("doctor", &["HGETALL", "seckill:{a:x:s:x:v:1:b:0}:stock"]),
];

async fn is_refused(user: &str, connection: &mut RedisConnection, command: &[&str]) {
    let reply = connection.call(command).await.unwrap();
    let refused = reply.error().is_some_and(|text| text.starts_with("NOPERM"));
    assert!(refused, "{user} may {command:?}: {reply:?}");
}

#[tokio::test]
async fn nobody_may_do_more_than_their_scripts_do() {
    let folder = TempDir::new("users").unwrap();
    let users = RedisUsers::render(folder.path());
    let redis = PrivateRedis::start_as(&users.setup()).await;
    for user in WORKERS.into_iter().chain(["exporter", "doctor"]) {
        let password = RedisUsers::password(user);
        let mut connection = redis.connection_as(user, &password).await.unwrap();
        for command in NOBODY {
            // It has to see the settings that it compares.
            if user != "doctor" || !command.starts_with(&["CONFIG", "GET"]) {
                is_refused(user, &mut connection, command).await;
            }
        }
        for (_, command) in SOMEBODY.iter().filter(|(name, _)| *name == user) {
            is_refused(user, &mut connection, command).await;
        }
        let pong = connection.call(&["PING"]).await.unwrap();
        assert_eq!(pong, Value::Status("PONG".to_owned()));
    }
    assert!(redis.connection_as("doctor", "wrong").await.is_err());
    let mut stranger = RedisConnection::open(redis.address()).await.unwrap();
    let reply = stranger.call(&["GET", "x"]).await.unwrap();
    assert!(reply.error().unwrap().starts_with("NOAUTH"));
}

/// A user whose password is not given is locked, and one that is too short is refused.
#[tokio::test]
async fn a_user_without_a_password_is_locked_and_a_short_one_is_refused() {
    let folder = TempDir::new("passwords").unwrap();
    let render = || {
        let script = seckill_integration_tests::shipped().join("render-users");
        let mut command = std::process::Command::new(script);
        command.arg(folder.path()).output().unwrap()
    };
    let locked = render();
    assert!(locked.status.success());
    let text = String::from_utf8(locked.stdout).unwrap();
    assert_eq!(text.matches(" reset off").count(), text.lines().count());
    std::fs::write(folder.path().join("doctor"), "short\n").unwrap();
    let refused = render();
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && complaint.contains("doctor"),
        "{complaint}"
    );
    assert!(!complaint.contains("short\n"));
}

/// Purchases, orders, refusals, releases, reconciliation and the operator's audit, each under its own
/// user: nobody was refused anything.
#[tokio::test(flavor = "multi_thread")]
async fn every_service_does_its_work_under_its_own_user() {
    // A machine that compiles at the same time keeps a replica waiting for longer than two seconds.
    let sandbox = Sandbox::builder()
        .shipped_redis()
        .redis_arguments(&["--min-replicas-max-lag", "30"])
        .start()
        .await;
    let sale = sandbox.open(&Plan::new(6)).await;
    set_postgres_stock(&sandbox, &sale, 4).await;
    let services = sandbox.run_all().await;
    services
        .reconciler
        .allow_errors("redis and postgresql differ");
    let client = sandbox.client(&services.front);
    for name in names("u", 6) {
        buy_until_accepted(&client, &sale, &name).await;
    }
    eventually(SOON, "four orders and two releases", async || {
        let now = tally(&sandbox, &sale).await;
        let wanted = [("ORDER_CREATED".to_owned(), 4), ("RELEASED".to_owned(), 2)];
        if now == wanted.into() {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
    set_postgres_stock(&sandbox, &sale, 6).await;
    // A front whose process is gone leaves its sends to the scanner, and a lost settlement is the
    // reconciler's.
    services.consumer.pause();
    buy_until_accepted(&client, &sale, "late").await;
    services.consumer.resume();
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 5);
    for step in ["pause", "resume", "show"] {
        let done = sandbox.step(&sale, step).await;
        assert_eq!(done.code, Some(0), "{step}: {done:?}");
    }
    let audit = sandbox.audit(&sale, &["--require-settled"]).await;
    assert_eq!(audit.code, Some(0), "{audit:?}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let refused = sandbox.redis().cli(&["ACL", "LOG"]).await;
    assert!(
        refused.list().is_empty(),
        "somebody was refused: {refused:?}"
    );
    let listed = sandbox.redis().cli(&["CLIENT", "LIST"]).await.text();
    for service in &WORKERS[..5] {
        let found = listed.contains(&format!("user={service} "));
        assert!(found, "{service} is not logged in:\n{listed}");
    }
}
