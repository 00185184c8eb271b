//! Whether both stores tell the same story, reservation by reservation.

use std::collections::BTreeMap;

use seckill_test_support::{Dump, TestDatabase};

use super::{buckets, status};

/// Each order with its state and the quantity and bucket that it was made for.
const ORDERS: &str = "
    SELECT reservation_id, state, user_id, quantity,
           concat_ws('/', activity_id, sku_id, version, bucket_id)
      FROM orders";

/// F5: an order for exactly the reservations that say so, with the same buyer, bucket and quantity.
/// To be asked when everything is settled.
///
/// # Panics
///
/// When the database does not answer.
pub async fn differences(dump: &Dump, database: &TestDatabase) -> Vec<String> {
    let rows = database.texts(ORDERS).await;
    let mut orders: BTreeMap<String, Vec<String>> = rows
        .into_iter()
        .filter_map(|mut row| (!row.is_empty()).then(|| (row.remove(0), row)))
        .collect();
    let mut differences = Vec::new();
    for bucket in buckets(dump) {
        let place = bucket.scope().join("/");
        for (id, fields) in &bucket.reservations {
            let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
            let expected = match status(fields) {
                "ORDER_CREATED" => Some("ACTIVE"),
                "ORDER_CANCELLED" => Some("CANCELLED"),
                _ => None,
            };
            let wanted = expected.map(|state| {
                vec![
                    state.to_owned(),
                    field("user_id"),
                    field("quantity"),
                    place.clone(),
                ]
            });
            let found = orders.remove(id);
            if found != wanted {
                let now = status(fields);
                differences.push(format!("F5 {id} is {now}, its order is {found:?}"));
            }
        }
    }
    // What is left belongs to no reservation that Redis knows; a cancelled order may outlive it.
    for (id, order) in orders {
        if order.first().is_some_and(|state| state == "ACTIVE") {
            differences.push(format!("F5 {id} has an order {order:?} and no reservation"));
        }
    }
    differences
}
