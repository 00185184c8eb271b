//! The outbox is relayed by state.

use std::time::Duration;

use seckill_state_machine::{BucketId, OrderEventKind, RejectReason};

use crate::fixture::{PATIENCE, fresh, one, sale};

#[tokio::test]
async fn events_are_claimed_oldest_first_and_once() {
    let sale = sale(2, 1).await;
    let batch: Vec<_> = (0..3).map(|n| sale.request(n)).collect();
    sale.store.decide(&batch).await.unwrap();
    let first = sale.store.claim_outbox(2, PATIENCE).await.unwrap();
    let second = sale.store.claim_outbox(2, PATIENCE).await.unwrap();
    assert_eq!((first.len(), second.len()), (2, 1));
    assert!(first[0].id < first[1].id && first[1].id < second[0].id);
    assert_eq!(
        second[0].event.kind,
        OrderEventKind::Rejected {
            reason: RejectReason::StockExhausted
        }
    );
    assert_eq!(second[0].event.bucket, batch[2].bucket);
    assert_eq!(sale.store.mark_published(&first).await.unwrap(), 2);
    assert_eq!(sale.store.mark_published(&first).await.unwrap(), 0);
    assert_eq!(sale.store.outbox_unpublished().await.unwrap(), 1);
}

#[tokio::test]
async fn a_lease_that_ran_out_is_claimed_again_under_the_same_event_id() {
    let sale = sale(2, 1).await;
    sale.decide(&sale.request(1)).await;
    let died = sale.store.claim_outbox(5, Duration::ZERO).await.unwrap();
    let heir = sale.store.claim_outbox(5, PATIENCE).await.unwrap();
    assert_eq!(died[0].event_id, heir[0].event_id);
    assert_eq!((died[0].attempts, heir[0].attempts), (1, 2));
    assert_eq!(died[0].event, heir[0].event);
    // The first relay's late result does not count; the heir's does.
    assert_eq!(sale.store.mark_published(&died).await.unwrap(), 0);
    assert_eq!(
        sale.store.postpone_outbox(&died, PATIENCE).await.unwrap(),
        0
    );
    assert_eq!(sale.store.mark_published(&heir).await.unwrap(), 1);
    assert!(
        sale.store
            .claim_outbox(5, PATIENCE)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_postponed_event_waits_and_does_not_hold_back_the_others() {
    let sale = sale(5, 1).await;
    sale.decide(&sale.request(1)).await;
    let refused = sale.store.claim_outbox(5, PATIENCE).await.unwrap();
    assert_eq!(
        sale.store
            .postpone_outbox(&refused, PATIENCE)
            .await
            .unwrap(),
        1
    );
    sale.decide(&sale.request(2)).await;
    let next = sale.store.claim_outbox(5, PATIENCE).await.unwrap();
    assert_eq!(next.len(), 1);
    assert_ne!(next[0].event_id, refused[0].event_id);
    assert_eq!(
        sale.store
            .postpone_outbox(&next, Duration::ZERO)
            .await
            .unwrap(),
        1
    );
    assert_eq!(sale.store.claim_outbox(5, PATIENCE).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_commits_late_is_published_all_the_same() {
    let sale = sale(40, 2).await;
    // PG-16: the commit of one user's event waits for a lock that the test holds.
    sale.db
        .execute(
            "CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN PERFORM pg_advisory_xact_lock(16); RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON outbox
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
                WHEN (NEW.user_id = 'u1') EXECUTE FUNCTION slow_commit()",
        )
        .await;
    let holder = sale.db.client().await;
    holder
        .batch_execute("SELECT pg_advisory_lock(16)")
        .await
        .unwrap();
    let slow = tokio::spawn({
        let (store, asked) = (sale.store.clone(), sale.request(1));
        async move { store.decide(&[asked]).await }
    });
    sale.await_lock_waits(1).await;

    for n in 2..22 {
        let mut asked = sale.request(n);
        asked.bucket = sale.scope.bucket(BucketId::new(1).unwrap());
        assert!(fresh(&sale.decide(&asked).await));
    }
    let early = sale.store.claim_outbox(100, PATIENCE).await.unwrap();
    assert_eq!(early.len(), 20);
    assert_eq!(sale.store.mark_published(&early).await.unwrap(), 20);

    holder
        .batch_execute("SELECT pg_advisory_unlock(16)")
        .await
        .unwrap();
    assert!(fresh(&one(slow.await.unwrap())));
    let late = sale.store.claim_outbox(100, PATIENCE).await.unwrap();
    assert_eq!(late.len(), 1);
    assert!(late[0].id < early[0].id);
    assert_eq!(sale.store.mark_published(&late).await.unwrap(), 1);
    assert_eq!(sale.store.outbox_unpublished().await.unwrap(), 0);
}
