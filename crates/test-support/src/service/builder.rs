//! How a service is started: its settings, its folders, what its log may say.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context;
use tokio::time::timeout;

use super::{START_DEADLINE, ServiceProcess, executable};
use crate::fail::OrFail;
use crate::process::OwnedProcess;
use crate::temp::TempDir;

/// Settings of an installation that the test runs in must not reach the processes that it starts.
const OWN_SETTINGS: &str = "SECKILL_";

/// What a service process is started with.
#[derive(Debug, Clone)]
pub struct ServiceBuilder {
    service: String,
    instance: u32,
    arguments: Vec<OsString>,
    environment: BTreeMap<String, String>,
    run_dir: Option<PathBuf>,
    log_dir: Option<PathBuf>,
    pub(super) allowed_errors: Vec<String>,
    pub(super) is_judged: bool,
}

/// How a process that was run to its end has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained about, and its log.
    pub stderr: String,
}

impl ServiceBuilder {
    pub(super) fn new(service: &str) -> Self {
        Self {
            service: service.to_owned(),
            instance: 1,
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            run_dir: None,
            log_dir: None,
            allowed_errors: Vec::new(),
            is_judged: true,
        }
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.insert(name.to_owned(), value.to_string());
        self
    }

    /// Removes a variable that was set before.
    #[must_use]
    pub fn without_env(mut self, name: &str) -> Self {
        self.environment.remove(name);
        self
    }

    /// Sets many variables of its environment.
    #[must_use]
    pub fn envs<N: ToString, V: ToString>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let variables = variables.into_iter();
        self.environment
            .extend(variables.map(|(name, value)| (name.to_string(), value.to_string())));
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets its number among replicas of the same service; 1 by default.
    #[must_use]
    pub const fn instance(mut self, instance: u32) -> Self {
        self.instance = instance;
        self
    }

    /// Sets the folder of its run file, shared by the services of one installation; by default it has
    /// one of its own.
    #[must_use]
    pub fn run_dir(mut self, folder: &Path) -> Self {
        self.run_dir = Some(folder.to_owned());
        self
    }

    /// Sets the folder of its log; by default it has one of its own.
    #[must_use]
    pub fn log_dir(mut self, folder: &Path) -> Self {
        self.log_dir = Some(folder.to_owned());
        self
    }

    /// Allows errors whose line contains this text, from the start.
    #[must_use]
    pub fn allow_errors(mut self, text: &str) -> Self {
        self.allowed_errors.push(text.to_owned());
        self
    }

    /// Leaves its log to the caller: nothing in it makes the end of the handle a failure.
    #[must_use]
    pub const fn unjudged(mut self) -> Self {
        self.is_judged = false;
        self
    }

    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.service, self.instance)
    }

    /// Starts it and awaits its readiness.
    ///
    /// # Panics
    ///
    /// When it is not ready within a minute.
    pub async fn start(&self) -> ServiceProcess {
        let process = self.spawn();
        process.wait_until_ready(START_DEADLINE).await;
        process
    }

    /// Starts it without awaiting anything.
    ///
    /// # Panics
    ///
    /// When it has not been built.
    #[must_use]
    pub fn spawn(&self) -> ServiceProcess {
        self.try_spawn().or_fail("starting a service")
    }

    fn try_spawn(&self) -> anyhow::Result<ServiceProcess> {
        let folder = match (&self.run_dir, &self.log_dir) {
            (Some(_), Some(_)) => None,
            _ => Some(TempDir::new(&self.service)?),
        };
        let own = folder.as_ref().map(TempDir::path).unwrap_or(Path::new(""));
        let run_dir = self.run_dir.as_deref().unwrap_or(own);
        let log_dir = self.log_dir.as_deref().unwrap_or(own);
        let run_file = run_dir.join(format!("{}.json", self.name()));
        let log = log_dir.join(format!("{}.log", self.name()));
        let mut command = self.command()?;
        command.env("SECKILL_RUN_DIR", run_dir);
        let process = OwnedProcess::spawn(command, &self.name(), &log)?;
        Ok(ServiceProcess {
            settings: self.clone(),
            process,
            run_file,
            log,
            allowed_errors: Mutex::new(self.allowed_errors.clone()),
            _folder: folder,
        })
    }

    /// Runs it to its end, for a one-shot command or a setting that it refuses.
    ///
    /// # Panics
    ///
    /// When it has not been built or does not end in time.
    pub async fn run(&self, deadline: Duration) -> Finished {
        self.try_run(deadline)
            .await
            .or_fail("running a command to its end")
    }

    async fn try_run(&self, deadline: Duration) -> anyhow::Result<Finished> {
        let mut command = tokio::process::Command::from(self.command()?);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(deadline, command.output())
            .await
            .with_context(|| format!("{} did not end within {deadline:?}", self.service))??;
        Ok(Finished {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Its command, with nothing from the test's own settings.
    fn command(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(executable(&self.service)?);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with(OWN_SETTINGS) {
                command.env_remove(name);
            }
        }
        command
            .args(&self.arguments)
            .env("SECKILL_INSTANCE", self.instance.to_string())
            .env("SECKILL_ADMIN_ADDR", "127.0.0.1:0")
            .env("RUST_BACKTRACE", "1")
            .envs(&self.environment);
        Ok(command)
    }
}
