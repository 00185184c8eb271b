//! A new version of an activity is opened while the old one is not finished.

use seckill_integration_tests::{Plan, Sandbox, Service};
use seckill_proto::v1::ReserveCode;
use seckill_test_support::{Mode, eventually};

use crate::harness::{
    SETTLES, SOON, all_reach, bucket, buy_many, is_accepted, orders, reservations,
    set_postgres_stock,
};

/// OBX-07: forty reservations of version 7, over all four buckets, wait for a broker that is away;
/// version 8 is opened and every process restarted. All forty become orders.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_versions_backlog_is_sent_from_all_buckets() {
    const PENDING: usize = 40;
    let sandbox = Sandbox::builder().broker_proxy().start().await;
    let old = sandbox.open(&Plan::new(400).version(7).buckets(4)).await;
    sandbox.broker_proxy().set_mode(Mode::Refuse);
    let front = sandbox.run(Service::Front).await;
    let client = sandbox.client(&front);
    buy_many(&client, &old, "old", PENDING).await;
    for number in 0..4 {
        let filled = bucket(&sandbox, &old, number).await.reservations.len();
        assert!(filled > 0, "bucket {number} has its share");
    }
    let closed = sandbox.step(&old, "close").await;
    assert_eq!(closed.code, Some(0), "{closed:?}");
    let new = sandbox
        .open(&Plan::next_version_of(&old, 400).buckets(4))
        .await;
    front.kill();
    let front = front.restart().await;
    sandbox.broker_proxy().set_mode(Mode::Forward);

    let (scanner, consumer, compensation, reconciler) = tokio::join!(
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation),
        sandbox.run(Service::Reconciler),
    );
    let client = sandbox.client(&front);
    let late = client.reserve(&old, "late", "late").await.unwrap();
    assert_eq!(late.code(), ReserveCode::VersionMismatch);
    buy_many(&client, &new, "new", 10).await;
    all_reach(&sandbox, &old, "ORDER_CREATED", PENDING).await;
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(
        orders(&sandbox, &old).await,
        i64::try_from(PENDING).unwrap()
    );
    assert_eq!(orders(&sandbox, &new).await, 10);
    for service in [&front, &scanner, &consumer, &compensation, &reconciler] {
        service.stop(SOON).await;
    }
}

/// BIZ-06: a client uses the request ids of version 7 again on version 8. Whoever has an order is
/// refused by PostgreSQL, whoever was refused on 7 gets one; nothing of version 7 changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_used_again_on_the_next_version_is_another_purchase() {
    let sandbox = Sandbox::start().await;
    let old = sandbox.open(&Plan::new(2).version(7)).await;
    set_postgres_stock(&sandbox, &old, 1).await;
    let services = sandbox.run_all().await;
    services
        .reconciler
        .allow_errors("redis and postgresql differ");
    let client = sandbox.client(&services.front);
    let ordered = client.buy(&old, "first", "q-first").await;
    all_reach(&sandbox, &old, "ORDER_CREATED", 1).await;
    let refused = client.buy(&old, "second", "q-second").await;
    sandbox.settle(SETTLES).await;
    let before = reservations(&sandbox, &old).await;
    assert_eq!(before[&ordered]["status"], "ORDER_CREATED");
    assert_eq!(before[&refused]["status"], "RELEASED");

    assert_eq!(sandbox.step(&old, "close").await.code, Some(0));
    let new = sandbox.open(&Plan::next_version_of(&old, 2)).await;
    let mut again = Vec::new();
    for (user, request, old_id) in [
        ("first", "q-first", &ordered),
        ("second", "q-second", &refused),
    ] {
        // The front keeps the current version for a second.
        let answer = eventually(SOON, "the new version sells", async || {
            let answer = client.reserve(&new, user, request).await.unwrap();
            if is_accepted(answer.code) {
                Ok(answer)
            } else {
                Err(format!("{answer:?}"))
            }
        })
        .await;
        assert_ne!(&answer.reservation_id, old_id);
        again.push(answer.reservation_id);
    }
    sandbox.assert_settles_consistent(SETTLES).await;
    let after = reservations(&sandbox, &new).await;
    assert_eq!(after[&again[0]]["status"], "RELEASED");
    assert_eq!(after[&again[0]]["release_reason"], "USER_HAS_ORDER");
    assert_eq!(after[&again[1]]["status"], "ORDER_CREATED");
    assert_eq!(reservations(&sandbox, &old).await, before);
    assert_eq!(
        (orders(&sandbox, &old).await, orders(&sandbox, &new).await),
        (1, 1)
    );
}
