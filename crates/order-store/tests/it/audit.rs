//! What the audit counts, and how differences are recorded.

mod odd;

use std::time::Duration;

use seckill_order_store::{
    ActionFilter, ActionRecord, Discrepancy, DiscrepancyFilter, ErrorKind, NewRun, Repairable,
    RunOutcome,
};
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
        .resolve_unseen(run, Duration::ZERO, &[])
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
    let resolve = async |margin, unjudged: &[(BucketId, &str)]| {
        let resolved = sale.store.resolve_unseen(run, margin, unjudged).await;
        resolved.unwrap()
    };
    assert_eq!(resolve(minute, &[]).await, (0, 1));
    // Neither can one that could not judge that kind in that bucket.
    let kind = total_differs(&sale).kind;
    let unjudged = [(BucketId::ZERO, kind.as_str())];
    assert_eq!(resolve(Duration::ZERO, &unjudged).await, (0, 1));
    let others = [
        (BucketId::ZERO, "holders_differ"),
        (BucketId::new(1).unwrap(), kind.as_str()),
    ];
    assert_eq!(resolve(Duration::ZERO, &others).await, (1, 0));
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
/// leaves an open one alone, and its worker who does so itself.
#[tokio::test]
async fn handing_over_again_leaves_an_open_task_alone() {
    let sale = sale(5, 1).await;
    let asked = sale.request(1);
    let lease = Duration::from_secs(60);
    for generation in 1..=2 {
        for _ in 0..2 {
            sale.store.hand_over(&asked, None).await.unwrap();
        }
        let task = sale.store.claim_tasks(1, lease).await.unwrap().remove(0);
        assert_eq!(task.generation, generation);
        let own = Some(task.claim());
        sale.store.hand_over(&asked, own).await.unwrap();
        assert!(sale.store.finish_task(&task, "released").await.unwrap());
    }
}

/// Goal: a difference tells what either side said last and what would mend it, and is found by any of
/// its marks.
#[tokio::test]
async fn a_difference_keeps_its_evidence_and_its_repair() {
    let sale = sale(9, 2).await;
    let told = |redis: &str, repairable| {
        Discrepancy::new(
            "reservation_missing",
            sale.scope.bucket(BucketId::new(1).unwrap()),
            Some(reservation_id(1)),
            "ordered; nothing".to_owned(),
        )
        .with_evidence(redis.to_owned(), "order 7, active".to_owned())
        .with_repair("rebuild_reservation", repairable)
    };
    run(&sale, &[told("nothing", Repairable::Automatic)]).await;
    let filter = |kind: &str, run_kind: &str, n| DiscrepancyFilter {
        scope: Some(sale.scope.clone()),
        kind: Some(kind.to_owned()),
        run_kind: Some(run_kind.to_owned()),
        reservation_id: Some(reservation_id(n)),
        after: Some(0),
    };
    let found = async |filter: DiscrepancyFilter| {
        let found = sale.store.open_discrepancies(&filter, 10).await;
        found.unwrap()
    };
    let this = filter("reservation_missing", "totals", 1);
    let recorded = found(this.clone()).await.remove(0);
    assert_eq!(recorded.discrepancy, told("nothing", Repairable::Automatic));
    assert_eq!((recorded.times_seen, recorded.resolved_at_ms), (1, None));
    assert_eq!(recorded.run_kind, "totals");
    for other in [
        filter("contradiction", "totals", 1),
        filter("reservation_missing", "holders", 1),
        filter("reservation_missing", "totals", 2),
        DiscrepancyFilter {
            after: Some(recorded.id),
            ..this.clone()
        },
        DiscrepancyFilter {
            scope: Some(scope(2)),
            ..this.clone()
        },
    ] {
        assert!(found(other.clone()).await.is_empty(), "{other:?}");
    }

    // What is seen again is told anew, by a run and by whoever only sees it.
    run(&sale, &[told("tombstone", Repairable::Operator)]).await;
    let again = found(this.clone()).await.remove(0);
    assert_eq!(again.discrepancy, told("tombstone", Repairable::Operator));
    assert_eq!((again.id, again.times_seen), (recorded.id, 2));
    let last = told("RELEASED", Repairable::None);
    let new = sale.store.see_again("totals", std::slice::from_ref(&last));
    assert!(new.await.unwrap().is_empty());
    assert_eq!(found(this).await[0].discrepancy, last);

    run(&sale, &[]).await;
    let gone = sale.store.discrepancy(recorded.id).await.unwrap().unwrap();
    assert!(gone.resolved_at_ms.is_some());
    assert_eq!(sale.store.discrepancy(recorded.id + 1).await.unwrap(), None);
}

/// Goal: who did what about a difference, why, and what came of it, can be looked up.
#[tokio::test]
async fn an_action_is_on_record_with_its_actor_and_its_outcome() {
    let sale = sale(9, 1).await;
    run(&sale, &[total_differs(&sale)]).await;
    let filter = DiscrepancyFilter::default();
    let id = sale.store.open_discrepancies(&filter, 1).await.unwrap()[0].id;
    let first = ActionRecord {
        discrepancy_id: id,
        actor: "ann".to_owned(),
        reason: "seen in the morning".to_owned(),
        action: "rebuild_reservation".to_owned(),
        outcome: "rebuilt".to_owned(),
    };
    let second = ActionRecord {
        actor: "reconciler-0".to_owned(),
        outcome: "already there".to_owned(),
        ..first.clone()
    };
    let number = sale.store.record_action(&first).await.unwrap();
    sale.store.record_action(&second).await.unwrap();
    let listed = async |filter: ActionFilter| {
        let actions = sale.store.actions(&filter, 10).await.unwrap();
        actions.into_iter().map(|a| a.record).collect::<Vec<_>>()
    };
    let both = [first.clone(), second.clone()];
    assert_eq!(listed(ActionFilter::default()).await, both);
    let of = |discrepancy_id, scope, after| ActionFilter {
        discrepancy_id,
        scope,
        after,
    };
    assert_eq!(
        listed(of(Some(id), Some(sale.scope.clone()), None)).await,
        both
    );
    assert_eq!(listed(of(None, None, Some(number))).await, [second]);
    assert!(listed(of(Some(id + 1), None, None)).await.is_empty());
    assert!(listed(of(None, Some(scope(2)), None)).await.is_empty());

    let nobody = ActionRecord {
        actor: String::new(),
        ..first.clone()
    };
    let error = sale.store.record_action(&nobody).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let unknown = ActionRecord {
        discrepancy_id: id + 1,
        ..first
    };
    let error = sale.store.record_action(&unknown).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// Goal: the pages of the buckets together are the pages of the version, each in its own bucket.
#[tokio::test]
async fn a_buckets_decisions_are_paged_without_those_of_its_neighbours() {
    let sale = sale(60, 3).await;
    for n in 0..50 {
        let mut asked = sale.request(n);
        let bucket = u32::try_from(n * 7 % 3).unwrap();
        asked.bucket = sale.scope.bucket(BucketId::new(bucket).unwrap());
        sale.decide(&asked).await;
    }
    let mut ids = Vec::new();
    for n in 0..3 {
        let bucket = sale.scope.bucket(BucketId::new(n).unwrap());
        let mut after = None;
        loop {
            let page = sale
                .store
                .decisions_of_buckets_page(&sale.scope, &[bucket.bucket_id], after.as_ref(), 7)
                .await
                .unwrap();
            let Some(last) = page.last() else { break };
            assert!(page.iter().all(|record| record.bucket == bucket));
            after = Some(last.reservation_id.clone());
            ids.extend(page.into_iter().map(|record| record.reservation_id));
        }
    }
    ids.sort_unstable();
    let two: Vec<BucketId> = [0, 2].map(|n| BucketId::new(n).unwrap()).to_vec();
    let of_two = sale
        .store
        .decisions_of_buckets_page(&sale.scope, &two, None, 100)
        .await
        .unwrap();
    assert_eq!(of_two.len(), 33);
    assert!(
        of_two
            .iter()
            .all(|record| two.contains(&record.bucket.bucket_id))
    );
    let version = sale.store.decisions_page(&sale.scope, None, 100).await;
    let version: Vec<_> = version
        .unwrap()
        .into_iter()
        .map(|record| record.reservation_id)
        .collect();
    assert_eq!(ids, version);
    assert_eq!(ids.len(), 50);
}
