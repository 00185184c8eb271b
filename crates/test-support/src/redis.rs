//! A Redis server of one's own: started on a free port, stopped with its handle.

mod cluster;
mod dump;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep, timeout};

use crate::fail::OrFail;
use crate::ports::{free_port, loopback};
use crate::process::OwnedProcess;
use crate::resp::{RedisConnection, Value};
use crate::temp::TempDir;

pub use cluster::RedisCluster;
pub use dump::{Content, Dump, Entry};

/// Names another server, such as Redis 8 or Valkey.
const SERVER_VARIABLE: &str = "SECKILL_REDIS_SERVER";

/// A start takes 10 ms on an idle machine; this is for one that compiles at the same time.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// How long a stopped server may take to write out its data.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// Longer than any command of a test takes on a busy machine.
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// How often another port is tried when somebody else was faster.
const START_TRIES: usize = 5;

/// A private Redis server.
///
/// It has no persistence unless asked for (`--appendonly yes`), never evicts, allows `DEBUG`, and is
/// killed with its handle. Commands go through [`PrivateRedis::cli`], independent of the project's
/// own client and of any fault proxy.
#[derive(Debug)]
pub struct PrivateRedis {
    port: u16,
    arguments: Vec<String>,
    process: Mutex<Option<OwnedProcess>>,
    folder: TempDir,
}

impl PrivateRedis {
    /// Starts a server and awaits its first answer.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with further arguments, such as `["--appendonly", "yes"]`.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn start_with(arguments: &[&str]) -> Self {
        Self::try_start(arguments)
            .await
            .or_fail("starting a private Redis")
    }

    async fn try_start(arguments: &[&str]) -> anyhow::Result<Self> {
        let mut last = anyhow::anyhow!("never tried");
        for _ in 0..START_TRIES {
            let redis = Self {
                port: free_port()?,
                arguments: arguments.iter().map(ToString::to_string).collect(),
                process: Mutex::new(None),
                folder: TempDir::new("redis")?,
            };
            match redis.launch().await {
                Ok(()) => return Ok(redis),
                Err(error) => last = error,
            }
        }
        Err(last.context(format!("{START_TRIES} tries on as many ports")))
    }

    async fn launch(&self) -> anyhow::Result<()> {
        let program = std::env::var(SERVER_VARIABLE).unwrap_or_else(|_| "redis-server".to_owned());
        let mut command = Command::new(program);
        let port = self.port.to_string();
        command
            .args(["--port", &port, "--bind", "127.0.0.1", "--daemonize", "no"])
            .args(["--save", "", "--appendonly", "no"])
            .args(["--maxmemory-policy", "noeviction"])
            .args(["--enable-debug-command", "yes"])
            .arg("--dir")
            .arg(self.folder.path())
            .args(&self.arguments)
            .current_dir(self.folder.path());
        let log = self.folder.path().join("redis.log");
        let process = OwnedProcess::spawn(command, "redis-server", &log)?;
        let end = Instant::now() + START_DEADLINE;
        while !self.answers(process.pid()).await {
            if process.ended().is_some() || Instant::now() >= end {
                bail!("redis-server is not up:\n{}", process.last_lines(15));
            }
            sleep(Duration::from_millis(5)).await;
        }
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        Ok(())
    }

    /// Whether the server that answers is the one that was started: another test's could have taken
    /// the port a moment earlier.
    async fn answers(&self, pid: u32) -> bool {
        let probe = async {
            let mut connection = RedisConnection::open(self.address()).await?;
            connection.call(&["INFO", "server"]).await
        };
        match timeout(CALL_DEADLINE, probe).await {
            Ok(Ok(Value::Text(info))) => info.contains(&format!("process_id:{pid}\r\n")),
            _ => false,
        }
    }

    /// `redis://127.0.0.1:<port>`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Its folder with data and log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends any command on a connection of its own. An error reply is returned as a value.
    ///
    /// # Panics
    ///
    /// When the server cannot be reached or does not answer within ten seconds.
    pub async fn cli<A: AsRef<[u8]>>(&self, arguments: &[A]) -> Value {
        let call = async { self.connection().await?.call(arguments).await };
        within("a command to the private Redis", call).await
    }

    /// Opens a connection, for many commands in a row or a subscription.
    ///
    /// # Errors
    ///
    /// When the server does not listen.
    pub async fn connection(&self) -> anyhow::Result<RedisConnection> {
        RedisConnection::open(self.address()).await
    }

    /// Every key with type, content and expiry.
    ///
    /// # Panics
    ///
    /// When the server cannot be reached.
    pub async fn dump(&self) -> Dump {
        let read = async { Dump::read(&mut self.connection().await?).await };
        within("a dump of the private Redis", read).await
    }

    fn with_process<T>(
        &self,
        act: impl FnOnce(&OwnedProcess) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        act(process.as_ref().context("the server is not running")?)
    }

    fn take_process(&self) -> Option<OwnedProcess> {
        self.process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// The number of its process.
    ///
    /// # Panics
    ///
    /// When it is not running.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.with_process(|process| Ok(process.pid()))
            .or_fail("the private Redis")
    }

    /// SIGSTOP: connections stay open, nothing answers.
    ///
    /// # Panics
    ///
    /// When it is not running.
    pub fn pause(&self) {
        self.with_process(|process| process.signal(Signal::SIGSTOP))
            .or_fail("pausing the private Redis");
    }

    /// SIGCONT: what had queued up in the sockets runs now.
    ///
    /// # Panics
    ///
    /// When it is not running.
    pub fn resume(&self) {
        self.with_process(|process| process.signal(Signal::SIGCONT))
            .or_fail("resuming the private Redis");
    }

    /// SIGKILL. Without an append-only file everything is lost.
    pub fn kill(&self) {
        if let Some(process) = self.take_process() {
            process.kill();
        }
    }

    /// SIGTERM, and awaits the end.
    ///
    /// # Panics
    ///
    /// When it does not end.
    pub async fn stop(&self) {
        if let Some(process) = self.take_process() {
            process
                .signal(Signal::SIGTERM)
                .or_fail("stopping the private Redis");
            process
                .wait(STOP_DEADLINE)
                .await
                .or_fail("stopping the private Redis");
        }
    }

    /// Starts it again on the same port and folder, after [`Self::kill`] or [`Self::stop`]; a running
    /// one is killed first.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn restart(&self) {
        self.kill();
        self.launch().await.or_fail("restarting the private Redis");
    }

    /// Makes it a replica of another and awaits the first synchronisation.
    ///
    /// # Panics
    ///
    /// When they do not synchronise.
    pub async fn replica_of(&self, primary: &Self) {
        let port = primary.port().to_string();
        let reply = self.cli(&["REPLICAOF", "127.0.0.1", &port]).await;
        assert_eq!(reply, Value::Status("OK".to_owned()));
        crate::eventually(
            START_DEADLINE,
            "the replica's synchronisation",
            async || {
                let info = self.cli(&["INFO", "replication"]).await.text();
                let up = info.contains("master_link_status:up");
                if up { Ok(()) } else { Err(info) }
            },
        )
        .await;
    }
}

/// Awaits something that a healthy server answers at once.
async fn within<T>(what: &str, work: impl Future<Output = anyhow::Result<T>>) -> T {
    match timeout(CALL_DEADLINE, work).await {
        Ok(result) => result.or_fail(what),
        Err(_) => panic!("{what}: no answer within {CALL_DEADLINE:?}"),
    }
}
