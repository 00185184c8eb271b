//! Loops that never die unseen.
//!
//! A loop that panics or ends by itself ends the process with an error, so that whoever supervises
//! it starts a new one. A tick that fails is logged once per reason, is tried again later and later,
//! and shows its heartbeat on `/readyz`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::Rng;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use crate::{Context, Error};

/// The longest pause after failed ticks: a recovered dependency is used again well within 30 s.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// A tick that takes longer than this, beyond its interval, is stuck: no tick has work for longer,
/// since pages and batches are bounded and every call inside has a time limit of seconds.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// How a loop may end.
pub trait LoopEnd: Send + 'static {
    /// What went wrong, if the loop says so.
    fn failure(self) -> Option<String>;
}

impl LoopEnd for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: Display + Send + 'static> LoopEnd for Result<(), E> {
    fn failure(self) -> Option<String> {
        // The alternate form of anyhow's errors names the causes too.
        self.err().map(|error| format!("{error:#}"))
    }
}

/// When a loop last showed life.
#[derive(Debug, Clone, Copy)]
struct Beat {
    last: Instant,
    interval: Duration,
    ticks: u64,
    failures_in_row: u32,
}

/// A heartbeat as `/readyz` shows it.
#[derive(Debug, Serialize)]
pub(crate) struct Heartbeat {
    age_ms: u64,
    ticks: u64,
    failures_in_row: u32,
    pub(crate) stalled: bool,
}

/// The heartbeats of all tick loops, and the names of what runs.
#[derive(Debug, Default)]
pub(crate) struct Loops {
    beats: Mutex<BTreeMap<&'static str, Beat>>,
    running: Mutex<BTreeMap<&'static str, usize>>,
}

impl Loops {
    fn beat(&self, name: &'static str, interval: Duration, failures_in_row: u32) {
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        let ticks = beats.get(name).map_or(0, |beat| beat.ticks + 1);
        let beat = Beat {
            last: Instant::now(),
            interval,
            ticks,
            failures_in_row,
        };
        beats.insert(name, beat);
    }

    pub(crate) fn heartbeats(&self) -> BTreeMap<&'static str, Heartbeat> {
        let beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = beats.iter().map(|(name, beat)| {
            let age = beat.last.elapsed();
            let pause = beat.interval.max(BACKOFF_MAX);
            let heartbeat = Heartbeat {
                age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
                ticks: beat.ticks,
                failures_in_row: beat.failures_in_row,
                stalled: age > pause + STALLED_AFTER,
            };
            (*name, heartbeat)
        });
        shown.collect()
    }

    fn count(&self, name: &'static str, change: impl FnOnce(usize) -> usize) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let count = change(running.get(name).copied().unwrap_or(0));
        if count == 0 {
            running.remove(name);
        } else {
            running.insert(name, count);
        }
    }

    /// The names of what still runs.
    pub(crate) fn running(&self) -> String {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.keys().copied().collect::<Vec<_>>().join(", ")
    }
}

/// Counts a task as running for as long as it lives.
struct Running {
    ctx: Context,
    name: &'static str,
}

impl Running {
    fn new(ctx: Context, name: &'static str) -> Self {
        ctx.loops().count(name, |count| count + 1);
        Self { ctx, name }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // What is cut off stays on the list, or it could be gone before it is named.
        if self.ctx.is_cut_off() {
            return;
        }
        self.ctx
            .loops()
            .count(self.name, |count| count.saturating_sub(1));
    }
}

impl Context {
    /// Starts a loop that is meant to run until [`Context::shutdown`]. If it panics or returns before
    /// that, the process drains and ends with an error. At a stop it is waited for, within the grace
    /// period.
    pub fn spawn<F>(&self, name: &'static str, future: F)
    where
        F: Future + Send + 'static,
        F::Output: LoopEnd,
    {
        let ctx = self.clone();
        self.tracker().spawn(async move {
            let _running = Running::new(ctx.clone(), name);
            let mut task = tokio::spawn(future);
            let end = tokio::select! {
                end = &mut task => end,
                () = ctx.cut().cancelled_owned() => {
                    task.abort();
                    return;
                }
            };
            let how = match end {
                Err(error) if error.is_panic() => "panicked".to_owned(),
                Err(_) => return,
                Ok(end) => match end.failure() {
                    Some(failure) => format!("failed: {failure}"),
                    None if ctx.shutdown().is_cancelled() => return,
                    None => "ended by itself".to_owned(),
                },
            };
            ctx.fail(Error::LoopDied { name, how });
        });
    }

    /// Calls `work` again and again until [`Context::shutdown`], `interval` apart with a tenth of
    /// jitter, the first time at a random point of the interval so that replicas spread. A call in
    /// hand at the stop is finished.
    pub fn every<W, F, E>(&self, name: &'static str, interval: Duration, mut work: W)
    where
        W: FnMut() -> F + Send + 'static,
        F: Future<Output = Result<(), E>> + Send,
        E: Display + Send,
    {
        let ctx = self.clone();
        self.spawn(name, async move {
            let mut failures = Failures::default();
            let mut pause = interval.mul_f64(rand::rng().random_range(0.0..1.0));
            loop {
                ctx.loops().beat(name, interval, failures.in_row);
                tokio::select! {
                    () = sleep(pause) => {}
                    () = ctx.shutdown().cancelled_owned() => return,
                }
                let result = work().await;
                failures.note(name, result.map_err(|error| format!("{error:#}")));
                pause = failures.pause(interval);
            }
        });
    }

    /// Ends the process with an error, after the usual drain but without its delay.
    pub fn fail(&self, why: Error) {
        error!("{why}");
        self.note_failure(why);
    }
}

/// Ticks that failed in a row.
#[derive(Debug, Default)]
struct Failures {
    in_row: u32,
    last: String,
}

impl Failures {
    fn note(&mut self, name: &'static str, result: Result<(), String>) {
        match result {
            Ok(()) if self.in_row > 0 => {
                info!(worker = name, retry_count = self.in_row, "works again");
                *self = Self::default();
            }
            Ok(()) => {}
            Err(reason) => {
                self.in_row = self.in_row.saturating_add(1);
                if reason != self.last {
                    warn!(
                        worker = name,
                        retry_count = self.in_row,
                        "failed, will be repeated: {reason}"
                    );
                    self.last = reason;
                }
            }
        }
    }

    /// The pause before the next tick: doubled per failure up to the limit, with a tenth of jitter.
    fn pause(&self, interval: Duration) -> Duration {
        let doubled = interval.saturating_mul(1 << self.in_row.min(10));
        let pause = doubled.min(BACKOFF_MAX.max(interval));
        pause.mul_f64(rand::rng().random_range(0.9..1.1))
    }
}

#[cfg(test)]
mod tests;
