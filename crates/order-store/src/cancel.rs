//! Cancelling an order: its units go back on sale in PostgreSQL, and a task takes them back to Redis.
//!
//! One transaction: the stock row is locked, the order stops counting, its units go back, the
//! journal, the event and the task are written. So a crash before the commit leaves nothing, and a
//! crash after it leaves a task that any compensation worker picks up. Repeating the call changes
//! nothing, which makes it safe after an unknown outcome.

use seckill_state_machine::{OrderId, OrderRequest, OrderState, ReservationId};
use uuid::Uuid;

use crate::decide::lock_stock;
use crate::facts::read_decisions;
use crate::outbox::{self, NewEvent, Outcome};
use crate::pool::{Reruns, Session};
use crate::rows::{ScopeKey, get, order_id};
use crate::tasks::{self, Opening};
use crate::{DecisionRecord, Error, Store, TaskOrigin};

/// What cancelling an order came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelOutcome {
    /// This call cancelled it.
    Cancelled(DecisionRecord),
    /// It was cancelled before; nothing changed.
    AlreadyCancelled(DecisionRecord),
    /// There is no such order.
    NotFound,
}

impl Store {
    /// Cancels an order: it stops counting, its units can be ordered again, and a task gives them
    /// back in Redis.
    ///
    /// # Errors
    /// `Conflict` when its version is archived, `Invalid` without a named actor and a reason; else as
    /// every write.
    pub async fn cancel_order(
        &self,
        order_id: &OrderId,
        actor: &str,
        reason: &str,
    ) -> Result<CancelOutcome, Error> {
        for (field, text) in [("actor", actor), ("reason", reason)] {
            if text.is_empty() {
                return Err(Error::invalid(field, "must be given"));
            }
        }
        // An order id that PostgreSQL cannot have made names no order.
        let Ok(key) = Uuid::try_parse(order_id.as_str()) else {
            return Ok(CancelOutcome::NotFound);
        };
        let mut reruns = Reruns::default();
        loop {
            let outcome = self
                .run_tx("cancel_order", async |session| {
                    cancel(session, key, actor, reason).await
                })
                .await;
            if !reruns.again(&outcome) {
                return outcome;
            }
        }
    }

    /// The order that a reservation was made into, also when its version is archived.
    ///
    /// # Errors
    /// As every read.
    pub async fn order_of(&self, id: &ReservationId) -> Result<Option<OrderId>, Error> {
        let rows = self
            .read("order_of", ORDER_OF, &[/* reservation_id */ &id.as_str()])
            .await?;
        rows.first()
            .map(|row| order_id(get(row, "order_id")?))
            .transpose()
    }

    /// Opens the task of a cancelled order again that Redis still, or again, counts as sold: its
    /// worker died, or a failover undid the restock. A task that is open stays as it is.
    ///
    /// # Errors
    /// As every write.
    pub async fn reopen_cancelled(&self, request: &OrderRequest) -> Result<(), Error> {
        let opening = Opening::unless_open(TaskOrigin::Cancelled, 0, "reopen_cancelled");
        self.run_tx("reopen_cancelled", async |session| {
            tasks::open(session, &[request], &opening).await?;
            Ok(())
        })
        .await
    }
}

async fn cancel(
    session: &Session,
    key: Uuid,
    actor: &str,
    reason: &str,
) -> Result<CancelOutcome, Error> {
    let Some(reservation_id) = reservation_of(session, key).await? else {
        return missing(session, key).await;
    };
    let record = decision(session, key, &reservation_id).await?;
    if is_cancelled(&record) {
        return Ok(CancelOutcome::AlreadyCancelled(record));
    }
    let request = record.order_request();
    if lock_stock(session, &[&request]).await?.is_empty() {
        let scope = &record.bucket.scope;
        return Err(Error::Conflict(format!("version {scope} is archived")));
    }
    if !end_order(session, key, actor, reason).await? {
        // Another cancellation was first, while this one waited for the stock row.
        let record = decision(session, key, &reservation_id).await?;
        return Ok(CancelOutcome::AlreadyCancelled(record));
    }
    give_back(session, &request).await?;
    journal(session, &request).await?;
    let event = NewEvent {
        request: &request,
        outcome: Outcome::Cancelled(key),
    };
    outbox::write(session, &[event]).await?;
    let opening = Opening::now(TaskOrigin::Cancelled, "cancel_order");
    tasks::open(session, &[&request], &opening).await?;
    let record = decision(session, key, &reservation_id).await?;
    Ok(CancelOutcome::Cancelled(record))
}

// The archive of orders has no index of its own for reservations; their owner's orders are few.
const ORDER_OF: &str = "-- order_of
    SELECT order_id FROM orders WHERE reservation_id = $1
    UNION ALL
    SELECT o.order_id
    FROM reservation_decision_archive AS d
    JOIN orders_archive AS o
        ON o.activity_id = d.activity_id AND o.sku_id = d.sku_id AND o.version = d.version
        AND o.user_id = d.user_id AND o.reservation_id = d.reservation_id
    WHERE d.reservation_id = $1";

const fn is_cancelled(record: &DecisionRecord) -> bool {
    matches!(record.order, Some((_, OrderState::Cancelled)))
}

async fn reservation_of(session: &Session, key: Uuid) -> Result<Option<String>, Error> {
    let rows = session
        .query(
            "-- reservation_of_order
            SELECT reservation_id FROM orders WHERE order_id = $1",
            &[/* order_id */ &key],
        )
        .await?;
    rows.first()
        .map(|row| get(row, "reservation_id"))
        .transpose()
}

/// Why there is no such order: it never was, or its version is archived.
async fn missing(session: &Session, key: Uuid) -> Result<CancelOutcome, Error> {
    let rows = session
        .query(
            "-- archived_order
            SELECT FROM orders_archive WHERE order_id = $1",
            &[/* order_id */ &key],
        )
        .await?;
    if rows.is_empty() {
        return Ok(CancelOutcome::NotFound);
    }
    Err(Error::Conflict(format!(
        "order {key} belongs to an archived version"
    )))
}

/// The decision behind an order that this transaction has just seen. Both move to the archive together:
/// when one has gone since, the other has as well, and the next run sees where they are.
async fn decision(
    session: &Session,
    key: Uuid,
    reservation_id: &str,
) -> Result<DecisionRecord, Error> {
    let mut records = read_decisions(session, &[reservation_id]).await?;
    if let Some(record) = records.pop() {
        return Ok(record);
    }
    if reservation_of(session, key).await?.is_none() {
        return Err(Error::Interfered {
            operation: "cancel_order",
        });
    }
    Err(Error::stored(
        "reservation_decision",
        "an order has no decision",
    ))
}

async fn end_order(session: &Session, key: Uuid, actor: &str, reason: &str) -> Result<bool, Error> {
    let touched = session
        .execute(
            "-- end_order
            UPDATE orders
            SET state = 'CANCELLED', cancelled_at = now(), cancel_reason = $2, cancelled_by = $3,
                updated_by = 'cancel_order'
            WHERE order_id = $1 AND state = 'ACTIVE'",
            &[
                /* order_id */ &key, /* cancel_reason */ &reason,
                /* cancelled_by */ &actor,
            ],
        )
        .await?;
    Ok(touched == 1)
}

/// The units go back to the row that they were taken from. The row is locked since before the order
/// was touched.
async fn give_back(session: &Session, request: &OrderRequest) -> Result<(), Error> {
    let scope = ScopeKey::of(&request.bucket.scope);
    let [activity_id, sku_id, version] = scope.params();
    let touched = session
        .execute(
            "-- give_back
            UPDATE activity_stock
            SET available = available + $5, sold = sold - $5,
                updated_at = now(), updated_by = 'cancel_order'
            WHERE activity_id = $1 AND sku_id = $2 AND version = $3 AND bucket_id = $4",
            &[
                activity_id,
                sku_id,
                version,
                /* bucket_id */ &i64::from(request.bucket.bucket_id.get()),
                /* units */ &i64::from(request.quantity.get()),
            ],
        )
        .await?;
    if touched == 1 {
        Ok(())
    } else {
        Err(Error::stored(
            "activity_stock",
            "a locked stock row has vanished",
        ))
    }
}

async fn journal(session: &Session, request: &OrderRequest) -> Result<(), Error> {
    let scope = ScopeKey::of(&request.bucket.scope);
    let [activity_id, sku_id, version] = scope.params();
    session
        .execute(
            "-- journal_cancelled
            INSERT INTO stock_ledger (
                activity_id, sku_id, version, bucket_id, kind, delta, reservation_id
            )
            VALUES ($1, $2, $3, $4, 'CANCELLED', $5, $6)",
            &[
                activity_id,
                sku_id,
                version,
                /* bucket_id */ &i64::from(request.bucket.bucket_id.get()),
                /* delta */ &i64::from(request.quantity.get()),
                /* reservation_id */ &request.reservation_id.as_str(),
            ],
        )
        .await?;
    Ok(())
}
