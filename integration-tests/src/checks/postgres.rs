//! What must hold in PostgreSQL at any time.

use seckill_test_support::TestDatabase;

/// Each query returns one text per violation.
const CHECKS: [(&str, &str); 6] = [
    (
        "F3 a bucket's units are conserved",
        "SELECT concat_ws('/', activity_id, sku_id, version, bucket_id, total, available, sold)
           FROM activity_stock
          WHERE available < 0 OR sold < 0 OR total <> available + sold",
    ),
    (
        "F3 what is sold is what active orders hold",
        "SELECT concat_ws('/', s.activity_id, s.sku_id, s.version, s.bucket_id, s.sold, o.units)
           FROM activity_stock s
           LEFT JOIN LATERAL (
                SELECT coalesce(sum(quantity), 0) AS units FROM orders o
                 WHERE o.activity_id = s.activity_id AND o.sku_id = s.sku_id
                   AND o.version = s.version AND o.bucket_id = s.bucket_id
                   AND o.state = 'ACTIVE') o ON true
          WHERE s.sold <> o.units",
    ),
    (
        "F3 every active order has a stock row",
        "SELECT o.reservation_id FROM orders o
          WHERE o.state = 'ACTIVE' AND NOT EXISTS (
                SELECT FROM activity_stock s
                 WHERE o.activity_id = s.activity_id AND o.sku_id = s.sku_id
                   AND o.version = s.version AND o.bucket_id = s.bucket_id)",
    ),
    (
        "F4 one active order a user",
        "SELECT concat_ws('/', activity_id, sku_id, user_id, count(*)) FROM orders
          WHERE state = 'ACTIVE'
          GROUP BY activity_id, sku_id, user_id HAVING count(*) > 1",
    ),
    (
        "F5 an order and its decision agree",
        "SELECT concat_ws('/', coalesce(o.reservation_id, d.reservation_id), o.state, d.kind)
           FROM orders o
           FULL JOIN reservation_decision d ON d.reservation_id = o.reservation_id
          WHERE (o.reservation_id IS NOT NULL) <> coalesce(d.kind = 'ORDERED', false)",
    ),
    (
        "F8 every order was announced",
        "SELECT o.reservation_id FROM orders o
          WHERE NOT EXISTS (
                SELECT FROM outbox e
                 WHERE e.reservation_id = o.reservation_id AND e.kind = 'ORDER_CREATED')",
    ),
];

/// F3, F4, and the parts of F5 and F8 that PostgreSQL knows alone.
///
/// # Panics
///
/// When the database does not answer.
pub async fn postgres_violations(database: &TestDatabase) -> Vec<String> {
    let mut violations = Vec::new();
    for (rule, query) in CHECKS {
        let rows = database.texts(query).await;
        let found = rows
            .into_iter()
            .map(|row| format!("{rule}: {}", row.join("/")));
        violations.extend(found);
    }
    violations
}
