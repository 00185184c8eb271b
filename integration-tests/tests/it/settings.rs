//! Wrong settings are named, whichever executable they are given to, and secrets stay secret
//! (OPS-05). The front has tests of its own for most of this.

use seckill_integration_tests::{Plan, Sandbox, Service};
use seckill_test_support::{ServiceBuilder, ServiceProcess, eventually};

use crate::harness::SOON;

const PASSWORD: &str = "hunter2-is-secret";

/// A setting that only this service has, with a value that it cannot have.
const fn of_its_own(service: Service) -> (&'static str, &'static str) {
    match service {
        Service::Front => ("SECKILL_FRONT_SEND_RETRY_MS", "-5"),
        Service::Scanner => ("SECKILL_OUTBOX_SCANNER_LEASE_MS", "-5"),
        Service::Consumer => ("SECKILL_ORDER_CONSUMER_PATIENCE_MS", "-5"),
        Service::Compensation => ("SECKILL_COMPENSATION_WORKER_TASK_INTERVAL_MS", "-5"),
        Service::Reconciler => ("SECKILL_RECONCILER_GRACE_MS", "-5"),
    }
}

async fn assert_refused(builder: ServiceBuilder, setting: &str, what: &str) {
    let finished = builder.run(SOON).await;
    let said = format!("{}{}", finished.stdout, finished.stderr);
    assert_eq!(finished.code, Some(64), "{what}: {said}");
    assert!(said.contains(setting), "{what}: {said}");
    assert!(!said.contains(PASSWORD), "{what}: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_service_names_a_wrong_setting_and_exits_64() {
    let url = format!("postgres://seckill:{PASSWORD}@127.0.0.1:1/none");
    let service = |name: &str| {
        ServiceProcess::builder(name)
            .env("SECKILL_REDIS_URL", "redis://127.0.0.1:1")
            .env("SECKILL_DATABASE_URL", &url)
            .env("SECKILL_ROCKETMQ_NAMESRV", "127.0.0.1:1")
            .env(
                "SECKILL_HMAC_SECRETS",
                "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            )
    };
    let wrong = [
        ("SECKILL_DATABASE_POOL_SIZE", "0"),
        ("SECKILL_DATABASE_URL", "mysql://u:hunter2-is-secret@h/d"),
        ("SECKILL_REDIS_URL", "redis//hunter2-is-secret@h"),
        ("SECKILL_REDIS_COMMAND_TIMEOUT_MS", "-1"),
        ("SECKILL_GRACE_PERIOD_MS", "soon"),
    ];
    for one in Service::ALL {
        let name = one.name();
        for (setting, value) in wrong.into_iter().chain([of_its_own(one)]) {
            let builder = service(name).env(setting, value);
            assert_refused(builder, setting, &format!("{name} with {setting}={value}")).await;
        }
        let builder = service(name).without_env("SECKILL_DATABASE_URL");
        assert_refused(builder, "SECKILL_DATABASE_URL", name).await;
        let builder = service(name).arg("--no-such-flag");
        assert_refused(builder, "--no-such-flag", name).await;
    }
    let secret = "SECKILL_HMAC_SECRETS";
    for value in ["", "1:", "1:hunter2-is-secret"] {
        let builder = service("reservation-front").env(secret, value);
        assert_refused(builder, secret, &format!("{secret}={value}")).await;
    }
    let builder = service("seckillctl")
        .env("SECKILL_DATABASE_POOL_SIZE", "0")
        .arg("migrate");
    assert_refused(builder, "SECKILL_DATABASE_POOL_SIZE", "seckillctl migrate").await;
}

/// Awaits that a dependency is named on `/readyz` with a text that leads to the mistake.
async fn assert_not_ready(service: &ServiceProcess, dependency: &str, hint: &str) {
    eventually(SOON, "the mistake is named", async || {
        let reply = service.readyz().await.map_err(|error| error.to_string())?;
        let report: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        let found = report["dependencies"][dependency].clone();
        let message = found["message"].as_str().unwrap_or_default().to_lowercase();
        if reply.status == 503 && found["up"] == false && message.contains(hint) {
            Ok(())
        } else {
            Err(format!("{}: {}", service.name(), reply.body))
        }
    })
    .await;
    assert!(service.is_running());
    assert!(
        !service.log_text().contains(PASSWORD),
        "{} tells a secret",
        service.name()
    );
}

/// What only a server can find out: a wrong password, a schema that is not there, a Redis of the
/// other kind. The service waits, is not ready, and says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_that_only_a_server_can_see_is_named_by_readiness() {
    let sandbox = Sandbox::builder().start_empty().await;
    let url = sandbox.database().url().to_owned();
    let (user, rest) = url
        .strip_prefix("postgres://")
        .unwrap()
        .split_once(':')
        .unwrap();
    let (_, place) = rest.split_once('@').unwrap();
    let wrong_password = format!("postgres://{user}:{PASSWORD}@{place}");
    let wrong_redis = format!("redis-cluster://{}", sandbox.redis().address());
    let workers = [
        Service::Scanner,
        Service::Consumer,
        Service::Compensation,
        Service::Reconciler,
    ];
    for service in workers {
        let start = |instance: u32, changes: &[(&str, &str)]| {
            let builder = sandbox.service(service).instance(instance).allow_errors("");
            builder.envs(changes.iter().copied()).spawn()
        };
        let unmigrated = start(1, &[]);
        let stranger = start(2, &[("SECKILL_DATABASE_URL", &wrong_password)]);
        let other_mode = start(3, &[("SECKILL_REDIS_URL", &wrong_redis)]);
        for process in [&unmigrated, &stranger, &other_mode] {
            process.wait_until_open().await;
        }
        assert_not_ready(&unmigrated, "postgres", "schema").await;
        assert_not_ready(&stranger, "postgres", "password").await;
        assert_not_ready(&other_mode, "redis", "redis").await;
        other_mode
            .wait_for_log("cluster support disabled", SOON)
            .await;
    }
}

/// Terms that no sale can have are refused before anything is stored.
#[tokio::test(flavor = "multi_thread")]
async fn an_activity_with_impossible_terms_is_refused_by_name() {
    let sandbox = Sandbox::start().await;
    let wrong = [
        ("--reservation-ttl-ms", "-1", "reservation_ttl_ms"),
        ("--reservation-ttl-ms", "3600001", "reservation_ttl_ms"),
        ("--stock", "0", "stock"),
        ("--buckets", "0", "buckets"),
        ("--patience-ms", "-1", "patience_ms"),
    ];
    for (flag, value, name) in wrong {
        let mut arguments = vec!["activity", "create", "--activity-id", "a", "--sku-id", "s"];
        if flag != "--stock" {
            arguments.extend(["--stock", "10"]);
        }
        let given = format!("{flag}={value}");
        arguments.push(&given);
        let output = sandbox.ctl(&arguments).await;
        assert_eq!(output.code, Some(64), "{flag} {value}: {output:?}");
        assert!(output.stderr.contains(name), "{flag} {value}: {output:?}");
    }
    let stored = sandbox
        .database()
        .number("SELECT count(*) FROM activity")
        .await;
    assert_eq!(stored, 0);
    // The very same with terms that can be kept.
    sandbox.open(&Plan::new(10)).await;
}
