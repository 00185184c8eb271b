//! Tells Redis what was decided, after the commit.
//!
//! Nothing here can fail a batch: what Redis does not take now is repeated by the outbox event's
//! handler and after that by the reconciler. What PostgreSQL had given up before, while Redis holds
//! its units (again: a failover may have undone the release, a repeat may have re-created the
//! reservation), gets its compensation task reopened. What Redis has lost is written again at once: an
//! order with its units, anything else as ended.

use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Error as RedisError, Redis};
use seckill_order_store::{Decided, Discrepancy, Error as StoreError, NewTask, Store, TaskOrigin};
use seckill_settlement::{
    Discrepancies, Error as ReplayError, Facts, Replayer, Settled, kind, settle_ordered,
    settle_rejected,
};
use seckill_state_machine::{DecisionKind, OrderRequest, OrderState, ReservationStatus};
use tokio::time::Instant;

use crate::trouble::describe;

/// Settlements of one batch in flight: a batch of 256 takes four rounds, and 16 batches at once stay
/// below half of the default limit of 2,000 calls in flight.
const CALLS_IN_FLIGHT: usize = 64;

/// Differences looked for at once: half of the default pool of connections.
const CLOSINGS_IN_FLIGHT: usize = 4;

/// Settles decided requests.
pub struct Settler {
    redis: Redis,
    store: Store,
    replayer: Replayer,
    discrepancies: Discrepancies,
    budget: Duration,
}

/// What one settlement came to.
enum Outcome {
    Agreed,
    /// Given up in PostgreSQL, holding units in Redis; the task that is to look after it.
    Holds(TaskOrigin),
    Differs(Discrepancy),
    /// Written again after it was lost, or a duplicate that agrees: a difference on record about it
    /// is gone. No fresh decision has one.
    AgreesAgain,
    Unanswered(String),
    OutOfTime,
}

impl Settler {
    /// `budget` bounds how long one batch's settlement may keep the batch from its acknowledgement.
    #[must_use]
    pub fn new(redis: Redis, store: Store, discrepancies: Discrepancies, budget: Duration) -> Self {
        Self {
            replayer: Replayer::new(redis.clone(), store.clone()),
            redis,
            store,
            discrepancies,
            budget,
        }
    }

    /// Settles as much as Redis takes within the budget.
    pub async fn settle(&self, decided: Vec<(OrderRequest, Decided)>) {
        let deadline = Instant::now() + self.budget;
        let mut outcomes = futures::stream::iter(decided)
            .map(|(request, decided)| async move {
                let outcome = self.one(&request, &decided, deadline).await;
                (request, outcome)
            })
            .buffer_unordered(CALLS_IN_FLIGHT);
        let mut found = Vec::new();
        let mut agree_again = Vec::new();
        let mut unsettled = Unsettled::default();
        while let Some((request, outcome)) = outcomes.next().await {
            match outcome {
                Outcome::Agreed => {}
                Outcome::Holds(origin) => self.reopen(request, origin).await,
                Outcome::Differs(discrepancy) => found.push(discrepancy),
                Outcome::AgreesAgain => agree_again.push(request),
                Outcome::Unanswered(error) => unsettled.note(&request, &error),
                Outcome::OutOfTime => unsettled.note(&request, "out of time"),
            }
        }
        unsettled.log();
        self.discrepancies.report(found).await;
        self.close_differences(agree_again, deadline).await;
    }

    /// What is left open at the deadline is closed by the reconciler's replay.
    async fn close_differences(&self, agreeing: Vec<OrderRequest>, deadline: Instant) {
        let closing = futures::stream::iter(agreeing).for_each_concurrent(
            CLOSINGS_IN_FLIGHT,
            async |request| {
                let id = &request.reservation_id;
                self.discrepancies.agreed(&request.bucket, id).await;
            },
        );
        if tokio::time::timeout_at(deadline, closing).await.is_err() {
            tracing::debug!("not every difference that may be gone was looked for");
        }
    }

    async fn one(&self, request: &OrderRequest, decided: &Decided, deadline: Instant) -> Outcome {
        if Instant::now() >= deadline {
            return Outcome::OutOfTime;
        }
        let keys = BucketKeys::new(&request.bucket);
        let id = &request.reservation_id;
        let settled = match decided {
            Decided::Ordered { order_id, .. } => {
                settle_ordered(&self.redis, &keys, id, order_id).await
            }
            Decided::Rejected { reason, .. } => {
                settle_rejected(&self.redis, &keys, id, *reason).await
            }
            Decided::Released { .. } => return self.released(request, decided, &keys).await,
            // Parked before; there is nothing to tell Redis.
            Decided::UnknownBucket => return Outcome::Agreed,
        };
        match settled {
            Ok(Settled::Missing) => self.lost(request, decided).await,
            Ok(settled) => read(request, decided, settled),
            Err(error) => unanswered(&error),
        }
    }

    /// Redis has the bucket and not the reservation.
    async fn lost(&self, request: &OrderRequest, decided: &Decided) -> Outcome {
        let Some(facts) = facts(request, decided) else {
            return Outcome::Agreed;
        };
        let replayed = match self.replayer.replay_facts(&facts).await {
            Ok(replayed) => replayed,
            Err(error) => return not_replayed(&error),
        };
        match replayed.difference() {
            Some((kind, detail)) => {
                let (bucket, id) = (&request.bucket, &request.reservation_id);
                Outcome::Differs(Discrepancies::of(kind, bucket, id, detail.to_owned()))
            }
            None if replayed.agrees() => Outcome::AgreesAgain,
            // Whoever waits for units, or for the release, has an open task.
            None => Outcome::Agreed,
        }
    }

    /// A fence stands in PostgreSQL; its task releases the units, unless it was done before Redis
    /// got them back.
    async fn released(
        &self,
        request: &OrderRequest,
        decided: &Decided,
        keys: &BucketKeys,
    ) -> Outcome {
        let id = &request.reservation_id;
        match self.redis.reservation(keys, id).await {
            Ok(Some(record)) if record.status.holds_units() => {
                Outcome::Holds(TaskOrigin::HeldAgain)
            }
            Ok(Some(_)) => Outcome::Agreed,
            // Whoever is fenced and gone holds nothing, but a repeat of the request would.
            Ok(None) => self.lost(request, decided).await,
            Err(error) => unanswered(&error),
        }
    }

    async fn reopen(&self, request: OrderRequest, origin: TaskOrigin) {
        let id = request.reservation_id.clone();
        match self.open_task(request, origin).await {
            Ok(()) => tracing::warn!(
                reservation_id = %id,
                origin = origin.as_str(),
                "redis holds units that postgresql has given up; reopened the compensation task"
            ),
            // The reconciler finds the reservation by its expiry and tries again.
            Err(error) => tracing::warn!(
                reservation_id = %id,
                error = %describe(&error),
                "a compensation task could not be reopened"
            ),
        }
    }

    async fn open_task(&self, request: OrderRequest, origin: TaskOrigin) -> Result<(), StoreError> {
        let task = NewTask {
            request,
            origin,
            due_in: Duration::ZERO,
        };
        self.store.open_task(&task).await
    }
}

/// What PostgreSQL says, `None` when it has decided nothing.
fn facts(request: &OrderRequest, decided: &Decided) -> Option<Facts> {
    let (kind, reason, order) = match decided {
        Decided::Ordered {
            order_id,
            cancelled,
            ..
        } => {
            let state = match cancelled {
                true => OrderState::Cancelled,
                false => OrderState::Active,
            };
            (DecisionKind::Ordered, None, Some((order_id.clone(), state)))
        }
        Decided::Rejected { reason, .. } => {
            let reason = reason.as_str().to_owned();
            (DecisionKind::Rejected, Some(reason), None)
        }
        Decided::Released { reason, .. } => (DecisionKind::Released, Some(reason.clone()), None),
        Decided::UnknownBucket => return None,
    };
    Some(Facts {
        request: request.clone(),
        kind,
        reason,
        order,
    })
}

fn unanswered(error: &RedisError) -> Outcome {
    Outcome::Unanswered(error.to_string())
}

/// The order's event and the reconciler come back to it.
fn not_replayed(error: &ReplayError) -> Outcome {
    Outcome::Unanswered(error.to_string())
}

fn read(request: &OrderRequest, decided: &Decided, settled: Settled) -> Outcome {
    // A fresh refusal has opened its task in the very transaction that recorded it.
    let given_up_before = matches!(decided, Decided::Rejected { fresh: false, .. });
    // Its units were given back once; Redis has them again, as after a failover.
    let cancelled = matches!(
        decided,
        Decided::Ordered {
            cancelled: true,
            ..
        }
    );
    let differs = |kind, detail| {
        let (bucket, id) = (&request.bucket, &request.reservation_id);
        Outcome::Differs(Discrepancies::of(kind, bucket, id, detail))
    };
    match settled {
        Settled::Agreed { status, .. } if given_up_before && status.holds_units() => {
            Outcome::Holds(TaskOrigin::HeldAgain)
        }
        Settled::Agreed { status, .. }
            if cancelled && status != ReservationStatus::OrderCancelled =>
        {
            Outcome::Holds(TaskOrigin::Cancelled)
        }
        Settled::Agreed { .. } if !is_fresh(decided) => Outcome::AgreesAgain,
        Settled::Agreed { .. } | Settled::BucketGone | Settled::Missing => Outcome::Agreed,
        Settled::Contradiction { code, status } => differs(
            kind::CONTRADICTION,
            format!(
                "postgresql: {}; redis: {} ({code})",
                word(decided),
                status.map_or("unknown", ReservationStatus::as_str)
            ),
        ),
    }
}

const fn is_fresh(decided: &Decided) -> bool {
    match decided {
        Decided::Ordered { fresh, .. } | Decided::Rejected { fresh, .. } => *fresh,
        Decided::Released { .. } | Decided::UnknownBucket => false,
    }
}

const fn word(decided: &Decided) -> &'static str {
    match decided {
        Decided::Ordered { .. } => "ordered",
        Decided::Rejected { .. } => "rejected",
        Decided::Released { .. } => "released",
        Decided::UnknownBucket => "nothing",
    }
}

/// Settlements that are left to the event and the reconciler, counted for one log line a batch.
#[derive(Default)]
struct Unsettled {
    count: u64,
    example: Option<String>,
}

impl Unsettled {
    fn note(&mut self, request: &OrderRequest, why: &str) {
        self.count += 1;
        self.example
            .get_or_insert_with(|| format!("{}: {why}", request.reservation_id));
    }

    fn log(&self) {
        if self.count > 0 {
            tracing::warn!(
                unsettled = self.count,
                example = self.example,
                "decisions are committed and not yet settled in redis"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::OrderId;

    use super::*;
    use crate::work::tests::work;

    fn origin(cancelled: bool, status: ReservationStatus) -> Option<TaskOrigin> {
        let decided = Decided::Ordered {
            order_id: OrderId::parse("o1").unwrap(),
            fresh: false,
            cancelled,
        };
        let settled = Settled::Agreed {
            status,
            moved: false,
        };
        match read(&work(0, 'a').request, &decided, settled) {
            Outcome::Holds(origin) => Some(origin),
            _ => None,
        }
    }

    #[test]
    fn a_cancelled_order_whose_units_redis_still_holds_gets_a_task() {
        let created = ReservationStatus::OrderCreated;
        assert_eq!(origin(true, created), Some(TaskOrigin::Cancelled));
        assert_eq!(origin(true, ReservationStatus::OrderCancelled), None);
        assert_eq!(origin(false, created), None);
    }
}
