//! One task: the fence, then each step that Redis still needs.
//!
//! | crash after | is left | who repairs it |
//! | --- | --- | --- |
//! | the task was claimed | its lease | claimable again when it ends |
//! | the fence was put up | decision `RELEASED`, the task | the next claim finds the fence and goes on |
//! | Redis says `REJECTED` or `RELEASE_PENDING` | the same | the next claim; both steps are idempotent |
//! | the units went back | the same | the next claim is told "already released" |
//! | the task was finished | nothing | — |
//!
//! Two workers on one task, after a lease that was too short, do the same: every step is a compare and
//! set, and the units go back in a script that does it once.

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Compensate, Error as RedisError, Redis, Transition};
use seckill_order_store::{CompensationTask, Error as StoreError, Fence, Store};
use seckill_settlement::{Discrepancies, Settled, kind, settle_ordered, settle_rejected};
use seckill_state_machine::{
    CompensateCode, OrderId, OrderState, RejectReason, ReservationStatus, TransitionCode,
};

/// How a task ends whose reservation is lost: a difference that stays on record.
const RESERVATION_MISSING: &str = "reservation_missing";

/// The same when nothing of the bucket is left, which the reconciler reports once a bucket.
const BUCKET_GONE: &str = "bucket_gone";

/// How the work on a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Nothing is left to do; the word goes on record.
    Finished(&'static str),
    /// It must be tried again, for this reason.
    Again(String),
}

/// Why a task could not be worked on at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Whether the reservation may be released is not known.
    #[error("the fence could not be put up")]
    Fence(#[from] StoreError),
    /// Redis did not answer a step, which may have been done.
    #[error(transparent)]
    Redis(#[from] RedisError),
}

/// Works on tasks.
pub struct Releaser {
    store: Store,
    redis: Redis,
    discrepancies: Discrepancies,
}

impl Releaser {
    /// Connects the two sides.
    #[must_use]
    pub const fn new(store: Store, redis: Redis, discrepancies: Discrepancies) -> Self {
        Self {
            store,
            redis,
            discrepancies,
        }
    }

    /// Does whatever the task still needs.
    ///
    /// # Errors
    /// [`Error::Fence`] before anything was moved; [`Error::Redis`] half way, to be repeated.
    pub async fn work(&self, task: &CompensationTask) -> Result<Ending, Error> {
        let keys = BucketKeys::new(&task.request.bucket);
        let ending = match self.store.fence(task).await? {
            Fence::Ordered { order_id, state } => {
                self.settle_order(task, &keys, &order_id, state).await?
            }
            Fence::Rejected { reason } => self.reject_and_release(task, &keys, reason).await?,
            Fence::Released { reason, .. } => self.release(task, &keys, &reason).await?,
        };
        if let Ending::Finished(result) = ending
            && result != RESERVATION_MISSING
        {
            let request = &task.request;
            self.discrepancies
                .agreed(&request.bucket, &request.reservation_id)
                .await;
        }
        Ok(ending)
    }

    /// An order stands: the units belong to it. A cancelled one still holds them in Redis; the step
    /// that gives them back needs a script of its own, so until then a person must know.
    async fn settle_order(
        &self,
        task: &CompensationTask,
        keys: &BucketKeys,
        order_id: &OrderId,
        state: OrderState,
    ) -> Result<Ending, Error> {
        let id = &task.request.reservation_id;
        let settled = settle_ordered(&self.redis, keys, id, order_id).await?;
        match (settled, state) {
            (Settled::Agreed { .. }, OrderState::Active) => Ok(Ending::Finished("ordered")),
            (
                Settled::Agreed {
                    status: ReservationStatus::OrderCancelled,
                    ..
                },
                OrderState::Cancelled,
            ) => Ok(Ending::Finished("order_cancelled")),
            (Settled::Agreed { status, .. }, OrderState::Cancelled) => {
                self.contradiction(task, "order cancelled", Some(status))
                    .await
            }
            (Settled::Missing, _) => Ok(self.missing(task, "ordered").await),
            (Settled::BucketGone, _) => Ok(Ending::Finished(BUCKET_GONE)),
            (Settled::Contradiction { status, .. }, _) => {
                self.contradiction(task, "ordered", status).await
            }
        }
    }

    async fn reject_and_release(
        &self,
        task: &CompensationTask,
        keys: &BucketKeys,
        reason: RejectReason,
    ) -> Result<Ending, Error> {
        let id = &task.request.reservation_id;
        match settle_rejected(&self.redis, keys, id, reason).await? {
            Settled::Agreed { .. } => self.release(task, keys, reason.as_str()).await,
            Settled::Missing => Ok(self.missing(task, "rejected").await),
            Settled::BucketGone => Ok(Ending::Finished(BUCKET_GONE)),
            Settled::Contradiction { status, .. } => {
                self.contradiction(task, "rejected", status).await
            }
        }
    }

    async fn release(
        &self,
        task: &CompensationTask,
        keys: &BucketKeys,
        reason: &str,
    ) -> Result<Ending, Error> {
        let moved = self
            .redis
            .transition(&Transition {
                keys,
                reservation_id: &task.request.reservation_id,
                target: ReservationStatus::ReleasePending,
                next_retry_at_ms: None,
                message_id: None,
                order_id: None,
                error_code: None,
                now_override: None,
            })
            .await?;
        if moved.code == TransitionCode::NotFound {
            return self.not_found(task, keys).await;
        }
        // Whatever else the step said, the next script looks at the state itself and refuses if the
        // units may not move.
        self.compensate(task, keys, reason).await
    }

    async fn compensate(
        &self,
        task: &CompensationTask,
        keys: &BucketKeys,
        reason: &str,
    ) -> Result<Ending, Error> {
        let reply = self
            .redis
            .compensate(&Compensate {
                keys,
                reservation_id: &task.request.reservation_id,
                user_id: &task.request.user_id,
                release_reason: reason,
                waiting: None,
                now_override: None,
            })
            .await?;
        let ending = match reply.code {
            CompensateCode::Released => Ending::Finished("released"),
            CompensateCode::AlreadyReleased => Ending::Finished("already_released"),
            CompensateCode::ReservationNotFound => return self.not_found(task, keys).await,
            CompensateCode::NotCompensatable => {
                return self.contradiction(task, "released", reply.status).await;
            }
            CompensateCode::InvariantViolation | CompensateCode::ReservationIdConflict => {
                let why = format!("the release was refused: {}", reply.code);
                self.report(task, kind::RELEASE_REFUSED, why.clone()).await;
                Ending::Again(why)
            }
        };
        if matches!(ending, Ending::Finished(_)) {
            self.tell_fronts(keys).await;
        }
        Ok(ending)
    }

    /// A version that has expired has lost nothing.
    async fn not_found(&self, task: &CompensationTask, keys: &BucketKeys) -> Result<Ending, Error> {
        if self.redis.meta(keys).await?.is_none() {
            return Ok(Ending::Finished(BUCKET_GONE));
        }
        Ok(self.missing(task, "released").await)
    }

    /// Fronts forget their sold-out mark sooner. One that does not hear of it asks again within half
    /// a second by itself, so a failure here is no reason to repeat the release.
    async fn tell_fronts(&self, keys: &BucketKeys) {
        if let Err(error) = self.redis.publish_soldout_cleared(keys).await {
            tracing::debug!(bucket = %keys.scope(), %error, "the sold-out mark was not cleared");
        }
    }

    /// Redis has lost the reservation, and with it whatever units it held: stock is never added for
    /// it. The decision stands, so the task is done; what the bucket's counters lost shows in the
    /// reconciler's totals.
    async fn missing(&self, task: &CompensationTask, decision: &str) -> Ending {
        let detail = format!("postgresql: {decision}; redis: nothing");
        self.report(task, kind::RESERVATION_MISSING, detail).await;
        Ending::Finished(RESERVATION_MISSING)
    }

    async fn contradiction(
        &self,
        task: &CompensationTask,
        decision: &str,
        status: Option<ReservationStatus>,
    ) -> Result<Ending, Error> {
        let found = status.map_or("unknown", ReservationStatus::as_str);
        let detail = format!("postgresql: {decision}; redis: {found}");
        self.report(task, kind::CONTRADICTION, detail.clone()).await;
        Ok(Ending::Again(detail))
    }

    async fn report(&self, task: &CompensationTask, kind: &'static str, detail: String) {
        let request = &task.request;
        let found = Discrepancies::of(kind, &request.bucket, &request.reservation_id, detail);
        self.discrepancies.report(vec![found]).await;
    }
}
