//! The kit itself, on real servers: what the other tests rely on.

use std::time::Duration;

use seckill_integration_tests::{Plan, Sandbox, Service};
use seckill_proto::v1::ReserveCode;
use seckill_test_support::{Dir, Mode, Sever};

const SOON: Duration = Duration::from_secs(30);

/// Goal: one purchase through all five services and all three proxies, settled and consistent.
#[tokio::test(flavor = "multi_thread")]
async fn one_purchase_passes_every_proxy_and_settles() {
    let sandbox = Sandbox::builder()
        .redis_proxy()
        .postgres_proxy()
        .broker_proxy()
        .start()
        .await;
    let sale = sandbox.open(&Plan::new(3)).await;
    let services = sandbox.run_all().await;
    let client = sandbox.client(&services.front);
    let reservation = client.buy(&sale, "u1", "q1").await;
    let again = client.reserve(&sale, "u1", "q1").await.unwrap();
    assert_eq!(again.code, i32::from(ReserveCode::Accepted));
    assert_eq!(again.reservation_id, reservation);
    sandbox.assert_settles_consistent(SOON).await;
    let orders = "SELECT count(*) FROM orders WHERE state = 'ACTIVE'";
    assert_eq!(sandbox.database().number(orders).await, 1);
    for proxy in [
        sandbox.redis_proxy(),
        sandbox.postgres_proxy(),
        sandbox.broker_proxy(),
        sandbox.namesrv_proxy(),
    ] {
        let counters = proxy.counters();
        assert!(counters.frames(Dir::ToServer) > 0, "{proxy:?}");
        assert_eq!(counters.malformed, 0, "{proxy:?}");
    }
    let audit = sandbox.audit(&sale, &["--require-settled"]).await;
    assert_eq!(audit.code, Some(0), "{audit:?}");
    for service in services.all() {
        service.stop(SOON).await;
    }
}

/// Goal: a dependency that goes away and comes back is seen in `/readyz`, and the process stays.
#[tokio::test(flavor = "multi_thread")]
async fn readiness_follows_a_dependency_behind_its_proxy() {
    let sandbox = Sandbox::builder().redis_proxy().start().await;
    let front = sandbox.run(Service::Front).await;
    front.allow_errors("");
    sandbox.redis_proxy().set_mode(Mode::Refuse);
    front.wait_until_unready(SOON).await;
    sandbox.redis_proxy().set_mode(Mode::Forward);
    front.wait_until_ready(SOON).await;
    sandbox.redis_proxy().sever_all(Sever::Reset);
    front.wait_until_ready(SOON).await;
    front.stop(SOON).await;
}
