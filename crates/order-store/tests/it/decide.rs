//! What one batch decides, without anybody else around.

use seckill_order_store::{Decided, ErrorKind, ReservationRef};
use seckill_state_machine::{
    BucketId, DecisionKind, OrderEventKind, OrderState, Quantity, RejectReason, RequestId,
};

use crate::fixture::{PATIENCE, fresh, request, sale, scope, settings, user};

#[tokio::test]
async fn a_fresh_request_becomes_one_order_with_all_its_traces() {
    let sale = sale(10, 1).await;
    let asked = sale.request(1);
    let Decided::Ordered {
        order_id,
        fresh,
        cancelled,
    } = sale.decide(&asked).await
    else {
        panic!("no order")
    };
    assert!(fresh && !cancelled);
    assert_eq!(sale.stock().await, (9, 1));
    sale.assert_conserved().await;

    let record = sale
        .store
        .decisions(std::slice::from_ref(&asked.reservation_id))
        .await
        .unwrap()
        .remove(0);
    assert_eq!(record.kind, DecisionKind::Ordered);
    assert_eq!(record.order_request(), asked);
    assert_eq!(record.order, Some((order_id.clone(), OrderState::Active)));
    assert_eq!((record.reason, record.quantity), (None, Quantity::ONE));
    assert_eq!(
        (
            record.request_id,
            record.user_id,
            record.bucket,
            record.traceparent
        ),
        (
            asked.request_id.clone(),
            asked.user_id.clone(),
            asked.bucket.clone(),
            asked.traceparent.clone()
        )
    );

    let events = sale.store.claim_outbox(10, PATIENCE).await.unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(
        events[0].event.kind,
        OrderEventKind::OrderCreated { order_id }
    );
    assert_eq!(events[0].event.reservation_id, asked.reservation_id);
    assert_eq!(events[0].event.traceparent, asked.traceparent);
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 0);
}

#[tokio::test]
async fn a_redelivered_message_gets_the_first_order_and_changes_nothing() {
    let sale = sale(10, 1).await;
    let first = sale.decide(&sale.request(1)).await;
    let again = sale.decide(&sale.request(1)).await;
    let (
        Decided::Ordered { order_id: a, .. },
        Decided::Ordered {
            order_id: b, fresh, ..
        },
    ) = (first, again)
    else {
        panic!("no order")
    };
    assert_eq!(a, b);
    assert!(!fresh);
    assert_eq!(sale.stock().await, (9, 1));
    assert_eq!(sale.store.outbox_unpublished().await.unwrap(), 1);
    sale.assert_conserved().await;
}

#[tokio::test]
async fn duplicates_within_a_batch_are_all_answered_and_count_once() {
    let sale = sale(10, 1).await;
    let batch: Vec<_> = [3, 1, 3, 2, 1].map(|n| sale.request(n)).into();
    let answers = sale.store.decide(&batch).await.unwrap();
    assert_eq!(answers.len(), 5);
    assert!(answers.iter().all(fresh));
    assert_eq!(answers[0], answers[2]);
    assert_eq!(answers[1], answers[4]);
    assert_eq!(sale.stock().await, (7, 3));
    assert!(sale.store.decide(&[]).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_batch_larger_than_the_stock_sells_in_order_of_arrival() {
    let sale = sale(3, 1).await;
    let batch: Vec<_> = [9, 2, 7, 1, 5].map(|n| sale.request(n)).into();
    let answers = sale.store.decide(&batch).await.unwrap();
    assert!(answers[..3].iter().all(fresh), "{answers:?}");
    let refused = Decided::Rejected {
        reason: RejectReason::StockExhausted,
        fresh: true,
    };
    assert_eq!(answers[3..], [refused.clone(), refused]);
    assert_eq!(sale.stock().await, (0, 3));
    // Each refusal has its event and its task, in the very same transaction.
    assert_eq!(sale.store.outbox_unpublished().await.unwrap(), 5);
    assert_eq!(sale.store.open_tasks(Some(&sale.scope)).await.unwrap(), 2);
    sale.assert_conserved().await;

    let again = sale.store.decide(&batch[3..]).await.unwrap();
    assert!(again.iter().all(|decided| *decided
        == Decided::Rejected {
            reason: RejectReason::StockExhausted,
            fresh: false
        }));
}

#[tokio::test]
async fn quantities_are_deducted_whole_or_not_at_all() {
    let sale = sale(4, 1).await;
    let mut batch: Vec<_> = [1, 2, 3].map(|n| sale.request(n)).into();
    for (request, units) in batch.iter_mut().zip([3, 2, 1]) {
        request.quantity = Quantity::new(units).unwrap();
    }
    let answers = sale.store.decide(&batch).await.unwrap();
    assert!(fresh(&answers[0]) && !fresh(&answers[1]) && fresh(&answers[2]));
    assert_eq!(sale.stock().await, (0, 4));
    sale.assert_conserved().await;
}

#[tokio::test]
async fn the_second_request_of_a_user_in_one_batch_sees_the_first() {
    let sale = sale(10, 1).await;
    let mut batch = vec![sale.request(1), sale.request(2)];
    batch[1].user_id = user(1);
    let answers = sale.store.decide(&batch).await.unwrap();
    assert!(fresh(&answers[0]));
    let refused = Decided::Rejected {
        reason: RejectReason::UserHasOrder,
        fresh: true,
    };
    assert_eq!(answers[1], refused);
    assert_eq!(sale.stock().await, (9, 1));
    sale.assert_conserved().await;
}

#[tokio::test]
async fn an_order_in_another_bucket_or_version_stands_in_the_way() {
    let sale = sale(10, 2).await;
    let newer = scope(2);
    sale.store
        .create_activity(&settings(&newer, 10, 1))
        .await
        .unwrap();
    assert!(fresh(&sale.decide(&sale.request(1)).await));

    let mut other_bucket = sale.request(2);
    other_bucket.user_id = user(1);
    other_bucket.bucket = sale.scope.bucket(BucketId::new(1).unwrap());
    let mut other_version = request(&newer, 3);
    other_version.user_id = user(1);
    let refused = Decided::Rejected {
        reason: RejectReason::UserHasOrder,
        fresh: true,
    };
    assert_eq!(sale.decide(&other_bucket).await, refused);
    assert_eq!(sale.decide(&other_version).await, refused);
    sale.assert_conserved().await;
}

#[tokio::test]
async fn a_request_id_stands_on_one_order_over_all_buckets() {
    let sale = sale(10, 2).await;
    assert!(fresh(&sale.decide(&sale.request(1)).await));
    let mut stolen = sale.request(2);
    stolen.request_id = RequestId::parse("q1").unwrap();
    stolen.bucket = sale.scope.bucket(BucketId::new(1).unwrap());
    let refused = Decided::Rejected {
        reason: RejectReason::RequestIdUsed,
        fresh: true,
    };
    assert_eq!(sale.decide(&stolen).await, refused);
    // The stranger's refusal is found under the shared request id, and only by the stranger.
    let by = ReservationRef::Request(&stolen.request_id);
    let found = sale
        .store
        .find_reservation(&sale.scope, &stolen.user_id, by)
        .await
        .unwrap();
    assert_eq!(found.unwrap().kind, DecisionKind::Rejected);
    let owner = sale
        .store
        .find_reservation(&sale.scope, &user(1), by)
        .await
        .unwrap();
    assert_eq!(owner.unwrap().kind, DecisionKind::Ordered);
    assert_eq!(
        sale.store
            .find_reservation(&sale.scope, &user(9), by)
            .await
            .unwrap(),
        None
    );
    let by = ReservationRef::Reservation(&stolen.reservation_id);
    assert_eq!(
        sale.store
            .find_reservation(&sale.scope, &user(1), by)
            .await
            .unwrap(),
        None
    );
    sale.assert_conserved().await;
}

#[tokio::test]
async fn a_request_without_a_stock_row_leaves_nothing_behind() {
    let sale = sale(10, 1).await;
    let stray = request(&scope(77), 2);
    let answers = sale
        .store
        .decide(&[sale.request(1), stray.clone()])
        .await
        .unwrap();
    assert!(fresh(&answers[0]));
    assert_eq!(answers[1], Decided::UnknownBucket);
    assert!(
        sale.store
            .decisions(std::slice::from_ref(&stray.reservation_id))
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(sale.db.number("SELECT count(*) FROM inbox").await, 1);

    // Once the stock row is there, the replayed message is processed as new.
    sale.store
        .create_activity(&settings(&scope(77), 1, 1))
        .await
        .unwrap();
    assert!(fresh(&sale.decide(&stray).await));
}

#[tokio::test]
async fn a_known_message_without_a_decision_is_processed_as_new() {
    let sale = sale(10, 1).await;
    let asked = sale.request(1);
    let inbox = format!(
        "INSERT INTO inbox (message_id, topic) VALUES ('{}', 'seckill-order-request')",
        asked.message_id()
    );
    sale.db.execute(&inbox).await;
    assert!(fresh(&sale.decide(&asked).await));
    assert_eq!(sale.stock().await, (9, 1));
}

#[tokio::test]
async fn a_cancelled_order_is_answered_as_such_and_blocks_no_later_purchase() {
    let sale = sale(1, 1).await;
    let first = sale.request(1);
    assert!(fresh(&sale.decide(&first).await));
    let mut second = sale.request(2);
    second.user_id = first.user_id.clone();
    let refused = Decided::Rejected {
        reason: RejectReason::UserHasOrder,
        fresh: true,
    };
    assert_eq!(sale.decide(&second).await, refused);

    sale.db
        .execute(
            "BEGIN;
            UPDATE activity_stock SET available = available + 1, sold = sold - 1;
            UPDATE orders SET state = 'CANCELLED', cancelled_at = now(), cancel_reason = 'unpaid';
            INSERT INTO stock_ledger
                (activity_id, sku_id, version, bucket_id, kind, delta, reservation_id)
                SELECT activity_id, sku_id, version, bucket_id, 'CANCELLED', quantity,
                    reservation_id FROM orders;
            COMMIT",
        )
        .await;
    let again = sale.decide(&first).await;
    assert!(
        matches!(
            again,
            Decided::Ordered {
                fresh: false,
                cancelled: true,
                ..
            }
        ),
        "{again:?}"
    );
    // Neither the cancelled order nor the earlier refusal of the same user is in the way (PG-18).
    let mut third = sale.request(3);
    third.user_id = first.user_id.clone();
    assert!(fresh(&sale.decide(&third).await));
    assert_eq!(
        sale.db
            .number("SELECT count(*) FROM reservation_decision")
            .await,
        3
    );
    sale.assert_conserved().await;
}

#[tokio::test]
async fn a_request_of_no_calendar_time_is_decided_all_the_same() {
    let sale = sale(2, 1).await;
    let mut odd = sale.request(1);
    odd.reserved_at_ms = seckill_state_machine::TimestampMs::new(i64::MAX);
    odd.traceparent = None;
    assert!(fresh(&sale.decide(&odd).await));
}

#[tokio::test]
async fn a_batch_beyond_the_limit_is_refused_before_anything_is_sent() {
    let sale = sale(1, 1).await;
    let batch: Vec<_> = (0..1_025).map(|n| sale.request(n)).collect();
    let error = sale.store.decide(&batch).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
