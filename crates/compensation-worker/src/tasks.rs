//! Claims due tasks and sees each one to its end: finished, or given back for a later attempt.

use std::time::Duration;

use futures::StreamExt;
use seckill_order_store::{CompensationTask, Error as StoreError, Store};
use seckill_state_machine::Traceparent;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::release::{Ending, Releaser};

/// Tasks of one claim. At some five round trips a task and 16 at once, a claim takes well under a
/// second, a thirtieth of the default lease.
const CLAIM_SIZE: i64 = 64;

/// Tasks worked on at once. Each holds a database connection for its fence and its end only; the pool
/// of eight is shared.
const TASKS_AT_ONCE: usize = 16;

/// How long one round may go on claiming. Then the loop shows its heartbeat, which counts as stalled
/// after a minute.
const BUSY_MAX: Duration = Duration::from_secs(20);

/// How tasks are claimed and repeated.
#[derive(Debug, Clone, Copy)]
pub struct TaskLimits {
    /// How long a claimed task is left alone by others.
    pub lease: Duration,
    /// When a task that could not be finished is tried again.
    pub backoff: Backoff,
}

/// Works on due tasks.
pub struct Tasks {
    store: Store,
    releaser: Releaser,
    limits: TaskLimits,
    stop: CancellationToken,
}

impl Tasks {
    /// From `stop` on nothing more is claimed.
    #[must_use]
    pub const fn new(
        store: Store,
        releaser: Releaser,
        limits: TaskLimits,
        stop: CancellationToken,
    ) -> Self {
        Self {
            store,
            releaser,
            limits,
            stop,
        }
    }

    /// Claims until nothing is due.
    ///
    /// # Errors
    /// Whatever claiming met.
    pub async fn round(&self) -> Result<(), StoreError> {
        let until = Instant::now() + BUSY_MAX;
        while !self.stop.is_cancelled() && Instant::now() < until {
            let claimed = self
                .store
                .claim_tasks(CLAIM_SIZE, self.limits.lease)
                .await?;
            let full = i64::try_from(claimed.len()).is_ok_and(|count| count == CLAIM_SIZE);
            futures::stream::iter(claimed)
                .for_each_concurrent(TASKS_AT_ONCE, |task| self.see_through(task))
                .await;
            if !full {
                break;
            }
        }
        Ok(())
    }

    async fn see_through(&self, task: CompensationTask) {
        let ending = match self.releaser.work(&task).await {
            Ok(ending) => ending,
            Err(error) => Ending::Again(format!("{:#}", anyhow::Error::from(error))),
        };
        let recorded = match &ending {
            Ending::Finished(result) => self.store.finish_task(&task, result).await,
            Ending::Again(why) => {
                let delay = self.limits.backoff.draw(task.attempts);
                self.store.retry_task(&task, why, delay).await
            }
        };
        log(&task, &ending, &recorded);
    }
}

fn log(task: &CompensationTask, ending: &Ending, recorded: &Result<bool, StoreError>) {
    let id = &task.request.reservation_id;
    let bucket = &task.request.bucket;
    let trace_id = task.request.traceparent.as_ref().map(Traceparent::trace_id);
    match (ending, recorded) {
        (Ending::Finished(result), Ok(true)) => tracing::info!(
            reservation_id = %id,
            %bucket,
            trace_id,
            generation = task.generation,
            result,
            "finished a compensation task"
        ),
        (Ending::Again(why), Ok(true)) => tracing::warn!(
            reservation_id = %id,
            %bucket,
            trace_id,
            retry_count = task.attempts,
            reason = why,
            "a compensation task will be tried again"
        ),
        // Reopened, or taken over after its lease: the next claim repeats what is needed.
        (_, Ok(false)) => tracing::info!(
            reservation_id = %id,
            %bucket,
            trace_id,
            generation = task.generation,
            "a compensation task was reopened or taken over meanwhile"
        ),
        (_, Err(error)) => tracing::warn!(
            reservation_id = %id,
            %bucket,
            trace_id,
            %error,
            cause = error.cause().map(tracing::field::display),
            "the end of a compensation task could not be recorded; its lease will end"
        ),
    }
}
