//! `seckillctl reconcile report`.

use std::collections::BTreeMap;
use std::time::Duration;

use seckill_activity_control::{AuditOptions, Control};
use seckill_order_store::{Action, ActionFilter, DiscrepancyFilter, LastRun, Store};
use seckill_service_kit::values::millis;
use seckill_state_machine::Scope;
use serde::Serialize;

use super::equation::Equation;
use crate::connect::{self, StoreArgs};
use crate::exit::Verdict;
use crate::output::{NONE, Output, or_none, table};
use crate::scope::ScopeArgs;

/// Differences that are counted; what PostgreSQL gives in one page.
const COUNTED_MAX: i64 = 10_000;

/// Actions that are listed of a version; what PostgreSQL gives in one page.
const ACTIONS_MAX: i64 = 1_000;

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    scope: ScopeArgs,

    /// Wait before the second look at what the first one found, in milliseconds
    #[arg(long, value_name = "MS", default_value = "2000", value_parser = millis)]
    recheck_ms: Duration,

    #[command(flatten)]
    stores: StoreArgs,
}

#[derive(Debug, Serialize)]
struct Run {
    kind: String,
    instance: String,
    started_at_ms: i64,
    took_ms: Option<i64>,
    checked: u64,
    settled: u64,
    differences: u64,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Done {
    difference: i64,
    action: String,
    outcome: String,
    actor: String,
    reason: String,
    at_ms: i64,
}

#[derive(Debug, Serialize)]
struct Version {
    #[serde(flatten)]
    scope: Scope,
    last_runs: Vec<Run>,
    open_differences: BTreeMap<String, u64>,
    actions: Vec<Done>,
    equation: Equation,
    ok: bool,
}

/// Runs the command over every version that is meant.
///
/// # Errors
/// When the activity does not exist or a store is away.
pub async fn run(args: Args, output: Output) -> anyhow::Result<Verdict> {
    let store = connect::store(&args.stores.postgres, args.stores.patience).await?;
    let redis = connect::redis(&args.stores.redis, args.stores.patience).await?;
    let control = Control::new(store.clone(), redis);
    let mut versions = Vec::new();
    for activity in args.scope.all(&control).await? {
        let scope = activity.settings.scope;
        versions.push(version(&control, &store, scope, args.recheck_ms).await?);
    }
    output.print(&versions, || {
        let texts: Vec<String> = versions.iter().map(describe).collect();
        texts.join("\n\n")
    })?;
    Ok(Verdict::of(versions.iter().all(|version| version.ok)))
}

async fn version(
    control: &Control,
    store: &Store,
    scope: Scope,
    recheck_after: Duration,
) -> anyhow::Result<Version> {
    let filter = DiscrepancyFilter {
        scope: Some(scope.clone()),
        ..DiscrepancyFilter::default()
    };
    let mut open_differences: BTreeMap<String, u64> = BTreeMap::new();
    for open in store.open_discrepancies(&filter, COUNTED_MAX).await? {
        *open_differences.entry(open.discrepancy.kind).or_default() += 1;
    }
    let filter = ActionFilter {
        scope: Some(scope.clone()),
        ..ActionFilter::default()
    };
    let actions = store.actions(&filter, ACTIONS_MAX).await?;
    let last_runs = store.last_runs(&scope).await?;
    let report = control
        .audit(&scope, AuditOptions { recheck_after })
        .await?;
    let equation = Equation::from(report);
    Ok(Version {
        ok: equation.holds && open_differences.is_empty(),
        last_runs: last_runs.into_iter().map(Run::from).collect(),
        open_differences,
        actions: actions.into_iter().map(Done::from).collect(),
        equation,
        scope,
    })
}

impl From<LastRun> for Run {
    fn from(run: LastRun) -> Self {
        Self {
            took_ms: run.finished_at_ms.map(|at| at - run.started_at_ms),
            kind: run.kind,
            instance: run.instance,
            started_at_ms: run.started_at_ms.get(),
            checked: run.outcome.checked,
            settled: run.outcome.settled,
            differences: run.outcome.discrepancies,
            error: run.outcome.error,
        }
    }
}

impl From<Action> for Done {
    fn from(action: Action) -> Self {
        Self {
            difference: action.record.discrepancy_id,
            action: action.record.action,
            outcome: action.record.outcome,
            actor: action.record.actor,
            reason: action.record.reason,
            at_ms: action.happened_at_ms.get(),
        }
    }
}

fn describe(version: &Version) -> String {
    let runs = version.last_runs.iter().map(|run| {
        [
            run.kind.clone(),
            run.instance.clone(),
            run.started_at_ms.to_string(),
            or_none(run.took_ms),
            run.checked.to_string(),
            run.settled.to_string(),
            run.differences.to_string(),
            run.error.clone().unwrap_or_else(|| NONE.to_owned()),
        ]
    });
    let heading = [
        "LAST ROUND",
        "BY",
        "AT (MS)",
        "TOOK MS",
        "CHECKED",
        "SETTLED",
        "DIFFERENCES",
        "ERROR",
    ];
    let mut text = format!(
        "{}\n\n{}",
        version.equation.describe(),
        table(heading, runs)
    );
    let open = version.open_differences.iter();
    let open: Vec<String> = open
        .map(|(class, count)| format!("{count} {class}"))
        .collect();
    let open = match open.as_slice() {
        [] => "none".to_owned(),
        open => open.join(", "),
    };
    text.push_str(&format!("\n\nopen differences: {open}"));
    if !version.actions.is_empty() {
        let rows = version.actions.iter().map(|done| {
            [
                done.difference.to_string(),
                done.action.clone(),
                done.outcome.clone(),
                done.actor.clone(),
                done.reason.clone(),
                done.at_ms.to_string(),
            ]
        });
        let heading = [
            "DIFFERENCE",
            "ACTION",
            "OUTCOME",
            "BY",
            "BECAUSE",
            "AT (MS)",
        ];
        text.push_str(&format!("\n\n{}", table(heading, rows)));
    }
    text
}
