//! One child process: its signals, its end, and its death with the handle.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

/// How often an end is looked for.
const POLL: Duration = Duration::from_millis(5);

/// A child process that is killed with its handle.
#[derive(Debug)]
pub(crate) struct OwnedProcess {
    name: String,
    pid: u32,
    log: PathBuf,
    child: Mutex<Child>,
}

impl OwnedProcess {
    /// Starts a program with both outputs in a log file. The file is appended to: a restarted server
    /// continues it.
    pub(crate) fn spawn(mut command: Command, name: &str, log: &Path) -> anyhow::Result<Self> {
        let output = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening the log {}", log.display()))?;
        let errors = output.try_clone().context("sharing the log")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting {:?}", command.get_program()))?;
        Ok(Self {
            name: name.to_owned(),
            pid: child.id(),
            log: log.to_owned(),
            child: Mutex::new(child),
        })
    }

    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its exit status once it has ended.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        self.child().try_wait().ok().flatten()
    }

    /// Sends a signal, unless it has ended: its number could belong to another process by then. The
    /// lock is held over both steps, so that nobody reaps it in between.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let mut child = self.child();
        if child.try_wait()?.is_some() {
            anyhow::bail!("{} ({}) has ended already", self.name, self.pid);
        }
        let pid = i32::try_from(self.pid).context("a process number")?;
        kill(Pid::from_raw(pid), signal)
            .with_context(|| format!("sending {signal} to {} ({pid})", self.name))
    }

    /// Awaits its end.
    pub(crate) async fn wait(&self, deadline: Duration) -> anyhow::Result<ExitStatus> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            if Instant::now() >= end {
                anyhow::bail!(
                    "{} ({}) did not end within {deadline:?}; its last lines:\n{}",
                    self.name,
                    self.pid,
                    self.last_lines(15)
                );
            }
            sleep(POLL).await;
        }
    }

    /// Kills it at once and reaps it. A stopped process is killed just the same.
    pub(crate) fn kill(&self) {
        let mut child = self.child();
        // Both fail only when it has ended, which is what is wanted.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// The end of its log, for a message.
    pub(crate) fn last_lines(&self, count: usize) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let first = lines.len().saturating_sub(count);
        lines.get(first..).unwrap_or_default().join("\n")
    }
}

impl Drop for OwnedProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
