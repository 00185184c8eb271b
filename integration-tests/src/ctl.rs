//! The operator's command line, run as an operator runs it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use seckill_test_support::{OrFail, ServiceProcess};

/// The longest command waits for topics to be routed.
const DEADLINE: Duration = Duration::from_secs(60);

/// The executable, and its user in Redis.
pub(crate) const TOOL: &str = "seckillctl";

/// How a command has ended.
#[derive(Debug, Clone)]
pub struct CtlOutput {
    /// Its exit code.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

impl CtlOutput {
    /// What it printed, as JSON.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .with_context(|| format!("no JSON: {self:?}"))
            .or_fail("the output of seckillctl")
    }
}

pub(crate) async fn run(
    environment: &BTreeMap<String, String>,
    run_dir: &Path,
    arguments: &[&str],
) -> CtlOutput {
    let mut command = ServiceProcess::builder(TOOL)
        .envs(environment)
        .env("SECKILL_RUN_DIR", run_dir.display())
        .env("SECKILL_OUTPUT", "json");
    for argument in arguments {
        command = command.arg(*argument);
    }
    let finished = command.run(DEADLINE).await;
    CtlOutput {
        code: finished.code,
        stdout: finished.stdout,
        stderr: finished.stderr,
    }
}
