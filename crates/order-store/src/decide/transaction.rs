//! The steps of the decision, in their lock order: inbox, decision, stock, order, task.
//!
//! Every multi-row statement works through its rows in the order of their key, so that two batches
//! that overlap meet in the same order and wait instead of deadlocking.

use std::collections::{BTreeMap, BTreeSet};

use seckill_state_machine::{
    BucketScope, DecisionBook, DecisionKind, OrderRequest, RejectReason, ReservationId, Ruling,
    rule,
};
use uuid::Uuid;

use super::{Answers, Columns, Decided};
use crate::pool::Session;
use crate::rows::{bucket, get, number, order_id, parse, scope};
use crate::tasks::{self, Opening};
use crate::{DecisionRecord, Error, TaskOrigin, outbox};

/// The requests that this transaction decides, as they were ruled.
#[derive(Default)]
struct Ruled<'a> {
    create: Vec<&'a OrderRequest>,
    reject: Vec<(&'a OrderRequest, RejectReason)>,
    unknown: Vec<&'a OrderRequest>,
}

/// Decides distinct requests; the caller commits.
pub(super) async fn run(
    session: &Session,
    unique: &[&OrderRequest],
    refused_by_rule: Option<RejectReason>,
) -> Result<Answers, Error> {
    let mut by_key = unique.to_vec();
    by_key.sort_by(|a, b| a.reservation_id.cmp(&b.reservation_id));
    let columns = Columns::of(&by_key);

    receive(session, &columns).await?;
    let claimed = claim(session, &columns).await?;
    let mut answers = Answers::new();
    let mut ruled = Ruled::default();
    if !claimed.is_empty() {
        let mut book = open_book(session, unique, &claimed).await?;
        for request in unique.iter().copied() {
            if claimed.contains(&request.reservation_id) {
                enter(
                    &mut ruled,
                    request,
                    rule(&mut book, request),
                    refused_by_rule,
                )?;
            }
        }
    }
    found(session, &by_key, &claimed, &mut answers).await?;
    write(session, &ruled, &mut answers).await?;
    Ok(answers)
}

fn enter<'a>(
    ruled: &mut Ruled<'a>,
    request: &'a OrderRequest,
    ruling: Ruling,
    refused_by_rule: Option<RejectReason>,
) -> Result<(), Error> {
    match (ruling, refused_by_rule) {
        (Ruling::Create, None) => ruled.create.push(request),
        (Ruling::Create, Some(reason)) => ruled.reject.push((request, reason)),
        (Ruling::Reject(reason), _) => ruled.reject.push((request, reason)),
        (Ruling::UnknownBucket, _) => ruled.unknown.push(request),
        // Only requests whose decision this transaction holds are ruled, each once.
        (Ruling::Already(_), _) => {
            return Err(Error::stored("reservation_id", "ruled twice in one batch"));
        }
    }
    Ok(())
}

/// Step 2: remembers the messages. One that is known already is no reason to stop: without a
/// decision it is processed as new.
async fn receive(session: &Session, columns: &Columns<'_>) -> Result<(), Error> {
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
async fn claim(session: &Session, columns: &Columns<'_>) -> Result<BTreeSet<ReservationId>, Error> {
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

/// Step 4: locks the stock rows, and only then reads who has an order. Whatever was committed while
/// this transaction waited for the locks is seen.
async fn open_book(
    session: &Session,
    unique: &[&OrderRequest],
    claimed: &BTreeSet<ReservationId>,
) -> Result<DecisionBook, Error> {
    let claimed: Vec<&OrderRequest> = unique
        .iter()
        .copied()
        .filter(|request| claimed.contains(&request.reservation_id))
        .collect();
    let columns = Columns::of(&claimed);
    let mut book = DecisionBook {
        available: lock_stock(session, &claimed).await?,
        ..DecisionBook::default()
    };
    let users = session
        .query(
            "-- read_active_orders
            SELECT o.activity_id, o.sku_id, o.user_id
            FROM unnest($1::text[], $2::text[], $3::text[]) AS r (activity_id, sku_id, user_id)
            JOIN orders AS o
                ON o.activity_id = r.activity_id AND o.sku_id = r.sku_id
                AND o.user_id = r.user_id AND o.state = 'ACTIVE'",
            &[&columns.activity_id, &columns.sku_id, &columns.user_id],
        )
        .await?;
    for row in &users {
        book.users_with_order.insert((
            parse(row, "activity_id")?,
            parse(row, "sku_id")?,
            parse(row, "user_id")?,
        ));
    }
    let requests = session
        .query(
            "-- read_used_requests
            SELECT o.activity_id, o.sku_id, o.version, o.request_id
            FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
                AS r (activity_id, sku_id, version, request_id)
            JOIN orders AS o
                ON o.activity_id = r.activity_id AND o.sku_id = r.sku_id
                AND o.version = r.version AND o.request_id = r.request_id",
            &[
                &columns.activity_id,
                &columns.sku_id,
                &columns.version,
                &columns.request_id,
            ],
        )
        .await?;
    for row in &requests {
        book.request_ids_used
            .insert((scope(row)?, parse(row, "request_id")?));
    }
    Ok(book)
}

async fn lock_stock(
    session: &Session,
    requests: &[&OrderRequest],
) -> Result<BTreeMap<BucketScope, u64>, Error> {
    let buckets: BTreeSet<&BucketScope> = requests.iter().map(|r| &r.bucket).collect();
    let activity_id: Vec<&str> = buckets
        .iter()
        .map(|b| b.scope.activity_id.as_str())
        .collect();
    let sku_id: Vec<&str> = buckets.iter().map(|b| b.scope.sku_id.as_str()).collect();
    let version: Vec<i64> = buckets
        .iter()
        .map(|b| crate::rows::version(&b.scope))
        .collect();
    let bucket_id: Vec<i64> = buckets
        .iter()
        .map(|b| i64::from(b.bucket_id.get()))
        .collect();
    let rows = session
        .query(
            "-- lock_stock
            SELECT s.activity_id, s.sku_id, s.version, s.bucket_id, s.available
            FROM activity_stock AS s
            WHERE (s.activity_id, s.sku_id, s.version, s.bucket_id) IN (
                SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
            )
            ORDER BY s.activity_id, s.sku_id, s.version, s.bucket_id
            FOR NO KEY UPDATE OF s",
            &[&activity_id, &sku_id, &version, &bucket_id],
        )
        .await?;
    rows.iter()
        .map(|row| Ok((bucket(row)?, number(row, "available")?)))
        .collect()
}

/// Answers the requests whose decision was there before, so that their settlement is repeated.
async fn found(
    session: &Session,
    by_key: &[&OrderRequest],
    claimed: &BTreeSet<ReservationId>,
    answers: &mut Answers,
) -> Result<(), Error> {
    let ids: Vec<&str> = by_key
        .iter()
        .filter(|request| !claimed.contains(&request.reservation_id))
        .map(|request| request.reservation_id.as_str())
        .collect();
    if ids.is_empty() {
        return Ok(());
    }
    for record in crate::facts::read_decisions(session, &ids).await? {
        answers.insert(record.reservation_id.clone(), standing(record)?);
    }
    if answers.len() == ids.len() {
        Ok(())
    } else {
        // Its holder took it back (an unknown bucket) after this transaction had met it.
        Err(Error::Interfered {
            operation: "decide",
        })
    }
}

fn standing(record: DecisionRecord) -> Result<Decided, Error> {
    let reason = record.reason.unwrap_or_default();
    match (record.kind, record.order) {
        (DecisionKind::Ordered, Some((order_id, state))) => Ok(Decided::Ordered {
            order_id,
            fresh: false,
            cancelled: state == seckill_state_machine::OrderState::Cancelled,
        }),
        (DecisionKind::Ordered, None) => Err(Error::stored("orders", "an order has vanished")),
        (DecisionKind::Rejected, _) => Ok(Decided::Rejected {
            reason: reason.parse().map_err(|e| Error::stored("reason", e))?,
            fresh: false,
        }),
        (DecisionKind::Released, _) => Ok(Decided::Released { reason }),
    }
}

/// Steps 5 and 6: orders, stock, refusals, journal, events, tasks.
async fn write(session: &Session, ruled: &Ruled<'_>, answers: &mut Answers) -> Result<(), Error> {
    let orders = create_orders(session, &ruled.create).await?;
    deduct(session, &ruled.create).await?;
    reject(session, &ruled.reject).await?;
    forget(session, &ruled.unknown).await?;
    journal(session, &ruled.create).await?;
    outbox::write(session, &events(ruled, &orders)).await?;
    let rejected: Vec<&OrderRequest> = ruled.reject.iter().map(|(request, _)| *request).collect();
    let opening = Opening::now(TaskOrigin::Rejected, "decide");
    tasks::open(session, &rejected, &opening).await?;

    for (reservation_id, key) in orders {
        let decided = Decided::Ordered {
            order_id: order_id(key)?,
            fresh: true,
            cancelled: false,
        };
        answers.insert(reservation_id, decided);
    }
    for (request, reason) in &ruled.reject {
        let decided = Decided::Rejected {
            reason: *reason,
            fresh: true,
        };
        answers.insert(request.reservation_id.clone(), decided);
    }
    for request in &ruled.unknown {
        answers.insert(request.reservation_id.clone(), Decided::UnknownBucket);
    }
    Ok(())
}

async fn create_orders(
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

async fn deduct(session: &Session, created: &[&OrderRequest]) -> Result<(), Error> {
    let mut units: BTreeMap<&BucketScope, i64> = BTreeMap::new();
    for request in created {
        *units.entry(&request.bucket).or_default() += i64::from(request.quantity.get());
    }
    if units.is_empty() {
        return Ok(());
    }
    let activity_id: Vec<&str> = units.keys().map(|b| b.scope.activity_id.as_str()).collect();
    let sku_id: Vec<&str> = units.keys().map(|b| b.scope.sku_id.as_str()).collect();
    let version: Vec<i64> = units
        .keys()
        .map(|b| crate::rows::version(&b.scope))
        .collect();
    let bucket_id: Vec<i64> = units.keys().map(|b| i64::from(b.bucket_id.get())).collect();
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
            &[&activity_id, &sku_id, &version, &bucket_id, &quantity],
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

async fn reject(
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
async fn forget(session: &Session, unknown: &[&OrderRequest]) -> Result<(), Error> {
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

async fn journal(session: &Session, created: &[&OrderRequest]) -> Result<(), Error> {
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

fn events<'a>(
    ruled: &Ruled<'a>,
    orders: &BTreeMap<ReservationId, Uuid>,
) -> Vec<outbox::NewEvent<'a>> {
    let created = ruled.create.iter().map(|request| outbox::NewEvent {
        request,
        order_id: orders.get(&request.reservation_id).copied(),
        reason: None,
    });
    let rejected = ruled
        .reject
        .iter()
        .map(|(request, reason)| outbox::NewEvent {
            request,
            order_id: None,
            reason: Some(*reason),
        });
    created.chain(rejected).collect()
}
