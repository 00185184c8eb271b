//! One task: the fence, then each step that Redis still needs.
//!
//! | crash after | is left | who repairs it |
//! | --- | --- | --- |
//! | the task was claimed | its lease | claimable again when it ends |
//! | it was given back because patience is not over | the task, due later | the claim after that asks again |
//! | the fence was put up | decision `RELEASED`, the task | the next claim finds the fence and goes on |
//! | Redis says `REJECTED` or `RELEASE_PENDING` | the same | the next claim; both steps are idempotent |
//! | the units went back, or to an order that waited | the same | the next claim is told "already released" |
//! | a cancelled order was settled as ordered | its cancellation, the task | the next claim runs the cancel script |
//! | its units went back on sale | the same | the next claim is told "already cancelled" |
//! | a lost reservation was rebuilt, or recorded as ended | the same | the next claim finds agreement |
//! | the task was finished | nothing | — |
//!
//! Two workers on one task, after a lease that was too short, do the same: every step is a compare and
//! set, and the units go back in a script that does it once.
//!
//! A unit that is given back goes to an order of its bucket that waits for its rebuild, if this process
//! knows of one: [`Replayer::waiting`] remembers those that a task or an event has just found waiting.
//! It may know of none where another replica does; the waiting order's own task stays open and is tried
//! again by any of them, and the reconciler's replay is the safety net.

use std::time::Duration;

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    Compensate, Error as RedisError, ErrorKind as RedisErrorKind, Redis, Transition,
};
use seckill_order_store::{CompensationTask, Error as StoreError, Fence, Store};
use seckill_settlement::{
    Discrepancies, Error as ReplayError, Facts, Replayed, Replayer, Settled, WaitingOrder, kind,
    settle_rejected,
};
use seckill_state_machine::{
    CompensateCode, DecisionKind, OrderId, OrderState, RejectReason, ReservationStatus,
    TransitionCode,
};

/// How the work on a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Nothing is left to do; the word goes on record.
    Finished(&'static str),
    /// Patience with its message is not over for so long, of the time that counts.
    Patient(Duration),
    /// It must be tried again, for this reason.
    Again(String),
}

impl Ending {
    /// Whether both sides agree now, so that a difference on record about it is gone. In a bucket that is
    /// gone nothing agrees.
    fn agrees(&self) -> bool {
        match self {
            Self::Finished(result) => *result != Replayed::BucketGone.as_str(),
            Self::Patient(_) | Self::Again(_) => false,
        }
    }
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
    /// A store did not answer a step, which may have been done.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// Works on tasks.
pub struct Releaser {
    store: Store,
    redis: Redis,
    replayer: Replayer,
    discrepancies: Discrepancies,
}

impl Releaser {
    /// Connects the two sides.
    #[must_use]
    pub const fn new(
        store: Store,
        redis: Redis,
        replayer: Replayer,
        discrepancies: Discrepancies,
    ) -> Self {
        Self {
            store,
            redis,
            replayer,
            discrepancies,
        }
    }

    /// Does whatever the task still needs. A parked message's reservation is not fenced before its
    /// patience is over, which stood still if nobody could decide meanwhile: so the message can be
    /// replayed after an outage.
    ///
    /// # Errors
    /// [`Error::Fence`] before anything was moved; the others half way, to be repeated.
    pub async fn work(&self, task: &CompensationTask) -> Result<Ending, Error> {
        match self.steps(task).await {
            // Damage does not heal by waiting, and says nothing about whether Redis is there: a person
            // must know, and the other tasks go on.
            Err(Error::Redis(error)) if error.kind() == RedisErrorKind::Broken => {
                let why = error.to_string();
                self.report(task, kind::UNREADABLE, why.clone()).await;
                Ok(Ending::Again(why))
            }
            worked => worked,
        }
    }

    async fn steps(&self, task: &CompensationTask) -> Result<Ending, Error> {
        if let Some(left) = self.store.patience_left(task).await? {
            return Ok(Ending::Patient(left));
        }
        let keys = BucketKeys::new(&task.request.bucket);
        let ending = match self.store.fence(task).await? {
            Fence::Ordered { order_id, state } => self.replay_order(task, order_id, state).await?,
            Fence::Rejected { reason } => self.reject_and_release(task, &keys, reason).await?,
            Fence::Released { reason, .. } => {
                self.release(task, &keys, DecisionKind::Released, &reason)
                    .await?
            }
        };
        if ending.agrees() {
            let request = &task.request;
            self.discrepancies
                .agreed(&request.bucket, &request.reservation_id)
                .await;
        }
        Ok(ending)
    }

    /// An order stands: the units belong to it, or are put back on sale if it was cancelled. Whatever
    /// Redis has lost of it is written again.
    async fn replay_order(
        &self,
        task: &CompensationTask,
        order_id: OrderId,
        state: OrderState,
    ) -> Result<Ending, Error> {
        let facts = Facts {
            request: task.request.clone(),
            kind: DecisionKind::Ordered,
            reason: None,
            order: Some((order_id, state)),
        };
        let done = match state {
            OrderState::Active => "ordered",
            OrderState::Cancelled => "order_cancelled",
        };
        self.replay(task, &facts, done).await
    }

    async fn reject_and_release(
        &self,
        task: &CompensationTask,
        keys: &BucketKeys,
        reason: RejectReason,
    ) -> Result<Ending, Error> {
        let id = &task.request.reservation_id;
        match settle_rejected(&self.redis, keys, id, reason).await? {
            Settled::Agreed { .. } => {
                self.release(task, keys, DecisionKind::Rejected, reason.as_str())
                    .await
            }
            Settled::Missing | Settled::BucketGone => {
                self.record_end(task, DecisionKind::Rejected, reason.as_str())
                    .await
            }
            Settled::Contradiction { status, .. } => {
                self.contradiction(task, "rejected", status).await
            }
        }
    }

    async fn release(
        &self,
        task: &CompensationTask,
        keys: &BucketKeys,
        decision: DecisionKind,
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
            return self.record_end(task, decision, reason).await;
        }
        // Whatever else the step said, the next script looks at the state itself and refuses if the
        // units may not move.
        self.compensate(task, keys, decision, reason).await
    }

    async fn compensate(
        &self,
        task: &CompensationTask,
        keys: &BucketKeys,
        decision: DecisionKind,
        reason: &str,
    ) -> Result<Ending, Error> {
        let waiting = self.replayer.waiting().next(&task.request.bucket);
        let reply = self
            .redis
            .compensate(&Compensate {
                keys,
                reservation_id: &task.request.reservation_id,
                user_id: &task.request.user_id,
                release_reason: reason,
                waiting: waiting.as_ref().map(WaitingOrder::reservation),
                now_override: None,
            })
            .await?;
        match waiting {
            Some(order) if reply.rebuilt => self.replayer.waiting().rebuilt(&order),
            Some(order) if reply.code == CompensateCode::Released => {
                let waiting = self.replayer.waiting();
                waiting.declined(&order, task.request.quantity);
            }
            Some(_) | None => {}
        }
        let done = match reply.code {
            CompensateCode::Released => "released",
            CompensateCode::AlreadyReleased => "already_released",
            CompensateCode::ReservationNotFound => {
                return self.record_end(task, decision, reason).await;
            }
            CompensateCode::NotCompensatable => {
                return self.contradiction(task, "released", reply.status).await;
            }
            CompensateCode::InvariantViolation | CompensateCode::ReservationIdConflict => {
                let why = format!("the release was refused: {}", reply.code);
                self.report(task, kind::RELEASE_REFUSED, why.clone()).await;
                return Ok(Ending::Again(why));
            }
        };
        self.tell_fronts(keys).await;
        Ok(Ending::Finished(done))
    }

    /// Redis has lost the reservation, and with it whatever units it held: stock is never added for
    /// it. The decision stands, so it is recorded as ended, without units: otherwise a repeat of its
    /// request would be accepted afresh and hold a unit that nobody can order.
    async fn record_end(
        &self,
        task: &CompensationTask,
        kind: DecisionKind,
        reason: &str,
    ) -> Result<Ending, Error> {
        let facts = Facts {
            request: task.request.clone(),
            kind,
            reason: Some(reason.to_owned()),
            order: None,
        };
        self.replay(task, &facts, "already_released").await
    }

    /// Brings Redis to agreement; `done` is the result on record where it agreed or was settled.
    async fn replay(
        &self,
        task: &CompensationTask,
        facts: &Facts,
        done: &'static str,
    ) -> Result<Ending, Error> {
        let replayer = self.replayer.under(task.claim());
        let replayed = replayer.replay_facts(facts).await?;
        if let Some((kind, detail)) = replayed.difference() {
            self.report(task, kind, detail.to_owned()).await;
        }
        Ok(ending(&replayed, done))
    }

    /// Fronts forget their sold-out mark sooner. One that does not hear of it asks again within half
    /// a second by itself, so a failure here is no reason to repeat the release.
    async fn tell_fronts(&self, keys: &BucketKeys) {
        if let Err(error) = self.redis.publish_soldout_cleared(keys).await {
            tracing::debug!(bucket = %keys.scope(), %error, "the sold-out mark was not cleared");
        }
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

/// What a replay means for its task.
fn ending(replayed: &Replayed, done: &'static str) -> Ending {
    match replayed {
        Replayed::Agreed | Replayed::Settled | Replayed::MarkerRepaired | Replayed::Cancelled => {
            Ending::Finished(done)
        }
        Replayed::Rebuilt | Replayed::Tombstoned => Ending::Finished(replayed.as_str()),
        // A version that has expired has lost nothing, and nothing can be written there.
        Replayed::BucketGone => Ending::Finished(replayed.as_str()),
        // The task stays open: it is what remembers the order if this process dies, and what tells
        // the other replicas.
        Replayed::Waits => Ending::Again("its order waits for units of its bucket".to_owned()),
        // The rebuild of the version replays its decision as well; until then the task remembers it.
        Replayed::NoCounters => Ending::Again("its bucket has no counters".to_owned()),
        // It was there a moment ago, or the user's other reservation is released first.
        Replayed::HandedOver | Replayed::Moving => Ending::Again("others moved it".to_owned()),
        Replayed::Contradiction { detail }
        | Replayed::Refused { detail }
        | Replayed::Unreadable { detail } => Ending::Again(detail.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_ends_only_when_nothing_is_left_to_do() {
        let detail = String::new;
        for ended in [
            Replayed::Agreed,
            Replayed::Settled,
            Replayed::Cancelled,
            Replayed::MarkerRepaired,
        ] {
            assert_eq!(ending(&ended, "done"), Ending::Finished("done"));
        }
        assert_eq!(
            ending(&Replayed::Tombstoned, "done"),
            Ending::Finished("tombstoned")
        );
        assert_eq!(
            ending(&Replayed::Rebuilt, "done"),
            Ending::Finished("rebuilt")
        );
        for open in [
            Replayed::Waits,
            Replayed::NoCounters,
            Replayed::Moving,
            Replayed::HandedOver,
            Replayed::Contradiction { detail: detail() },
            Replayed::Refused { detail: detail() },
            Replayed::Unreadable { detail: detail() },
        ] {
            assert!(
                matches!(ending(&open, "done"), Ending::Again(_)),
                "{open:?}"
            );
            assert!(!ending(&open, "done").agrees(), "{open:?}");
        }
    }

    /// Goal: a version whose keys are gone closes its tasks and none of its differences.
    #[test]
    fn a_bucket_that_is_gone_ends_a_task_and_agrees_with_nothing() {
        let gone = ending(&Replayed::BucketGone, "done");
        assert_eq!(gone, Ending::Finished("bucket_gone"));
        assert!(!gone.agrees());
        assert!(ending(&Replayed::Agreed, "done").agrees());
    }
}
