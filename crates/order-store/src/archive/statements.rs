//! The statements of the archive. Those that meet rows of other transactions lock them in the order
//! of their key first.

pub(super) const LOCK_ACTIVITY: &str = "-- lock_activity
    SELECT state, archived_at IS NOT NULL AS archived
    FROM activity
    WHERE activity_id = $1 AND sku_id = $2 AND version = $3
    FOR NO KEY UPDATE";

pub(super) const LOCK_BUCKETS: &str = "-- lock_buckets
    SELECT FROM activity_stock
    WHERE activity_id = $1 AND sku_id = $2 AND version = $3
    ORDER BY bucket_id
    FOR NO KEY UPDATE";

pub(super) const COUNTS: &str = "-- version_counts
    SELECT a.total_stock, o.orders, o.order_units, o.cancelled, d.released, d.rejected
    FROM activity AS a,
        LATERAL (
            SELECT count(*) FILTER (WHERE state = 'ACTIVE') AS orders,
                coalesce(sum(quantity) FILTER (WHERE state = 'ACTIVE'), 0)::bigint AS order_units,
                count(*) FILTER (WHERE state = 'CANCELLED') AS cancelled
            FROM orders
            WHERE activity_id = $1 AND sku_id = $2 AND version = $3
        ) AS o,
        LATERAL (
            SELECT count(*) FILTER (WHERE kind = 'RELEASED') AS released,
                count(*) FILTER (WHERE kind = 'REJECTED') AS rejected
            FROM reservation_decision
            WHERE activity_id = $1 AND sku_id = $2 AND version = $3
        ) AS d
    WHERE a.activity_id = $1 AND a.sku_id = $2 AND a.version = $3";

pub(super) const SEAL_STOCK: &str = "-- seal_stock
    UPDATE activity_stock
    SET sealed_at = now(), updated_at = now(), updated_by = 'seal_version'
    WHERE activity_id = $1 AND sku_id = $2 AND version = $3";

pub(super) const SEAL_ACTIVITY: &str = "-- seal_activity
    UPDATE activity
    SET archived_at = now(), updated_at = now(), updated_by = 'seal_version'
    WHERE activity_id = $1 AND sku_id = $2 AND version = $3";

pub(super) const LOCK_RESULT: &str = "-- lock_result
    SELECT moved_at IS NOT NULL AS moved
    FROM version_result
    WHERE activity_id = $1 AND sku_id = $2 AND version = $3
    FOR UPDATE";

pub(super) const NEXT_BATCH: &str = "-- next_batch
    SELECT reservation_id, message_id FROM reservation_decision
    WHERE activity_id = $1 AND sku_id = $2 AND version = $3 AND reservation_id > $4
    ORDER BY reservation_id
    LIMIT $5";

// What is left of a message that comes late is refused by the seal, not by the inbox.
pub(super) const FORGET_MESSAGES: &str = "-- forget_messages
    DELETE FROM inbox AS i
    USING (
        SELECT message_id FROM inbox WHERE message_id = ANY($1) ORDER BY message_id FOR UPDATE
    ) AS meant
    WHERE i.message_id = meant.message_id";

// The decision that was there first stands, whatever came after it.
pub(super) const MOVE_DECISIONS: &str = "-- move_decisions
    WITH meant AS (
        SELECT reservation_id FROM reservation_decision
        WHERE reservation_id = ANY($1)
        ORDER BY reservation_id
        FOR UPDATE
    ), gone AS (
        DELETE FROM reservation_decision AS d
        USING meant
        WHERE d.reservation_id = meant.reservation_id
        RETURNING d.reservation_id, d.request_id, d.message_id, d.user_id, d.activity_id, d.sku_id,
            d.version, d.bucket_id, d.quantity, d.kind, d.reason, d.reserved_at, d.traceparent,
            d.decided_at, d.updated_by
    )
    INSERT INTO reservation_decision_archive (
        reservation_id, request_id, message_id, user_id, activity_id, sku_id, version, bucket_id,
        quantity, kind, reason, reserved_at, traceparent, decided_at, updated_by
    )
    SELECT reservation_id, request_id, message_id, user_id, activity_id, sku_id, version,
        bucket_id, quantity, kind, reason, reserved_at, traceparent, decided_at, updated_by
    FROM gone
    ON CONFLICT (reservation_id) DO NOTHING";

pub(super) const MOVE_ORDERS: &str = "-- move_orders
    WITH gone AS (
        DELETE FROM orders
        WHERE reservation_id = ANY($1)
        RETURNING order_id, reservation_id, request_id, user_id, activity_id, sku_id, version,
            bucket_id, quantity, state, created_at, cancelled_at, cancel_reason, cancelled_by,
            updated_by
    )
    INSERT INTO orders_archive (
        order_id, reservation_id, request_id, user_id, activity_id, sku_id, version, bucket_id,
        quantity, state, created_at, cancelled_at, cancel_reason, cancelled_by, updated_by
    )
    SELECT order_id, reservation_id, request_id, user_id, activity_id, sku_id, version, bucket_id,
        quantity, state, created_at, cancelled_at, cancel_reason, cancelled_by, updated_by
    FROM gone";

macro_rules! move_journal {
    ($name:literal, $condition:literal) => {
        concat!(
            "-- ",
            $name,
            "
    WITH gone AS (
        DELETE FROM stock_ledger
        WHERE ",
            $condition,
            "
        RETURNING entry_id, activity_id, sku_id, version, bucket_id, kind, delta, reservation_id,
            transfer_id, recorded_at
    )
    INSERT INTO stock_ledger_archive (
        entry_id, activity_id, sku_id, version, bucket_id, kind, delta, reservation_id,
        transfer_id, recorded_at
    )
    SELECT entry_id, activity_id, sku_id, version, bucket_id, kind, delta, reservation_id,
        transfer_id, recorded_at
    FROM gone"
        )
    };
}

pub(super) const MOVE_JOURNAL: &str = move_journal!("move_journal", "reservation_id = ANY($1)");

// The first units of each bucket, and those that transfers moved; both are found by an index.
pub(super) const MOVE_JOURNAL_REST: &str = move_journal!(
    "move_journal_rest",
    "entry_id IN (
            SELECT entry_id FROM stock_ledger
            WHERE kind = 'INITIAL' AND activity_id = $1 AND sku_id = $2 AND version = $3
            UNION ALL
            SELECT l.entry_id
            FROM bucket_transfer AS t
            JOIN stock_ledger AS l ON l.transfer_id = t.transfer_id
            WHERE t.activity_id = $1 AND t.sku_id = $2 AND t.version = $3
        )"
);

// One that was opened again is somebody's work: it stays.
pub(super) const FORGET_TASKS: &str = "-- forget_tasks
    DELETE FROM compensation_task AS t
    USING (
        SELECT reservation_id FROM compensation_task
        WHERE reservation_id = ANY($1) AND closed_at IS NOT NULL
        ORDER BY reservation_id
        FOR UPDATE
    ) AS meant
    WHERE t.reservation_id = meant.reservation_id";

// One that is not published is somebody's work: it stays.
pub(super) const FORGET_EVENTS: &str = "-- forget_events
    WITH page AS MATERIALIZED (
        SELECT outbox_id,
            activity_id = $1 AND sku_id = $2 AND version = $3 AND published_at IS NOT NULL AS meant
        FROM outbox
        WHERE outbox_id > $4
        ORDER BY outbox_id
        LIMIT $5
    ), gone AS (
        DELETE FROM outbox AS o
        USING page
        WHERE o.outbox_id = page.outbox_id AND page.meant
    )
    SELECT max(outbox_id) AS last_id FROM page";

pub(super) const FORGET_WINDOWS: &str = "-- forget_windows
    DELETE FROM recovery_window
    WHERE activity_id = $1 AND sku_id = $2 AND version = $3";

pub(super) const STRAY_ORDER: &str = "-- stray_order
    SELECT reservation_id FROM orders
    WHERE activity_id = $1 AND sku_id = $2 AND version = $3
    LIMIT 1";

pub(super) const FINISH: &str = "-- finish_archive
    UPDATE version_result SET moved_at = now()
    WHERE activity_id = $1 AND sku_id = $2 AND version = $3";

pub(super) const RESULT: &str = "-- version_result
    SELECT activity_id, sku_id, version, total_stock, redis_left, orders, order_units, cancelled,
        released, rejected, difference, archived_by, archived_at, moved_at
    FROM version_result
    WHERE activity_id = $1 AND sku_id = $2 AND version = $3";
