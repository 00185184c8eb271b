//! Order events on their way to the bus.
//!
//! They are relayed by state: unpublished rows are claimed for a while, oldest first, and marked
//! once the broker has confirmed them. There is no high-water mark, so a row that commits late is
//! not skipped. Events may be published twice, never not at all.

use std::time::Duration;

use seckill_state_machine::{OrderEvent, OrderEventKind, OrderRequest, RejectReason};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::decide::Columns;
use crate::pool::Session;
use crate::rows::{bucket, get, millis, number, order_id_opt, parse, parse_opt, small, time_ms};
use crate::{Error, Store};

/// Most rows of one claim: what one relay can publish within a lease of some seconds.
const CLAIM_MAX: i64 = 1_000;

const ORDER_CREATED: &str = "ORDER_CREATED";
const REJECTED: &str = "REJECTED";
const ORDER_CANCELLED: &str = "ORDER_CANCELLED";

/// An event that is committed and not yet known to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its place in the table.
    pub id: i64,
    /// The id it is published under; the same for every attempt.
    pub event_id: String,
    /// What happened.
    pub event: OrderEvent,
    /// Attempts so far, this one included.
    pub attempts: u32,
    /// Proves the claim.
    pub lease_token: Uuid,
}

/// An event to be written with its cause.
pub(crate) struct NewEvent<'a> {
    pub request: &'a OrderRequest,
    pub outcome: Outcome,
}

/// What an event tells.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    Created(Uuid),
    Rejected(RejectReason),
    Cancelled(Uuid),
}

impl Outcome {
    const fn kind(self) -> &'static str {
        match self {
            Self::Created(_) => ORDER_CREATED,
            Self::Rejected(_) => REJECTED,
            Self::Cancelled(_) => ORDER_CANCELLED,
        }
    }

    /// Each of them happens to a reservation once, so this names the event for good.
    fn event_id(self, request: &OrderRequest) -> String {
        let word = match self {
            Self::Created(_) => "order-created",
            Self::Rejected(_) => "order-rejected",
            Self::Cancelled(_) => "order-cancelled",
        };
        format!("{word}:{}:v1", request.reservation_id)
    }

    const fn order_id(self) -> Option<Uuid> {
        match self {
            Self::Created(id) | Self::Cancelled(id) => Some(id),
            Self::Rejected(_) => None,
        }
    }

    const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Rejected(reason) => Some(reason.as_str()),
            Self::Created(_) | Self::Cancelled(_) => None,
        }
    }
}

/// Writes events in the caller's transaction.
pub(crate) async fn write(session: &Session, events: &[NewEvent<'_>]) -> Result<(), Error> {
    if events.is_empty() {
        return Ok(());
    }
    let requests: Vec<&OrderRequest> = events.iter().map(|event| event.request).collect();
    let columns = Columns::of(&requests);
    let outcomes = || events.iter().map(|event| event.outcome);
    let order_id: Vec<Option<Uuid>> = outcomes().map(Outcome::order_id).collect();
    let reason: Vec<Option<&str>> = outcomes().map(Outcome::reason).collect();
    let kind: Vec<&str> = outcomes().map(Outcome::kind).collect();
    let event_id: Vec<String> = events
        .iter()
        .map(|event| event.outcome.event_id(event.request))
        .collect();
    session
        .execute(
            "-- write_outbox
            INSERT INTO outbox (
                reservation_id, request_id, user_id, activity_id, sku_id, version, bucket_id,
                quantity, traceparent, order_id, reason, kind, event_id, topic
            )
            SELECT r.*, 'seckill-order-event'
            FROM unnest(
                $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[],
                $7::bigint[], $8::bigint[], $9::text[], $10::uuid[], $11::text[], $12::text[],
                $13::text[]
            ) AS r (
                reservation_id, request_id, user_id, activity_id, sku_id, version, bucket_id,
                quantity, traceparent, order_id, reason, kind, event_id
            )",
            &[
                &columns.reservation_id,
                &columns.request_id,
                &columns.user_id,
                &columns.activity_id,
                &columns.sku_id,
                &columns.version,
                &columns.bucket_id,
                &columns.quantity,
                &columns.traceparent,
                &order_id,
                &reason,
                &kind,
                &event_id,
            ],
        )
        .await?;
    Ok(())
}

fn outbox_row(row: &Row) -> Result<OutboxRow, Error> {
    let kind = match get::<&str>(row, "kind")? {
        ORDER_CREATED => OrderEventKind::OrderCreated {
            order_id: order_id_opt(row)?.ok_or_else(|| Error::stored("order_id", "is null"))?,
        },
        REJECTED => OrderEventKind::Rejected {
            reason: parse(row, "reason")?,
        },
        ORDER_CANCELLED => OrderEventKind::OrderCancelled {
            order_id: order_id_opt(row)?.ok_or_else(|| Error::stored("order_id", "is null"))?,
        },
        _ => return Err(Error::stored("kind", "unknown event")),
    };
    Ok(OutboxRow {
        id: get(row, "outbox_id")?,
        event_id: get(row, "event_id")?,
        event: OrderEvent {
            reservation_id: parse(row, "reservation_id")?,
            request_id: parse(row, "request_id")?,
            user_id: parse(row, "user_id")?,
            bucket: bucket(row)?,
            quantity: small(row, "quantity")?,
            kind,
            occurred_at_ms: time_ms(row, "occurred_at")?,
            traceparent: parse_opt(row, "traceparent")?,
        },
        attempts: number(row, "attempts")?,
        lease_token: get(row, "lease_token")?,
    })
}

fn keys(rows: &[OutboxRow]) -> (Vec<i64>, Vec<Uuid>) {
    let mut rows: Vec<&OutboxRow> = rows.iter().collect();
    rows.sort_by_key(|row| row.id);
    rows.iter().map(|row| (row.id, row.lease_token)).unzip()
}

impl Store {
    /// Claims unpublished rows for a while, oldest first; at most 1,000. Rows of a lease that ran out are claimed
    /// again, so a relay that died holds nothing back.
    ///
    /// # Errors
    /// As every write.
    pub async fn claim_outbox(&self, limit: i64, lease: Duration) -> Result<Vec<OutboxRow>, Error> {
        let lease = millis("lease", lease)?;
        let rows = self
            .run_tx("claim_outbox", async |session| {
                session
                    .query(
                        "-- claim_outbox
                        WITH due AS (
                            SELECT outbox_id
                            FROM outbox
                            WHERE published_at IS NULL
                                AND (lease_until IS NULL OR lease_until <= now())
                            ORDER BY outbox_id
                            LIMIT $1
                            FOR UPDATE SKIP LOCKED
                        ), claim AS MATERIALIZED (
                            SELECT gen_random_uuid() AS token
                        ), claimed AS (
                            UPDATE outbox AS o
                            SET lease_until = now() + $2::bigint * interval '1 millisecond',
                                lease_token = claim.token, attempts = o.attempts + 1
                            FROM due, claim
                            WHERE o.outbox_id = due.outbox_id
                            RETURNING o.outbox_id, o.event_id, o.kind, o.order_id, o.reason,
                                o.reservation_id, o.request_id, o.user_id, o.activity_id, o.sku_id,
                                o.version, o.bucket_id, o.quantity, o.occurred_at, o.traceparent,
                                o.attempts, o.lease_token
                        )
                        SELECT outbox_id, event_id, kind, order_id, reason, reservation_id,
                            request_id, user_id, activity_id, sku_id, version, bucket_id, quantity,
                            occurred_at, traceparent, attempts, lease_token
                        FROM claimed ORDER BY outbox_id",
                        &[
                            /* limit */ &limit.min(CLAIM_MAX),
                            /* lease */ &lease,
                        ],
                    )
                    .await
            })
            .await?;
        Ok(readable(&rows))
    }

    /// Marks rows as published, as far as the claim still holds; returns how many.
    ///
    /// # Errors
    /// As every write.
    pub async fn mark_published(&self, rows: &[OutboxRow]) -> Result<u64, Error> {
        let (ids, tokens) = keys(rows);
        self.run_tx("mark_published", async |session| {
            session
                .execute(
                    "-- mark_published
                    UPDATE outbox AS o
                    SET published_at = now(), lease_until = NULL, lease_token = NULL
                    FROM unnest($1::bigint[], $2::uuid[]) AS r (outbox_id, lease_token)
                    WHERE o.outbox_id = r.outbox_id AND o.lease_token = r.lease_token
                        AND o.published_at IS NULL",
                    &[/* outbox_id */ &ids, /* lease_token */ &tokens],
                )
                .await
        })
        .await
    }

    /// Gives rows back for a later attempt, as far as the claim still holds; returns how many.
    ///
    /// # Errors
    /// As every write.
    pub async fn postpone_outbox(&self, rows: &[OutboxRow], delay: Duration) -> Result<u64, Error> {
        let (ids, tokens) = keys(rows);
        let delay = millis("delay", delay)?;
        self.run_tx("postpone_outbox", async |session| {
            session
                .execute(
                    "-- postpone_outbox
                    UPDATE outbox AS o
                    SET lease_until = now() + $3::bigint * interval '1 millisecond', lease_token = NULL
                    FROM unnest($1::bigint[], $2::uuid[]) AS r (outbox_id, lease_token)
                    WHERE o.outbox_id = r.outbox_id AND o.lease_token = r.lease_token
                        AND o.published_at IS NULL",
                    &[
                        /* outbox_id */ &ids,
                        /* lease_token */ &tokens,
                        /* delay */ &delay,
                    ],
                )
                .await
        })
        .await
    }

    /// How many events are not published.
    ///
    /// # Errors
    /// As every read.
    pub async fn outbox_unpublished(&self) -> Result<u64, Error> {
        self.count(
            "outbox_unpublished",
            "-- outbox_unpublished
            SELECT count(*) AS n FROM outbox WHERE published_at IS NULL",
            &[],
        )
        .await
    }
}

/// The rows that can be read. One that cannot must not hold back the others: it stays unpublished,
/// which the settled check and its alarm show.
fn readable(rows: &[Row]) -> Vec<OutboxRow> {
    let mut events = Vec::with_capacity(rows.len());
    for row in rows {
        match outbox_row(row) {
            Ok(event) => events.push(event),
            Err(error) => {
                let id = get::<i64>(row, "outbox_id").ok();
                tracing::error!(outbox.id = id, %error, "an outbox row cannot be read");
            }
        }
    }
    events
}
