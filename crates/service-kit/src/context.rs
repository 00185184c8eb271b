//! What a running service holds on to: its stop signals, its loops, its readiness.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use seckill_message_bus::BusRuntime;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::loops::Loops;
use crate::run_file::RunFile;
use crate::{Error, ProcessArgs, Readiness};

/// A running service. Cheap to clone; all clones are the same service.
#[derive(Clone)]
pub struct Context {
    /// The bus client's own runtime, which had to be made before any other.
    pub bus: Arc<BusRuntime>,
    inner: Arc<Inner>,
}

struct Inner {
    service: &'static str,
    process: ProcessArgs,
    /// Take no more work.
    shutdown: CancellationToken,
    /// The grace period is over.
    cut: CancellationToken,
    /// Something died; the reason is in `failure`.
    failed: CancellationToken,
    failure: Mutex<Option<Error>>,
    draining: OnceLock<()>,
    tracker: TaskTracker,
    readiness: watch::Sender<Readiness>,
    loops: Loops,
    grpc_addr: OnceLock<SocketAddr>,
    run_file: Mutex<Option<RunFile>>,
}

impl Context {
    pub(crate) fn new(service: &'static str, process: ProcessArgs, bus: Arc<BusRuntime>) -> Self {
        let inner = Inner {
            service,
            process,
            shutdown: CancellationToken::new(),
            cut: CancellationToken::new(),
            failed: CancellationToken::new(),
            failure: Mutex::new(None),
            draining: OnceLock::new(),
            tracker: TaskTracker::new(),
            readiness: watch::Sender::new(Readiness::default()),
            loops: Loops::default(),
            grpc_addr: OnceLock::new(),
            run_file: Mutex::new(None),
        };
        Self {
            bus,
            inner: Arc::new(inner),
        }
    }

    /// The service's name.
    #[must_use]
    pub fn service(&self) -> &'static str {
        self.inner.service
    }

    /// The replica's number.
    #[must_use]
    pub fn instance(&self) -> u32 {
        self.inner.process.instance
    }

    /// Cancelled when no more work may be taken: after the drain delay that follows a signal.
    #[must_use]
    pub fn shutdown(&self) -> CancellationToken {
        self.inner.shutdown.clone()
    }

    /// Cancelled when the grace period is over and whatever still runs is dropped.
    #[must_use]
    pub fn cut(&self) -> CancellationToken {
        self.inner.cut.clone()
    }

    /// How long work in hand may take after [`Context::shutdown`].
    #[must_use]
    pub fn grace_period(&self) -> Duration {
        self.inner.process.grace_period_ms
    }

    /// The dependencies' state, to watch.
    #[must_use]
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.inner.readiness.subscribe()
    }

    /// Waits for [`Context::shutdown`] and then until every loop has ended, at most the grace period.
    /// Close pools and clients after it. Says whether all loops ended in time.
    pub async fn drained(&self) -> bool {
        self.inner.shutdown.cancelled().await;
        self.inner.tracker.close();
        tokio::select! {
            () = self.inner.tracker.wait() => true,
            () = self.inner.cut.cancelled() => false,
        }
    }

    /// Begins to stop: not ready at once, no more work after `delay`, cut off after the grace period.
    /// A second call changes nothing.
    pub(crate) fn begin_drain(&self, delay: Duration) {
        if self.inner.draining.set(()).is_err() {
            return;
        }
        self.inner
            .readiness
            .send_modify(|readiness| readiness.draining = true);
        let ctx = self.clone();
        tokio::spawn(async move {
            sleep(delay).await;
            ctx.inner.shutdown.cancel();
            sleep(ctx.grace_period()).await;
            ctx.inner.cut.cancel();
        });
    }

    /// Stops what is left, without waiting.
    pub(crate) fn cut_off(&self) {
        self.inner.shutdown.cancel();
        self.inner.cut.cancel();
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.inner.cut.is_cancelled()
    }

    pub(crate) fn drain_delay(&self) -> Duration {
        self.inner.process.drain_delay_ms
    }

    pub(crate) fn note_failure(&self, why: Error) {
        let mut failure = self
            .inner
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(why);
        drop(failure);
        self.inner.failed.cancel();
        self.begin_drain(Duration::ZERO);
    }

    pub(crate) fn take_failure(&self) -> Option<Error> {
        let mut failure = self
            .inner
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        failure.take()
    }

    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.inner.tracker
    }

    pub(crate) fn loops(&self) -> &Loops {
        &self.inner.loops
    }

    pub(crate) fn readiness_sender(&self) -> &watch::Sender<Readiness> {
        &self.inner.readiness
    }

    pub(crate) fn admin_addr(&self) -> SocketAddr {
        self.inner.process.admin_addr
    }

    pub(crate) fn run_dir(&self) -> Option<&Path> {
        self.inner.process.run_dir.as_deref()
    }

    pub(crate) fn grpc_addr(&self) -> Option<SocketAddr> {
        self.inner.grpc_addr.get().copied()
    }

    pub(crate) fn note_grpc_addr(&self, address: SocketAddr) {
        // A second listener would be a second service: the first one stays.
        let _ = self.inner.grpc_addr.set(address);
    }

    pub(crate) fn keep_run_file(&self, file: RunFile) {
        let mut kept = self
            .inner
            .run_file
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *kept = Some(file);
    }

    pub(crate) fn remove_run_file(&self) {
        let mut kept = self
            .inner
            .run_file
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *kept = None;
    }
}
