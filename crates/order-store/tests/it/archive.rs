//! The end of a version: nothing open is archived, a crash half way is gone on with, and what comes
//! late finds nothing to sell.

mod late;

use std::time::Duration;

use seckill_order_store::{
    CancelOutcome, Decided, ErrorKind, Fence, Moved, OpenWork, ReservationRef, TaskOrigin,
    VersionCounts, VersionResult,
};
use seckill_state_machine::{ActivityState, OrderId, OrderState, TimestampMs};

use crate::fixture::{Fixture, PATIENCE, RETENTION, fresh, sale, scope, task};
use crate::parking::letter;

impl Fixture {
    async fn close(&self) {
        let from = [ActivityState::Prepared, ActivityState::Closed];
        self.store
            .set_activity_state(&self.scope, &from, ActivityState::Closed, "ann", "over")
            .await
            .unwrap();
    }

    /// Does whatever the workers would: publishes and finishes everything.
    async fn settle(&self) {
        loop {
            let rows = self.store.claim_outbox(1_000, PATIENCE).await.unwrap();
            let tasks = self.store.claim_tasks(1_000, PATIENCE).await.unwrap();
            if rows.is_empty() && tasks.is_empty() {
                return;
            }
            self.store.mark_published(&rows).await.unwrap();
            for task in tasks {
                assert!(self.store.finish_task(&task, "done").await.unwrap());
            }
        }
    }

    async fn result(&self) -> VersionResult {
        VersionResult {
            counts: self.store.version_counts(&self.scope).await.unwrap(),
            redis_left: Some(3),
            difference: 0,
        }
    }

    async fn archive(&self) -> Result<Moved, seckill_order_store::Error> {
        let result = self.result().await;
        self.store
            .archive_version(&self.scope, &result, "reconciler-0")
            .await
    }

    /// Rows of the live tables and of the archive that belong to this version.
    async fn rows(&self) -> [(i64, i64); 3] {
        let mut found = [(0, 0); 3];
        for (n, table) in ["reservation_decision", "orders", "stock_ledger"]
            .into_iter()
            .enumerate()
        {
            let count = |table: String| format!("SELECT count(*) FROM {table} WHERE version = 1");
            found[n] = (
                self.db.number(&count(table.to_owned())).await,
                self.db.number(&count(format!("{table}_archive"))).await,
            );
        }
        found
    }

    /// Ten reservations of five users each twice: five orders, one of them cancelled, and five
    /// refusals; and one that was released.
    async fn sold(&self) -> Vec<OrderId> {
        let mut ids = Vec::new();
        for n in 0..10 {
            let mut asked = self.request(n);
            asked.user_id = crate::fixture::user(n % 5);
            if let Decided::Ordered { order_id, .. } = self.decide(&asked).await {
                ids.push(order_id);
            }
        }
        assert_eq!(ids.len(), 5);
        let outcome = self.store.cancel_order(&ids[0], "ann", "unpaid").await;
        assert!(matches!(outcome, Ok(CancelOutcome::Cancelled(_))));
        self.settle().await;
        let overdue = task(&self.request(10), TaskOrigin::Overdue);
        self.store.open_task(&overdue).await.unwrap();
        let claimed = self.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
        self.store.fence(&claimed).await.unwrap();
        self.store.finish_task(&claimed, "released").await.unwrap();
        ids
    }
}

const COUNTS: VersionCounts = VersionCounts {
    total_stock: 8,
    orders: 4,
    order_units: 4,
    cancelled: 1,
    released: 1,
    rejected: 5,
};

#[tokio::test]
async fn a_closed_version_moves_as_a_whole_and_its_result_stays() {
    let sale = sale(8, 1).await;
    sale.sold().await;
    sale.close().await;
    assert_eq!(sale.result().await.counts, COUNTS);
    let before = sale.store.bucket_totals(&sale.scope).await.unwrap();

    let moved = sale.archive().await.unwrap();
    // INITIAL, five ORDERED and one CANCELLED.
    let whole = Moved {
        decisions: 11,
        orders: 5,
        journal: 7,
    };
    assert_eq!(moved, whole);
    assert_eq!(sale.rows().await, [(0, 11), (0, 5), (0, 7)]);
    for table in ["inbox", "compensation_task", "outbox"] {
        let count = format!("SELECT count(*) FROM {table}");
        assert_eq!(sale.db.number(&count).await, 0, "{table}");
    }
    let stored = sale
        .store
        .version_result(&sale.scope)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(stored.result.counts, COUNTS);
    assert_eq!(
        (stored.result.redis_left, stored.result.difference),
        (Some(3), 0)
    );
    assert_eq!(stored.archived_by, "reconciler-0");
    assert!(stored.moved_at_ms.is_some());
    assert!(sale.store.open_scopes().await.unwrap().is_empty());
    assert!(sale.store.archives_under_way().await.unwrap().is_empty());
    // An audit of the version still adds up, and a second call finds nothing to do.
    assert_eq!(sale.store.bucket_totals(&sale.scope).await.unwrap(), before);
    sale.assert_conserved().await;
    let again = sale
        .store
        .archive_version(&sale.scope, &VersionResult::default(), "bob")
        .await
        .unwrap();
    assert_eq!(again, Moved::default());
    let kept = sale
        .store
        .version_result(&sale.scope)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(kept, stored);
}

const NONE: OpenWork = OpenWork {
    undecided: 0,
    tasks: 0,
    unpublished: 0,
    discrepancies: 0,
    windows: 0,
    transfers: 0,
    letters: 0,
};

/// What opens something, what is open then, and what closes it.
const OPENED: &[(&str, OpenWork, &str)] = &[
    (
        "UPDATE compensation_task SET closed_at = NULL, result = NULL WHERE origin = 'REJECTED'",
        OpenWork { tasks: 5, ..NONE },
        "UPDATE compensation_task SET closed_at = now(), result = 'done'",
    ),
    (
        "UPDATE compensation_task SET closed_at = NULL, result = NULL, reservation_id = 'other'
        WHERE origin = 'OVERDUE'",
        OpenWork {
            tasks: 1,
            undecided: 1,
            ..NONE
        },
        "UPDATE compensation_task SET closed_at = now(), result = 'done'",
    ),
    (
        "UPDATE outbox SET published_at = NULL WHERE outbox_id < 3",
        OpenWork {
            unpublished: 2,
            ..NONE
        },
        "UPDATE outbox SET published_at = now()",
    ),
    (
        "INSERT INTO reconciliation_run (kind, instance) VALUES ('totals', 'r');
        INSERT INTO discrepancy (run_kind, kind, activity_id, sku_id, version, bucket_id, detail,
            first_run_id, last_run_id)
        SELECT 'totals', 'x', a.activity_id, a.sku_id, a.version, 0, '', run_id, run_id
        FROM reconciliation_run, activity AS a",
        OpenWork {
            discrepancies: 1,
            ..NONE
        },
        "UPDATE discrepancy SET resolved_at = now()",
    ),
    (
        "INSERT INTO recovery_window (activity_id, sku_id, version, bucket_id, run_id, opened_at)
        SELECT activity_id, sku_id, version, bucket_id, 'r2', now() FROM activity_stock",
        OpenWork { windows: 2, ..NONE },
        "UPDATE recovery_window SET opened_at = NULL",
    ),
    (
        "INSERT INTO bucket_transfer (transfer_id, activity_id, sku_id, version, from_bucket_id,
            to_bucket_id, units, actor, reason, updated_by)
        SELECT gen_random_uuid(), activity_id, sku_id, version, 0, 1, 1, 'ann', 'hot', 'test'
        FROM activity",
        OpenWork {
            transfers: 1,
            ..NONE
        },
        "UPDATE bucket_transfer SET state = 'ABORTED', closed_at = now()",
    ),
    (
        "INSERT INTO dead_letter (topic, consumer_group, broker_message_id, queue_id, queue_offset,
            body, properties, reason, error, attempts, activity_id, sku_id, version, bucket_id)
        SELECT 't', 'g', 'b', 0, 0, '', '{}', 'r', 'e', 1, activity_id, sku_id, version, 0
        FROM activity",
        OpenWork { letters: 1, ..NONE },
        "UPDATE dead_letter SET status = 'DISCARDED', acted_at = now(), acted_by = 'ann',
            acted_reason = '', outcome = 'discarded'",
    ),
];

/// Goal: whatever of a version is open keeps it, and is named.
#[tokio::test]
async fn a_version_with_something_open_is_not_archived() {
    let sale = sale(16, 2).await;
    sale.sold().await;
    sale.close().await;
    for (open, expected, close) in OPENED {
        sale.db.execute(open).await;
        let found = sale.store.open_work(&sale.scope).await.unwrap();
        assert_eq!(found, *expected, "{open}");
        let error = sale.archive().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains(&found.to_string()), "{error}");
        assert_eq!(sale.rows().await.map(|(_, archived)| archived), [0, 0, 0]);
        sale.db.execute(close).await;
        assert!(sale.store.open_work(&sale.scope).await.unwrap().is_none());
    }
    sale.archive().await.unwrap();
}

#[tokio::test]
async fn only_a_closed_version_is_archived_with_figures_that_are_true() {
    let sale = sale(8, 1).await;
    sale.sold().await;
    let refused = async |scope, result: VersionResult, actor| {
        let archived = sale.store.archive_version(scope, &result, actor).await;
        archived.unwrap_err().kind()
    };
    let counted = sale.result().await;
    let here = &sale.scope;
    assert_eq!(refused(here, counted, "ann").await, ErrorKind::Conflict);
    sale.close().await;
    let mut stale = counted;
    stale.counts.orders += 1;
    assert_eq!(refused(here, stale, "ann").await, ErrorKind::Conflict);
    assert_eq!(refused(here, counted, "").await, ErrorKind::Invalid);
    assert_eq!(
        refused(&scope(9), counted, "ann").await,
        ErrorKind::NotFound
    );
    assert_eq!(sale.store.version_result(here).await.unwrap(), None);
    assert_eq!(sale.store.open_scopes().await.unwrap().len(), 1);
    sale.archive().await.unwrap();
}

/// Goal: a crash between two batches loses nothing and is gone on with. Method: the archive refuses
/// the rows of the third batch, as a full disk would, until it does not.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_broke_off_between_batches_is_gone_on_with() {
    let sale = sale(2_500, 1).await;
    let requests: Vec<_> = (0..2_500).map(|n| sale.request(n)).collect();
    for batch in requests.chunks(500) {
        sale.store.decide(batch).await.unwrap();
    }
    sale.db
        .execute("UPDATE outbox SET published_at = now()")
        .await;
    sale.close().await;
    let mut ids: Vec<&str> = requests.iter().map(|r| r.reservation_id.as_str()).collect();
    ids.sort_unstable();
    let third = ids[2_000];
    sale.db
        .execute(&format!(
            "ALTER TABLE orders_archive ADD CONSTRAINT full_disk
            CHECK (reservation_id < '{third}')"
        ))
        .await;
    sale.archive().await.unwrap_err();
    assert_eq!(
        sale.rows().await,
        [(500, 2_000), (500, 2_000), (501, 2_000)]
    );
    // Whoever looks half way sees every row once.
    sale.assert_conserved().await;
    let under_way = sale.store.archives_under_way().await.unwrap();
    assert_eq!(under_way.as_slice(), std::slice::from_ref(&sale.scope));
    assert!(sale.store.open_scopes().await.unwrap().is_empty());
    sale.store.resume_archive(&sale.scope).await.unwrap_err();
    // Somebody who has not heard of the end opens a task; that work is not thrown away.
    sale.store.hand_over(&requests[0], None).await.unwrap();
    let last = requests
        .iter()
        .find(|r| r.reservation_id.as_str() == ids[2_499]);
    sale.store.hand_over(last.unwrap(), None).await.unwrap();

    sale.db
        .execute("ALTER TABLE orders_archive DROP CONSTRAINT full_disk")
        .await;
    // Several may go on at once; they take turns.
    let mut resuming = Vec::new();
    for _ in 0..3 {
        let (store, scope) = (sale.store.clone(), sale.scope.clone());
        resuming.push(tokio::spawn(async move {
            store.resume_archive(&scope).await.unwrap()
        }));
    }
    let mut rest = Moved::default();
    for resumed in resuming {
        let moved = resumed.await.unwrap();
        rest.decisions += moved.decisions;
        rest.orders += moved.orders;
        rest.journal += moved.journal;
    }
    let expected = Moved {
        decisions: 500,
        orders: 500,
        journal: 501,
    };
    assert_eq!(rest, expected);
    assert_eq!(sale.rows().await, [(0, 2_500), (0, 2_500), (0, 2_501)]);
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 2);
    assert!(sale.store.archives_under_way().await.unwrap().is_empty());
    sale.assert_conserved().await;
}

/// Goal: a message that comes after the archive, new or known, sells nothing and takes no reservation
/// for an undecided one (I1, I6).
#[tokio::test]
async fn what_comes_after_the_archive_finds_nothing_to_sell_and_every_decision() {
    let sale = sale(8, 1).await;
    let ids = sale.sold().await;
    sale.close().await;
    sale.archive().await.unwrap();

    let known = sale.request(1);
    for late in [&known, &sale.request(77)] {
        assert_eq!(sale.decide(late).await, Decided::UnknownBucket);
    }
    assert_eq!(sale.rows().await[0], (0, 11));
    assert_eq!(sale.db.number("SELECT count(*) FROM inbox").await, 0);

    // It is parked then; the one that was decided needs no task.
    sale.store.park(&letter(Some(&known))).await.unwrap();
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 0);
    let overdue = sale
        .store
        .hand_over_overdue(std::slice::from_ref(&known))
        .await;
    assert_eq!(overdue.unwrap(), [seckill_order_store::Overdue::Decided]);

    // A worker that was held up since before still learns what was decided.
    sale.store
        .open_task(&task(&known, TaskOrigin::HeldAgain))
        .await
        .unwrap();
    let claimed = sale.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
    let order_id = ids[1].clone();
    let ordered = Fence::Ordered {
        order_id,
        state: OrderState::Active,
    };
    for _ in 0..2 {
        assert_eq!(sale.store.fence(&claimed).await.unwrap(), ordered);
        assert_eq!(sale.rows().await[0], (0, 11));
    }
    // And its buyer, nobody else, still finds it, by either id.
    let own = crate::fixture::user(1);
    for (user, found) in [(&own, true), (&crate::fixture::user(9), false)] {
        for by in [
            ReservationRef::Reservation(&known.reservation_id),
            ReservationRef::Request(&known.request_id),
        ] {
            let record = sale.store.find_reservation(&sale.scope, user, by).await;
            let order = record.unwrap().map(|record| record.order);
            let expected = found.then(|| Some((ids[1].clone(), OrderState::Active)));
            assert_eq!(order, expected);
        }
    }
    for id in &ids {
        let error = sale
            .store
            .cancel_order(id, "ann", "late")
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    sale.assert_conserved().await;
}

/// Goal: a consumer that waits for the stock row while the version is sealed does not sell from it.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_meets_the_seal_sells_nothing() {
    let sale = sale(8, 1).await;
    sale.close().await;
    let result = sale.result().await;
    let holder = sale.db.client().await;
    holder
        .batch_execute("BEGIN; SELECT FROM activity_stock FOR NO KEY UPDATE")
        .await
        .unwrap();
    let sealing = tokio::spawn({
        let (store, scope) = (sale.store.clone(), sale.scope.clone());
        async move { store.archive_version(&scope, &result, "ann").await }
    });
    sale.await_lock_waits(1).await;
    let deciding = tokio::spawn({
        let (store, asked) = (sale.store.clone(), sale.request(1));
        async move { store.decide(&[asked]).await }
    });
    sale.await_lock_waits(2).await;
    holder.batch_execute("COMMIT").await.unwrap();
    sealing.await.unwrap().unwrap();
    let decided = crate::fixture::one(deciding.await.unwrap());
    assert_eq!(decided, Decided::UnknownBucket);
    assert_eq!(sale.rows().await, [(0, 0), (0, 0), (0, 1)]);
}

#[tokio::test]
async fn retention_moves_forward_only_and_on_record() {
    let sale = sale(8, 1).await;
    let due = async |within| {
        let found = sale.store.retention_due(Duration::from_secs(within)).await;
        found.unwrap().len()
    };
    let hour = 3_600;
    assert_eq!(due(hour).await, 0);
    sale.db
        .execute(
            "UPDATE activity SET ends_at = now() - interval '2 d',
                retention_until = now() + interval '30 min'",
        )
        .await;
    assert_eq!(due(hour).await, 1);

    let extend = async |until: i64| {
        sale.store
            .extend_retention(&sale.scope, TimestampMs::new(until), "ann", "still open")
            .await
    };
    assert_eq!(extend(RETENTION).await.unwrap().get(), RETENTION);
    assert_eq!(due(hour).await, 0);
    for earlier in [RETENTION, RETENTION - 1, 0] {
        assert_eq!(extend(earlier).await.unwrap().get(), RETENTION);
    }
    let activity = sale.store.activity(&sale.scope).await.unwrap().unwrap();
    assert_eq!(activity.settings.retention_until_ms.get(), RETENTION);
    let events = sale
        .db
        .texts("SELECT from_state, to_state, actor, reason FROM activity_event ORDER BY event_id")
        .await;
    assert_eq!(events.len(), 2);
    assert_eq!(events[1][..3], ["PREPARED", "PREPARED", "ann"]);
    assert!(events[1][3].ends_with(": still open"), "{events:?}");

    let error = extend(i64::MAX).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let later = TimestampMs::new(RETENTION + 1);
    let error = sale
        .store
        .extend_retention(&scope(9), later, "ann", "x")
        .await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
    let error = sale
        .store
        .extend_retention(&sale.scope, later, "", "x")
        .await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    sale.close().await;
    sale.archive().await.unwrap();
    let error = extend(RETENTION + 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    // A version that is over and was never archived is not forgotten.
    assert!(!fresh(&sale.decide(&sale.request(1)).await));
}
