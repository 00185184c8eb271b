//! Cancelling an order: one effect however often it is asked for, and no unit lost or invented
//! whoever else is at work.

use std::collections::BTreeMap;

use seckill_order_store::{CancelOutcome, Decided, ErrorKind, Fence, TaskOrigin};
use seckill_state_machine::{OrderEventKind, OrderId, OrderRequest, OrderState, Quantity};

use crate::fixture::{Fixture, PATIENCE, fresh, request, sale, scope, settings};

async fn ordered(sale: &Fixture, request: &OrderRequest) -> OrderId {
    match sale.decide(request).await {
        Decided::Ordered { order_id, .. } => order_id,
        other => panic!("{other:?}"),
    }
}

async fn cancel(sale: &Fixture, id: &OrderId) -> CancelOutcome {
    sale.store.cancel_order(id, "ann", "unpaid").await.unwrap()
}

/// Goal: everything that a cancellation means is there after one commit, and once.
#[tokio::test]
async fn a_cancelled_order_gives_its_units_back_once() {
    let sale = sale(5, 1).await;
    let mut asked = sale.request(1);
    asked.quantity = Quantity::new(3).unwrap();
    let id = ordered(&sale, &asked).await;
    assert_eq!(sale.stock().await, (2, 3));

    let CancelOutcome::Cancelled(record) = cancel(&sale, &id).await else {
        panic!("not cancelled")
    };
    assert_eq!(record.order, Some((id.clone(), OrderState::Cancelled)));
    assert_eq!(record.order_request(), asked);
    let again = cancel(&sale, &id).await;
    assert_eq!(again, CancelOutcome::AlreadyCancelled(record));
    assert_eq!(sale.stock().await, (5, 0));
    sale.assert_conserved().await;

    let order = sale
        .db
        .texts("SELECT state, cancel_reason, cancelled_by FROM orders")
        .await;
    assert_eq!(order, [["CANCELLED", "unpaid", "ann"]]);
    let journal = sale
        .db
        .texts("SELECT kind, delta FROM stock_ledger ORDER BY entry_id")
        .await;
    assert_eq!(
        journal,
        [["INITIAL", "5"], ["ORDERED", "-3"], ["CANCELLED", "3"]]
    );
    let tasks = sale.store.claim_tasks(10, PATIENCE).await.unwrap();
    assert_eq!(tasks.len(), 1);
    assert_eq!(
        (tasks[0].origin, tasks[0].generation),
        (TaskOrigin::Cancelled, 1)
    );
    let fence = sale.store.fence(&tasks[0]).await.unwrap();
    let cancelled = Fence::Ordered {
        order_id: id.clone(),
        state: OrderState::Cancelled,
    };
    assert_eq!(fence, cancelled);

    let events = sale.store.claim_outbox(10, PATIENCE).await.unwrap();
    let kinds: Vec<_> = events.iter().map(|row| row.event.kind.clone()).collect();
    assert_eq!(
        kinds,
        [
            OrderEventKind::OrderCreated {
                order_id: id.clone()
            },
            OrderEventKind::OrderCancelled { order_id: id }
        ]
    );
    let event_id = format!("order-cancelled:{}:v1", asked.reservation_id);
    assert_eq!(events[1].event_id, event_id);
    assert_eq!(events[1].event.traceparent, asked.traceparent);
}

#[tokio::test]
async fn the_units_and_the_user_of_a_cancelled_order_are_free_again() {
    let sale = sale(1, 1).await;
    let id = ordered(&sale, &sale.request(1)).await;
    cancel(&sale, &id).await;
    let mut second = sale.request(2);
    second.user_id = sale.request(1).user_id;
    assert!(fresh(&sale.decide(&second).await));
    // The first message comes once more: it is what it was.
    let late = sale.decide(&sale.request(1)).await;
    let cancelled = Decided::Ordered {
        order_id: id,
        fresh: false,
        cancelled: true,
    };
    assert_eq!(late, cancelled);
    sale.assert_conserved().await;
}

#[tokio::test]
async fn what_is_no_order_cannot_be_cancelled() {
    let sale = sale(1, 1).await;
    for id in ["4a5f1a3e-6d7c-4c2f-8f3a-1de2a7a3c9aa", "no-order"] {
        let id = OrderId::parse(id).unwrap();
        assert_eq!(cancel(&sale, &id).await, CancelOutcome::NotFound);
        for (actor, reason) in [("", "unpaid"), ("ann", "")] {
            let error = sale.store.cancel_order(&id, actor, reason).await;
            assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 0);
}

/// Goal: a task whose restock a failover undid is opened again, and an open one is left alone.
#[tokio::test]
async fn the_task_of_a_cancelled_order_can_be_reopened() {
    let sale = sale(1, 1).await;
    let asked = sale.request(1);
    let id = ordered(&sale, &asked).await;
    cancel(&sale, &id).await;
    for generation in 1..=3 {
        sale.store.reopen_cancelled(&asked).await.unwrap();
        let task = sale.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
        assert_eq!(
            (task.origin, task.generation),
            (TaskOrigin::Cancelled, generation)
        );
        sale.store.reopen_cancelled(&asked).await.unwrap();
        assert!(sale.store.finish_task(&task, "cancelled").await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_of_one_order_at_once_have_one_effect() {
    let sale = sale(30, 1).await;
    for n in 0..20 {
        let id = ordered(&sale, &sale.request(n)).await;
        let mut racing = Vec::new();
        for _ in 0..6 {
            let (store, id) = (sale.store.clone(), id.clone());
            racing.push(tokio::spawn(async move {
                store.cancel_order(&id, "ann", "unpaid").await.unwrap()
            }));
        }
        let mut won = 0;
        for race in racing {
            match race.await.unwrap() {
                CancelOutcome::Cancelled(_) => won += 1,
                CancelOutcome::AlreadyCancelled(_) => {}
                CancelOutcome::NotFound => panic!("the order is there"),
            }
        }
        assert_eq!(won, 1);
    }
    assert_eq!(sale.stock().await, (30, 0));
    assert_eq!(
        sale.db
            .number("SELECT count(*) FROM stock_ledger WHERE kind = 'CANCELLED'")
            .await,
        20
    );
    assert_eq!(
        sale.db
            .number("SELECT count(*) FROM outbox WHERE kind = 'ORDER_CANCELLED'")
            .await,
        20
    );
    sale.assert_conserved().await;
}

/// Goal: a cancellation that a deciding consumer meets takes its turn, and the consumer sees what it
/// left. Method: somebody holds the stock row until both wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_and_a_cancellation_that_meet_take_turns() {
    let sale = sale(1, 1).await;
    let id = ordered(&sale, &sale.request(1)).await;
    let holder = sale.db.client().await;
    holder
        .batch_execute("BEGIN; SELECT FROM activity_stock FOR NO KEY UPDATE")
        .await
        .unwrap();
    let cancelling = tokio::spawn({
        let (store, id) = (sale.store.clone(), id.clone());
        async move { store.cancel_order(&id, "ann", "unpaid").await }
    });
    sale.await_lock_waits(1).await;
    let deciding = tokio::spawn({
        let (store, asked) = (sale.store.clone(), sale.request(2));
        async move { store.decide(&[asked]).await }
    });
    sale.await_lock_waits(2).await;
    holder.batch_execute("COMMIT").await.unwrap();
    let outcome = cancelling.await.unwrap().unwrap();
    assert!(matches!(outcome, CancelOutcome::Cancelled(_)));
    let decided = crate::fixture::one(deciding.await.unwrap());
    assert!(fresh(&decided), "{decided:?}");
    assert_eq!(sale.stock().await, (0, 1));
    sale.assert_conserved().await;
}

/// Goal: no deadlock reaches a caller and no unit is lost or invented. Method: six consumers decide
/// overlapping batches over four buckets while three operators cancel 300 orders.
#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_cancels_beside_consumers_end_without_an_error() {
    let sale = sale(400, 4).await;
    let newer = scope(2);
    sale.store
        .create_activity(&settings(&newer, 100, 1))
        .await
        .unwrap();
    let mut pool = Vec::new();
    for n in 0..1_200_u64 {
        let mut asked = request(if n % 5 == 4 { &newer } else { &sale.scope }, n);
        if n % 5 < 4 {
            let bucket = u32::try_from(n % 4).unwrap();
            asked.bucket = sale
                .scope
                .bucket(seckill_state_machine::BucketId::new(bucket).unwrap());
        }
        // Three requests a user, in other buckets and versions.
        asked.user_id = crate::fixture::user(n % 400);
        pool.push(asked);
    }
    let consuming: Vec<_> = (0..6_usize)
        .map(|consumer| {
            let (store, mut pool) = (sale.store.clone(), pool.clone());
            tokio::spawn(async move {
                pool.rotate_left(consumer * 150);
                for batch in pool.chunks(24 + consumer) {
                    store.decide(batch).await.unwrap();
                }
            })
        })
        .collect();
    let cancelling: Vec<_> = (0..3)
        .map(|_| {
            let (store, url) = (sale.store.clone(), sale.db.url().to_owned());
            tokio::spawn(async move { cancel_a_hundred(&store, &url).await })
        })
        .collect();
    for consumer in consuming {
        consumer.await.unwrap();
    }
    let mut cancelled = 0;
    for operator in cancelling {
        cancelled += operator.await.unwrap();
    }
    assert_eq!(cancelled, 300);
    sale.assert_conserved().await;
    let found = sale
        .db
        .number("SELECT count(*) FROM orders WHERE state = 'CANCELLED'")
        .await;
    assert_eq!(found, 300);
    for totals in sale.store.bucket_totals(&newer).await.unwrap() {
        assert!(totals.is_conserved(), "{totals:?}");
    }
    let twice = sale
        .db
        .number(
            "SELECT count(*) FROM (
                SELECT FROM orders WHERE state = 'ACTIVE' GROUP BY user_id HAVING count(*) > 1
            ) AS u",
        )
        .await;
    assert_eq!(twice, 0);
}

async fn cancel_a_hundred(store: &seckill_order_store::Store, url: &str) -> u32 {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let mut outcomes = BTreeMap::new();
    while outcomes.get("won").copied().unwrap_or(0) < 100 {
        let rows = client
            .query(
                "SELECT order_id::text FROM orders WHERE state = 'ACTIVE' ORDER BY random() LIMIT 1",
                &[],
            )
            .await
            .unwrap();
        let Some(row) = rows.first() else {
            tokio::task::yield_now().await;
            continue;
        };
        let id = OrderId::parse(row.get::<_, String>(0)).unwrap();
        let outcome = store.cancel_order(&id, "ann", "unpaid").await.unwrap();
        let word = match outcome {
            CancelOutcome::Cancelled(_) => "won",
            CancelOutcome::AlreadyCancelled(_) => "lost",
            CancelOutcome::NotFound => panic!("the order was there"),
        };
        *outcomes.entry(word).or_insert(0) += 1;
    }
    outcomes["won"]
}
