//! Decisions that stand, read back.

use seckill_state_machine::{
    BucketScope, DecisionKind, OrderId, OrderRequest, OrderState, Quantity, RequestId,
    ReservationId, Scope, TimestampMs, Traceparent, UserId,
};
use tokio_postgres::Row;

use crate::pool::Session;
use crate::rows::{bucket, get, order_id_opt, parse, parse_opt, small, time_ms, version};
use crate::{Error, Store};

/// Most reservations that one call may ask for: a page of an index, or a batch of messages.
pub(crate) const IDS_MAX: usize = 1_024;

/// A decision, and the order behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionRecord {
    /// The reservation.
    pub reservation_id: ReservationId,
    /// The caller's idempotency key.
    pub request_id: RequestId,
    /// The buyer.
    pub user_id: UserId,
    /// The bucket.
    pub bucket: BucketScope,
    /// Units.
    pub quantity: Quantity,
    /// The decision.
    pub kind: DecisionKind,
    /// Why it is no order.
    pub reason: Option<String>,
    /// The order behind `ORDERED`.
    pub order: Option<(OrderId, OrderState)>,
    /// When Redis accepted it.
    pub reserved_at_ms: TimestampMs,
    /// When it was decided, by PostgreSQL's clock.
    pub decided_at_ms: TimestampMs,
    /// The purchase's trace.
    pub traceparent: Option<Traceparent>,
}

impl DecisionRecord {
    /// The order request that was decided, for instance to open a task for it.
    #[must_use]
    pub fn order_request(&self) -> OrderRequest {
        OrderRequest {
            reservation_id: self.reservation_id.clone(),
            request_id: self.request_id.clone(),
            user_id: self.user_id.clone(),
            bucket: self.bucket.clone(),
            quantity: self.quantity,
            reserved_at_ms: self.reserved_at_ms,
            traceparent: self.traceparent.clone(),
        }
    }
}

/// How a caller names a reservation.
#[derive(Debug, Clone, Copy)]
pub enum ReservationRef<'a> {
    /// By its own id.
    Reservation(&'a ReservationId),
    /// By the request that made it.
    Request(&'a RequestId),
}

/// Reads the state of an order from its column, `NULL` where there is none.
pub(crate) fn order_state(row: &Row) -> Result<Option<OrderState>, Error> {
    match get::<Option<&str>>(row, "order_state")? {
        None => Ok(None),
        Some("ACTIVE") => Ok(Some(OrderState::Active)),
        Some("CANCELLED") => Ok(Some(OrderState::Cancelled)),
        Some(_) => Err(Error::stored("order_state", "unknown order state")),
    }
}

/// Reads a row of decision columns joined with `order_id` and `order_state`.
pub(crate) fn decision_record(row: &Row) -> Result<DecisionRecord, Error> {
    Ok(DecisionRecord {
        reservation_id: parse(row, "reservation_id")?,
        request_id: parse(row, "request_id")?,
        user_id: parse(row, "user_id")?,
        bucket: bucket(row)?,
        quantity: small(row, "quantity")?,
        kind: parse(row, "kind")?,
        reason: get(row, "reason")?,
        order: order_id_opt(row)?.zip(order_state(row)?),
        reserved_at_ms: time_ms(row, "reserved_at")?,
        decided_at_ms: time_ms(row, "decided_at")?,
        traceparent: parse_opt(row, "traceparent")?,
    })
}

impl Store {
    /// The decisions of these reservations, as far as there are any, by reservation id.
    ///
    /// # Errors
    /// `Invalid` for more ids than a batch has; else as every read.
    pub async fn decisions(&self, ids: &[ReservationId]) -> Result<Vec<DecisionRecord>, Error> {
        if ids.len() > IDS_MAX {
            return Err(Error::invalid("ids", format!("more than {IDS_MAX}")));
        }
        let ids: Vec<&str> = ids.iter().map(ReservationId::as_str).collect();
        let rows = self.read("decisions", DECISIONS, &[/* ids */ &ids]).await?;
        rows.iter().map(decision_record).collect()
    }

    /// A user's own reservation, as far as it is decided. A stranger's is not found.
    ///
    /// One request id can stand on several reservations, when it was repeated with another quantity
    /// after a failover; the order comes first, then the newest.
    ///
    /// # Errors
    /// As every read.
    pub async fn find_reservation(
        &self,
        scope: &Scope,
        user: &UserId,
        by: ReservationRef<'_>,
    ) -> Result<Option<DecisionRecord>, Error> {
        let (sql, id) = match by {
            ReservationRef::Reservation(id) => (FIND_BY_RESERVATION, id.as_str()),
            ReservationRef::Request(id) => (FIND_BY_REQUEST, id.as_str()),
        };
        let rows = self
            .read(
                "find_reservation",
                sql,
                &[
                    /* activity_id */ &scope.activity_id.as_str(),
                    /* sku_id */ &scope.sku_id.as_str(),
                    /* version */ &version(scope),
                    /* user_id */ &user.as_str(),
                    /* id */ &id,
                ],
            )
            .await?;
        rows.first().map(decision_record).transpose()
    }
}

/// What is read of a decision, by name: with `*`, a column that a later schema adds would change the
/// result of statements that running programs have prepared.
macro_rules! decision_columns {
    () => {
        "d.reservation_id, d.request_id, d.user_id, d.activity_id, d.sku_id, d.version, d.bucket_id,
        d.quantity, d.kind, d.reason, d.reserved_at, d.decided_at, d.traceparent"
    };
}

const DECISIONS: &str = concat!(
    "-- decisions
    SELECT ",
    decision_columns!(),
    ", o.order_id, o.state AS order_state
    FROM reservation_decision AS d
    LEFT JOIN orders AS o ON o.reservation_id = d.reservation_id
    WHERE d.reservation_id = ANY($1)
    ORDER BY d.reservation_id"
);

/// The decisions of these reservations as a transaction sees them.
pub(crate) async fn read_decisions(
    session: &Session,
    ids: &[&str],
) -> Result<Vec<DecisionRecord>, Error> {
    let rows = session.query(DECISIONS, &[/* ids */ &ids]).await?;
    rows.iter().map(decision_record).collect()
}

const FIND_BY_RESERVATION: &str = concat!(
    "-- find_reservation
    SELECT ",
    decision_columns!(),
    ", o.order_id, o.state AS order_state
    FROM reservation_decision AS d
    LEFT JOIN orders AS o ON o.reservation_id = d.reservation_id
    WHERE d.reservation_id = $5
        AND d.activity_id = $1 AND d.sku_id = $2 AND d.version = $3 AND d.user_id = $4"
);

// The first half finds an order by the order's unique key, the second a refusal by the partial
// index that holds refusals alone.
const FIND_BY_REQUEST: &str = concat!(
    "-- find_reservation
    SELECT f.*
    FROM (
        SELECT ",
    decision_columns!(),
    ", o.order_id, o.state AS order_state
        FROM orders AS o
        JOIN reservation_decision AS d ON d.reservation_id = o.reservation_id
        WHERE o.activity_id = $1 AND o.sku_id = $2 AND o.version = $3
            AND o.request_id = $5 AND o.user_id = $4
        UNION ALL
        SELECT ",
    decision_columns!(),
    ", NULL, NULL
        FROM reservation_decision AS d
        WHERE d.activity_id = $1 AND d.sku_id = $2 AND d.version = $3
            AND d.request_id = $5 AND d.user_id = $4 AND d.kind <> 'ORDERED'
    ) AS f
    ORDER BY f.order_id IS NULL, f.decided_at DESC
    LIMIT 1"
);
