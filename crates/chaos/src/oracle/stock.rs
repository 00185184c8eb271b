//! Units and orders: I1, I2, I5 to I7 as far as both stores can tell.

use std::collections::BTreeMap;

use super::records::{Order, Records};
use crate::load::Offer;

/// I1: units in active orders of a sale, against what its operator has put on sale.
pub(super) fn oversold(records: &Records, offers: &[Offer]) -> Vec<String> {
    let mut sold: BTreeMap<(String, String), i64> = BTreeMap::new();
    for order in records.orders.iter().filter(|order| order.is_active()) {
        let sale = (order.activity.clone(), order.version.clone());
        *sold.entry(sale).or_default() += order.quantity;
    }
    let mut violations = Vec::new();
    for offer in offers {
        let version = offer.sale.version.to_string();
        let units = sold.remove(&(offer.sale.activity_id.clone(), version.clone()));
        let stock = i64::try_from(offer.stock).unwrap_or(i64::MAX);
        if units.is_some_and(|units| units > stock) {
            violations.push(format!(
                "I1 {}/{version}: {units:?} units of {stock} are sold",
                offer.sale.activity_id
            ));
        }
    }
    let unknown = sold.into_iter();
    violations
        .extend(unknown.map(|(sale, units)| format!("I1 {sale:?}: {units} units of nothing")));
    violations
}

/// I2, I4: what there may be one of.
pub(super) fn duplicated(records: &Records) -> Vec<String> {
    let mut violations = Vec::new();
    let active: Vec<&Order> = records
        .orders
        .iter()
        .filter(|order| order.is_active())
        .collect();
    violations.extend(twice(
        "I2 active orders of a user",
        active.iter(),
        |order| format!("{} {}", order.activity, order.user),
    ));
    violations.extend(twice(
        "I2 orders of a reservation",
        records.orders.iter(),
        |order| order.reservation.clone(),
    ));
    violations.extend(twice(
        "I4 orders of a request",
        records.orders.iter(),
        |order| format!("{} {} {}", order.activity, order.version, order.request),
    ));
    violations
}

fn twice<'a, T: 'a>(
    rule: &str,
    items: impl Iterator<Item = &'a T>,
    key: impl Fn(&T) -> String,
) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for item in items {
        *counts.entry(key(item)).or_default() += 1;
    }
    let more = counts.into_iter().filter(|(_, count)| *count > 1);
    more.map(|(key, count)| format!("{rule}: {key} has {count}"))
        .collect()
}

/// I5, I6: a unit that nobody holds is for sale, in both stores alike; and what came back on sale did
/// so by PostgreSQL's word.
pub(super) fn differences(records: &Records) -> Vec<String> {
    let mut violations = Vec::new();
    let mut buckets: BTreeMap<[String; 4], _> = BTreeMap::new();
    for bucket in &records.buckets {
        buckets.insert(bucket.scope().map(str::to_owned), bucket);
    }
    for row in &records.stock {
        let stock = buckets.get(&row.scope).map(|bucket| &bucket.stock);
        let count = |name: &str| -> Option<i64> { stock?.get(name)?.parse().ok() };
        let (initial, available) = (count("initial"), count("available"));
        if (initial, available) != (Some(row.total), Some(row.available)) {
            violations.push(format!(
                "I5 {}: postgresql has {} of {} to sell, redis {available:?} of {initial:?}",
                row.scope.join("/"),
                row.available,
                row.total
            ));
        }
    }
    for (id, fields) in &records.reservations {
        let status = fields.get("status").map_or("", String::as_str);
        let decided = records
            .decisions
            .get(id)
            .map(|decision| decision.kind.as_str());
        let is_right = match status {
            "RELEASED" => matches!(decided, Some("REJECTED" | "RELEASED")),
            "ORDER_CREATED" | "ORDER_CANCELLED" => decided == Some("ORDERED"),
            // Not final, and so listed as work that is left.
            _ => true,
        };
        if !is_right {
            violations.push(format!(
                "I6 {id} is {status}, and was decided as {decided:?}"
            ));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use seckill_integration_tests::Sale;

    use super::*;

    fn order(reservation: &str, user: &str, quantity: i64) -> Order {
        Order {
            reservation: reservation.to_owned(),
            activity: "a".to_owned(),
            version: "1".to_owned(),
            bucket: "0".to_owned(),
            user: user.to_owned(),
            request: format!("req-{reservation}"),
            quantity,
            state: "ACTIVE".to_owned(),
        }
    }

    fn offer(stock: u64) -> Offer {
        let sale = Sale {
            activity_id: "a".to_owned(),
            sku_id: "sku-1".to_owned(),
            version: 1,
        };
        Offer::new(sale, stock)
    }

    #[test]
    fn a_unit_too_many_is_seen() {
        let records = Records {
            orders: vec![order("r1", "u1", 2), order("r2", "u2", 1)],
            ..Records::default()
        };
        assert!(oversold(&records, &[offer(3)]).is_empty());
        assert_eq!(oversold(&records, &[offer(2)]).len(), 1);
        assert_eq!(oversold(&records, &[]).len(), 1, "units of an unknown sale");
    }

    #[test]
    fn two_of_one_are_seen() {
        let mut orders = vec![order("r1", "u1", 1), order("r2", "u2", 1)];
        let records = |orders: &[Order]| Records {
            orders: orders.to_vec(),
            ..Records::default()
        };
        assert!(duplicated(&records(&orders)).is_empty());
        orders.push(order("r3", "u2", 1));
        assert_eq!(duplicated(&records(&orders)).len(), 1);
        orders.push(order("r1", "u3", 1));
        assert_eq!(duplicated(&records(&orders)).len(), 3);
    }

    #[test]
    fn a_release_without_a_decision_is_seen() {
        let fields = [("status".to_owned(), "RELEASED".to_owned())];
        let mut records = Records::default();
        records.reservations.insert("r1".to_owned(), fields.into());
        assert_eq!(differences(&records).len(), 1);
    }
}
