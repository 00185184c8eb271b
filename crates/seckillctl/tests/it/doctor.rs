//! The doctor against real servers: a good installation passes, and each planted mistake is named.

use std::collections::BTreeSet;

use seckill_integration_tests::{CtlOutput, RedisUsers, Sandbox};
use seckill_test_support::PrivateRedis;
use serde_json::Value;

/// Settings that the private Redis of a sandbox does not have by itself.
const GOOD: [&str; 6] = [
    "--appendonly",
    "yes",
    "--latency-monitor-threshold",
    "5",
    "--maxmemory",
    "1gb",
];

async fn sandbox() -> Sandbox {
    Sandbox::builder().redis_arguments(&GOOD).start().await
}

async fn examine(sandbox: &Sandbox, more: &[&str]) -> CtlOutput {
    let local = ["doctor", "--profile", "local"];
    sandbox.ctl(&[local.as_slice(), more].concat()).await
}

/// The names of the checks that have this verdict, `area check`.
fn graded(output: &CtlOutput, verdict: &str) -> BTreeSet<String> {
    let report = output.json();
    report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|found| found["verdict"] == verdict)
        .map(|found| {
            let text = |field: &str| found[field].as_str().unwrap().to_owned();
            assert!(verdict == "ok" || !text("hint").is_empty(), "{found}");
            format!("{} {}", text("area"), text("check"))
        })
        .collect()
}

fn failed(output: &CtlOutput) -> BTreeSet<String> {
    let failed = graded(output, "fail");
    let code = if failed.is_empty() { 0 } else { 1 };
    assert_eq!(output.code, Some(code), "{output:?}");
    assert_eq!(output.json()["ok"], failed.is_empty());
    failed
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

fn finding(output: &CtlOutput, check: &str) -> Value {
    let report = output.json();
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|found| found["check"] == check);
    found
        .unwrap_or_else(|| panic!("no {check}: {report}"))
        .clone()
}

#[tokio::test]
async fn a_good_installation_passes_and_each_planted_setting_is_named() {
    let sandbox = sandbox().await;
    let good = examine(&sandbox, &[]).await;
    assert_eq!(failed(&good), set(&[]), "{good:?}");
    assert!(graded(&good, "ok").len() > 30, "{good:?}");
    // Nobody reads yet, and a single machine has no replica.
    let warned = graded(&good, "warn");
    assert!(warned.contains("broker consumers of order-consumer"));
    assert!(warned.contains("redis replicas"));
    let strict = sandbox.ctl(&["doctor"]).await;
    for check in [
        "redis replicas",
        "redis min-replicas-to-write",
        "redis login without a password",
        "redis user reservation-front",
    ] {
        assert!(failed(&strict).contains(check), "{check}: {strict:?}");
    }

    let redis = sandbox.redis();
    for (setting, wrong, right) in [
        ("appendonly", "no", "yes"),
        ("appendfsync", "no", "everysec"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ] {
        redis.cli(&["CONFIG", "SET", setting, wrong]).await;
        let output = examine(&sandbox, &[]).await;
        assert_eq!(failed(&output), set(&[&format!("redis {setting}")]));
        assert_eq!(finding(&output, setting)["found"], wrong);
        assert_eq!(finding(&output, setting)["wanted"], right);
        redis.cli(&["CONFIG", "SET", setting, right]).await;
    }
    assert_eq!(failed(&examine(&sandbox, &[]).await), set(&[]));
}

#[tokio::test]
async fn an_old_schema_and_missing_topics_lead_to_the_migration() {
    let builder = Sandbox::builder().redis_arguments(&GOOD);
    let sandbox = builder.start_empty().await;
    let empty = examine(&sandbox, &[]).await;
    let names = failed(&empty);
    assert!(names.contains("postgres schema"), "{names:?}");
    let topics = names.iter().filter(|name| name.starts_with("broker topic"));
    assert_eq!(topics.count(), 5, "{names:?}");
    sandbox.ctl_ok(&["migrate"]).await;
    assert_eq!(failed(&examine(&sandbox, &[]).await), set(&[]));
    let newest = "DELETE FROM refinery_schema_history
        WHERE version = (SELECT max(version) FROM refinery_schema_history)";
    sandbox.database().execute(newest).await;
    let old = examine(&sandbox, &[]).await;
    assert_eq!(failed(&old), set(&["postgres schema"]));
    let hint = finding(&old, "schema")["hint"].clone();
    assert!(hint.as_str().unwrap().contains("seckillctl migrate"));
}

#[tokio::test]
async fn what_is_down_costs_its_own_lines_and_no_secret_is_shown() {
    let sandbox = sandbox().await;
    let limit = ["--connect-limit-ms", "500"];
    let cases: [(&[&str], &str); 3] = [
        (
            &["--redis-url", "redis://:hunter2@127.0.0.1:1"],
            "redis reachable",
        ),
        (
            &["--database-url", "postgres://u:hunter2@127.0.0.1:1/d"],
            "postgres reachable",
        ),
        (&["--rocketmq-namesrv", "127.0.0.1:1"], "broker reachable"),
    ];
    for (setting, named) in cases {
        let output = examine(&sandbox, &[setting, &limit].concat()).await;
        assert_eq!(failed(&output), set(&[named]), "{output:?}");
        assert!(!format!("{output:?}").contains("hunter2"), "{output:?}");
        assert!(graded(&output, "ok").len() > 10, "{output:?}");
    }
    let wrong = examine(&sandbox, &["--redis-url", "hunter2"]).await;
    assert_eq!(wrong.code, Some(64));
    assert!(wrong.stderr.contains("SECKILL_REDIS_URL"), "{wrong:?}");
}

#[tokio::test]
async fn a_url_of_the_wrong_kind_is_named() {
    let sandbox = sandbox().await;
    let url = sandbox
        .redis()
        .url()
        .replace("redis://", "redis-cluster://");
    let output = examine(
        &sandbox,
        &["--redis-url", &url, "--connect-limit-ms", "500"],
    )
    .await;
    assert_eq!(failed(&output), set(&["redis reachable"]));
    let found = finding(&output, "reachable")["found"].to_string();
    assert!(found.contains("use redis://"), "{found}");

    let cluster = PrivateRedis::start_cluster().await;
    let node = cluster.nodes()[0].url();
    let output = examine(&sandbox, &["--redis-url", &node]).await;
    assert!(failed(&output).contains("redis mode"), "{output:?}");
    let whole = examine(&sandbox, &["--redis-url", &cluster.url()]).await;
    let ok = graded(&whole, "ok");
    for node in cluster.nodes() {
        let check = format!("redis cluster_state of {}", node.address());
        assert!(ok.contains(&check), "{ok:?}");
    }
}

#[tokio::test]
async fn what_an_open_activity_needs_is_checked() {
    let sandbox = sandbox().await;
    let about = ["--activity-id", "act"];
    let create = ["activity", "create", "--sku-id", "sku", "--stock", "5"];
    sandbox.ctl_ok(&[&create[..], &about].concat()).await;
    for step in ["preheat", "open"] {
        sandbox
            .ctl_ok(&[&["activity", step], &about[..]].concat())
            .await;
    }
    // A sale that nobody turns into orders is worse than an installation at rest.
    let idle = [
        "broker consumers of compensation-worker",
        "broker consumers of order-consumer",
    ];
    assert_eq!(failed(&examine(&sandbox, &[]).await), set(&idle));

    let secret = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let other = format!("7:{secret}");
    let output = examine(&sandbox, &["--hmac-secrets", &other]).await;
    assert!(failed(&output).contains("activities hmac secrets"));
    assert!(!format!("{output:?}").contains(secret), "{output:?}");

    let pointer = "seckill:activity:act:current_version";
    for damage in [
        vec!["SET", pointer, "9"],
        vec!["SET", pointer, "x"],
        vec!["DEL", pointer],
    ] {
        sandbox.redis().cli(&damage).await;
        let output = examine(&sandbox, &[]).await;
        let named = failed(&output).contains("activities current_version");
        assert!(named, "{damage:?}: {output:?}");
    }
}

/// A user of the shipped file, as one command.
fn shipped_user(name: &str) -> Vec<String> {
    let file = include_str!("../../../../deploy/redis/users.acl");
    let begin = format!("user {name}");
    let lines: Vec<&str> = file
        .lines()
        .skip_while(|line| *line != begin)
        .skip(1)
        .take_while(|line| line.starts_with(' '))
        .collect();
    assert!(!lines.is_empty(), "{name}");
    let rules = lines.join(" ");
    let mut command = vec!["ACL".to_owned(), "SETUSER".to_owned(), name.to_owned()];
    command.extend(["reset".to_owned(), "on".to_owned(), ">p".to_owned()]);
    // A pair of parentheses is one argument.
    let mut depth = 0;
    for word in rules.split_whitespace() {
        if depth == 0 {
            command.push(word.to_owned());
        } else if let Some(last) = command.last_mut() {
            *last = format!("{last} {word}");
        }
        depth += word.matches('(').count();
        depth -= word.matches(')').count();
    }
    command
}

#[tokio::test]
async fn shipped_users_have_what_they_need_and_every_right_more_or_less_is_named() {
    let sandbox = sandbox().await;
    let redis = sandbox.redis();
    let services = [
        "reservation-front",
        "outbox-scanner",
        "order-consumer",
        "compensation-worker",
        "reconciler",
        "seckillctl",
    ];
    for name in services {
        let set = redis.cli(&shipped_user(name)).await;
        assert_eq!(set, seckill_test_support::Value::Status("OK".to_owned()));
    }
    let good = examine(&sandbox, &[]).await;
    assert_eq!(failed(&good), set(&[]));
    for name in services {
        let check = format!("user {name}");
        assert_eq!(finding(&good, &check)["verdict"], "ok", "{good:?}");
    }
    for (name, rule, words) in [
        ("reconciler", "+flushall", "may FLUSHALL"),
        ("reconciler", "(+get ~*)", "may GET another-system:key"),
        ("order-consumer", "(+hset ~seckill:*)", "may HSET seckill"),
        ("reservation-front", "clearselectors", "may not EVALSHA"),
    ] {
        redis.cli(&["ACL", "SETUSER", name, rule]).await;
        let output = examine(&sandbox, &[]).await;
        assert_eq!(
            failed(&output),
            set(&[&format!("redis user {name}")]),
            "{rule}"
        );
        let found = finding(&output, &format!("user {name}"))["found"].to_string();
        assert!(found.contains(words), "{rule}: {found}");
        redis.cli(&shipped_user(name)).await;
    }
}

/// Goal: an installation that was started with the shipped file has nothing to change in it, and each
/// setting that is another one is named with what it is worth. Method: a pair of servers as shipped, the
/// doctor as its own user, requirements and advice of every form of value.
#[tokio::test]
async fn the_shipped_file_agrees_with_itself_and_every_other_setting_is_named() {
    let builder = Sandbox::builder().shipped_redis();
    let sandbox = builder
        .redis_arguments(&["--maxmemory", "1gb", "--repl-diskless-sync-delay", "1"])
        .start()
        .await;
    let primary = sandbox.redis();
    let url = primary.url_as("doctor", &RedisUsers::password("doctor"));
    let examine = async || sandbox.ctl(&["doctor", "--redis-url", &url]).await;
    let of_redis = |output: &CtlOutput| -> BTreeSet<String> {
        let grades = ["warn", "fail"].into_iter();
        let named = grades.flat_map(|grade| graded(output, grade));
        named.filter(|name| name.starts_with("redis ")).collect()
    };
    let good = examine().await;
    // What the test itself says on the command line of its servers.
    let own = set(&["redis repl-diskless-sync-delay", "redis save"]);
    let named = of_redis(&good);
    assert!(named.is_subset(&own), "{named:?}");
    let line = finding(&good, "redis.conf")["found"].to_string();
    assert!(line.contains("as shipped"), "{line}");

    for (setting, wrong, verdict) in [
        ("no-appendfsync-on-rewrite", "yes", "fail"),
        ("replica-read-only", "no", "fail"),
        ("min-replicas-to-write", "0", "fail"),
        ("repl-backlog-size", "1mb", "warn"),
        ("client-output-buffer-limit", "pubsub 0 0 0", "warn"),
        ("cluster-require-full-coverage", "yes", "warn"),
        ("lazyfree-lazy-expire", "no", "warn"),
    ] {
        let before = primary.cli(&["CONFIG", "GET", setting]).await.texts()[1].clone();
        let changed = primary.cli(&["CONFIG", "SET", setting, wrong]).await;
        assert_eq!(changed.error(), None, "{setting}");
        let output = examine().await;
        let named: BTreeSet<String> = of_redis(&output).difference(&named).cloned().collect();
        assert_eq!(named, set(&[&format!("redis {setting}")]));
        assert_eq!(finding(&output, setting)["verdict"], verdict, "{setting}");
        primary.cli(&["CONFIG", "SET", setting, &before]).await;
    }
    assert_eq!(of_redis(&examine().await), named);
}

/// Goal: what waits for somebody is told with its number and the command that shows it, and is no fault
/// of the installation. Method: letters and differences of both kinds, written as the services do.
#[tokio::test]
async fn what_waits_for_somebody_is_told_and_fails_nothing() {
    let sandbox = sandbox().await;
    let checks = [
        "dead letters",
        "differences for a person",
        "differences being mended",
    ];
    let clean = examine(&sandbox, &[]).await;
    for check in checks {
        assert_eq!(finding(&clean, check)["verdict"], "ok", "{check}");
    }
    let database = sandbox.database();
    let write = "
        INSERT INTO dead_letter (topic, consumer_group, broker_message_id, queue_id, queue_offset,
            body, properties, reason, error, attempts)
        SELECT 't', 'order-consumer', 'b-' || n, 0, n, 'x', '{}', 'undecodable', 'e', 1
        FROM generate_series(1, 3) AS n;
        WITH run AS (
            INSERT INTO reconciliation_run (kind, instance) VALUES ('holders', 'test') RETURNING run_id
        )
        INSERT INTO discrepancy (run_kind, kind, activity_id, sku_id, version, bucket_id, detail,
            first_run_id, last_run_id, repairable)
        SELECT 'holders', word, 'a', 's', 1, 0, 'd', run_id, run_id, repairable
        FROM run, (VALUES ('duplicate_order', 'NONE'), ('index_stray', 'OPERATOR'),
            ('not_settled', 'AUTOMATIC')) AS found (word, repairable)";
    database.execute(write).await;
    let output = examine(&sandbox, &[]).await;
    assert_eq!(failed(&output), set(&[]), "{output:?}");
    for (check, found, command) in [
        (checks[0], "3: 3 undecodable", "seckillctl dlq list"),
        (
            checks[1],
            "2: 1 duplicate_order; 1 index_stray",
            "seckillctl reconcile plan",
        ),
        (checks[2], "1: 1 not_settled", "seckillctl reconcile plan"),
    ] {
        let told = finding(&output, check);
        assert_eq!(
            (&told["verdict"], &told["found"]),
            (&"warn".into(), &found.into())
        );
        assert!(told["hint"].as_str().unwrap().contains(command), "{told}");
    }
    let discard = ["--apply", "--actor", "tester", "--reason", "made up"];
    let about = ["dlq", "discard", "--parked-reason", "undecodable"];
    sandbox.ctl_ok(&[&about[..], &discard].concat()).await;
    let output = examine(&sandbox, &[]).await;
    assert_eq!(finding(&output, checks[0])["verdict"], "ok");
}
