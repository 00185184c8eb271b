//! The sale itself: workers that take step after step until none is left.
//!
//! Closed loop: a worker sends its next call when the last one was answered, so that the number of
//! calls in flight is the concurrency and never more. All workers share one thread; the other core
//! belongs to the servers that are measured.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use hdrhistogram::Histogram;
use seckill_proto::v1::reservation_service_client::ReservationServiceClient;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::answers::{Answers, Tally};
use super::caller::{CALL_LIMIT, Outcome, Writer, call};
use super::plan::Plan;

/// Latencies are kept from a microsecond to two minutes, which no call can exceed, to three digits:
/// about 100 KiB.
const LATENCY_US_MAX: u64 = 120_000_000;

/// Kinds of faults that are kept in words; further kinds only count as retries. A front knows a
/// handful, and a broken connection adds a few more.
const FAULTS_KEPT: usize = 20;

/// A sale in progress, shared by its workers and by those who watch it.
#[derive(Debug)]
pub struct Load {
    plan: Plan,
    writer: Writer,
    next: AtomicUsize,
    done: AtomicU64,
    accepted: AtomicU64,
    errors: AtomicU64,
    kill_after: Option<u64>,
    call_limit: Duration,
    kill: Notify,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    answers: Answers,
    latency: Histogram<u64>,
    retries: u64,
    faults: BTreeMap<String, u64>,
}

/// How far the sale is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Calls answered.
    pub done: u64,
    /// First attempts accepted.
    pub accepted: u64,
    /// Errors.
    pub errors: u64,
}

/// What a sale ended with.
#[derive(Debug)]
pub struct Finished {
    /// The sums.
    pub tally: Tally,
    /// Latencies in microseconds.
    pub latency: Histogram<u64>,
    /// Attempts that were repeated because of a fault.
    pub retries: u64,
    /// The first kinds of such faults, each with its count.
    pub faults: BTreeMap<String, u64>,
    /// From the first call to the last answer.
    pub took: Duration,
}

impl Load {
    /// A sale that has not begun. `kill_after` is the count of acceptances at which
    /// [`Load::kill_due`] returns.
    ///
    /// # Errors
    /// When the histogram cannot be made.
    pub fn new(plan: Plan, writer: Writer, kill_after: Option<u64>) -> anyhow::Result<Arc<Self>> {
        let latency = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3)
            .context("making the latency histogram")?;
        let answers = Answers::new(&plan);
        Ok(Arc::new(Self {
            plan,
            writer,
            next: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            kill_after,
            call_limit: CALL_LIMIT,
            kill: Notify::new(),
            kept: Mutex::new(Kept {
                answers,
                latency,
                retries: 0,
                faults: BTreeMap::new(),
            }),
        }))
    }

    /// Calls to be made.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.plan.steps().len() as u64
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            done: self.done.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
        }
    }

    /// Returns once as many are accepted as were asked for.
    pub async fn kill_due(&self) {
        self.kill.notified().await;
    }

    /// Whether as many are accepted as were asked for.
    #[must_use]
    pub fn is_kill_due(&self) -> bool {
        self.kill_after
            .is_some_and(|wanted| self.progress().accepted >= wanted)
    }

    /// Runs the whole plan with `concurrency` workers, spread over the channels.
    ///
    /// # Errors
    /// When a worker died, and as soon as one call got no answer: the front stays away, and each
    /// further call would only wait as long again.
    pub async fn run(
        self: &Arc<Self>,
        channels: &[Channel],
        concurrency: usize,
    ) -> anyhow::Result<Finished> {
        let started = Instant::now();
        let mut workers = JoinSet::new();
        for channel in channels.iter().cycle().take(concurrency) {
            let load = Arc::clone(self);
            let client = ReservationServiceClient::new(channel.clone());
            workers.spawn(async move { load.work(client).await });
        }
        while let Some(ended) = workers.join_next().await {
            // The other workers end with their set.
            ended.context("a worker of the sale died")??;
        }
        let took = started.elapsed();
        let kept = self.kept.lock().await;
        Ok(Finished {
            tally: kept.answers.tally(&self.plan),
            latency: kept.latency.clone(),
            retries: kept.retries,
            faults: kept.faults.clone(),
            took,
        })
    }

    async fn work(&self, mut client: ReservationServiceClient<Channel>) -> anyhow::Result<()> {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(step) = self.plan.steps().get(index).copied() else {
                return Ok(());
            };
            let request = self.writer.request(&self.plan, step);
            let outcome = call(&mut client, request, self.call_limit).await;
            if let (true, Some(error)) = (outcome.gave_up, &outcome.error) {
                let Progress { done, accepted, .. } = self.progress();
                let total = self.total();
                bail!(
                    "the front stays away, so the sale was stopped after {done} of {total} calls \
                     with {accepted} accepted: {error}"
                );
            }
            let mut kept = self.kept.lock().await;
            kept.answers.record(step, outcome.answer);
            kept.note(outcome);
            self.publish(&kept.answers);
        }
    }

    fn publish(&self, answers: &Answers) {
        let accepted = answers.accepted_so_far();
        self.done.fetch_add(1, Ordering::Relaxed);
        self.accepted.store(accepted, Ordering::Relaxed);
        self.errors.store(answers.error_count(), Ordering::Relaxed);
        if self.kill_after.is_some_and(|wanted| accepted >= wanted) {
            // One permit is kept until somebody waits; further ones change nothing.
            self.kill.notify_one();
        }
    }
}

impl Kept {
    fn note(&mut self, outcome: Outcome) {
        self.retries += outcome.faults.len() as u64;
        for fault in outcome.faults {
            if self.faults.len() < FAULTS_KEPT || self.faults.contains_key(&fault) {
                *self.faults.entry(fault).or_insert(0) += 1;
            }
        }
        let micros = u64::try_from(outcome.took.as_micros()).unwrap_or(LATENCY_US_MAX);
        self.latency.saturating_record(micros);
        if let Some(error) = outcome.error {
            self.answers.explain(|| error);
        }
    }
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::{ActivityId, ActivityVersion, Scope, SkuId};

    use super::super::caller::channels;
    use super::super::plan::Mix;
    use super::*;

    #[tokio::test]
    async fn a_front_that_stays_away_stops_the_sale_with_the_first_call() {
        let plan = Plan::new(Mix {
            buyers: 1_000,
            repeat_percent: 0,
            second_percent: 0,
            invalid: 0,
            seed: 1,
        });
        let writer = Writer::new(Scope {
            activity_id: ActivityId::parse("act").unwrap(),
            sku_id: SkuId::parse("sku").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        });
        let mut load = Load::new(plan, writer, None).unwrap();
        Arc::get_mut(&mut load).unwrap().call_limit = Duration::from_millis(200);
        // Nobody can listen there.
        let channels = channels(&["127.0.0.1:1".to_owned()], 1).unwrap();
        let error = load.run(&channels, 4).await.unwrap_err().to_string();
        assert!(error.contains("stays away"), "{error}");
        assert!(error.contains("0 of 1000 calls"), "{error}");
        assert!(error.contains("no answer in 200ms"), "{error}");
    }
}
