//! What the audit counts, and how differences are recorded.

use std::time::Duration;

use seckill_order_store::{Discrepancy, DiscrepancyFilter, ErrorKind, NewRun, RunOutcome};
use seckill_state_machine::{BucketId, DecisionKind, Quantity};
use uuid::Uuid;

use crate::fixture::{Fixture, reservation_id, sale, scope, settings};

#[tokio::test]
async fn totals_are_per_bucket_and_agree_with_orders_and_journal() {
    let sale = sale(9, 2).await;
    let mut batch: Vec<_> = (0..4).map(|n| sale.request(n)).collect();
    batch[3].bucket = sale.scope.bucket(BucketId::new(1).unwrap());
    batch[1].quantity = Quantity::new(2).unwrap();
    sale.store.decide(&batch).await.unwrap();
    let totals = sale.store.bucket_totals(&sale.scope).await.unwrap();
    let rows: Vec<_> = totals
        .iter()
        .map(|t| {
            (
                t.bucket_id.get(),
                t.total,
                t.available,
                t.active_units,
                t.active_orders,
            )
        })
        .collect();
    assert_eq!(rows, [(0, 5, 1, 4, 3), (1, 4, 3, 1, 1)]);
    sale.assert_conserved().await;

    // A unit that somebody moved by hand, keeping the row's own sum, is seen.
    sale.db
        .execute("UPDATE activity_stock SET available = 2, sold = 3 WHERE bucket_id = 0")
        .await;
    let totals = sale.store.bucket_totals(&sale.scope).await.unwrap();
    assert_eq!(
        totals.iter().map(|t| t.is_conserved()).collect::<Vec<_>>(),
        [false, true]
    );
    assert!(
        sale.store
            .bucket_totals(&scope(7))
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn duplicates_are_counted_even_when_the_last_defence_is_gone() {
    let sale = sale(9, 1).await;
    let batch: Vec<_> = (0..3).map(|n| sale.request(n)).collect();
    sale.store.decide(&batch).await.unwrap();
    assert_eq!(sale.store.duplicate_orders(&sale.scope).await.unwrap(), 0);
    sale.db
        .execute(
            "DROP INDEX orders_one_active_per_user;
            ALTER TABLE orders DROP CONSTRAINT orders_one_per_reservation;
            INSERT INTO orders (reservation_id, request_id, user_id, activity_id, sku_id, version,
                bucket_id, quantity, updated_by)
            SELECT reservation_id, 'again-' || request_id, user_id, activity_id, sku_id, version,
                bucket_id, quantity, 'test'
            FROM orders WHERE user_id IN ('u0', 'u1')",
        )
        .await;
    assert_eq!(sale.store.duplicate_orders(&sale.scope).await.unwrap(), 2);
    sale.db
        .execute("DELETE FROM orders WHERE user_id IN ('u0', 'u2')")
        .await;
    assert_eq!(
        sale.store
            .orders_without_decision(&sale.scope)
            .await
            .unwrap(),
        2
    );
}

#[tokio::test]
async fn decisions_are_paged_in_order_and_of_one_version() {
    let sale = sale(20, 1).await;
    sale.store
        .create_activity(&settings(&scope(2), 5, 1))
        .await
        .unwrap();
    let batch: Vec<_> = [5, 40, 3, 33, 1, 2, 32].map(|n| sale.request(n)).into();
    sale.store.decide(&batch).await.unwrap();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = sale
            .store
            .decisions_page(&sale.scope, after.as_ref(), 3)
            .await
            .unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.reservation_id.clone());
        seen.extend(page);
    }
    let ids: Vec<_> = seen
        .iter()
        .map(|record| record.reservation_id.clone())
        .collect();
    assert_eq!(ids, [1, 2, 3, 5, 32, 33, 40].map(reservation_id));
    assert!(
        seen.iter()
            .all(|r| r.kind == DecisionKind::Ordered && r.order.is_some())
    );
    assert!(
        sale.store
            .decisions_page(&scope(2), None, 3)
            .await
            .unwrap()
            .is_empty()
    );
}

fn total_differs(sale: &Fixture) -> Discrepancy {
    let bucket = sale.scope.bucket(BucketId::ZERO);
    Discrepancy::new(
        "total_differs",
        bucket,
        None,
        "redis 9, postgresql 8".to_owned(),
    )
}

async fn open(sale: &Fixture, filter: DiscrepancyFilter) -> Vec<Discrepancy> {
    let recorded = sale.store.open_discrepancies(&filter, 10).await.unwrap();
    recorded.into_iter().map(|r| r.discrepancy).collect()
}

async fn run(sale: &Fixture, found: &[Discrepancy]) -> (u64, u64) {
    let new = NewRun {
        kind: "totals".to_owned(),
        instance: "reconciler-0".to_owned(),
        scope: Some(sale.scope.clone()),
    };
    let run = sale.store.start_run(&new).await.unwrap();
    let recorded = sale.store.record_discrepancies(run, found).await.unwrap();
    let outcome = RunOutcome {
        checked: 4,
        discrepancies: found.len() as u64,
        ..RunOutcome::default()
    };
    sale.store.finish_run(run, &outcome).await.unwrap();
    let (resolved, _open) = sale
        .store
        .resolve_unseen(run, Duration::ZERO)
        .await
        .unwrap();
    (recorded, resolved)
}

#[tokio::test]
async fn a_difference_seen_in_every_round_is_one_row_that_counts_until_it_is_gone() {
    let sale = sale(9, 1).await;
    let of_bucket = total_differs(&sale);
    let of_reservation = Discrepancy {
        kind: "order_missing".to_owned(),
        reservation_id: Some(reservation_id(1)),
        ..of_bucket.clone()
    };
    let both = [of_bucket.clone(), of_reservation.clone(), of_bucket.clone()];
    assert_eq!(run(&sale, &both).await, (2, 0));
    assert_eq!(run(&sale, &both).await, (0, 0));
    assert_eq!(open(&sale, DiscrepancyFilter::default()).await.len(), 2);
    assert_eq!(
        run(&sale, std::slice::from_ref(&of_reservation)).await,
        (0, 1)
    );
    let of_scope = DiscrepancyFilter {
        scope: Some(sale.scope.clone()),
        ..DiscrepancyFilter::default()
    };
    assert_eq!(open(&sale, of_scope).await, [of_reservation]);
    assert_eq!(run(&sale, &[]).await, (0, 1));
    // Coming back, it is a new one.
    assert_eq!(run(&sale, &[of_bucket]).await, (1, 0));
    let rows = sale
        .db
        .texts("SELECT times_seen FROM discrepancy ORDER BY discrepancy_id")
        .await;
    assert_eq!(rows, [["3"], ["2"], ["1"]]);
    assert_eq!(
        sale.db
            .number("SELECT count(*) FROM reconciliation_run")
            .await,
        5
    );

    let unknown = sale
        .store
        .finish_run(Uuid::nil(), &RunOutcome::default())
        .await;
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::NotFound);
}

/// Goal: a walk that began before another process put a difference on record cannot close it.
#[tokio::test]
async fn a_difference_seen_within_the_margin_stays_open() {
    let sale = sale(9, 1).await;
    run(&sale, &[total_differs(&sale)]).await;
    let new = NewRun {
        kind: "totals".to_owned(),
        instance: "reconciler-1".to_owned(),
        scope: Some(sale.scope.clone()),
    };
    let run = sale.store.start_run(&new).await.unwrap();
    let outcome = RunOutcome::default();
    sale.store.finish_run(run, &outcome).await.unwrap();
    let minute = Duration::from_secs(60);
    let resolve = async |margin| sale.store.resolve_unseen(run, margin).await.unwrap();
    assert_eq!(resolve(minute).await, (0, 1));
    assert_eq!(resolve(Duration::ZERO).await, (1, 0));
}

/// Goal: what is on record is only seen again, and the reservation's agreement closes it.
#[tokio::test]
async fn a_report_about_a_reservation_is_seen_again_and_closed() {
    let sale = sale(9, 1).await;
    let bucket = sale.scope.bucket(BucketId::ZERO);
    let of = |n| {
        let detail = "postgresql: ordered; redis: RELEASED".to_owned();
        Discrepancy::new(
            "contradiction",
            bucket.clone(),
            Some(reservation_id(n)),
            detail,
        )
    };
    let again =
        async |kind: &str, found: &[Discrepancy]| sale.store.see_again(kind, found).await.unwrap();
    assert_eq!(again("totals", &[of(1)]).await, [of(1)]);
    run(&sale, &[of(1)]).await;
    assert_eq!(again("totals", &[of(1), of(2)]).await, [of(2)]);
    assert_eq!(again("holders", &[of(1)]).await, [of(1)]);
    let resolve = async |kinds: &[&str], n| {
        let id = reservation_id(n);
        sale.store
            .resolve_reservation(kinds, &bucket, &id)
            .await
            .unwrap()
    };
    assert_eq!(resolve(&["holders"], 1).await, 0);
    assert_eq!(resolve(&["holders", "totals"], 2).await, 0);
    assert_eq!(resolve(&["holders", "totals"], 1).await, 1);
    assert_eq!(again("totals", &[of(1)]).await, [of(1)]);
}

/// Goal: handing a reservation over again and again opens its task once each time it is closed, and
/// leaves an open one, with its claim and its backoff, alone.
#[tokio::test]
async fn handing_over_again_leaves_an_open_task_alone() {
    let sale = sale(5, 1).await;
    let asked = sale.request(1);
    let lease = Duration::from_secs(60);
    for generation in 1..=2 {
        sale.store.hand_over(&asked).await.unwrap();
        let task = sale.store.claim_tasks(1, lease).await.unwrap().remove(0);
        assert_eq!(task.generation, generation);
        sale.store.hand_over(&asked).await.unwrap();
        assert!(sale.store.finish_task(&task, "released").await.unwrap());
    }
}
