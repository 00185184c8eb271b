//! A built executable of the workspace as a process of the test.

mod builder;
mod executable;
mod http;
mod log;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::eventually;
use crate::fail::OrFail;
use crate::process::OwnedProcess;
use crate::temp::TempDir;

pub use builder::{Finished, ServiceBuilder};
pub use executable::executable;
pub use http::{HttpReply, http_get};

/// A start takes a second; this is for a machine that compiles at the same time.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// A running service. It is killed with its handle, and its log is read: a panic or an error that is
/// not allowed fails the test.
#[derive(Debug)]
pub struct ServiceProcess {
    settings: ServiceBuilder,
    process: OwnedProcess,
    run_file: PathBuf,
    log: PathBuf,
    allowed_errors: Mutex<Vec<String>>,
    _folder: Option<TempDir>,
}

/// What a service writes about itself when its listeners are open.
#[derive(Debug, Clone, Deserialize)]
pub struct RunFile {
    /// The executable's name.
    pub service: String,
    /// Its number among the replicas.
    pub instance: u32,
    /// Its process.
    pub pid: u32,
    /// Where it answers gRPC, if it does.
    pub grpc_addr: Option<SocketAddr>,
    /// Where it answers `/livez` and `/readyz`.
    pub admin_addr: SocketAddr,
}

impl ServiceProcess {
    /// Settings for an executable of the workspace, such as `order-consumer`.
    #[must_use]
    pub fn builder(service: &str) -> ServiceBuilder {
        ServiceBuilder::new(service)
    }

    /// The number of its process.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its name and number, such as `order-consumer-1`.
    #[must_use]
    pub fn name(&self) -> String {
        self.settings.name()
    }

    /// Its run file, once written by this very process.
    #[must_use]
    pub fn run_file(&self) -> Option<RunFile> {
        let text = std::fs::read(&self.run_file).ok()?;
        let content: RunFile = serde_json::from_slice(&text).ok()?;
        (content.pid == self.pid()).then_some(content)
    }

    fn open_run_file(&self) -> RunFile {
        self.run_file()
            .with_context(|| format!("{} has no run file yet", self.name()))
            .or_fail("the address of a service")
    }

    /// Where it answers `/livez` and `/readyz`.
    ///
    /// # Panics
    ///
    /// When it has not opened its listeners.
    #[must_use]
    pub fn admin_addr(&self) -> SocketAddr {
        self.open_run_file().admin_addr
    }

    /// Where it answers gRPC.
    ///
    /// # Panics
    ///
    /// When it has not opened its listeners or has none for gRPC.
    #[must_use]
    pub fn grpc_addr(&self) -> SocketAddr {
        self.open_run_file()
            .grpc_addr
            .with_context(|| format!("{} does not answer gRPC", self.name()))
            .or_fail("the address of a service")
    }

    /// Its answer to `GET /readyz`.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub async fn readyz(&self) -> anyhow::Result<HttpReply> {
        let file = self.run_file().context("no run file yet")?;
        http_get(file.admin_addr, "/readyz").await
    }

    /// Awaits the run file: the listeners are open, ready or not.
    ///
    /// # Panics
    ///
    /// When it ends, or does not open them in time.
    pub async fn wait_until_open(&self) {
        self.wait_for(START_DEADLINE, "opens its listeners", async || {
            self.run_file().map(|_| ()).context("no run file yet")
        })
        .await;
    }

    /// Awaits `/readyz` to answer 200.
    ///
    /// # Panics
    ///
    /// When it ends, or is not ready in time.
    pub async fn wait_until_ready(&self, deadline: Duration) {
        self.wait_for(deadline, "is ready", async || {
            let reply = self.readyz().await?;
            match reply.status {
                200 => Ok(()),
                status => bail!("{status} {}", reply.body.trim()),
            }
        })
        .await;
    }

    /// Awaits `/readyz` to answer anything but 200.
    ///
    /// # Panics
    ///
    /// When it ends, or stays ready.
    pub async fn wait_until_unready(&self, deadline: Duration) {
        self.wait_for(deadline, "stops being ready", async || {
            let reply = self.readyz().await?;
            match reply.status {
                200 => bail!("ready: {}", reply.body.trim()),
                _ => Ok(()),
            }
        })
        .await;
    }

    /// Awaits a line of its log that contains a text.
    ///
    /// # Panics
    ///
    /// When it ends, or writes none in time.
    pub async fn wait_for_log(&self, text: &str, deadline: Duration) {
        let what = format!("logs {text:?}");
        self.wait_for(deadline, &what, async || {
            let found = self.log_text().contains(text);
            if found {
                Ok(())
            } else {
                bail!("not logged yet")
            }
        })
        .await;
    }

    /// Awaits a condition, but not longer than the process lives.
    async fn wait_for(
        &self,
        deadline: Duration,
        what: &str,
        mut probe: impl AsyncFnMut() -> anyhow::Result<()>,
    ) {
        let end = Instant::now() + deadline;
        loop {
            // Asked for before the probe: what it did just before its end still counts.
            let ended = self.process.ended();
            let Err(missing) = probe().await else { return };
            let failed = match ended {
                Some(status) => format!("it has ended: {status}"),
                None if Instant::now() >= end => format!("not within {deadline:?}"),
                None => {
                    sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
            panic!(
                "{} {what}: {failed}: {missing:#}; its last lines:\n{}",
                self.name(),
                self.process.last_lines(30)
            );
        }
    }

    /// Sends SIGTERM: it drains and ends.
    ///
    /// # Panics
    ///
    /// When it has ended already.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// SIGSTOP: connections stay open, nothing happens.
    ///
    /// # Panics
    ///
    /// When it has ended already.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// SIGCONT.
    ///
    /// # Panics
    ///
    /// When it has ended already.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        self.process
            .signal(signal)
            .or_fail("sending a signal to a service");
    }

    /// SIGKILL, and its end.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Awaits its end.
    ///
    /// # Panics
    ///
    /// When it does not end in time.
    pub async fn wait(&self, deadline: Duration) -> ExitStatus {
        self.process
            .wait(deadline)
            .await
            .or_fail("awaiting a service's end")
    }

    /// SIGTERM, and its end, which must be exit code 0.
    ///
    /// # Panics
    ///
    /// When it does not end in time or with another code.
    pub async fn stop(&self, deadline: Duration) {
        self.terminate();
        let status = self.wait(deadline).await;
        assert!(
            status.success(),
            "{} ended with {status}; its last lines:\n{}",
            self.name(),
            self.process.last_lines(30)
        );
    }

    /// Whether it is still running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process.ended().is_none()
    }

    /// Starts a successor with the same settings, after [`Self::kill`] or [`Self::stop`]; its
    /// addresses are new. The log of this one is checked first.
    ///
    /// # Panics
    ///
    /// When it is still running, or its successor is not ready in time.
    pub async fn restart(self) -> Self {
        assert!(!self.is_running(), "{} is still running", self.name());
        let mut settings = self.settings.clone();
        settings.allowed_errors = self.allowed_errors();
        drop(self);
        settings.start().await
    }

    /// What it has written so far.
    #[must_use]
    pub fn log_text(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// From now on, errors whose line contains this text do not fail the test. An empty text allows
    /// all of them; a panic is never allowed.
    pub fn allow_errors(&self, text: &str) {
        self.allowed_errors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(text.to_owned());
    }

    fn allowed_errors(&self) -> Vec<String> {
        self.allowed_errors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Panic lines and errors that are not allowed, so far.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        log::complaints(&self.log_text(), &self.allowed_errors())
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        self.process.kill();
        if !self.settings.is_judged {
            return;
        }
        if std::thread::panicking() {
            let lines = self.process.last_lines(40);
            eprintln!("--- the end of the log of {}\n{lines}", self.name());
            return;
        }
        let complaints = self.complaints();
        assert!(
            complaints.is_empty(),
            "{} complained; allow what the test causes:\n{}",
            self.name(),
            complaints.join("\n")
        );
    }
}

/// Awaits that every one of some services is ready.
///
/// # Panics
///
/// When one is not in time.
pub async fn all_ready(services: &[&ServiceProcess], deadline: Duration) {
    eventually(deadline, "all services are ready", async || {
        for service in services {
            let reply = service
                .readyz()
                .await
                .map_err(|error| format!("{error:#}"))?;
            if reply.status != 200 {
                return Err(format!("{}: {}", service.name(), reply.body));
            }
        }
        Ok(())
    })
    .await;
}
