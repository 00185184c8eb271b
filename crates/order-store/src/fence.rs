//! The fence that makes a release safe.
//!
//! It writes the very row that an order's decision writes first, so that one of them wins for good: a
//! message that comes late finds the reservation released, or the release finds its order.

use seckill_state_machine::{DecisionKind, OrderId, OrderState, RejectReason, Scope};

use crate::decide::Columns;
use crate::facts::{read_archived_decision, read_decisions};
use crate::pool::Session;
use crate::rows::ScopeKey;
use crate::{CompensationTask, DecisionRecord, Error, Store};

/// The decision that stands, after the fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fence {
    /// There is an order: settle it instead of releasing.
    Ordered {
        /// Its id.
        order_id: OrderId,
        /// Active, or cancelled meanwhile.
        state: OrderState,
    },
    /// Rejected before: go on and release.
    Rejected {
        /// Why.
        reason: RejectReason,
    },
    /// Can never become an order: go on and release.
    Released {
        /// What the fence was put up for.
        reason: String,
        /// Put up by this very call.
        fresh: bool,
    },
}

impl Store {
    /// Records `RELEASED` unless a decision is there, and returns the one that stands (I6).
    ///
    /// # Errors
    /// As every write. On any error nothing may be released.
    pub async fn fence(&self, task: &CompensationTask) -> Result<Fence, Error> {
        let reservation_id = task.request.reservation_id.as_str();
        self.run_tx("fence", async |session| {
            let fresh = put_up_fence(session, task).await?;
            if fresh {
                if let Some(record) = read_archived_decision(session, reservation_id).await? {
                    // Decided long ago, and moved away with its version: that decision stands.
                    take_down_fence(session, reservation_id).await?;
                    return standing(record, false);
                }
                reopen_move(session, &task.request.bucket.scope).await?;
            }
            // A statement of its own: an insert does not see the row that it met.
            let mut records = read_decisions(session, &[reservation_id]).await?;
            match records.pop() {
                Some(record) => standing(record, fresh),
                None => Err(Error::Interfered { operation: "fence" }),
            }
        })
        .await
    }
}

fn standing(record: DecisionRecord, fresh: bool) -> Result<Fence, Error> {
    let reason = record.reason.unwrap_or_default();
    match (record.kind, record.order) {
        (DecisionKind::Ordered, Some((order_id, state))) => Ok(Fence::Ordered { order_id, state }),
        (DecisionKind::Ordered, None) => Err(Error::stored("orders", "an order has vanished")),
        (DecisionKind::Rejected, _) => Ok(Fence::Rejected {
            reason: reason.parse().map_err(|e| Error::stored("reason", e))?,
        }),
        (DecisionKind::Released, _) => Ok(Fence::Released { reason, fresh }),
    }
}

async fn put_up_fence(session: &Session, task: &CompensationTask) -> Result<bool, Error> {
    let request = &task.request;
    let columns = Columns::of(&[request]);
    let inserted = session
        .execute(
            "-- fence
            INSERT INTO reservation_decision (
                reservation_id, message_id, request_id, user_id, activity_id, sku_id, version,
                bucket_id, quantity, reserved_at, traceparent, kind, reason, updated_by
            )
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 'RELEASED', $12, 'fence')
            ON CONFLICT (reservation_id) DO NOTHING",
            &[
                &request.reservation_id.as_str(),
                &request.message_id().as_str(),
                &request.request_id.as_str(),
                &request.user_id.as_str(),
                &request.bucket.scope.activity_id.as_str(),
                &request.bucket.scope.sku_id.as_str(),
                &columns.version[0],
                &columns.bucket_id[0],
                &columns.quantity[0],
                &columns.reserved_at[0],
                &columns.traceparent[0],
                /* reason */ &task.origin.as_str(),
            ],
        )
        .await?;
    Ok(inserted == 1)
}

async fn take_down_fence(session: &Session, reservation_id: &str) -> Result<(), Error> {
    session
        .execute(
            "-- take_down_fence
            DELETE FROM reservation_decision WHERE reservation_id = $1",
            &[/* reservation_id */ &reservation_id],
        )
        .await?;
    Ok(())
}

/// A decision that is made in an archived version has to move after the others. The archive holds the
/// result's row while it looks for what is left, so it either sees this decision or is opened again by
/// it. Of a version that is not archived there is no such row.
async fn reopen_move(session: &Session, scope: &Scope) -> Result<(), Error> {
    session
        .execute(
            "-- reopen_move
            UPDATE version_result SET moved_at = NULL
            WHERE activity_id = $1 AND sku_id = $2 AND version = $3",
            &ScopeKey::of(scope).params(),
        )
        .await?;
    Ok(())
}
