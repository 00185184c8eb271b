//! `seckillctl reconcile apply`: one difference after the other, each with an outcome.
//!
//! | a crash here | leaves | who repairs |
//! | --- | --- | --- |
//! | before the repair | the difference | the same command |
//! | repaired, not put on record as an action | an agreement without the operator's name | the same command finds nothing to do; the reconciler closes the difference |

use std::collections::BTreeMap;
use std::io::Write as _;

use seckill_order_store::{ActionRecord, Recorded, Store};
use seckill_settlement::{Class, RepairOutcome, Repairer, repair};
use serde::Serialize;

use super::pick::Selection;
use crate::by::NamedArgs;
use crate::connect::{self, StoreArgs};
use crate::exit::Verdict;
use crate::output::{NONE, Output};

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,

    /// Every open difference
    #[arg(long)]
    all: bool,

    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    by: NamedArgs,
    #[command(flatten)]
    stores: StoreArgs,
}

/// What became of one difference, or would.
#[derive(Debug, Serialize)]
struct Line {
    id: i64,
    class: String,
    reservation_id: Option<String>,
    outcome: &'static str,
    detail: String,
}

#[derive(Debug, Serialize)]
struct Report {
    applied: bool,
    differences: Vec<Line>,
    outcomes: BTreeMap<&'static str, u64>,
    more: bool,
}

/// Runs the command.
///
/// # Errors
/// When a store is away; what was told until then stands.
pub async fn run(args: Args, output: Output) -> anyhow::Result<Verdict> {
    args.selection.require_narrow(args.all)?;
    let store = connect::store(&args.stores.postgres, args.stores.patience).await?;
    let redis = connect::redis(&args.stores.redis, args.stores.patience).await?;
    let repairer = Repairer::new(redis, store.clone());
    let picked = args.selection.pick(&store).await?;
    let mut report = Report {
        applied: !args.dry_run,
        differences: Vec::new(),
        outcomes: BTreeMap::new(),
        more: picked.more,
    };
    let mut all_done = true;
    for recorded in &picked.found {
        let (word, detail) = if recorded.resolved_at_ms.is_some() {
            ("already_gone", String::new())
        } else if args.dry_run {
            would(recorded)
        } else {
            mend(&repairer, &store, recorded, &args.by).await?
        };
        all_done &= word != "needs_person";
        report.add(output, recorded, word, detail);
    }
    output.print(&report, || report.summary())?;
    Ok(Verdict::of(all_done))
}

fn would(recorded: &Recorded) -> (&'static str, String) {
    let class = Class::parse(&recorded.discrepancy.kind);
    let repair = class.map_or_else(String::new, |class| class.entry().repair.to_owned());
    match class {
        Some(class) if class.has_command() => ("would_repair", repair),
        _ => ("needs_person", repair),
    }
}

/// Repairs, looks again, and puts what was done on record.
async fn mend(
    repairer: &Repairer,
    store: &Store,
    recorded: &Recorded,
    by: &NamedArgs,
) -> anyhow::Result<(&'static str, String)> {
    let done = match repair(repairer, recorded).await? {
        RepairOutcome::AlreadyGone => return Ok(("already_gone", String::new())),
        RepairOutcome::Waiting(why) => return Ok(("waiting", why)),
        RepairOutcome::NeedsPerson(why) => return Ok(("needs_person", why)),
        RepairOutcome::Repaired(what) => what,
    };
    // A repair that is repeated does nothing, so that this is a look.
    let (outcome, detail) = match repair(repairer, recorded).await? {
        RepairOutcome::AlreadyGone => ("repaired", done.clone()),
        RepairOutcome::Waiting(why) => ("on_its_way", format!("{done}; {why}")),
        RepairOutcome::Repaired(again) => ("on_its_way", format!("{done}; {again} once more")),
        RepairOutcome::NeedsPerson(why) => ("needs_person", format!("{done}; {why}")),
    };
    store
        .record_action(&ActionRecord {
            discrepancy_id: recorded.id,
            actor: by.actor.clone(),
            reason: by.reason.clone(),
            action: done,
            outcome: outcome.to_owned(),
        })
        .await?;
    Ok((outcome, detail))
}

impl Report {
    /// Tells an outcome as soon as it stands.
    fn add(&mut self, output: Output, recorded: &Recorded, outcome: &'static str, detail: String) {
        let found = &recorded.discrepancy;
        let line = Line {
            id: recorded.id,
            class: found.kind.clone(),
            reservation_id: found.reservation_id.as_ref().map(ToString::to_string),
            outcome,
            detail,
        };
        if output == Output::Table {
            let id = line.reservation_id.as_deref().unwrap_or(NONE);
            let colon = if line.detail.is_empty() { "" } else { ": " };
            // Output that nobody takes must not stop a half-done command.
            let _ = writeln!(
                std::io::stdout(),
                "{}  {}  {id}  {outcome}{colon}{}",
                line.id,
                line.class,
                line.detail
            );
        }
        *self.outcomes.entry(outcome).or_default() += 1;
        self.differences.push(line);
    }

    fn summary(&self) -> String {
        let counts: Vec<String> = self
            .outcomes
            .iter()
            .map(|(word, count)| format!("{count} {word}"))
            .collect();
        let mut text = match counts.as_slice() {
            [] => "no difference fits".to_owned(),
            counts => counts.join(", "),
        };
        if self.more {
            text.push_str("; more are on record, run it again for them or raise --limit");
        }
        text
    }
}
