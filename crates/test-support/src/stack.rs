//! The servers that all tests of a run share: PostgreSQL and RocketMQ.
//!
//! They take seconds to start, and every test runs in a process of its own, so the tests share one
//! stack and keep apart by database and by namespace. `make test` starts it and names its settings;
//! without that, the first test starts one below `.local/test` and leaves it running for the next.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, ensure};

use crate::fail::OrFail;

/// Names the settings of a stack that is up.
const STACK_VARIABLE: &str = "SECKILL_TEST_STACK";

static SHARED: OnceLock<TestStack> = OnceLock::new();

/// The settings of the shared stack.
#[derive(Debug, Clone)]
pub struct TestStack {
    settings: BTreeMap<String, String>,
}

impl TestStack {
    /// The stack of this run; started if nobody has.
    ///
    /// # Panics
    ///
    /// When there is none and it cannot be started.
    pub fn shared() -> &'static Self {
        SHARED.get_or_init(|| Self::find_or_start().or_fail("the shared test stack"))
    }

    /// The stack, if this process has asked for it.
    pub(crate) fn in_use() -> Option<&'static Self> {
        SHARED.get()
    }

    fn find_or_start() -> anyhow::Result<Self> {
        if let Some(path) = std::env::var_os(STACK_VARIABLE) {
            return Self::read(Path::new(&path));
        }
        let folder = workspace_root().join(".local/test");
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        // Test processes start side by side; the first one starts the stack and the others wait.
        let lock = File::create(folder.join("start.lock")).context("making the start lock")?;
        lock.lock().context("taking the start lock")?;
        start(&folder)?;
        Self::read(&folder.join("stack.env"))
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the settings of the stack, {}", path.display()))?;
        Ok(Self {
            settings: parse_settings(&text),
        })
    }

    /// A setting by name.
    ///
    /// # Panics
    ///
    /// When the stack's settings do not have it.
    #[must_use]
    #[track_caller]
    pub fn setting(&self, name: &str) -> &str {
        self.settings
            .get(name)
            .map(String::as_str)
            .with_context(|| format!("{name} is not among the settings of the stack"))
            .or_fail("the shared test stack")
    }

    /// The shared Redis. A test that writes has its own, [`crate::PrivateRedis`].
    #[must_use]
    pub fn redis_url(&self) -> &str {
        self.setting("SECKILL_REDIS_URL")
    }

    /// The shared PostgreSQL; its role may create databases.
    #[must_use]
    pub fn database_url(&self) -> &str {
        self.setting("SECKILL_DATABASE_URL")
    }

    /// The shared name server, `127.0.0.1:<port>`.
    #[must_use]
    pub fn namesrv(&self) -> &str {
        self.setting("SECKILL_ROCKETMQ_NAMESRV")
    }

    /// The shared name server's address.
    ///
    /// # Panics
    ///
    /// When the setting is not an address.
    #[must_use]
    pub fn namesrv_addr(&self) -> SocketAddr {
        self.namesrv()
            .parse()
            .context("the address of the name server")
            .or_fail("the shared test stack")
    }
}

/// The workspace's root, two folders above this crate.
pub(crate) fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest
        .ancestors()
        .nth(2)
        .unwrap_or(manifest)
        .to_path_buf()
}

fn start(folder: &Path) -> anyhow::Result<()> {
    let script = workspace_root().join("deploy/local/stack");
    let log_path = folder.join("up.log");
    let log = File::create(&log_path).context("making the log of the stack's start")?;
    // Nothing of the test's own outputs is inherited: the servers stay, and a test runner would wait
    // for them.
    let status = Command::new(&script)
        .args(["up", "--profile", "test", "--dir"])
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("sharing the log")?)
        .stderr(log)
        .status()
        .with_context(|| format!("running {}", script.display()))?;
    let output = std::fs::read_to_string(&log_path).unwrap_or_default();
    ensure!(status.success(), "{}: {status}\n{output}", script.display());
    eprintln!(
        "the test stack stays up; stop it with: deploy/local/stack down --dir {} --wipe",
        folder.display()
    );
    Ok(())
}

/// `KEY=value` lines; quotes are not part of a value, `#` starts a comment line.
fn parse_settings(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| {
            let value = value.trim().trim_matches(['"', '\'']);
            (name.trim().to_owned(), value.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_line_by_line() {
        let settings = parse_settings("# a comment=1\nA=1:b=c=\n\n B = \"x\" \nnothing\n");
        let expected = [("A", "1:b=c="), ("B", "x")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(settings, BTreeMap::from(expected));
    }
}
