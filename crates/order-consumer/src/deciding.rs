//! Deciding a batch so that no message holds back the others.
//!
//! A batch is one transaction. What follows its failure depends on whose trouble it is (see
//! [`Trouble`]): the database's is waited for, a locked stock row's batch is split by row, and a bad
//! message's is decided message by message until the bad one stands alone and, after the configured
//! attempts, is parked with its error.
//!
//! Nothing here ever turns a fault into a refusal: a request that could not be decided comes again or
//! is parked, and its reservation stays as it is.

use std::time::Duration;

use futures::StreamExt;
use seckill_dead_letters::{Parker, Reason};
use seckill_order_store::{Decided, Error, Store};
use seckill_state_machine::{OrderRequest, Traceparent};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::contention::{Contention, Parted};
use crate::trouble::{Trouble, describe};
use crate::work::{Work, by_bucket};

/// Stock rows tried at once after a batch failed. Most of them commit at once; a locked one keeps a
/// database connection for a lock time limit, so this stays at half of the default pool of eight.
const BUCKETS_AT_ONCE: usize = 4;

/// The first pause while the database is away.
const PAUSE_FIRST: Duration = Duration::from_millis(100);

/// The longest pause: a second after the database is back, its work goes on.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What became of a batch.
#[derive(Debug)]
pub struct Progress {
    /// Requests with a decision, to be settled in Redis.
    pub decided: Vec<(OrderRequest, Decided)>,
    /// Whether every message is decided or parked.
    pub complete: bool,
}

impl Progress {
    const fn done() -> Self {
        Self {
            decided: Vec::new(),
            complete: true,
        }
    }

    const fn undone() -> Self {
        Self {
            decided: Vec::new(),
            complete: false,
        }
    }

    fn join(mut self, mut other: Self) -> Self {
        self.decided.append(&mut other.decided);
        self.complete &= other.complete;
        self
    }
}

/// Decides order requests in PostgreSQL.
pub struct Decider {
    store: Store,
    parker: Parker,
    attempts_max: u32,
    contention: Contention,
    stop: CancellationToken,
}

impl Decider {
    /// `handlers` is how many batches are decided at once, `attempts_max` how often a message may fail
    /// for a reason of its own. From `stop` on nothing is waited for.
    #[must_use]
    pub fn new(
        store: Store,
        parker: Parker,
        handlers: usize,
        attempts_max: u32,
        stop: CancellationToken,
    ) -> Self {
        Self {
            store,
            parker,
            attempts_max,
            contention: Contention::new(handlers),
            stop,
        }
    }

    /// Takes the requests for rows that were locked a moment ago out of a batch.
    #[must_use]
    pub fn part(&self, batch: Vec<Work>) -> Parted {
        self.contention.part(batch)
    }

    /// Decides requests that need not wait for a row, as a whole, or else as many of them as can be
    /// until the deadline.
    pub async fn free(&self, batch: Vec<Work>, deadline: Instant) -> Progress {
        self.together(batch, deadline).await
    }

    /// Decides requests for rows that were locked a moment ago, row by row.
    pub async fn contended(&self, groups: Vec<Vec<Work>>, deadline: Instant) -> Progress {
        let mut progress = Progress::done();
        for group in groups {
            progress = progress.join(self.in_turn(group, deadline).await);
        }
        progress
    }

    async fn in_turn(&self, group: Vec<Work>, deadline: Instant) -> Progress {
        let Some(first) = group.first() else {
            return Progress::done();
        };
        let bucket = first.request.bucket.clone();
        let turn = self.contention.turn(&bucket, deadline, &self.stop).await;
        if turn.is_none() {
            return Progress::undone();
        }
        let progress = self.bucket(group, deadline).await;
        if progress.complete {
            self.contention.forget(&bucket);
        }
        progress
    }

    /// One transaction for all, split only when it fails.
    async fn together(&self, batch: Vec<Work>, deadline: Instant) -> Progress {
        let error = match self.patiently(&batch, deadline).await {
            Ok(decided) => return self.accept(batch, decided).await,
            Err(error) => error,
        };
        log_failed(&batch, &error);
        match Trouble::of(&error) {
            Trouble::Everyone => Progress::undone(),
            Trouble::StockRow => self.row_by_row(by_bucket(batch), deadline).await,
            Trouble::Message => self.message_by_message(batch, deadline).await,
        }
    }

    /// After a lock time-out. A batch for a single row has nothing to be split into.
    async fn row_by_row(&self, groups: Vec<Vec<Work>>, deadline: Instant) -> Progress {
        if let [only] = groups.as_slice() {
            self.note_contended(only);
            return Progress::undone();
        }
        self.bucket_by_bucket(groups, deadline).await
    }

    fn note_contended(&self, group: &[Work]) {
        if let Some(first) = group.first() {
            self.contention.note(&first.request.bucket);
        }
    }

    async fn bucket_by_bucket(&self, groups: Vec<Vec<Work>>, deadline: Instant) -> Progress {
        futures::stream::iter(groups)
            .map(|group| self.bucket(group, deadline))
            .buffer_unordered(BUCKETS_AT_ONCE)
            .fold(Progress::done(), async |sum, group| sum.join(group))
            .await
    }

    async fn bucket(&self, group: Vec<Work>, deadline: Instant) -> Progress {
        if Instant::now() >= deadline {
            return Progress::undone();
        }
        let error = match self.patiently(&group, deadline).await {
            Ok(decided) => return self.accept(group, decided).await,
            Err(error) => error,
        };
        log_failed(&group, &error);
        match Trouble::of(&error) {
            Trouble::Everyone => Progress::undone(),
            Trouble::StockRow => {
                self.note_contended(&group);
                Progress::undone()
            }
            Trouble::Message => self.message_by_message(group, deadline).await,
        }
    }

    async fn message_by_message(&self, batch: Vec<Work>, deadline: Instant) -> Progress {
        let mut progress = Progress::done();
        for work in batch {
            if Instant::now() >= deadline {
                return progress.join(Progress::undone());
            }
            progress = progress.join(self.message(work, deadline).await);
        }
        progress
    }

    async fn message(&self, work: Work, deadline: Instant) -> Progress {
        let alone = std::slice::from_ref(&work);
        let error = match self.patiently(alone, deadline).await {
            Ok(decided) => return self.accept(vec![work], decided).await,
            Err(error) => error,
        };
        let exhausted = work.message.reconsume_times >= self.attempts_max;
        if Trouble::of(&error) != Trouble::Message || !exhausted {
            log_failed(alone, &error);
            return Progress::undone();
        }
        let reason = Reason::AttemptsExhausted(describe(&error));
        Progress {
            decided: Vec::new(),
            complete: self.parker.park(&work.message, &reason).await,
        }
    }

    /// One transaction, repeated until the deadline while the database itself is the trouble.
    async fn patiently(&self, batch: &[Work], deadline: Instant) -> Result<Vec<Decided>, Error> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let requests: Vec<OrderRequest> = batch.iter().map(|work| work.request.clone()).collect();
        let mut pause = PAUSE_FIRST;
        loop {
            let error = match self.store.decide(&requests).await {
                Ok(decided) => return Ok(decided),
                Err(error) => error,
            };
            let resume = Instant::now() + pause;
            let wait = Trouble::of(&error) == Trouble::Everyone && resume < deadline;
            if !wait || self.stopped_before(resume).await {
                return Err(error);
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn stopped_before(&self, instant: Instant) -> bool {
        tokio::time::timeout_at(instant, self.stop.cancelled())
            .await
            .is_ok()
    }

    /// Takes over what a committed transaction decided. A request for a stock row that does not exist
    /// is parked, since neither an order nor a refusal could be recorded for it.
    async fn accept(&self, batch: Vec<Work>, decided: Vec<Decided>) -> Progress {
        let mut progress = Progress::done();
        for (work, decided) in batch.into_iter().zip(decided) {
            if matches!(decided, Decided::UnknownBucket) {
                let parked = self.parker.park(&work.message, &Reason::UnknownBucket);
                progress.complete &= parked.await;
            } else {
                progress.decided.push((work.request, decided));
            }
        }
        progress
    }
}

fn log_failed(batch: &[Work], error: &Error) {
    let Some(first) = batch.first() else { return };
    tracing::warn!(
        messages = batch.len(),
        first_reservation_id = %first.request.reservation_id,
        first_bucket = %first.request.bucket,
        trace_id = first.request.traceparent.as_ref().map(Traceparent::trace_id),
        retry_count = first.message.reconsume_times,
        kind = error.kind().as_str(),
        trouble = ?Trouble::of(error),
        error = %describe(error),
        "order requests could not be decided together"
    );
}
