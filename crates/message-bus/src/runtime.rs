//! The runtime that the broker's client insists on owning.
//!
//! The client cannot use the service's runtime; it builds one of its own, in plain `main`. Consumers'
//! listeners run on one "lane" of its blocking threads. As it comes, that lane runs four listeners at
//! a time and fails what waits longer than five seconds, which shows as messages that were redelivered
//! or dead-lettered without ever being handled. It is therefore widened here, and
//! [`Consumer::start`](crate::Consumer::start) takes its threads from a fixed number.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rocketmq_client_rust::{ClientRuntime, ClientRuntimeConfig};
use rocketmq_observability::TelemetryHandle;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};

use crate::Error;
use crate::error::describe;

/// The listener threads of all consumers of one process. 64: two consumers with 16 threads, their two
/// dead-letter consumers with one each, and room; each thread holds at most one batch.
pub const LISTENER_THREADS_MAX: u32 = 64;

/// Batches that may wait for a listener thread. The client pulls at most 1,000 messages a queue ahead;
/// 4,096 is also what its own scheduler holds.
const LISTENER_QUEUE_MAX: usize = 4_096;

/// How long a batch may wait for a listener thread, and how long it may run: above the longest handler
/// deadline, so that this crate's deadline ends a handler and never the client's.
pub(crate) const LISTENER_LIMIT: Duration = Duration::from_secs(900);

/// Blocking threads: the listeners', and as many again for the client's other lanes.
const BLOCKING_THREADS_MAX: usize = 2 * LISTENER_THREADS_MAX as usize;

/// How long the client's tasks may take to end when the bus is shut down.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// The client's runtime; one in a process.
pub struct BusRuntime {
    owner: Option<RuntimeOwner>,
    client: Arc<ClientRuntime>,
    listener_threads: Arc<AtomicU32>,
}

impl BusRuntime {
    /// Builds the runtime. To be called in plain `main`, outside any async runtime.
    ///
    /// # Errors
    /// [`Error::Runtime`] when threads or memory cannot be had.
    pub fn new() -> Result<Self, Error> {
        let mut config = RuntimeConfig {
            thread_name: "bus".to_owned(),
            max_blocking_threads: BLOCKING_THREADS_MAX,
            ..RuntimeConfig::default()
        };
        let lane = &mut config.blocking_lane_policies.metadata_io;
        lane.max_concurrency = LISTENER_THREADS_MAX as usize;
        lane.max_queue_depth = LISTENER_QUEUE_MAX;
        lane.queue_timeout = LISTENER_LIMIT;
        lane.task_timeout = LISTENER_LIMIT;
        let owner = RuntimeOwner::plan(config)
            .map_err(|error| Error::Runtime(error.to_string()))?
            .build()
            .map_err(|error| Error::Runtime(error.to_string()))?;
        // A no-op handle: the client must not touch the process' tracing subscriber.
        let client = ClientRuntime::try_new(
            owner.root_context().component("client"),
            ClientRuntimeConfig {
                shutdown_timeout: SHUTDOWN_LIMIT,
                ..ClientRuntimeConfig::default()
            },
            TelemetryHandle::noop(),
        )
        .map_err(|error| Error::Runtime(describe(&error)))?;
        Ok(Self {
            owner: Some(owner),
            client,
            listener_threads: Arc::new(AtomicU32::new(0)),
        })
    }

    /// Ends the client's tasks and threads. To be called in plain `main`, after producers and
    /// consumers have been shut down.
    pub fn shutdown(mut self) {
        if let Some(owner) = self.owner.take() {
            owner.block_on(async {
                self.client.shutdown().await;
                owner.shutdown_tasks().await;
            });
            drop(owner.shutdown_background());
        }
    }

    pub(crate) fn client(&self) -> Arc<ClientRuntime> {
        Arc::clone(&self.client)
    }

    /// Takes listener threads from the process' fixed number.
    pub(crate) fn lease_listener_threads(&self, threads: u32) -> Result<ThreadLease, Error> {
        let taken =
            self.listener_threads
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
                    taken
                        .checked_add(threads)
                        .filter(|sum| *sum <= LISTENER_THREADS_MAX)
                });
        match taken {
            Ok(_) => Ok(ThreadLease {
                pool: Arc::clone(&self.listener_threads),
                threads,
            }),
            Err(taken) => Err(Error::Setting {
                setting: "threads",
                problem: format!(
                    "is {threads}, but {taken} of the process' {LISTENER_THREADS_MAX} are taken"
                ),
            }),
        }
    }
}

impl Drop for BusRuntime {
    fn drop(&mut self) {
        // A runtime must not be dropped inside another one; its background shutdown may be.
        if let Some(owner) = self.owner.take() {
            drop(owner.shutdown_background());
        }
    }
}

/// Listener threads of one consumer, given back on drop.
pub(crate) struct ThreadLease {
    pool: Arc<AtomicU32>,
    threads: u32,
}

impl Drop for ThreadLease {
    fn drop(&mut self) {
        self.pool.fetch_sub(self.threads, Ordering::AcqRel);
    }
}
