//! The steps of the decision, in their lock order: inbox, decision, stock, order, task.
//!
//! The order of the steps is the whole point: the keys of the decisions are taken before anything is
//! read, and what the ruling depends on is read only while the stock rows are locked.

use std::collections::{BTreeMap, BTreeSet};

use seckill_state_machine::{
    DecisionBook, DecisionKind, OrderRequest, RejectReason, ReservationId, Ruling, rule,
};
use uuid::Uuid;

use super::statements::{
    claim, create_orders, deduct, forget, journal, lock_stock, receive, reject,
};
use super::{Answers, Columns, Decided};
use crate::pool::Session;
use crate::rows::{order_id, parse, scope};
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

/// Step 4: locks the stock rows, and only then reads who has an order. Whatever was committed while
/// this transaction waited for the locks is seen. An order of an archived version is one of its user
/// still, although no unique index sees it any more; one statement reads both, so that an order which
/// moves meanwhile is in one of them.
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
                AND o.user_id = r.user_id AND o.state = 'ACTIVE'
            UNION ALL
            SELECT o.activity_id, o.sku_id, o.user_id
            FROM unnest($1::text[], $2::text[], $3::text[]) AS r (activity_id, sku_id, user_id)
            JOIN activity AS a
                ON a.activity_id = r.activity_id AND a.sku_id = r.sku_id
                AND a.archived_at IS NOT NULL
            JOIN orders_archive AS o
                ON o.activity_id = a.activity_id AND o.sku_id = a.sku_id
                AND o.version = a.version AND o.user_id = r.user_id AND o.state = 'ACTIVE'",
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

fn events<'a>(
    ruled: &Ruled<'a>,
    orders: &BTreeMap<ReservationId, Uuid>,
) -> Vec<outbox::NewEvent<'a>> {
    // Every request that was ruled to become an order is in `orders`, or this run has ended before.
    let created = ruled.create.iter().filter_map(|request| {
        let order_id = orders.get(&request.reservation_id)?;
        Some(outbox::NewEvent {
            request,
            outcome: outbox::Outcome::Created(*order_id),
        })
    });
    let rejected = ruled
        .reject
        .iter()
        .map(|(request, reason)| outbox::NewEvent {
            request,
            outcome: outbox::Outcome::Rejected(*reason),
        });
    created.chain(rejected).collect()
}
