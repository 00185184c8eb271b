//! A Redis server of one's own: started on a free port, stopped with its handle.

mod cluster;
mod dump;
mod migration;
mod pair;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
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
pub use migration::SlotMigration;
pub use pair::RedisPair;

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

/// How a private server is started.
#[derive(Debug, Clone, Default)]
pub struct RedisSetup {
    /// Further arguments, such as `["--appendonly", "yes"]`.
    pub arguments: Vec<String>,
    /// A configuration file, taken as it is; only port, address and folder are set otherwise. Without
    /// one the server has the test kit's settings.
    pub config: Option<PathBuf>,
    /// The user and the password by which the test kit itself looks at the server.
    pub login: Option<(String, String)>,
}

/// How a primary leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Its process is killed: its connections end.
    Kill,
    /// It is stopped and never closes anything: its connections hang.
    Hang,
}

/// A private Redis server.
///
/// It has no persistence unless asked for (`--appendonly yes`), never evicts, allows `DEBUG`, and is
/// killed with its handle. Commands go through [`PrivateRedis::cli`], independent of the project's
/// own client and of any fault proxy.
#[derive(Debug)]
pub struct PrivateRedis {
    port: u16,
    setup: RedisSetup,
    process: Mutex<Option<OwnedProcess>>,
    paused: AtomicBool,
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
        Self::start_as(&RedisSetup {
            arguments: arguments.iter().map(ToString::to_string).collect(),
            ..RedisSetup::default()
        })
        .await
    }

    /// Starts a server in any way.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn start_as(setup: &RedisSetup) -> Self {
        Self::try_start(setup)
            .await
            .or_fail("starting a private Redis")
    }

    async fn try_start(setup: &RedisSetup) -> anyhow::Result<Self> {
        let mut last = anyhow::anyhow!("never tried");
        for _ in 0..START_TRIES {
            let redis = Self {
                port: free_port()?,
                setup: setup.clone(),
                process: Mutex::new(None),
                paused: AtomicBool::new(false),
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
        if let Some(config) = &self.setup.config {
            command.arg(config);
        }
        command.args(["--port", &port, "--bind", "127.0.0.1", "--daemonize", "no"]);
        if self.setup.config.is_none() {
            command
                .args(["--save", "", "--appendonly", "no"])
                .args(["--maxmemory-policy", "noeviction"])
                // A replica would otherwise be sent its first data only after five seconds.
                .args(["--repl-diskless-sync-delay", "0"])
                .args(["--enable-debug-command", "yes"]);
        }
        command
            .arg("--dir")
            .arg(self.folder.path())
            .args(&self.setup.arguments)
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
        self.paused.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Whether the server that answers is the one that was started: another test's could have taken
    /// the port a moment earlier.
    async fn answers(&self, pid: u32) -> bool {
        let probe = async {
            let mut connection = self.connection().await?;
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

    /// `redis://<user>:<password>@127.0.0.1:<port>`
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@{}", self.address())
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
    /// When the server does not listen or does not accept the login of its setup.
    pub async fn connection(&self) -> anyhow::Result<RedisConnection> {
        let Some((user, password)) = &self.setup.login else {
            return RedisConnection::open(self.address()).await;
        };
        self.connection_as(user, password).await
    }

    /// Opens a connection for a user.
    ///
    /// # Errors
    ///
    /// When the server does not listen or does not accept the login.
    pub async fn connection_as(
        &self,
        user: &str,
        password: &str,
    ) -> anyhow::Result<RedisConnection> {
        let mut connection = RedisConnection::open(self.address()).await?;
        match connection.call(&["AUTH", user, password]).await? {
            Value::Status(_) => Ok(connection),
            other => bail!("logging in as {user}: {other:?}"),
        }
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
        self.paused.store(true, Ordering::SeqCst);
    }

    /// SIGCONT: what had queued up in the sockets runs now.
    ///
    /// # Panics
    ///
    /// When it is not running.
    pub fn resume(&self) {
        self.with_process(|process| process.signal(Signal::SIGCONT))
            .or_fail("resuming the private Redis");
        self.paused.store(false, Ordering::SeqCst);
    }

    /// Loses it in one way or the other.
    ///
    /// # Panics
    ///
    /// When it is not running.
    pub fn lose(&self, how: Loss) {
        match how {
            Loss::Kill => self.kill(),
            Loss::Hang => self.pause(),
        }
    }

    /// Whether it was paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// Whether it runs and has not been paused.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let runs = self.with_process(|process| Ok(process.ended().is_none()));
        runs.unwrap_or(false) && !self.is_paused()
    }

    /// SIGKILL. Without an append-only file everything is lost.
    pub fn kill(&self) {
        if let Some(process) = self.take_process() {
            process.kill();
        }
        self.paused.store(false, Ordering::SeqCst);
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
        self.replicate_from(primary.address()).await;
    }

    /// Makes it a replica of whoever is behind an address, such as that of a fault proxy, and awaits the
    /// first synchronisation.
    ///
    /// # Panics
    ///
    /// When they do not synchronise.
    pub async fn replicate_from(&self, address: SocketAddr) {
        let port = address.port().to_string();
        // One that was just started may still be loading what it had.
        crate::eventually(
            START_DEADLINE,
            "the order to replicate",
            async || match self.cli(&["REPLICAOF", "127.0.0.1", &port]).await {
                Value::Status(status) if status == "OK" => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await;
        crate::eventually(
            START_DEADLINE,
            "the replica's synchronisation",
            async || match self.info("master_link_status").await.as_deref() {
                Some("up") => Ok(()),
                other => Err(format!("the link is {other:?}")),
            },
        )
        .await;
    }

    /// A field of its INFO, if it has it.
    ///
    /// # Panics
    ///
    /// When it does not answer.
    pub async fn info(&self, field: &str) -> Option<String> {
        let info = self.cli(&["INFO", "all"]).await.text();
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields
            .find(|(name, _)| *name == field)
            .map(|(_, value)| value.trim_end().to_owned())
    }
}

/// Awaits something that a healthy server answers at once.
async fn within<T>(what: &str, work: impl Future<Output = anyhow::Result<T>>) -> T {
    match timeout(CALL_DEADLINE, work).await {
        Ok(result) => result.or_fail(what),
        Err(_) => panic!("{what}: no answer within {CALL_DEADLINE:?}"),
    }
}
