//! The release fence against the order decision: whoever writes the decision first wins.

use seckill_order_store::{CompensationTask, Decided, Fence, TaskOrigin};
use seckill_state_machine::{DecisionKind, OrderRequest, OrderState, RejectReason};

use crate::fixture::{Fixture, PATIENCE, fresh, request, sale, scope, task};

/// Opens a task for a request and claims it.
async fn claimed(sale: &Fixture, request: &OrderRequest, origin: TaskOrigin) -> CompensationTask {
    sale.store.open_task(&task(request, origin)).await.unwrap();
    let mut tasks = sale.store.claim_tasks(10, PATIENCE).await.unwrap();
    assert_eq!(tasks.len(), 1);
    tasks.remove(0)
}

#[tokio::test]
async fn a_late_message_never_turns_a_released_unit_into_an_order() {
    let sale = sale(5, 1).await;
    let asked = sale.request(1);
    let task = claimed(&sale, &asked, TaskOrigin::Overdue).await;
    let fence = sale.store.fence(&task).await.unwrap();
    let first = Fence::Released {
        reason: "OVERDUE".to_owned(),
        fresh: true,
    };
    assert_eq!(fence, first);
    let released = Decided::Released {
        reason: "OVERDUE".to_owned(),
    };
    assert_eq!(sale.decide(&asked).await, released);
    assert_eq!(sale.decide(&asked).await, released);
    assert_eq!(sale.stock().await, (5, 0));
    let again = Fence::Released {
        reason: "OVERDUE".to_owned(),
        fresh: false,
    };
    assert_eq!(sale.store.fence(&task).await.unwrap(), again);
    let record = sale
        .store
        .decisions(std::slice::from_ref(&asked.reservation_id))
        .await
        .unwrap()
        .remove(0);
    assert_eq!(record.kind, DecisionKind::Released);
    assert_eq!(
        (record.user_id, record.bucket),
        (asked.user_id, asked.bucket)
    );
}

#[tokio::test]
async fn the_fence_names_the_order_or_the_refusal_that_was_first() {
    let sale = sale(1, 1).await;
    let (sold, refused) = (sale.request(1), sale.request(2));
    let answers = sale
        .store
        .decide(&[sold.clone(), refused.clone()])
        .await
        .unwrap();
    let Decided::Ordered { order_id, .. } = answers[0].clone() else {
        panic!("{answers:?}")
    };
    // The refusal has opened its task already.
    let tasks = sale.store.claim_tasks(10, PATIENCE).await.unwrap();
    assert_eq!(tasks.len(), 1);
    assert_eq!(
        (&tasks[0].request, tasks[0].origin),
        (&refused, TaskOrigin::Rejected)
    );
    let rejected = Fence::Rejected {
        reason: RejectReason::StockExhausted,
    };
    assert_eq!(sale.store.fence(&tasks[0]).await.unwrap(), rejected);

    let mut task = tasks[0].clone();
    task.request = sold;
    let active = Fence::Ordered {
        order_id: order_id.clone(),
        state: OrderState::Active,
    };
    assert_eq!(sale.store.fence(&task).await.unwrap(), active);
    sale.db
        .execute(
            "UPDATE activity_stock SET available = 1, sold = 0;
            UPDATE orders SET state = 'CANCELLED', cancelled_at = now(), cancel_reason = 'unpaid'",
        )
        .await;
    let cancelled = Fence::Ordered {
        order_id,
        state: OrderState::Cancelled,
    };
    assert_eq!(sale.store.fence(&task).await.unwrap(), cancelled);
}

#[tokio::test]
async fn a_reservation_of_an_unknown_bucket_can_be_fenced() {
    let sale = sale(1, 1).await;
    let stray = request(&scope(9), 1);
    assert_eq!(sale.decide(&stray).await, Decided::UnknownBucket);
    let task = claimed(&sale, &stray, TaskOrigin::Parked).await;
    let fence = sale.store.fence(&task).await.unwrap();
    assert!(matches!(fence, Fence::Released { fresh: true, .. }));
    let decided = sale.decide(&stray).await;
    assert!(matches!(decided, Decided::Released { .. }), "{decided:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fence_and_decision_racing_agree_on_one_winner() {
    let sale = sale(1_000, 1).await;
    let (mut fenced, mut ordered) = (0, 0);
    for round in 0..60 {
        let batch: Vec<_> = (0..4).map(|n| sale.request(round * 4 + n)).collect();
        let task = claimed(&sale, &batch[2], TaskOrigin::Overdue).await;
        let deciding = tokio::spawn({
            let (store, batch) = (sale.store.clone(), batch.clone());
            async move { store.decide(&batch).await }
        });
        let fencing = tokio::spawn({
            let (store, task) = (sale.store.clone(), task.clone());
            async move {
                // Half of the rounds the decision gets a head start.
                if round % 2 == 0 {
                    tokio::task::yield_now().await;
                }
                store.fence(&task).await
            }
        });
        let decided = deciding.await.unwrap().unwrap().remove(2);
        match (fencing.await.unwrap().unwrap(), decided) {
            (Fence::Released { .. }, Decided::Released { .. }) => fenced += 1,
            (Fence::Ordered { order_id: a, .. }, Decided::Ordered { order_id: b, .. }) => {
                assert_eq!(a, b);
                ordered += 1;
            }
            (fence, decided) => panic!("{fence:?} against {decided:?}"),
        }
        assert!(sale.store.finish_task(&task, "done").await.unwrap());
    }
    assert_eq!(fenced + ordered, 60);
    sale.assert_conserved().await;
    let (_, sold) = sale.stock().await;
    assert_eq!(sold, 60 * 4 - fenced);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_waits_for_a_decision_that_is_under_way() {
    let sale = sale(5, 1).await;
    let asked = sale.request(1);
    let task = claimed(&sale, &asked, TaskOrigin::Overdue).await;
    // The stock row is held by somebody else, so the decision stands provisional and waits.
    let holder = sale.db.client().await;
    holder
        .batch_execute("BEGIN; SELECT FROM activity_stock FOR NO KEY UPDATE")
        .await
        .unwrap();
    let deciding = tokio::spawn({
        let (store, asked) = (sale.store.clone(), asked.clone());
        async move { store.decide(&[asked]).await }
    });
    sale.await_lock_waits(1).await;
    let fencing = tokio::spawn({
        let (store, task) = (sale.store.clone(), task.clone());
        async move { store.fence(&task).await }
    });
    sale.await_lock_waits(2).await;
    holder.batch_execute("COMMIT").await.unwrap();
    assert!(fresh(&crate::fixture::one(deciding.await.unwrap())));
    let fence = fencing.await.unwrap().unwrap();
    assert!(matches!(fence, Fence::Ordered { .. }), "{fence:?}");
}
