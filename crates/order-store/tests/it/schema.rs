//! Migrations, and the constraints that stand when every program is wrong.

use std::time::Duration;

use seckill_order_store::{
    DiscrepancyFilter, Error, ErrorKind, LetterFilter, ReservationRef, Store, TaskOrigin, migrate,
};
use seckill_test_support::TestDatabase;

use crate::fixture::{self, config, sale};

#[tokio::test]
async fn migrating_an_empty_database_works_and_again_changes_nothing() {
    let db = TestDatabase::create().await;
    let store = Store::connect(&config(db.url())).unwrap();
    let before = store.check_schema().await.unwrap_err();
    assert!(matches!(before, Error::Schema { found: 0, .. }), "{before}");
    assert_eq!(before.kind(), ErrorKind::Fatal);

    let first = migrate(&db.url().into()).await.unwrap();
    assert_eq!(first.applied.len(), first.version as usize);
    store.check_schema().await.unwrap();
    let again = migrate(&db.url().into()).await.unwrap();
    assert_eq!((again.version, again.applied.len()), (first.version, 0));
    store.check_schema().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn migrators_that_start_at_once_apply_each_file_once() {
    let db = TestDatabase::create().await;
    let mut racing = Vec::new();
    for _ in 0..4 {
        let url = db.url().into();
        racing.push(tokio::spawn(async move { migrate(&url).await }));
    }
    let mut applied = 0;
    let mut version = 0;
    for race in racing {
        let migrated = race.await.unwrap().unwrap();
        applied += migrated.applied.len();
        version = migrated.version;
    }
    assert_eq!(applied, version as usize);
}

#[tokio::test]
async fn a_newer_schema_suits_services_and_stops_an_older_migrator() {
    let sale = sale(1, 1).await;
    sale.db
        .execute(
            "INSERT INTO refinery_schema_history (version, name, applied_on, checksum)
            VALUES (9999, 'of_the_future', '2030-01-01T00:00:00Z', '1')",
        )
        .await;
    sale.store.check_schema().await.unwrap();
    let error = migrate(&sale.db.url().into()).await.unwrap_err();
    assert!(
        matches!(error, Error::Schema { found: 9_999, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_schema_with_a_changed_or_missing_migration_is_refused() {
    let sale = sale(1, 1).await;
    sale.db
        .execute("UPDATE refinery_schema_history SET checksum = '1' WHERE version = 1")
        .await;
    let error = sale.store.check_schema().await.unwrap_err();
    assert!(
        matches!(error, Error::SchemaDiffers { version: 1 }),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Fatal);
    let error = migrate(&sale.db.url().into()).await.unwrap_err();
    assert!(matches!(error, Error::Migration(_)), "{error}");
    assert_eq!(error.kind(), ErrorKind::Fatal);

    sale.db
        .execute("DELETE FROM refinery_schema_history WHERE version = 1")
        .await;
    let error = sale.store.check_schema().await.unwrap_err();
    assert!(
        matches!(error, Error::SchemaDiffers { version: 1 }),
        "{error}"
    );
}

/// Goal: a running program survives a schema that is expanded under it. Method: it has prepared its
/// statements before; a new column must not matter, and a statement whose result did change must
/// fail at most once, since its connection is replaced.
#[tokio::test]
async fn a_schema_may_be_expanded_under_a_running_program() {
    let sale = sale(2, 1).await;
    let request = sale.request(1);
    let everything = async || {
        let lease = Duration::from_millis(1);
        sale.store.decide(std::slice::from_ref(&request)).await?;
        let task = fixture::task(&request, TaskOrigin::Overdue);
        sale.store.open_task(&task).await?;
        sale.store.claim_tasks(1, lease).await?;
        sale.store.claim_outbox(1, lease).await?;
        let id = &request.reservation_id;
        let by = ReservationRef::Reservation(id);
        sale.store
            .find_reservation(&sale.scope, &request.user_id, by)
            .await?;
        let by = ReservationRef::Request(&request.request_id);
        sale.store
            .find_reservation(&sale.scope, &request.user_id, by)
            .await?;
        sale.store.decisions(std::slice::from_ref(id)).await?;
        sale.store.letters(&LetterFilter::default()).await?;
        sale.store.recovery_windows(&sale.scope).await?;
        sale.store.version_result(&sale.scope).await?;
        let found = DiscrepancyFilter::default();
        sale.store.open_discrepancies(&found, 1).await?;
        sale.store.decisions_page(&sale.scope, None, 1).await?;
        sale.store.open_scopes().await?;
        sale.store.activities(None).await?;
        sale.store.activity(&sale.scope).await
    };
    everything().await.unwrap();
    for table in [
        "activity",
        "activity_stock",
        "reservation_decision",
        "orders",
        "outbox",
        "dead_letter",
        "compensation_task",
        "discrepancy",
        "recovery_window",
        "version_result",
        "reservation_decision_archive",
        "orders_archive",
    ] {
        let expand = format!("ALTER TABLE {table} ADD COLUMN of_the_future bigint");
        sale.db.execute(&expand).await;
    }
    everything().await.unwrap();

    sale.db
        .execute("ALTER TABLE activity ALTER COLUMN state TYPE varchar")
        .await;
    let error = sale.store.activity(&sale.scope).await.unwrap_err();
    let sqlstate = error.cause().and_then(|cause| cause.sqlstate());
    assert_eq!(sqlstate, Some("0A000"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Retryable);
    sale.store.activity(&sale.scope).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_away_is_no_reason_to_give_up_and_a_bad_url_is() {
    let error = Store::connect(&config("postgres://[")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let store = Store::connect(&config("postgres://u:secret@127.0.0.1:1/x")).unwrap();
    let error = store.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retryable, "{error}");
    assert!(!format!("{error:?} {store:?}").contains("secret"));
    let error = migrate(&"postgres://u:secret@127.0.0.1:1/x".into())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retryable);
}

/// A statement that no program should send, and the constraint that refuses it.
const FORBIDDEN: &[(&str, &str)] = &[
    (
        "UPDATE activity_stock SET available = -1, sold = total + 1",
        "activity_stock_available_not_negative",
    ),
    (
        "UPDATE activity_stock SET available = total + 1, sold = -1",
        "activity_stock_sold_not_negative",
    ),
    (
        "UPDATE activity_stock SET sold = sold + 1",
        "activity_stock_conserved",
    ),
    (
        "UPDATE activity_stock SET total = total - 1",
        "activity_stock_conserved",
    ),
    ("UPDATE activity SET state = 'OPEN'", "activity_state_word"),
    (
        "UPDATE activity SET limit_per_user = 2",
        "activity_limit_per_user_supported",
    ),
    (
        "UPDATE activity SET ends_at = retention_until",
        "activity_times_ordered",
    ),
    (
        "UPDATE activity SET bucket_count = 0",
        "activity_bucket_count_range",
    ),
    (
        "INSERT INTO orders (reservation_id, request_id, user_id, activity_id, sku_id, version,
            bucket_id, quantity, updated_by)
        SELECT 'r', 'q', user_id, activity_id, sku_id, 2, 1, 1, 'test' FROM orders",
        "orders_one_active_per_user",
    ),
    (
        "INSERT INTO orders (reservation_id, request_id, user_id, activity_id, sku_id, version,
            bucket_id, quantity, updated_by)
        SELECT reservation_id, 'q', 'u', activity_id, sku_id, 2, 1, 1, 'test' FROM orders",
        "orders_one_per_reservation",
    ),
    (
        "INSERT INTO orders (reservation_id, request_id, user_id, activity_id, sku_id, version,
            bucket_id, quantity, updated_by)
        SELECT 'r', request_id, 'u', activity_id, sku_id, version, 1, 1, 'test' FROM orders",
        "orders_one_per_request",
    ),
    ("UPDATE orders SET state = 'PAID'", "orders_state_word"),
    (
        "UPDATE orders SET state = 'CANCELLED'",
        "orders_cancelled_whole",
    ),
    ("UPDATE orders SET quantity = 0", "orders_quantity_positive"),
    (
        "INSERT INTO reservation_decision SELECT * FROM reservation_decision",
        "reservation_decision_pkey",
    ),
    (
        "UPDATE reservation_decision SET kind = 'MAYBE'",
        "reservation_decision_kind_word",
    ),
    (
        "UPDATE reservation_decision SET kind = 'REJECTED'",
        "reservation_decision_reason_given",
    ),
    (
        "UPDATE reservation_decision SET kind = 'REJECTED', reason = 'TIMEOUT'",
        "reservation_decision_reject_word",
    ),
    (
        "INSERT INTO stock_ledger (activity_id, sku_id, version, bucket_id, kind, delta,
            reservation_id)
        SELECT activity_id, sku_id, version, bucket_id, kind, delta, reservation_id
        FROM stock_ledger WHERE kind = 'ORDERED'",
        "stock_ledger_once_per_reservation",
    ),
    (
        "INSERT INTO stock_ledger (activity_id, sku_id, version, bucket_id, kind, delta)
        SELECT activity_id, sku_id, version, bucket_id, kind, delta
        FROM stock_ledger WHERE kind = 'INITIAL'",
        "stock_ledger_one_initial",
    ),
    (
        "UPDATE stock_ledger SET delta = 1 WHERE kind = 'ORDERED'",
        "stock_ledger_sign",
    ),
    ("INSERT INTO inbox SELECT * FROM inbox", "inbox_pkey"),
    (
        "UPDATE outbox SET kind = 'CREATED', order_id = NULL",
        "outbox_kind_word",
    ),
    (
        "UPDATE outbox SET order_id = NULL",
        "outbox_created_has_order",
    ),
    (
        "UPDATE outbox SET kind = 'ORDER_CANCELLED', order_id = NULL",
        "outbox_created_has_order",
    ),
    (
        "INSERT INTO patience_watch DEFAULT VALUES",
        "patience_watch_pkey",
    ),
    (
        "INSERT INTO patience_watch (only_row) VALUES (false)",
        "patience_watch_only_row",
    ),
    (
        "INSERT INTO standstill (began_at, ended_at, cause) VALUES (now(), now(), 'x')",
        "standstill_forward",
    ),
    (
        "INSERT INTO recovery_window (activity_id, sku_id, version, bucket_id, run_id, end_queues,
            end_offsets)
        SELECT activity_id, sku_id, version, 0, 'r1', '{}', '{}' FROM activity",
        "recovery_window_ends_while_open",
    ),
    (
        "INSERT INTO recovery_window (activity_id, sku_id, version, bucket_id, run_id, opened_at,
            end_queues, end_offsets)
        SELECT activity_id, sku_id, version, 0, 'r1', now(), '{q0,q1}', '{7}' FROM activity",
        "recovery_window_ends_paired",
    ),
    (
        "INSERT INTO dead_letter (topic, consumer_group, broker_message_id, queue_id, queue_offset,
            body, properties, reason, error, attempts, status)
        VALUES ('t', 'g', 'b', 0, 0, '', '{}', 'r', 'e', 1, 'REPLAYED')",
        "dead_letter_action_whole",
    ),
    (
        "INSERT INTO version_result (activity_id, sku_id, version, total_stock, orders, order_units,
            cancelled, released, rejected, difference, archived_by)
        SELECT activity_id, sku_id, version, 5, -1, 1, 0, 0, 0, 0, 'ann' FROM activity",
        "version_result_counts_not_negative",
    ),
];

#[tokio::test]
async fn the_constraints_refuse_what_no_program_should_write() {
    let sale = sale(5, 1).await;
    sale.decide(&sale.request(1)).await;
    let client = sale.db.client().await;
    for (statement, constraint) in FORBIDDEN {
        let error = client.batch_execute(statement).await.expect_err(statement);
        let found = error.as_db_error().expect(statement).constraint();
        assert_eq!(found, Some(*constraint), "{statement}");
    }
    sale.assert_conserved().await;
}

#[tokio::test]
async fn every_table_and_every_state_has_a_comment_and_every_constraint_a_name() {
    let sale = sale(1, 1).await;
    let bare = sale
        .db
        .texts(
            "SELECT relname FROM pg_class
            WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
                AND relname <> 'refinery_schema_history' AND obj_description(oid) IS NULL",
        )
        .await;
    assert!(bare.is_empty(), "{bare:?}");
    let tables = sale
        .db
        .texts(
            "SELECT relname FROM pg_class
            WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY relname",
        )
        .await;
    let tables: Vec<&str> = tables.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(
        tables,
        [
            "activity",
            "activity_event",
            "activity_stock",
            "bucket_transfer",
            "compensation_task",
            "dead_letter",
            "discrepancy",
            "inbox",
            "orders",
            "orders_archive",
            "outbox",
            "patience_watch",
            "reconciliation_action",
            "reconciliation_run",
            "recovery_window",
            "refinery_schema_history",
            "reservation_decision",
            "reservation_decision_archive",
            "standstill",
            "stock_ledger",
            "stock_ledger_archive",
            "version_result",
        ]
    );
}
