//! Everything is down when the services start, and comes up bit by bit (OPS-01).

use std::time::Duration;

use seckill_integration_tests::{Plan, Sandbox, Service};
use seckill_test_support::{Mode, all_ready, at_length, eventually};
use tonic::Code;

use crate::harness::{SETTLES, SOON, orders};

/// From the last dependency's return to readiness.
const READY: Duration = Duration::from_secs(30);

/// From one dependency's return to the next one's, in a soak.
const APART: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dependency {
    Redis,
    Postgres,
    Broker,
}

fn set(sandbox: &Sandbox, dependency: Dependency, mode: Mode) {
    match dependency {
        Dependency::Redis => sandbox.redis_proxy().set_mode(mode),
        Dependency::Postgres => sandbox.postgres_proxy().set_mode(mode),
        Dependency::Broker => {
            sandbox.namesrv_proxy().set_mode(mode);
            sandbox.broker_proxy().set_mode(mode);
        }
    }
}

/// Whether a service can do its work without one that is still down.
const fn needs(service: Service, dependency: Dependency) -> bool {
    match service {
        Service::Front => matches!(dependency, Dependency::Redis),
        Service::Reconciler => matches!(dependency, Dependency::Redis | Dependency::Postgres),
        Service::Scanner | Service::Consumer | Service::Compensation => true,
    }
}

/// Starts all five services with everything down, brings the three up in this order, and buys.
async fn comes_up_in_order(order: [Dependency; 3]) {
    let sandbox = Sandbox::builder()
        .redis_proxy()
        .postgres_proxy()
        .broker_proxy()
        .start()
        .await;
    let sale = sandbox.open(&Plan::new(3)).await;
    for dependency in order {
        set(&sandbox, dependency, Mode::Refuse);
    }
    let services = Service::ALL.map(|service| {
        let process = sandbox.service(service).spawn();
        process.allow_errors("");
        process
    });
    for process in &services {
        process.wait_until_open().await;
    }
    let pids = services.each_ref().map(|process| process.pid());
    let client = sandbox.client(&services[0]);
    let refused = client.reserve(&sale, "early", "early").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");

    let mut down = order.to_vec();
    while let Some(dependency) = down.first().copied() {
        for (service, process) in Service::ALL.into_iter().zip(&services) {
            assert!(process.is_running(), "{} has ended", process.name());
            let missing = down.iter().any(|dependency| needs(service, *dependency));
            let status = process.readyz().await.unwrap().status;
            assert!(
                !missing || status == 503,
                "{} is {status} without {down:?}",
                process.name()
            );
        }
        tokio::time::sleep(at_length(Duration::ZERO, APART)).await;
        set(&sandbox, dependency, Mode::Forward);
        down.remove(0);
        // Whoever needs no more than what is up is ready in time.
        for (service, process) in Service::ALL.into_iter().zip(&services) {
            if !down.iter().any(|dependency| needs(service, *dependency)) {
                process.wait_until_ready(READY).await;
            }
        }
    }
    all_ready(&services.each_ref(), READY).await;
    let bought = eventually(SOON, "a purchase", async || {
        let answer = client.reserve(&sale, "buyer", "buyer").await;
        answer.map(|answer| answer.code)
    })
    .await;
    assert_eq!(bought, 1);
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 1);
    for (process, pid) in services.iter().zip(pids) {
        assert_eq!(process.pid(), pid);
        process.stop(SOON).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_then_postgres_then_the_broker() {
    comes_up_in_order([Dependency::Redis, Dependency::Postgres, Dependency::Broker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_then_redis_then_postgres() {
    comes_up_in_order([Dependency::Broker, Dependency::Redis, Dependency::Postgres]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_then_the_broker_then_redis() {
    comes_up_in_order([Dependency::Postgres, Dependency::Broker, Dependency::Redis]).await;
}
