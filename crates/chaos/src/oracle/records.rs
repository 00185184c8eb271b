//! Both stores, read once when all has settled.

use std::collections::BTreeMap;

use seckill_integration_tests::checks::{Bucket, Fields, buckets};
use seckill_test_support::Dump;

use super::queries;
use crate::installation::Installation;

/// An order as PostgreSQL holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) reservation: String,
    pub(crate) activity: String,
    pub(crate) version: String,
    pub(crate) bucket: String,
    pub(crate) user: String,
    pub(crate) request: String,
    pub(crate) quantity: i64,
    pub(crate) state: String,
}

impl Order {
    pub(crate) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// A decision as PostgreSQL holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) kind: String,
    pub(crate) user: String,
    pub(crate) request: String,
    pub(crate) quantity: i64,
    pub(crate) traceparent: String,
}

/// A bucket's units as PostgreSQL holds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StockRow {
    /// Activity, SKU, version and bucket.
    pub(crate) scope: [String; 4],
    pub(crate) total: i64,
    pub(crate) available: i64,
}

/// Everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct Records {
    pub(crate) dump: Dump,
    pub(crate) buckets: Vec<Bucket>,
    /// Reservations of all buckets, by id.
    pub(crate) reservations: BTreeMap<String, Fields>,
    pub(crate) orders: Vec<Order>,
    pub(crate) decisions: BTreeMap<String, Decision>,
    pub(crate) stock: Vec<StockRow>,
    /// Reservation and message ids of parked messages.
    pub(crate) parked: Vec<[String; 2]>,
    /// Traces of events, by reservation.
    pub(crate) event_traces: Vec<[String; 2]>,
}

impl Records {
    pub(crate) async fn read(installation: &Installation) -> anyhow::Result<Self> {
        let url = installation.database().url();
        let dump = installation.redis.primary().dump().await;
        let mut records = Self::of_dump(dump);
        for row in queries::texts(url, queries::ORDERS).await? {
            records.orders.extend(order(row));
        }
        for row in queries::texts(url, queries::DECISIONS).await? {
            records.decisions.extend(decision(row));
        }
        for row in queries::texts(url, queries::STOCK).await? {
            records.stock.extend(stock_row(row));
        }
        for row in queries::texts(url, queries::PARKED).await? {
            records.parked.extend(first_two(row));
        }
        for row in queries::texts(url, queries::EVENT_TRACES).await? {
            records.event_traces.extend(first_two(row));
        }
        Ok(records)
    }

    pub(crate) fn of_dump(dump: Dump) -> Self {
        let buckets = buckets(&dump);
        let reservations = buckets
            .iter()
            .flat_map(|bucket| bucket.reservations.clone());
        Self {
            reservations: reservations.collect(),
            buckets,
            dump,
            ..Self::default()
        }
    }

    /// Reservations that Redis holds in a state.
    pub(crate) fn in_state(&self, status: &str) -> u64 {
        let states = self.reservations.values();
        let found = states.filter(|fields| fields.get("status").is_some_and(|is| is == status));
        u64::try_from(found.count()).unwrap_or(u64::MAX)
    }
}

fn order(row: Vec<String>) -> Option<Order> {
    let [
        reservation,
        activity,
        version,
        bucket,
        user,
        request,
        quantity,
        state,
    ] = row.try_into().ok()?;
    Some(Order {
        reservation,
        activity,
        version,
        bucket,
        user,
        request,
        quantity: quantity.parse().ok()?,
        state,
    })
}

fn decision(row: Vec<String>) -> Option<(String, Decision)> {
    let [reservation, kind, _, user, request, quantity, traceparent] = row.try_into().ok()?;
    let decision = Decision {
        kind,
        user,
        request,
        quantity: quantity.parse().ok()?,
        traceparent,
    };
    Some((reservation, decision))
}

fn stock_row(row: Vec<String>) -> Option<StockRow> {
    let [activity, sku, version, bucket, total, available, _] = row.try_into().ok()?;
    Some(StockRow {
        scope: [activity, sku, version, bucket],
        total: total.parse().ok()?,
        available: available.parse().ok()?,
    })
}

fn first_two(row: Vec<String>) -> Option<[String; 2]> {
    let mut row = row.into_iter();
    Some([row.next()?, row.next()?])
}
