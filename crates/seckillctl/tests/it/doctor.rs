//! The doctor against real servers: a good installation passes, and each planted mistake is named.

use std::collections::BTreeSet;

use seckill_integration_tests::{CtlOutput, Sandbox};
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
