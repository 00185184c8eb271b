//! Claims due tasks and sees each one to its end: finished, or given back for a later attempt.

use std::time::Duration;

use futures::StreamExt;
use seckill_order_store::{CompensationTask, Error as StoreError, Store};
use seckill_service_kit::Backoff;
use seckill_state_machine::Traceparent;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::release::{Ending, Releaser};

/// Tasks of one claim. At some five round trips a task and 16 at once, a claim takes well under a
/// second, a thirtieth of the default lease.
const CLAIM_SIZE: i64 = 64;

/// Tasks worked on at once. Each holds a database connection for its fence and its end only; the pool
/// of eight is shared.
const TASKS_AT_ONCE: usize = 16;

/// What is on record about a task that was given back because its patience is not over.
const PATIENT: &str = "patience is not over";

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

    /// Claims until nothing is due, or until a claim got nowhere: with Redis away, a hundred thousand
    /// due tasks would otherwise be claimed and given back one after the other. A claim of orders that all
    /// wait for units is none of these: the releases that they wait for may be in the next one.
    ///
    /// # Errors
    /// Whatever claiming met, or that no task of a claim could be worked on, so that the loop waits.
    pub async fn round(&self) -> Result<(), RoundError> {
        let until = Instant::now() + BUSY_MAX;
        while !self.stop.is_cancelled() && Instant::now() < until {
            let claimed = self
                .store
                .claim_tasks(CLAIM_SIZE, self.limits.lease)
                .await?;
            let full = i64::try_from(claimed.len()).is_ok_and(|count| count == CLAIM_SIZE);
            let tally = futures::stream::iter(claimed)
                .map(|task| self.see_through(task))
                .buffer_unordered(TASKS_AT_ONCE)
                .fold(Tally::default(), async |tally, end| tally.with(end))
                .await;
            tally.log();
            if tally.got_nowhere() {
                return Err(RoundError::NoProgress(tally.failed));
            }
            if !full || tally.met_failures_alone() {
                break;
            }
        }
        Ok(())
    }

    async fn see_through(&self, task: CompensationTask) -> End {
        let (ending, failed) = match self.releaser.work(&task).await {
            Ok(ending) => (ending, false),
            Err(error) => {
                let why = format!("{:#}", anyhow::Error::from(error));
                (Ending::Again(why), true)
            }
        };
        let recorded = match &ending {
            Ending::Finished(result) => self.store.finish_task(&task, result).await,
            Ending::Patient(left) => {
                // While patience stands still, what is left of it stays the same, however little it is.
                let delay = self.limits.backoff.draw(task.attempts).max(*left);
                self.store.retry_task(&task, PATIENT, delay).await
            }
            Ending::Again(why) => {
                let delay = self.limits.backoff.draw(task.attempts);
                self.store.retry_task(&task, why, delay).await
            }
        };
        log(&task, &ending, &recorded);
        match (ending, recorded) {
            (Ending::Finished(_), Ok(_)) => End::Finished,
            (Ending::Patient(_), Ok(_)) => End::Patient,
            (_, Err(error)) => End::Failed(format!("{:#}", anyhow::Error::from(error))),
            (Ending::Again(why), Ok(_)) if failed => End::Failed(why),
            (Ending::Again(why), Ok(_)) => End::Again(why),
        }
    }
}

/// Why a round of claims was broken off.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    /// PostgreSQL did not give out tasks.
    #[error("tasks could not be claimed")]
    Claim(#[from] StoreError),
    /// Every task of a claim failed: PostgreSQL or Redis is away.
    #[error("none of {0} claimed tasks could be worked on")]
    NoProgress(u64),
}

/// How one task of a claim ended.
enum End {
    /// Done, whether by this worker or by another one.
    Finished,
    /// Given back until its patience is over.
    Patient,
    /// Looked at, and not to be finished now.
    Again(String),
    /// Not even that.
    Failed(String),
}

/// What became of a claim, for one log line.
#[derive(Default)]
struct Tally {
    finished: u64,
    patient: u64,
    again: u64,
    failed: u64,
    example: Option<String>,
}

impl Tally {
    fn with(mut self, end: End) -> Self {
        let why = match end {
            End::Finished => {
                self.finished += 1;
                return self;
            }
            End::Patient => {
                self.patient += 1;
                return self;
            }
            End::Again(why) => {
                self.again += 1;
                why
            }
            End::Failed(why) => {
                self.failed += 1;
                why
            }
        };
        self.example.get_or_insert(why);
        self
    }

    const fn got_nowhere(&self) -> bool {
        self.failed > 0 && self.finished + self.patient + self.again == 0
    }

    /// Whether something failed and nothing was finished, so that a pause is due.
    const fn met_failures_alone(&self) -> bool {
        self.failed > 0 && self.finished == 0
    }

    fn log(&self) {
        if self.again + self.failed > 0 {
            tracing::warn!(
                finished = self.finished,
                again = self.again,
                failed = self.failed,
                example = self.example,
                "compensation tasks will be tried again"
            );
        }
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
        (Ending::Patient(left), Ok(true)) => tracing::debug!(
            reservation_id = %id,
            %bucket,
            trace_id,
            left_ms = left.as_millis(),
            "a compensation task waits until its patience is over"
        ),
        // The claim's tally warns of these, once for all of them.
        (Ending::Again(why), Ok(true)) => tracing::debug!(
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
        (_, Err(error)) => tracing::debug!(
            reservation_id = %id,
            %bucket,
            trace_id,
            %error,
            cause = error.cause().map(tracing::field::display),
            "the end of a compensation task could not be recorded; its lease will end"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(ends: Vec<End>) -> Tally {
        ends.into_iter().fold(Tally::default(), Tally::with)
    }

    #[test]
    fn only_a_claim_of_nothing_but_failures_got_nowhere() {
        let failed = || End::Failed("redis is away".to_owned());
        let again = || End::Again("a contradiction".to_owned());
        assert!(!tally(Vec::new()).got_nowhere());
        assert!(tally(vec![failed(), failed()]).got_nowhere());
        assert!(!tally(vec![failed(), End::Finished]).got_nowhere());
        assert!(!tally(vec![failed(), End::Patient]).got_nowhere());
        // One that only a person can finish must not slow down the others' releases.
        assert!(!tally(vec![again()]).got_nowhere());
    }

    /// Goal: a hundred waiting orders do not hold up the releases that are due behind them.
    #[test]
    fn only_failures_end_a_round_early() {
        let failed = || End::Failed("redis is away".to_owned());
        let again = || End::Again("its order waits".to_owned());
        assert!(!tally(vec![again(), again()]).met_failures_alone());
        assert!(!tally(vec![failed(), again(), End::Finished]).met_failures_alone());
        assert!(tally(vec![failed(), again()]).met_failures_alone());
        assert!(!tally(Vec::new()).met_failures_alone());
    }

    #[test]
    fn a_claim_tells_the_first_reason() {
        let tally = tally(vec![
            End::Finished,
            End::Again("a".to_owned()),
            End::Failed("b".to_owned()),
        ]);
        assert_eq!((tally.finished, tally.again, tally.failed), (1, 1, 1));
        assert_eq!(tally.example.as_deref(), Some("a"));
    }
}
