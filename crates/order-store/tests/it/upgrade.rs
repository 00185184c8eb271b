//! The schema of the release before, with its rows, becomes the current one; and what the programs of
//! before write to the current one is still accepted.

use refinery::{Migration, Runner, Target, load_sql_migrations};
use seckill_order_store::{
    DiscrepancyFilter, LetterFilter, LetterStatus, Repairable, Store, migrate,
};
use seckill_test_support::TestDatabase;

use crate::fixture::{Fixture, PATIENCE, config, scope};

/// The last file of the release before.
const BEFORE: i32 = 10;

fn files() -> Vec<Migration> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations");
    load_sql_migrations(folder).unwrap()
}

/// A database as the release before leaves it, empty.
async fn database_of_before() -> TestDatabase {
    let db = TestDatabase::create().await;
    let report = Runner::new(&files())
        .set_target(Target::Version(BEFORE))
        .run_async(&mut db.client().await)
        .await
        .unwrap();
    assert_eq!(report.applied_migrations().len(), 10);
    db
}

/// What the release before may have on record: one row of each kind that a later file touches.
const ROWS: &str = "
    INSERT INTO activity (activity_id, sku_id, version, state, starts_at, ends_at, retention_until,
        total_stock, bucket_count, reservation_ttl_ms, patience_ms, secret_version, updated_by)
    VALUES ('spring', 'phone', 1, 'CLOSED', '2023-01-01', '2090-01-01', '2090-01-08', 9, 1, 1, 60000,
        1, 'test');
    INSERT INTO activity_stock (activity_id, sku_id, version, bucket_id, total, available, sold,
        updated_by)
    VALUES ('spring', 'phone', 1, 0, 9, 9, 0, 'test');
    INSERT INTO stock_ledger (activity_id, sku_id, version, bucket_id, kind, delta)
    VALUES ('spring', 'phone', 1, 0, 'INITIAL', 9);
    INSERT INTO orders (reservation_id, request_id, user_id, activity_id, sku_id, version, bucket_id,
        quantity, state, cancelled_at, cancel_reason, updated_by)
    VALUES ('r1', 'q1', 'u1', 'spring', 'phone', 1, 0, 1, 'CANCELLED', now(), 'unpaid', 'test');
    INSERT INTO orders_archive SELECT *, now() FROM orders;
    INSERT INTO reconciliation_run (kind, instance) VALUES ('totals', 'r');
    INSERT INTO discrepancy (run_kind, kind, activity_id, sku_id, version, bucket_id, detail,
        first_run_id, last_run_id)
    SELECT 'totals', 'total_differs', 'spring', 'phone', 1, 0, '9 and 8', run_id, run_id
    FROM reconciliation_run;";

/// Statements of the release before, as its programs have them prepared.
const STATEMENTS: &str = "
    INSERT INTO outbox (reservation_id, request_id, user_id, activity_id, sku_id, version, bucket_id,
        quantity, traceparent, order_id, reason, topic, kind, event_id)
    VALUES ('aaaaaaaaaaaaaaaaaaaaaaaaa2', 'q2', 'u2', 'spring', 'phone', 1, 0, 1, NULL,
            gen_random_uuid(), NULL, 'seckill-order-event', 'ORDER_CREATED', 'e' || random()),
        ('aaaaaaaaaaaaaaaaaaaaaaaaa3', 'q3', 'u3', 'spring', 'phone', 1, 0, 1, NULL, NULL,
            'STOCK_EXHAUSTED', 'seckill-order-event', 'REJECTED', 'e' || random());
    INSERT INTO dead_letter AS l (topic, consumer_group, message_key, broker_message_id, queue_id,
        queue_offset, born_at, body, properties, reason, error, attempts)
    VALUES ('seckill-order-request', 'order-consumer', 'k1', 'b1', 0, 0, NULL, 'x', '{}',
        'undecodable', 'e', 1)
    ON CONFLICT (topic, left(coalesce(message_key, broker_message_id), 256), body_sha256)
    DO UPDATE
    SET times_parked = l.times_parked + 1, last_parked_at = now(), reason = excluded.reason,
        error = excluded.error, attempts = greatest(l.attempts, excluded.attempts);
    UPDATE activity_stock AS s
    SET available = s.available - 1, sold = s.sold + 1, updated_at = now(), updated_by = 'decide'
    WHERE s.bucket_id = 0;
    UPDATE activity_stock SET available = available + 1, sold = sold - 1 WHERE bucket_id = 0;
    UPDATE orders SET cancel_reason = cancel_reason WHERE state = 'CANCELLED';";

#[tokio::test]
async fn the_schema_of_before_with_its_rows_becomes_the_current_one() {
    let db = database_of_before().await;
    db.execute(ROWS).await;
    db.execute(STATEMENTS).await;
    db.execute(
        "INSERT INTO dead_letter (topic, consumer_group, broker_message_id, queue_id, queue_offset,
            body, properties, reason, error, attempts, replayed_at, replayed_by)
        VALUES ('t', 'g', 'b2', 0, 0, 'y', '{}', 'undecodable', 'e', 1, '2024-01-01', 'ann')",
    )
    .await;

    let migrated = migrate(&db.url().into()).await.unwrap();
    assert_eq!(migrated.applied.len(), migrated.version as usize - 10);
    let store = Store::connect(&config(db.url())).unwrap();
    let sale = Fixture {
        db,
        store,
        scope: scope(1),
    };
    sale.store.check_schema().await.unwrap();

    let letters = sale.store.letters(&LetterFilter::default()).await.unwrap();
    let statuses: Vec<LetterStatus> = letters.iter().map(|letter| letter.status).collect();
    assert_eq!(statuses, [LetterStatus::Open, LetterStatus::Replayed]);
    let action = letters[1].action.clone().unwrap();
    assert_eq!(action.actor, "ann");
    let filter = DiscrepancyFilter::default();
    let open = sale.store.open_discrepancies(&filter, 10).await.unwrap();
    let found = &open[0].discrepancy;
    assert_eq!(found.repairable, Repairable::None);
    assert_eq!(
        (found.evidence_redis.as_str(), found.repair.as_str()),
        ("", "")
    );
    assert_eq!(
        sale.store.claim_outbox(10, PATIENCE).await.unwrap().len(),
        2
    );
    assert!(sale.store.standstill_now().await.unwrap().is_some());
    let unvalidated = sale
        .db
        .texts("SELECT conname FROM pg_constraint WHERE NOT convalidated")
        .await;
    assert!(unvalidated.is_empty(), "{unvalidated:?}");
}

/// Goal: the programs of before go on while the schema is expanded under them.
#[tokio::test]
async fn what_the_programs_of_before_write_is_accepted_by_the_current_schema() {
    let db = database_of_before().await;
    db.execute(ROWS).await;
    migrate(&db.url().into()).await.unwrap();
    for _ in 0..2 {
        db.execute(STATEMENTS).await;
    }
    let parked = db
        .texts("SELECT times_parked, status FROM dead_letter")
        .await;
    assert_eq!(parked, [["2", "OPEN"]]);
    let sealed = db.number("SELECT count(*) FROM activity_stock WHERE sealed_at IS NOT NULL");
    assert_eq!(sealed.await, 0);
}
