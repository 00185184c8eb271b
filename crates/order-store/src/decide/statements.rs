//! The statements of the decision.
//!
//! Every one that touches several rows works through them in the order of their key, so that two
//! batches that overlap meet in the same order and wait instead of deadlocking.

use std::collections::{BTreeMap, BTreeSet};

use seckill_state_machine::{BucketScope, OrderRequest, RejectReason, ReservationId};
use uuid::Uuid;

use super::{BucketColumns, Columns};
use crate::Error;
use crate::pool::Session;
use crate::rows::{bucket, get, number, parse};

/// Step 2: remembers the messages. One that is known already is no reason to stop: without a
/// decision it is processed as new.
pub(super) async fn receive(session: &Session, columns: &Columns<'_>) -> Result<(), Error> {
    session
        .execute(
            "-- receive
            INSERT INTO inbox (message_id, topic)
            SELECT m.message_id, 'seckill-order-request'
            FROM unnest($1::text[]) AS m (message_id)
            ORDER BY m.message_id COLLATE \"C\"
            ON CONFLICT (message_id) DO NOTHING",
            &[/* message_id */ &columns.message_id],
        )
        .await?;
    Ok(())
}

/// Step 3: takes the decisions' keys. `ORDERED` is provisional until commit. Returns those that
/// were free; any other row is a decision that stands.
pub(super) async fn claim(
    session: &Session,
    columns: &Columns<'_>,
) -> Result<BTreeSet<ReservationId>, Error> {
    let rows = session
        .query(
            "-- claim
            INSERT INTO reservation_decision (
                reservation_id, message_id, request_id, user_id, activity_id, sku_id, version,
                bucket_id, quantity, reserved_at, traceparent, kind, updated_by
            )
            SELECT r.*, 'ORDERED', 'decide'
            FROM unnest(
                $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                $7::bigint[], $8::bigint[], $9::bigint[], $10::timestamptz[], $11::text[]
            ) AS r (
                reservation_id, message_id, request_id, user_id, activity_id, sku_id, version,
                bucket_id, quantity, reserved_at, traceparent
            )
            ORDER BY r.reservation_id COLLATE \"C\"
            ON CONFLICT (reservation_id) DO NOTHING
            RETURNING reservation_id",
            &[
                &columns.reservation_id,
                &columns.message_id,
                &columns.request_id,
                &columns.user_id,
                &columns.activity_id,
                &columns.sku_id,
                &columns.version,
                &columns.bucket_id,
                &columns.quantity,
                &columns.reserved_at,
                &columns.traceparent,
            ],
        )
        .await?;
    rows.iter()
        .map(|row| parse(row, "reservation_id"))
        .collect()
}

/// Step 4: locks the stock rows and says what is left in them. The row of an archived version is
/// left out, also when it is sealed while this statement waits for it.
pub(crate) async fn lock_stock(
    session: &Session,
    requests: &[&OrderRequest],
) -> Result<BTreeMap<BucketScope, u64>, Error> {
    let buckets: BTreeSet<&BucketScope> = requests.iter().map(|r| &r.bucket).collect();
    let columns = BucketColumns::of(buckets.iter().copied());
    let rows = session
        .query(
            "-- lock_stock
            SELECT s.activity_id, s.sku_id, s.version, s.bucket_id, s.available
            FROM activity_stock AS s
            WHERE (s.activity_id, s.sku_id, s.version, s.bucket_id) IN (
                SELECT r.activity_id, r.sku_id, r.version, r.bucket_id
                FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
                    AS r (activity_id, sku_id, version, bucket_id)
            ) AND s.sealed_at IS NULL
            ORDER BY s.activity_id, s.sku_id, s.version, s.bucket_id
            FOR NO KEY UPDATE OF s",
            &[
                &columns.activity_id,
                &columns.sku_id,
                &columns.version,
                &columns.bucket_id,
            ],
        )
        .await?;
    rows.iter()
        .map(|row| Ok((bucket(row)?, number(row, "available")?)))
        .collect()
}

/// Step 5: inserts the orders, or asks for another run when not all of them could be.
pub(super) async fn create_orders(
    session: &Session,
    requests: &[&OrderRequest],
) -> Result<BTreeMap<ReservationId, Uuid>, Error> {
    if requests.is_empty() {
        return Ok(BTreeMap::new());
    }
    let columns = Columns::of(requests);
    let rows = session
        .query(
            "-- create_orders
            INSERT INTO orders (
                reservation_id, request_id, user_id, activity_id, sku_id, version, bucket_id,
                quantity, updated_by
            )
            SELECT r.*, 'decide'
            FROM unnest(
                $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[],
                $7::bigint[], $8::bigint[]
            ) AS r (
                reservation_id, request_id, user_id, activity_id, sku_id, version, bucket_id,
                quantity
            )
            ORDER BY
                r.activity_id COLLATE \"C\", r.sku_id COLLATE \"C\", r.user_id COLLATE \"C\"
            ON CONFLICT DO NOTHING
            RETURNING reservation_id, order_id",
            &[
                &columns.reservation_id,
                &columns.request_id,
                &columns.user_id,
                &columns.activity_id,
                &columns.sku_id,
                &columns.version,
                &columns.bucket_id,
                &columns.quantity,
            ],
        )
        .await?;
    if rows.len() < requests.len() {
        // An order of another bucket, version or channel was committed after the reading. Its units
        // were already ruled away from the rest of the batch, so the whole batch is ruled again,
        // now that the order can be seen. Nothing is deducted meanwhile.
        return Err(Error::Interfered {
            operation: "decide",
        });
    }
    rows.iter()
        .map(|row| Ok((parse(row, "reservation_id")?, get(row, "order_id")?)))
        .collect()
}

/// Step 5: takes the units of the orders that were made, from their own bucket's row alone.
pub(super) async fn deduct(session: &Session, created: &[&OrderRequest]) -> Result<(), Error> {
    let mut units: BTreeMap<&BucketScope, i64> = BTreeMap::new();
    for request in created {
        *units.entry(&request.bucket).or_default() += i64::from(request.quantity.get());
    }
    if units.is_empty() {
        return Ok(());
    }
    let columns = BucketColumns::of(units.keys().copied());
    let quantity: Vec<i64> = units.values().copied().collect();
    let touched = session
        .execute(
            "-- deduct
            UPDATE activity_stock AS s
            SET available = s.available - d.units, sold = s.sold + d.units,
                updated_at = now(), updated_by = 'decide'
            FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[])
                AS d (activity_id, sku_id, version, bucket_id, units)
            WHERE s.activity_id = d.activity_id AND s.sku_id = d.sku_id
                AND s.version = d.version AND s.bucket_id = d.bucket_id",
            &[
                &columns.activity_id,
                &columns.sku_id,
                &columns.version,
                &columns.bucket_id,
                &quantity,
            ],
        )
        .await?;
    if touched == units.len() as u64 {
        Ok(())
    } else {
        Err(Error::stored(
            "activity_stock",
            "a locked stock row has vanished",
        ))
    }
}

/// Step 5: turns provisional decisions into refusals.
pub(super) async fn reject(
    session: &Session,
    rejected: &[(&OrderRequest, RejectReason)],
) -> Result<(), Error> {
    if rejected.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = rejected
        .iter()
        .map(|(r, _)| r.reservation_id.as_str())
        .collect();
    let reasons: Vec<&str> = rejected.iter().map(|(_, reason)| reason.as_str()).collect();
    session
        .execute(
            "-- reject
            UPDATE reservation_decision AS d
            SET kind = 'REJECTED', reason = r.reason
            FROM unnest($1::text[], $2::text[]) AS r (reservation_id, reason)
            WHERE d.reservation_id = r.reservation_id",
            &[&ids, &reasons],
        )
        .await?;
    Ok(())
}

/// Takes back what was written for requests without a stock row: they are parked, and a replayed
/// message must be processed as new.
pub(super) async fn forget(session: &Session, unknown: &[&OrderRequest]) -> Result<(), Error> {
    if unknown.is_empty() {
        return Ok(());
    }
    let columns = Columns::of(unknown);
    session
        .execute(
            "-- forget_decision
            DELETE FROM reservation_decision WHERE reservation_id = ANY($1)",
            &[&columns.reservation_id],
        )
        .await?;
    session
        .execute(
            "-- forget_message
            DELETE FROM inbox WHERE message_id = ANY($1)",
            &[&columns.message_id],
        )
        .await?;
    Ok(())
}

/// Step 6: journals the units that were sold.
pub(super) async fn journal(session: &Session, created: &[&OrderRequest]) -> Result<(), Error> {
    if created.is_empty() {
        return Ok(());
    }
    let columns = Columns::of(created);
    session
        .execute(
            "-- journal
            INSERT INTO stock_ledger (
                activity_id, sku_id, version, bucket_id, kind, delta, reservation_id
            )
            SELECT r.activity_id, r.sku_id, r.version, r.bucket_id, 'ORDERED', -r.quantity,
                r.reservation_id
            FROM unnest(
                $1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[]
            ) AS r (activity_id, sku_id, version, bucket_id, quantity, reservation_id)",
            &[
                &columns.activity_id,
                &columns.sku_id,
                &columns.version,
                &columns.bucket_id,
                &columns.quantity,
                &columns.reservation_id,
            ],
        )
        .await?;
    Ok(())
}
