//! What PostgreSQL refuses comes back on sale, once, and its buyer is told.

use std::time::Duration;

use seckill_integration_tests::{FrontClient, Plan, Sale, Sandbox, Service};
use seckill_proto::v1::{ReservationStatus, ReserveCode};
use seckill_test_support::eventually;
use tokio::sync::mpsc;

use crate::harness::{
    SETTLES, SOON, all_reach, bucket, buy_many, is_accepted, orders, reservations,
    set_postgres_stock, tally,
};

/// Listens on the channel of units that came back.
async fn soldout_broadcasts(sandbox: &Sandbox) -> mpsc::UnboundedReceiver<String> {
    let mut subscription = sandbox.redis().connection().await.unwrap();
    subscription
        .call(&["SUBSCRIBE", "seckill:soldout"])
        .await
        .unwrap();
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(message) = subscription.read().await {
            let parts = message.texts();
            if sender.send(parts[2].clone()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// BIZ-03, BIZ-05, PG-18: two of four buyers are refused; their units are announced, sold again to
/// a stranger and to one of the refused, under a new request, at both of two fronts.
#[tokio::test(flavor = "multi_thread")]
async fn refused_units_come_back_on_sale() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(4)).await;
    set_postgres_stock(&sandbox, &sale, 2).await;
    let mut broadcasts = soldout_broadcasts(&sandbox).await;
    let services = sandbox.run_all().await;
    // It sees that the test has taken units from PostgreSQL alone.
    services
        .reconciler
        .allow_errors("redis and postgresql differ");
    let second = sandbox.service(Service::Front).instance(2).start().await;
    let (client, other) = (sandbox.client(&services.front), sandbox.client(&second));
    // The consumer waits, so that all four are accepted and both fronts know that nothing is left.
    services.consumer.pause();
    let bought = buy_many(&client, &sale, "u", 4).await;
    for client in [&client, &other] {
        let refused = client.reserve(&sale, "late", "late").await.unwrap();
        assert_eq!(refused.code(), ReserveCode::SoldOut);
    }
    services.consumer.resume();

    assert_two_come_back(&sandbox, &sale, &mut broadcasts).await;
    let loser = assert_losers_are_told(&sandbox, &sale, &client, &bought).await;
    set_postgres_stock(&sandbox, &sale, 4).await;
    // Both fronts had seen the sale sold out, and sell again at once.
    for (client, user) in [(&client, loser.as_str()), (&other, "stranger")] {
        let request = format!("second-{user}");
        eventually(Duration::from_secs(2), "a unit on sale", async || {
            let answer = client.reserve(&sale, user, &request).await.unwrap();
            if is_accepted(answer.code) {
                Ok(())
            } else {
                Err(format!("{answer:?}"))
            }
        })
        .await;
    }
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 4);
    let history =
        format!("SELECT kind FROM reservation_decision WHERE user_id = '{loser}' ORDER BY 1");
    assert_eq!(
        sandbox.database().texts(&history).await,
        [["ORDERED"], ["REJECTED"]]
    );
    let audit = sandbox.audit(&sale, &["--require-settled"]).await;
    assert_eq!(audit.code, Some(0), "{audit:?}");
}

/// Two units are announced and back on sale, and nobody but the two with orders is marked.
async fn assert_two_come_back(
    sandbox: &Sandbox,
    sale: &Sale,
    broadcasts: &mut mpsc::UnboundedReceiver<String>,
) {
    let tag = bucket(sandbox, sale, 0).await.tag;
    for _ in 0..2 {
        let announced = tokio::time::timeout(SOON, broadcasts.recv()).await;
        assert_eq!(announced.unwrap().as_deref(), Some(tag.as_str()));
    }
    eventually(SOON, "two orders and two releases", async || {
        let now = tally(sandbox, sale).await;
        let wanted = [("ORDER_CREATED".to_owned(), 2), ("RELEASED".to_owned(), 2)];
        if now == wanted.into() {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
    let state = bucket(sandbox, sale, 0).await;
    assert_eq!(
        (&*state.stock["available"], &*state.stock["reserved"]),
        ("2", "2")
    );
    assert_eq!(state.stock["released_total"], "2");
    assert_eq!(
        state.markers.len(),
        2,
        "only orders keep their buyers' markers"
    );
    let exists = sandbox
        .redis()
        .cli(&["EXISTS", &sale.key(0, "soldout")])
        .await;
    assert_eq!(exists.int(), 0, "the sold-out mark is gone");
}

/// BIZ-03: whoever was refused learns it from a repeat and from a query; returns one of them.
async fn assert_losers_are_told(
    sandbox: &Sandbox,
    sale: &Sale,
    client: &FrontClient,
    bought: &std::collections::BTreeMap<String, String>,
) -> String {
    let states = reservations(sandbox, sale).await;
    let mut losers = Vec::new();
    for (user, id) in bought {
        if states[id]["status"] != "RELEASED" {
            continue;
        }
        assert_eq!(states[id]["release_reason"], "STOCK_EXHAUSTED");
        let again = client
            .repeat(sale, user, &format!("req-{user}"))
            .await
            .unwrap();
        assert_eq!(&again.reservation_id, id);
        assert_eq!(again.status(), ReservationStatus::Released);
        assert!(again.replay);
        let found = [
            client.by_reservation(sale, user, id).await.unwrap(),
            client
                .by_request(sale, user, &format!("req-{user}"))
                .await
                .unwrap(),
        ];
        for found in found {
            assert_eq!(found.status(), ReservationStatus::Released);
            assert_eq!(found.reason, "STOCK_EXHAUSTED");
        }
        losers.push(user.clone());
    }
    assert_eq!(losers.len(), 2, "{states:?}");
    losers.remove(0)
}

/// PG-01: an order that another channel made stands in one buyer's way. It is refused once, within
/// the batch of others that are not. MQ-07: the consumer's group did not exist when they were sent.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_from_elsewhere_refuses_one_buyer_of_a_batch() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(30)).await;
    let foreign = format!(
        "INSERT INTO orders (reservation_id, request_id, user_id, activity_id, sku_id, version,
                             bucket_id, quantity, updated_by)
         VALUES ('elsewhere', 'elsewhere', 'u-7', '{}', '{}', {}, 0, 1, 'another channel')",
        sale.activity_id,
        sale.sku_id,
        sale.version + 100
    );
    sandbox.database().execute(&foreign).await;
    let (front, scanner, compensation) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Compensation),
    );
    let client = sandbox.client(&front);
    // All of them wait in the queues, so that they come in few batches.
    let bought = buy_many(&client, &sale, "u", 20).await;
    all_reach(&sandbox, &sale, "ENQUEUED", 20).await;
    let consumer = sandbox.run(Service::Consumer).await;
    eventually(SETTLES, "nineteen orders and one release", async || {
        let now = tally(&sandbox, &sale).await;
        let wanted = [("ORDER_CREATED".to_owned(), 19), ("RELEASED".to_owned(), 1)];
        if now == wanted.into() {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
    let states = reservations(&sandbox, &sale).await;
    assert_eq!(states[&bought["u-7"]]["release_reason"], "USER_HAS_ORDER");
    // The next message finds a consumer in order.
    client.buy(&sale, "next", "next").await;
    sandbox.settle(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 20);
    let stock = "SELECT available::text, sold::text FROM activity_stock";
    assert_eq!(sandbox.database().texts(stock).await, [["10", "20"]]);
    let log = consumer.log_text();
    assert!(
        !log.contains("25P02"),
        "a statement ran in a failed transaction"
    );
    // What the test has made by hand is no business of the checks.
    let undo = "DELETE FROM orders WHERE reservation_id = 'elsewhere'";
    sandbox.database().execute(undo).await;
    sandbox.assert_settles_consistent(SETTLES).await;
    for service in [&front, &scanner, &consumer, &compensation] {
        service.stop(SOON).await;
    }
}
