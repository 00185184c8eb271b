//! A TCP proxy that makes faults on purpose.
//!
//! It stands between a client and a real Redis, PostgreSQL or RocketMQ, knows where their messages
//! begin and end, and can be told at any time to refuse, delay, cut, swallow or withhold them, or to
//! ask a hook about each frame. It runs on a thread of its own, so that a test that blocks does not
//! stall it, and a mode that has been set holds when `set_mode` returns.

mod connection;
mod frame;
mod framing;
mod server;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use crate::fail::OrFail;
use crate::ports::{bind_any, loopback};

pub use frame::Frame;
pub use framing::Framing;

/// A direction of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dir {
    /// From the client to the server: requests.
    ToServer,
    /// From the server to the client: answers.
    ToClient,
}

impl Dir {
    const fn index(self) -> usize {
        match self {
            Self::ToServer => 0,
            Self::ToClient => 1,
        }
    }

    /// The other direction.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::ToServer => Self::ToClient,
            Self::ToClient => Self::ToServer,
        }
    }
}

/// What happens to the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everything passes.
    Forward,
    /// As if the server's process were gone: connections are reset, new ones refused.
    Refuse,
    /// Frames of one direction arrive later, in order; they do not delay each other further.
    Delay(Duration, Dir),
    /// After so many more bytes of one direction the connection is cut: the client sees a reset. Each
    /// connection counts for itself, from the moment the mode is set.
    CutAfter(u64, Dir),
    /// Frames of one direction are read and thrown away.
    Swallow(Dir),
    /// Frames of one direction are kept back until another mode is set, and then arrive in order: a
    /// network that heals.
    Hold(Dir),
    /// Connections are accepted, and nothing passes in either direction.
    BlackHole,
}

/// A hook's decision about one frame. The mode applies to what it lets through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameAction {
    /// Passes it on.
    Forward,
    /// Throws it away.
    Drop,
    /// Passes other bytes on instead.
    Replace(Bytes),
    /// Throws it away and sends these bytes back to where it came from.
    ReplyWith(Bytes),
    /// Passes it on later; what follows it waits, too.
    Delay(Duration),
    /// Throws it away and cuts the connection: the client sees a reset.
    Cut,
    /// Passes on its first bytes (all of them, if there are fewer) and then cuts the connection.
    CutAfter(usize),
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sever {
    /// Both sides see a reset, as after a crash of the host.
    Reset,
    /// Both sides see an orderly end, as after a crash of the process.
    Fin,
}

/// What has passed one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames that arrived at the proxy.
    pub frames: u64,
    /// Bytes that arrived at the proxy.
    pub bytes: u64,
    /// Bytes that the proxy has passed on.
    pub forwarded: u64,
}

/// What a proxy has seen since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that were accepted.
    pub connections: u64,
    /// Connections that are open now.
    pub open: u64,
    /// Connections whose stream was not of the expected protocol.
    pub malformed: u64,
    traffic: [Traffic; 2],
}

impl Counters {
    /// The traffic of one direction.
    #[must_use]
    pub const fn traffic(&self, dir: Dir) -> Traffic {
        self.traffic[dir.index()]
    }

    /// The frames that have arrived in one direction.
    #[must_use]
    pub const fn frames(&self, dir: Dir) -> u64 {
        self.traffic(dir).frames
    }
}

type Hook = Box<dyn FnMut(Dir, u64, &Frame) -> FrameAction + Send>;
type Rewrite = Box<dyn Fn(Dir, Bytes) -> Bytes + Send + Sync>;

/// A hook with the frames that it has been asked about, per direction.
struct InstalledHook {
    hook: Hook,
    asked: [u64; 2],
}

/// What the test's side and the proxy's thread share.
struct Shared {
    framing: Framing,
    upstream: Mutex<SocketAddr>,
    /// The mode and a number that changes with every setting, even of the same mode.
    mode: watch::Sender<(Mode, u64)>,
    sever: watch::Sender<(Sever, u64)>,
    counters: watch::Sender<Counters>,
    hook: Mutex<Option<InstalledHook>>,
    /// Changes every frame before a hook sees it.
    rewrite: Option<Rewrite>,
    next_connection: AtomicU64,
}

impl Shared {
    fn count(&self, change: impl FnOnce(&mut Counters)) {
        self.counters.send_modify(change);
    }

    fn upstream(&self) -> SocketAddr {
        *self.upstream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask_hook(&self, dir: Dir, frame: &Frame) -> FrameAction {
        let mut guard = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(installed) = guard.as_mut() else {
            return FrameAction::Forward;
        };
        let asked = &mut installed.asked[dir.index()];
        *asked += 1;
        let index = *asked;
        (installed.hook)(dir, index, frame)
    }
}

/// An order to the proxy's thread; the sender is answered when it has been carried out.
enum Order {
    Mode(Mode, std::sync::mpsc::Sender<()>),
    Sever(Sever, std::sync::mpsc::Sender<()>),
}

/// A running proxy. It ends with its handle, and so do its connections.
pub struct FaultProxy {
    port: u16,
    shared: Arc<Shared>,
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy in front of a server, on a free port.
    ///
    /// # Panics
    ///
    /// When no port can be bound.
    #[expect(
        clippy::unused_async,
        reason = "its callers start servers side by side"
    )]
    pub async fn start(upstream: SocketAddr, framing: Framing) -> Self {
        Self::try_start(upstream, framing, None).or_fail("starting a fault proxy")
    }

    /// Starts a proxy that changes what passes, whatever mode or hook is set. The function must not
    /// change the length that a frame says it has.
    ///
    /// # Panics
    ///
    /// When no port can be bound.
    #[expect(
        clippy::unused_async,
        reason = "its callers start servers side by side"
    )]
    pub async fn start_rewriting(
        upstream: SocketAddr,
        framing: Framing,
        rewrite: impl Fn(Dir, Bytes) -> Bytes + Send + Sync + 'static,
    ) -> Self {
        Self::try_start(upstream, framing, Some(Box::new(rewrite)))
            .or_fail("starting a fault proxy")
    }

    fn try_start(
        upstream: SocketAddr,
        framing: Framing,
        rewrite: Option<Rewrite>,
    ) -> anyhow::Result<Self> {
        let (listener, port) = bind_any()?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            framing,
            upstream: Mutex::new(upstream),
            mode: watch::Sender::new((Mode::Forward, 0)),
            sever: watch::Sender::new((Sever::Reset, 0)),
            counters: watch::Sender::new(Counters::default()),
            hook: Mutex::new(None),
            rewrite,
            next_connection: AtomicU64::new(1),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("the proxy's runtime")?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("proxy-{port}"))
            .spawn(move || runtime.block_on(server::serve(for_thread, listener, port, inbox)))
            .context("the proxy's thread")?;
        Ok(Self {
            port,
            shared,
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    /// The address for the client.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// The port for the client; it has five digits.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Sends new connections to another server.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        *self
            .shared
            .upstream
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = upstream;
    }

    /// Switches the mode; it holds when this returns, also for connections that are open.
    ///
    /// # Panics
    ///
    /// When the port cannot be bound again after [`Mode::Refuse`].
    pub fn set_mode(&self, mode: Mode) {
        self.order(|done| Order::Mode(mode, done));
    }

    /// Ends every open connection; new ones are accepted.
    pub fn sever_all(&self, how: Sever) {
        self.order(|done| Order::Sever(how, done));
    }

    fn order(&self, order: impl FnOnce(std::sync::mpsc::Sender<()>) -> Order) {
        let (done, wait) = std::sync::mpsc::channel();
        let sent = self
            .orders
            .as_ref()
            .is_some_and(|orders| orders.send(order(done)).is_ok());
        assert!(sent, "the thread of the fault proxy has ended");
        wait.recv()
            .or_fail("the fault proxy did not follow an order");
    }

    /// Asks this function about every frame, until another one is installed. It gets the direction,
    /// the number of the frame in that direction since now (from 1, over all connections), and the
    /// frame. It runs on the proxy's thread and must not block.
    pub fn on_frame(&self, hook: impl FnMut(Dir, u64, &Frame) -> FrameAction + Send + 'static) {
        self.install(Some(InstalledHook {
            hook: Box::new(hook),
            asked: [0, 0],
        }));
    }

    /// Removes the hook.
    pub fn clear_hook(&self) {
        self.install(None);
    }

    fn install(&self, hook: Option<InstalledHook>) {
        *self
            .shared
            .hook
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// What it has seen so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        *self.shared.counters.borrow()
    }

    /// Awaits a state of the counters, such as the k-th frame.
    ///
    /// # Panics
    ///
    /// When it does not come about within the deadline.
    pub async fn wait_for(
        &self,
        deadline: Duration,
        what: &str,
        mut condition: impl FnMut(&Counters) -> bool,
    ) -> Counters {
        let mut counters = self.shared.counters.subscribe();
        let reached = counters.wait_for(|now| condition(now));
        match tokio::time::timeout(deadline, reached).await {
            Ok(Ok(now)) => *now,
            _ => panic!("{what}: not within {deadline:?}: {:?}", self.counters()),
        }
    }

    /// Awaits so many frames in one direction, counted from the proxy's start.
    ///
    /// # Panics
    ///
    /// When they do not arrive within the deadline.
    pub async fn wait_for_frames(&self, dir: Dir, count: u64, deadline: Duration) {
        let what = format!("{count} frames {dir:?}");
        self.wait_for(deadline, &what, |now| now.frames(dir) >= count)
            .await;
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        // The thread ends when nobody can order anything any more.
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed; a second one here would hide the test's own.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultProxy")
            .field("addr", &self.addr())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

fn next_number(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed)
}
