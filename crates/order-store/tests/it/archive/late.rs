//! What the archive must not forget, and what must not hold it up.

use seckill_order_store::ServerNames;
use seckill_state_machine::{BucketId, RejectReason};

use super::*;
use crate::fixture::{request, settings, user};

/// Goal: an order of an archived version counts as its user's one order, although no unique index of
/// the live table knows it any more (I2); a cancelled one does not.
#[tokio::test]
async fn a_buyer_of_an_archived_version_has_an_order_still() {
    let sale = sale(8, 1).await;
    sale.sold().await;
    let newer = scope(2);
    let wanted = settings(&newer, 5, 1);
    sale.store.create_activity(&wanted).await.unwrap();
    sale.close().await;
    sale.archive().await.unwrap();

    let ask = async |n, buyer| {
        let mut asked = request(&newer, n);
        asked.user_id = user(buyer);
        sale.decide(&asked).await
    };
    let refused = Decided::Rejected {
        reason: RejectReason::UserHasOrder,
        fresh: true,
    };
    assert_eq!(ask(20, 1).await, refused);
    // The order of user 0 was cancelled.
    assert!(fresh(&ask(21, 0).await));

    for version in [1, 2] {
        let found = sale.store.duplicate_orders(&scope(version)).await.unwrap();
        assert_eq!(found, 0);
    }
    sale.db
        .execute(
            "INSERT INTO orders (reservation_id, request_id, user_id, activity_id, sku_id, version,
                bucket_id, quantity, updated_by)
            VALUES ('foreign', 'foreign', 'u1', 'spring', 'phone', 2, 0, 1, 'psql')",
        )
        .await;
    for version in [1, 2] {
        let found = sale.store.duplicate_orders(&scope(version)).await.unwrap();
        assert_eq!(found, 1);
    }
}

#[tokio::test]
async fn an_open_window_of_a_version_whose_keys_are_gone_holds_nothing_up() {
    let sale = sale(8, 1).await;
    sale.close().await;
    let bucket = sale.scope.bucket(BucketId::ZERO);
    let names = ServerNames {
        run_id: "r2",
        replication_id: "h2",
    };
    let opened = sale.store.restart_window(&bucket, names, "failover").await;
    opened.unwrap();
    let windows = async || sale.store.open_work(&sale.scope).await.unwrap().windows;
    assert_eq!(windows().await, 1);
    sale.db
        .execute(
            "UPDATE activity SET ends_at = now() - interval '2 d',
                retention_until = now() - interval '1 s'",
        )
        .await;
    assert_eq!(windows().await, 0);
    sale.archive().await.unwrap();
    let left = sale.db.number("SELECT count(*) FROM recovery_window").await;
    assert_eq!(left, 0);
}

/// Goal: a cancellation that finds its order, and then waits while order and decision move away, is
/// told so. Method: the move is made by hand while the cancellation waits for the decisions.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_that_meets_the_move_is_told_of_the_archive() {
    let sale = sale(8, 1).await;
    let Decided::Ordered { order_id, .. } = sale.decide(&sale.request(1)).await else {
        panic!("no order")
    };
    let mover = sale.db.client().await;
    mover
        .batch_execute("BEGIN; LOCK TABLE reservation_decision IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let cancelling = tokio::spawn({
        let (store, id) = (sale.store.clone(), order_id.clone());
        async move { store.cancel_order(&id, "ann", "unpaid").await }
    });
    sale.await_lock_waits(1).await;
    mover
        .batch_execute(
            "INSERT INTO orders_archive (order_id, reservation_id, request_id, user_id, activity_id,
                sku_id, version, bucket_id, quantity, state, created_at, updated_by)
            SELECT order_id, reservation_id, request_id, user_id, activity_id, sku_id, version,
                bucket_id, quantity, state, created_at, updated_by
            FROM orders;
            DELETE FROM orders;
            DELETE FROM reservation_decision;
            COMMIT",
        )
        .await
        .unwrap();
    let error = cancelling.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
}

/// Goal: an order that has lost its decision for good is damage, not somebody in the way.
#[tokio::test]
async fn an_order_without_a_decision_is_not_cancelled_but_damage() {
    let sale = sale(8, 1).await;
    let Decided::Ordered { order_id, .. } = sale.decide(&sale.request(1)).await else {
        panic!("no order")
    };
    sale.db.execute("DELETE FROM reservation_decision").await;
    let error = sale.store.cancel_order(&order_id, "ann", "unpaid").await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Fatal);
}

/// Goal: an order is found by its reservation wherever it is, so that whoever cancels it that way is
/// told of the archive as well.
#[tokio::test]
async fn an_order_is_found_by_its_reservation_wherever_it_is() {
    let sale = sale(8, 1).await;
    let ids = sale.sold().await;
    let of = async |n| {
        let id = sale.request(n).reservation_id;
        sale.store.order_of(&id).await.unwrap()
    };
    for archived in [false, true] {
        if archived {
            sale.close().await;
            sale.archive().await.unwrap();
        }
        assert_eq!(of(1).await.as_ref(), Some(&ids[1]));
        // Refused, released, never heard of.
        for none in [6, 10, 77] {
            assert_eq!(of(none).await, None);
        }
    }
}

/// Goal: a release that is decided after the last batch is moved all the same.
#[tokio::test]
async fn a_fence_in_an_archived_version_opens_the_move_again() {
    let sale = sale(8, 1).await;
    sale.sold().await;
    sale.close().await;
    sale.archive().await.unwrap();
    let late = task(&sale.request(77), TaskOrigin::Overdue);
    sale.store.open_task(&late).await.unwrap();
    let claimed = sale.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
    let fence = sale.store.fence(&claimed).await.unwrap();
    assert!(matches!(fence, Fence::Released { fresh: true, .. }));
    assert!(sale.store.finish_task(&claimed, "released").await.unwrap());
    assert_eq!(sale.rows().await[0], (1, 11));

    let under_way = sale.store.archives_under_way().await.unwrap();
    assert_eq!(under_way.as_slice(), std::slice::from_ref(&sale.scope));
    let moved = sale.store.resume_archive(&sale.scope).await.unwrap();
    assert_eq!(
        moved,
        Moved {
            decisions: 1,
            ..Moved::default()
        }
    );
    assert_eq!(sale.rows().await[0], (0, 12));
    assert!(sale.store.archives_under_way().await.unwrap().is_empty());
    let tasks = sale.db.number("SELECT count(*) FROM compensation_task");
    assert_eq!(tasks.await, 0);
}

/// Goal: a release that is decided behind the place where the move is does not stay behind. Method: it
/// is put there when the events go, after all decisions.
#[tokio::test]
async fn a_fence_behind_the_place_of_the_move_is_moved_as_well() {
    let sale = sale(8, 1).await;
    sale.sold().await;
    sale.close().await;
    let result = sale.result().await;
    sale.db
        .execute(
            "CREATE FUNCTION late_fence() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                INSERT INTO reservation_decision (reservation_id, request_id, message_id, user_id,
                    activity_id, sku_id, version, bucket_id, quantity, kind, reason, reserved_at,
                    updated_by)
                SELECT '22222222222222222222222222', 'q', 'm', 'u', 'spring', 'phone', 1, 0, 1,
                    'RELEASED', 'OVERDUE', now(), 'test'
                WHERE NOT EXISTS (
                    SELECT FROM reservation_decision_archive WHERE request_id = 'q'
                )
                ON CONFLICT DO NOTHING;
                RETURN NULL;
            END $$;
            CREATE TRIGGER late_fence AFTER DELETE ON outbox
            FOR EACH STATEMENT EXECUTE FUNCTION late_fence()",
        )
        .await;
    let moved = sale
        .store
        .archive_version(&sale.scope, &result, "ann")
        .await;
    assert_eq!(moved.unwrap().decisions, 12);
    assert_eq!(sale.rows().await[0], (0, 12));
}

/// Goal: published events go with their version, wherever they lie among those of others.
#[tokio::test]
async fn the_events_of_an_archived_version_go_and_those_of_others_stay() {
    const OTHERS: i64 = 10_050;
    let sale = sale(8, 1).await;
    // More than one page of events of another version comes first.
    sale.db
        .execute(&format!(
            "INSERT INTO outbox (event_id, topic, kind, reservation_id, request_id, user_id,
                activity_id, sku_id, version, bucket_id, quantity, reason, published_at)
            SELECT 'e' || n, 't', 'REJECTED', 'r' || n, 'q' || n, 'u' || n, 'spring', 'phone', 2, 0,
                1, 'STOCK_EXHAUSTED', now()
            FROM generate_series(1, {OTHERS}) AS n"
        ))
        .await;
    sale.sold().await;
    sale.close().await;
    let events = async |version: u32| {
        let count = format!("SELECT count(*) FROM outbox WHERE version = {version}");
        sale.db.number(&count).await
    };
    assert_eq!((events(1).await, events(2).await), (11, OTHERS));
    sale.archive().await.unwrap();
    assert_eq!((events(1).await, events(2).await), (0, OTHERS));
}
