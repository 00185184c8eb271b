//! The broker's process, which belongs to the run's own stack.
//!
//! It is started again in the way in which the stack has started it, read from the kernel: asking the
//! stack would look at all four servers each time, which takes longer than the start on a busy machine.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seckill_test_support::{TestStack, broker_addr};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

/// The start of its Java takes five seconds on an idle machine.
const START_DEADLINE: Duration = Duration::from_secs(90);

/// Between two looks at whether it is there.
const POLL: Duration = Duration::from_millis(200);

/// A broker that may be killed.
pub(crate) struct Broker {
    pid: AtomicI32,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    folder: PathBuf,
    log: PathBuf,
    /// Held while it is gone, by whoever made it so, and while a copy is sent, which needs it.
    pub(crate) in_use: Mutex<()>,
}

impl Broker {
    /// The broker of a stack, which must be the one that this process uses: no other one is killed.
    pub(crate) fn of_stack(stack: &Path) -> anyhow::Result<Self> {
        let stack = stack
            .canonicalize()
            .with_context(|| format!("no stack in {}", stack.display()))?;
        let used = Path::new(TestStack::shared().setting("SECKILL_RUN_DIR"));
        ensure!(
            used == stack.join("run"),
            "SECKILL_TEST_STACK names another stack than {}",
            stack.display()
        );
        let pid = recorded_pid(&stack)?;
        let process = PathBuf::from(format!("/proc/{pid}"));
        let folder = process.join("cwd").read_link()?;
        ensure!(
            folder == stack.join("data/broker"),
            "process {pid} is not the broker of {}",
            stack.display()
        );
        let variables = words(&process.join("environ"))?;
        Ok(Self {
            pid: AtomicI32::new(pid),
            arguments: words(&process.join("cmdline"))?,
            environment: variables.into_iter().filter_map(variable).collect(),
            folder,
            log: stack.join("log/broker.log"),
            in_use: Mutex::new(()),
        })
    }

    /// The number of its process.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.load(Ordering::SeqCst)
    }

    /// SIGKILL. Returns the pid that is gone.
    pub(crate) fn kill(&self) -> anyhow::Result<i32> {
        let pid = self.pid();
        kill(Pid::from_raw(pid), Signal::SIGKILL).context("killing the broker")?;
        Ok(pid)
    }

    /// Starts it again and awaits that it listens and the name server hands it out. It outlives this
    /// process: the stack stops it.
    pub(crate) async fn restart(&self) -> anyhow::Result<()> {
        let (program, arguments) = self.arguments.split_first().context("no command")?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)?;
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .current_dir(&self.folder)
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("starting the broker")?;
        let pid = child.id().context("the broker ended at once")?;
        self.pid.store(i32::try_from(pid)?, Ordering::SeqCst);
        let end = Instant::now() + START_DEADLINE;
        while !is_there().await {
            ensure!(Instant::now() < end, "the broker is not there in time");
            sleep(POLL).await;
        }
        Ok(())
    }
}

async fn is_there() -> bool {
    let found = tokio::task::spawn_blocking(broker_addr).await;
    match found {
        Ok(Ok(address)) => TcpStream::connect(address).await.is_ok(),
        Ok(Err(_)) | Err(_) => false,
    }
}

/// As its stack has recorded it.
fn recorded_pid(stack: &Path) -> anyhow::Result<i32> {
    let path = stack.join("run/broker.json");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let file: serde_json::Value = serde_json::from_str(&text)?;
    let pid = file["pid"].as_i64().context("a broker without a pid")?;
    Ok(i32::try_from(pid)?)
}

/// What the kernel keeps as words that each end with a zero byte.
fn words(path: &Path) -> anyhow::Result<Vec<OsString>> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let words = bytes
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty());
    Ok(words
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect())
}

fn variable(word: OsString) -> Option<(OsString, OsString)> {
    let bytes = word.into_vec();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (bytes.get(..at)?, bytes.get(at + 1..)?);
    Some((
        OsString::from_vec(name.to_vec()),
        OsString::from_vec(value.to_vec()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_keeps_what_follows_its_first_equals_sign() {
        let found = variable("OPTIONS=-Da=b".into());
        assert_eq!(found, Some(("OPTIONS".into(), "-Da=b".into())));
        assert_eq!(variable("nothing".into()), None);
    }
}
