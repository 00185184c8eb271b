//! A PostgreSQL cluster of one's own, for tests that stop or restart the server.

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use crate::database::connect;
use crate::fail::OrFail;
use crate::ports::{free_port, loopback};
use crate::process::OwnedProcess;
use crate::temp::TempDir;

/// Where Debian keeps the programs, one folder a version.
const PROGRAMS: &str = "/usr/lib/postgresql";

/// Making a cluster and starting it take 2 s on an idle machine.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// How long a stop may take; a fast one rolls open transactions back.
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// A private PostgreSQL server, ended with its handle.
#[derive(Debug)]
pub struct PrivatePostgres {
    port: u16,
    programs: PathBuf,
    process: Mutex<Option<OwnedProcess>>,
    folder: TempDir,
}

impl PrivatePostgres {
    /// Makes a cluster, starts it and awaits its first answer.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn start() -> Self {
        Self::try_start()
            .await
            .or_fail("starting a private PostgreSQL")
    }

    async fn try_start() -> anyhow::Result<Self> {
        let postgres = Self {
            port: free_port()?,
            programs: newest_programs()?,
            process: Mutex::new(None),
            folder: TempDir::new("postgres")?,
        };
        postgres.initialise()?;
        postgres.launch().await?;
        Ok(postgres)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn initialise(&self) -> anyhow::Result<()> {
        if is_root()? {
            let owned = Command::new("chown")
                .arg("postgres:")
                .arg(self.folder.path())
                .status()?;
            ensure!(owned.success(), "giving the folder to the user postgres");
        }
        let output = self
            .program("initdb")?
            .arg("--pgdata")
            .arg(self.data())
            .args(["--username=postgres", "--auth=trust", "--encoding=UTF8"])
            .args(["--locale=C.UTF-8", "--no-sync"])
            .output()
            .context("running initdb")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "initdb: {errors}");
        Ok(())
    }

    /// PostgreSQL's programs refuse root, so that under root they run as the user `postgres`.
    fn program(&self, name: &str) -> anyhow::Result<Command> {
        let program = self.programs.join(name);
        let mut command = if is_root()? {
            let mut command = Command::new("setpriv");
            command.args([
                "--reuid=postgres",
                "--regid=postgres",
                "--init-groups",
                "--",
            ]);
            command.arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir("/");
        Ok(command)
    }

    async fn launch(&self) -> anyhow::Result<()> {
        let mut command = self.program("postgres")?;
        let port = self.port.to_string();
        command
            .arg("-D")
            .arg(self.data())
            .args(["-p", &port, "-c", "listen_addresses=127.0.0.1"])
            .args([
                "-c",
                "unix_socket_directories=",
                "-c",
                "max_connections=200",
            ])
            .args(["-c", "fsync=off", "-c", "shared_buffers=32MB"]);
        let log = self.folder.path().join("postgres.log");
        let process = OwnedProcess::spawn(command, "postgres", &log)?;
        let end = Instant::now() + START_DEADLINE;
        while let Err(error) = connect(&self.url()).await {
            if process.ended().is_some() || Instant::now() >= end {
                bail!("postgres is not up: {error:#}\n{}", process.last_lines(15));
            }
            sleep(Duration::from_millis(20)).await;
        }
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        Ok(())
    }

    /// The address of its administrative database.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    fn take_process(&self) -> Option<OwnedProcess> {
        self.process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Crashes it: every backend ends at once, nothing is written out, clients see the connection go.
    ///
    /// SIGQUIT and not SIGKILL, which would leave the backends running without their parent.
    ///
    /// # Panics
    ///
    /// When it does not end.
    pub async fn crash(&self) {
        self.end(Signal::SIGQUIT).await;
    }

    /// Stops it: open transactions are rolled back.
    ///
    /// # Panics
    ///
    /// When it does not end.
    pub async fn stop(&self) {
        self.end(Signal::SIGINT).await;
    }

    async fn end(&self, signal: Signal) {
        if let Some(process) = self.take_process() {
            process
                .signal(signal)
                .or_fail("ending the private PostgreSQL");
            process
                .wait(STOP_DEADLINE)
                .await
                .or_fail("ending the private PostgreSQL");
        }
    }

    /// Starts it again on the same port and data.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn restart(&self) {
        self.stop().await;
        self.launch()
            .await
            .or_fail("restarting the private PostgreSQL");
    }
}

impl Drop for PrivatePostgres {
    /// An immediate shutdown takes the backends along; killing the parent alone would orphan them.
    fn drop(&mut self) {
        let Some(process) = self.take_process() else {
            return;
        };
        let end = std::time::Instant::now() + STOP_DEADLINE;
        if process.signal(Signal::SIGQUIT).is_ok() {
            while process.ended().is_none() && std::time::Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Whether this process runs as root.
fn is_root() -> anyhow::Result<bool> {
    let uid = std::fs::metadata("/proc/self")
        .context("asking who runs this")?
        .uid();
    Ok(uid == 0)
}

fn newest_programs() -> anyhow::Result<PathBuf> {
    let mut versions: Vec<u32> = std::fs::read_dir(PROGRAMS)
        .with_context(|| format!("PostgreSQL is not installed in {PROGRAMS}"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    versions.sort_unstable();
    let newest = versions.last().context("no version of PostgreSQL")?;
    Ok(Path::new(PROGRAMS).join(newest.to_string()).join("bin"))
}
