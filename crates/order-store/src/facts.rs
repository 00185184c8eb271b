//! Decisions that stand, read back.

use seckill_state_machine::{
    BucketId, BucketScope, DecisionKind, OrderId, OrderRequest, OrderState, Quantity, RequestId,
    ReservationId, Scope, TimestampMs, Traceparent, UserId,
};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

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

/// Most rows of one page.
const PAGE_MAX: i64 = 10_000;

impl Store {
    /// Decisions of a version by reservation id, after a given one; at most 10,000 a page.
    ///
    /// # Errors
    /// As every read.
    pub async fn decisions_page(
        &self,
        scope: &Scope,
        after: Option<&ReservationId>,
        limit: i64,
    ) -> Result<Vec<DecisionRecord>, Error> {
        self.page_of_decisions("decisions_page", scope, None, after, limit)
            .await
    }

    /// Decisions of some buckets of a version by reservation id, after a given one; at most 10,000 a page.
    ///
    /// It walks the version's index and skips the other buckets, since one more index would cost every
    /// decision of a sale. So whoever wants several buckets asks for them together.
    ///
    /// # Errors
    /// As every read.
    pub async fn decisions_of_buckets_page(
        &self,
        scope: &Scope,
        buckets: &[BucketId],
        after: Option<&ReservationId>,
        limit: i64,
    ) -> Result<Vec<DecisionRecord>, Error> {
        let buckets = Some(buckets);
        self.page_of_decisions("decisions_of_buckets_page", scope, buckets, after, limit)
            .await
    }

    async fn page_of_decisions(
        &self,
        operation: &'static str,
        scope: &Scope,
        buckets: Option<&[BucketId]>,
        after: Option<&ReservationId>,
        limit: i64,
    ) -> Result<Vec<DecisionRecord>, Error> {
        let sql = match buckets {
            None => DECISIONS_PAGE,
            Some(_) => DECISIONS_OF_BUCKETS_PAGE,
        };
        let activity_id = scope.activity_id.as_str();
        let sku_id = scope.sku_id.as_str();
        let version = version(scope);
        let after = after.map_or("", ReservationId::as_str);
        let limit = limit.min(PAGE_MAX);
        let buckets: Option<Vec<i64>> =
            buckets.map(|ids| ids.iter().map(|id| i64::from(id.get())).collect());
        let mut params: Vec<&(dyn ToSql + Sync)> =
            vec![&activity_id, &sku_id, &version, &after, &limit];
        params.extend(buckets.as_ref().map(|ids| ids as &(dyn ToSql + Sync)));
        let rows = self.read(operation, sql, &params).await?;
        rows.iter().map(decision_record).collect()
    }

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

    /// A user's own reservation, as far as it is decided, also when its version is archived. A
    /// stranger's is not found.
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

const DECISIONS_PAGE: &str = concat!(
    "-- decisions_page
    SELECT ",
    decision_columns!(),
    ", o.order_id, o.state AS order_state
    FROM reservation_decision AS d
    LEFT JOIN orders AS o ON o.reservation_id = d.reservation_id
    WHERE d.activity_id = $1 AND d.sku_id = $2 AND d.version = $3 AND d.reservation_id > $4
    ORDER BY d.reservation_id
    LIMIT $5"
);

const DECISIONS_OF_BUCKETS_PAGE: &str = concat!(
    "-- decisions_of_buckets_page
    SELECT ",
    decision_columns!(),
    ", o.order_id, o.state AS order_state
    FROM reservation_decision AS d
    LEFT JOIN orders AS o ON o.reservation_id = d.reservation_id
    WHERE d.activity_id = $1 AND d.sku_id = $2 AND d.version = $3 AND d.bucket_id = ANY($6::bigint[])
        AND d.reservation_id > $4
    ORDER BY d.reservation_id
    LIMIT $5"
);

/// The decisions of these reservations as a transaction sees them.
pub(crate) async fn read_decisions(
    session: &Session,
    ids: &[&str],
) -> Result<Vec<DecisionRecord>, Error> {
    let rows = session.query(DECISIONS, &[/* ids */ &ids]).await?;
    rows.iter().map(decision_record).collect()
}

// The archive of orders has no index of its own for reservations; their owner's orders are few.
const ARCHIVED_DECISION: &str = concat!(
    "-- archived_decision
    SELECT ",
    decision_columns!(),
    ", o.order_id, o.state AS order_state
    FROM reservation_decision_archive AS d
    LEFT JOIN orders_archive AS o
        ON o.activity_id = d.activity_id AND o.sku_id = d.sku_id AND o.version = d.version
        AND o.user_id = d.user_id AND o.reservation_id = d.reservation_id
    WHERE d.reservation_id = $1"
);

/// The decision of a reservation whose version is archived.
pub(crate) async fn read_archived_decision(
    session: &Session,
    id: &str,
) -> Result<Option<DecisionRecord>, Error> {
    let rows = session
        .query(ARCHIVED_DECISION, &[/* reservation_id */ &id])
        .await?;
    rows.first().map(decision_record).transpose()
}

// An archived version is still its buyers' business. A reservation stands in one place only.
const FIND_BY_RESERVATION: &str = concat!(
    "-- find_reservation
    SELECT ",
    decision_columns!(),
    ", o.order_id, o.state AS order_state
    FROM reservation_decision AS d
    LEFT JOIN orders AS o ON o.reservation_id = d.reservation_id
    WHERE d.reservation_id = $5
        AND d.activity_id = $1 AND d.sku_id = $2 AND d.version = $3 AND d.user_id = $4
    UNION ALL
    SELECT ",
    decision_columns!(),
    ", o.order_id, o.state
    FROM reservation_decision_archive AS d
    LEFT JOIN orders_archive AS o
        ON o.activity_id = $1 AND o.sku_id = $2 AND o.version = $3 AND o.user_id = $4
        AND o.reservation_id = d.reservation_id
    WHERE d.reservation_id = $5
        AND d.activity_id = $1 AND d.sku_id = $2 AND d.version = $3 AND d.user_id = $4"
);

// The first part finds an order by the order's unique key, the second a refusal by the partial
// index that holds refusals alone, the third whatever is archived.
const FIND_BY_REQUEST: &str = concat!(
    "-- find_reservation
    SELECT f.reservation_id, f.request_id, f.user_id, f.activity_id, f.sku_id, f.version,
        f.bucket_id, f.quantity, f.kind, f.reason, f.reserved_at, f.decided_at, f.traceparent,
        f.order_id, f.order_state
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
        UNION ALL
        SELECT ",
    decision_columns!(),
    ", o.order_id, o.state
        FROM reservation_decision_archive AS d
        LEFT JOIN orders_archive AS o
            ON o.activity_id = $1 AND o.sku_id = $2 AND o.version = $3 AND o.user_id = $4
            AND o.reservation_id = d.reservation_id
        WHERE d.activity_id = $1 AND d.sku_id = $2 AND d.version = $3
            AND d.request_id = $5 AND d.user_id = $4
    ) AS f
    ORDER BY f.order_id IS NULL, f.decided_at DESC
    LIMIT 1"
);
