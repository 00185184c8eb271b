//! Which dependencies are up, as the probes last saw them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::Context;

/// Between two probes. The issue of a probe is known within this and [`PROBE_TIMEOUT`], far inside
/// the 30 s in which a recovered dependency must show.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The longest one probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Probes that must fail in a row before a dependency counts as down: one slow answer must not take
/// every replica out of the load balancer.
const FAILURES_TO_DOWN: u32 = 2;

/// The longest text kept of a failure.
const MESSAGE_BYTES_MAX: usize = 300;

/// The settings that lead to the usual dependencies, so that a report of a wrong password or a missing
/// schema says what to change.
const SETTINGS: [(&str, &str); 3] = [
    ("redis", "SECKILL_REDIS_URL"),
    ("postgres", "SECKILL_DATABASE_URL"),
    ("broker", "SECKILL_ROCKETMQ_NAMESRV"),
];

/// A failure with the setting to look at, bounded.
fn describe(name: &str, failure: &str) -> String {
    let failure = seckill_telemetry::clip(failure, MESSAGE_BYTES_MAX);
    match SETTINGS.iter().find(|(dependency, _)| *dependency == name) {
        Some((_, setting)) => format!("{failure} (see {setting})"),
        None => failure,
    }
}

/// One dependency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DependencyState {
    /// Whether the service is useless without it.
    pub required: bool,
    /// Whether it answered.
    pub up: bool,
    /// What the last failed probe said; empty while it is up.
    pub message: String,
    #[serde(skip)]
    failures: u32,
}

/// Every dependency, and whether the process is on its way out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Set at the first signal.
    pub draining: bool,
    /// By name.
    pub dependencies: BTreeMap<&'static str, DependencyState>,
}

impl Readiness {
    /// Whether the service can do its work.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let missing = |state: &DependencyState| state.required && !state.up;
        !self.draining && !self.dependencies.values().any(missing)
    }

    /// Whether one dependency is up; an unknown one is not.
    #[must_use]
    pub fn is_up(&self, name: &str) -> bool {
        self.dependencies.get(name).is_some_and(|state| state.up)
    }
}

/// What a probe's answer changed.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    None,
    Up,
    Down,
    /// Still down, for another reason.
    Reason,
}

impl DependencyState {
    fn new(required: bool) -> Self {
        Self {
            required,
            up: false,
            message: "not reached yet".to_owned(),
            failures: FAILURES_TO_DOWN,
        }
    }

    fn answered(&mut self, answer: Result<(), String>) -> Change {
        match answer {
            Ok(()) => {
                self.failures = 0;
                self.message.clear();
                if std::mem::replace(&mut self.up, true) {
                    Change::None
                } else {
                    Change::Up
                }
            }
            Err(message) => self.failed(message),
        }
    }

    fn failed(&mut self, message: String) -> Change {
        self.failures = self.failures.saturating_add(1);
        if self.failures < FAILURES_TO_DOWN {
            return Change::None;
        }
        let was_up = std::mem::replace(&mut self.up, false);
        let changed = self.message != message;
        self.message = message;
        match (was_up, changed) {
            (true, _) => Change::Down,
            (false, true) => Change::Reason,
            (false, false) => Change::None,
        }
    }
}

impl Context {
    /// Watches a dependency: `probe` is asked every second, with a time limit. While a `required`
    /// one is down, or has not answered yet, the service is not ready. Call it before
    /// [`Context::serve_admin`].
    pub fn dependency<P, F, E>(&self, name: &'static str, required: bool, probe: P)
    where
        P: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send,
        E: Display + Send,
    {
        self.readiness_sender().send_modify(|readiness| {
            readiness
                .dependencies
                .insert(name, DependencyState::new(required));
        });
        let ctx = self.clone();
        self.spawn(name, async move {
            while !ctx.shutdown().is_cancelled() {
                let answer = match timeout(PROBE_TIMEOUT, probe()).await {
                    // The alternate form of anyhow's errors names the causes too.
                    Ok(answer) => answer.map_err(|error| format!("{error:#}")),
                    Err(_) => Err("no answer within the time limit".to_owned()),
                };
                ctx.note_probe(name, answer);
                tokio::select! {
                    () = sleep(PROBE_INTERVAL) => {}
                    () = ctx.shutdown().cancelled_owned() => {}
                }
            }
        });
    }

    fn note_probe(&self, name: &'static str, answer: Result<(), String>) {
        self.readiness_sender().send_if_modified(|readiness| {
            let Some(state) = readiness.dependencies.get_mut(name) else {
                return false;
            };
            let change = state.answered(answer.map_err(|failure| describe(name, &failure)));
            match change {
                Change::None => {}
                Change::Up => info!(dependency = name, "dependency is up"),
                Change::Down | Change::Reason => {
                    warn!(
                        dependency = name,
                        required = state.required,
                        "dependency is down: {}",
                        state.message
                    );
                }
            }
            change != Change::None
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_probe_of_a_running_dependency_changes_nothing() {
        let mut state = DependencyState::new(true);
        assert!(!state.up);
        assert_eq!(state.answered(Ok(())), Change::Up);
        assert_eq!(state.answered(Err("slow".to_owned())), Change::None);
        assert!(state.up);
        assert_eq!(state.answered(Err("slow".to_owned())), Change::Down);
        assert_eq!(state.answered(Err("slow".to_owned())), Change::None);
        assert_eq!(state.answered(Err("refused".to_owned())), Change::Reason);
        assert_eq!(state.answered(Ok(())), Change::Up);
        assert_eq!(state.message, "");
    }

    #[test]
    fn the_first_failure_after_the_start_is_told_at_once() {
        let mut state = DependencyState::new(true);
        assert_eq!(
            state.answered(Err("wrong password".to_owned())),
            Change::Reason
        );
        assert_eq!(state.message, "wrong password");
    }

    #[test]
    fn a_failure_names_the_setting_and_is_bounded() {
        let told = describe("postgres", &"x".repeat(10_000));
        assert!(told.ends_with("(see SECKILL_DATABASE_URL)"));
        assert!(told.len() < 400);
        assert_eq!(describe("sidecar", "away"), "away");
    }

    #[test]
    fn only_required_dependencies_and_draining_decide() {
        let mut readiness = Readiness::default();
        assert!(readiness.is_ready());
        readiness
            .dependencies
            .insert("broker", DependencyState::new(false));
        assert!(readiness.is_ready());
        readiness
            .dependencies
            .insert("redis", DependencyState::new(true));
        assert!(!readiness.is_ready());
        if let Some(redis) = readiness.dependencies.get_mut("redis") {
            redis.answered(Ok(()));
        }
        assert!(readiness.is_ready());
        readiness.draining = true;
        assert!(!readiness.is_ready());
    }
}
