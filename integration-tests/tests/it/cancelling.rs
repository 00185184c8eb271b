//! Orders that an operator cancels: their units are sold again, whatever dies or is lost on the way.

use seckill_integration_tests::{CtlOutput, Plan, Sandbox, Service};
use seckill_proto::v1::{ReservationStatus, ReserveCode};
use seckill_test_support::eventually;

use crate::harness::{
    SETTLES, SOON, all_reach, bucket, fall_back, is_accepted, orders, reaches, remember, resend,
    reservations,
};

async fn order_of(sandbox: &Sandbox, reservation_id: &str) -> String {
    let query = format!("SELECT order_id FROM orders WHERE reservation_id = '{reservation_id}'");
    sandbox.database().texts(&query).await[0][0].clone()
}

async fn cancel(sandbox: &Sandbox, name: [&str; 2]) -> CtlOutput {
    let [flag, id] = name;
    let who = ["--actor", "tester", "--reason", "not paid"];
    let mut arguments = vec!["order", "cancel", flag, id];
    arguments.extend(who);
    sandbox.ctl(&arguments).await
}

/// Goal: a cancelled order's unit is sold again, by both stores' books, and its buyer is told. A second
/// cancellation, by the order or by its reservation, changes nothing, and one of nothing ends with 1.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_order_is_sold_again() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(1)).await;
    let services = sandbox.run_all().await;
    let client = sandbox.client(&services.front);
    let id = client.buy(&sale, "u1", "q1").await;
    sandbox.settle(SETTLES).await;
    let refused = client.reserve(&sale, "u2", "q2").await.unwrap();
    assert_eq!(refused.code(), ReserveCode::SoldOut);

    let order = order_of(&sandbox, &id).await;
    let first = cancel(&sandbox, ["--order-id", &order]).await;
    assert_eq!(first.code, Some(0), "{first:?}");
    let told = first.json();
    assert_eq!(
        (&told["outcome"], &told["units_given_back"]),
        (&"cancelled".into(), &1.into())
    );
    assert_eq!(told["reservation_id"], id);
    for name in [["--order-id", &order], ["--reservation-id", &id]] {
        let again = cancel(&sandbox, name).await;
        assert_eq!(again.code, Some(0), "{again:?}");
        assert_eq!(again.json()["outcome"], "already_cancelled");
        assert_eq!(again.json()["units_given_back"], 0);
    }
    let unknown = cancel(&sandbox, ["--order-id", "no-such-order"]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert_eq!(unknown.json()["outcome"], "not_found");

    reaches(&sandbox, &sale, &id, "ORDER_CANCELLED").await;
    let found = client.by_reservation(&sale, "u1", &id).await.unwrap();
    assert_eq!(found.status(), ReservationStatus::OrderCancelled);
    eventually(SOON, "the unit on sale again", async || {
        let answer = client.reserve(&sale, "u2", "second").await.unwrap();
        if is_accepted(answer.code) {
            Ok(())
        } else {
            Err(format!("{answer:?}"))
        }
    })
    .await;
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 1);
    let audit = sandbox.audit(&sale, &["--require-settled"]).await;
    assert_eq!(audit.code, Some(0), "{audit:?}");
    for service in services.all() {
        service.stop(SOON).await;
    }
}

/// M2. Goal: the worker's death between the cancellation and the restock, and a failover that undoes the
/// restock, leave no unit that never sells again. Method: no worker runs at first; then Redis falls back
/// to before the restock, after its task was closed, and a duplicate of the message arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_survives_a_dead_worker_and_a_failover_that_undoes_it() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(3)).await;
    let (front, scanner, consumer, worker) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation),
    );
    let client = sandbox.client(&front);
    let id = client.buy(&sale, "u1", "q1").await;
    client.buy(&sale, "u2", "q2").await;
    sandbox.settle(SETTLES).await;
    worker.kill();
    let done = cancel(&sandbox, ["--reservation-id", &id]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    remember(&sandbox).await;
    let held = reservations(&sandbox, &sale).await[&id].clone();
    assert_eq!(
        held["status"], "ORDER_CREATED",
        "nobody has restocked it yet"
    );

    let worker = sandbox
        .service(Service::Compensation)
        .instance(2)
        .start()
        .await;
    reaches(&sandbox, &sale, &id, "ORDER_CANCELLED").await;
    sandbox.settle(SETTLES).await;
    let stock = bucket(&sandbox, &sale, 0).await.stock;
    assert_eq!((&*stock["available"], &*stock["reserved"]), ("2", "1"));

    fall_back(&sandbox).await;
    assert_eq!(bucket(&sandbox, &sale, 0).await.stock["available"], "1");
    resend(&sandbox, &held);
    reaches(&sandbox, &sale, &id, "ORDER_CANCELLED").await;
    sandbox.assert_settles_consistent(SETTLES).await;
    let stock = bucket(&sandbox, &sale, 0).await.stock;
    assert_eq!((&*stock["available"], &*stock["reserved"]), ("2", "1"));
    for service in [&front, &scanner, &consumer, &worker] {
        service.stop(SOON).await;
    }
}

/// Goal: a cancellation while Redis has lost the purchase records its end there, so that the buyer's
/// repeat takes no unit, and a buyer who comes new can have it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_order_that_is_cancelled_is_recorded_as_ended() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(1)).await;
    let (front, scanner, consumer) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Consumer),
    );
    let client = sandbox.client(&front);
    remember(&sandbox).await;
    let id = client.buy(&sale, "u1", "q1").await;
    all_reach(&sandbox, &sale, "ORDER_CREATED", 1).await;
    let done = cancel(&sandbox, ["--reservation-id", &id]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    fall_back(&sandbox).await;
    let worker = sandbox.run(Service::Compensation).await;
    reaches(&sandbox, &sale, &id, "ORDER_CANCELLED").await;
    let repeat = client.repeat(&sale, "u1", "q1").await.unwrap();
    assert_eq!(repeat.status(), ReservationStatus::OrderCancelled);
    assert_eq!(bucket(&sandbox, &sale, 0).await.stock["available"], "1");
    client.buy(&sale, "u2", "q2").await;
    sandbox.assert_settles_consistent(SETTLES).await;
    for service in [&front, &scanner, &consumer, &worker] {
        service.stop(SOON).await;
    }
}
