//! Statements of this crate's own.

use anyhow::Context;
use seckill_test_support::query_texts;

/// Each returns one row a violation, at any time, in one snapshot.
pub(crate) const AT_ANY_TIME: [(&str, &str); 3] = [
    (
        "I1 oversold",
        "SELECT a.activity_id, a.version::text, a.total_stock::text, sum(o.quantity)::text
           FROM activity a JOIN orders o USING (activity_id, sku_id, version)
          WHERE o.state = 'ACTIVE'
          GROUP BY a.activity_id, a.sku_id, a.version, a.total_stock
         HAVING sum(o.quantity) > a.total_stock",
    ),
    (
        "I2 two active orders of one user",
        "SELECT activity_id, user_id, count(*)::text FROM orders WHERE state = 'ACTIVE'
          GROUP BY activity_id, sku_id, user_id HAVING count(*) > 1",
    ),
    (
        "I1 a bucket without conservation",
        "SELECT activity_id, version::text, bucket_id::text FROM activity_stock
          WHERE available < 0 OR sold < 0 OR total <> available + sold",
    ),
];

/// Each returns one row for every piece of work that a service has still to do.
pub(crate) const OPEN_WORK: [(&str, &str); 3] = [
    (
        "unpublished outbox rows",
        "SELECT outbox_id::text, kind, reservation_id FROM outbox WHERE published_at IS NULL",
    ),
    (
        "open compensation tasks",
        "SELECT reservation_id, origin, attempts::text, coalesce(last_error, '')
           FROM compensation_task WHERE closed_at IS NULL",
    ),
    (
        "open recovery windows",
        "SELECT activity_id, version::text, bucket_id::text, reason
           FROM recovery_window WHERE opened_at IS NOT NULL",
    ),
];

/// Every order.
pub(crate) const ORDERS: &str = "
    SELECT reservation_id, activity_id, version::text, bucket_id::text, user_id, request_id,
           quantity::text, state
      FROM orders";

/// Every decision.
pub(crate) const DECISIONS: &str = "
    SELECT reservation_id, kind, coalesce(reason, ''), user_id, request_id, quantity::text,
           coalesce(traceparent, '')
      FROM reservation_decision";

/// Every bucket's units.
pub(crate) const STOCK: &str = "
    SELECT activity_id, sku_id, version::text, bucket_id::text, total::text, available::text,
           sold::text
      FROM activity_stock";

/// Reservations that a parked message belongs to; what cannot be decoded belongs to none.
pub(crate) const PARKED: &str = "
    SELECT coalesce(reservation_id, ''), coalesce(message_key, ''), reason FROM dead_letter";

/// The traces that events carry.
pub(crate) const EVENT_TRACES: &str = "
    SELECT reservation_id, coalesce(traceparent, '') FROM outbox";

/// What is kept of PostgreSQL after a violation.
pub(crate) const KEPT_TABLES: [&str; 9] = [
    "activity",
    "activity_stock",
    "stock_ledger",
    "reservation_decision",
    "orders",
    "outbox",
    "compensation_task",
    "dead_letter",
    "discrepancy",
];

/// The rows of a query as texts.
pub(crate) async fn texts(url: &str, query: &str) -> anyhow::Result<Vec<Vec<String>>> {
    query_texts(url, query)
        .await
        .with_context(|| query.to_owned())
}
