//! Repairs what was put on record and is safe by construction, and leaves an account of it.
//!
//! A difference gets here only after the two-round rule, and only once it is on record: so whoever
//! reads the actions finds the difference that each one was about. The repair itself looks at both
//! sides again. A crash between the repair and its account leaves an agreement without one, which the
//! next round closes.

use std::collections::HashMap;
use std::time::Duration;

use seckill_lua_scripts::Redis;
use seckill_order_store::{ActionRecord, DiscrepancyFilter, Recorded, Store};
use seckill_settlement::{Class, Error, ErrorKind, RepairOutcome, Repairer, repair};
use seckill_state_machine::Scope;
use tokio::time::Instant;

/// Who does what nobody was asked for.
const ACTOR: &str = "reconciler";

/// Why.
const REASON: &str = "safe by construction, and it stayed";

/// Differences of one version that are read at once.
const APPLIED_MAX: i64 = 1_000;

/// The longest pause between two tries of the same repair.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Applies repairs for one of the checks.
pub struct Applier {
    repairer: Repairer,
    store: Store,
    pause: Duration,
    /// What was tried, by the difference's number; only of those that are still open.
    tried: HashMap<i64, Tried>,
}

#[derive(Debug, Clone, Copy)]
struct Tried {
    next_at: Instant,
    pause: Duration,
}

impl Applier {
    /// `pause` is how long a repair may take to show; the same one is tried again after that, then
    /// ever more rarely.
    #[must_use]
    pub fn new(redis: Redis, store: Store, pause: Duration) -> Self {
        Self {
            repairer: Repairer::new(redis, store.clone()),
            store,
            pause,
            tried: HashMap::new(),
        }
    }

    /// Repairs what this check has on record about a version.
    ///
    /// # Errors
    /// The first store that did not answer; the next round goes on.
    pub async fn apply(&mut self, scope: &Scope, run_kind: &str) -> Result<(), Error> {
        let mut filter = DiscrepancyFilter {
            scope: Some(scope.clone()),
            run_kind: Some(run_kind.to_owned()),
            ..DiscrepancyFilter::default()
        };
        let now = Instant::now();
        // What is not due any more is gone from the record, or is tried afresh.
        self.tried
            .retain(|_, tried| now < tried.next_at + tried.pause + PAUSE_MAX);
        loop {
            let open = self.store.open_discrepancies(&filter, APPLIED_MAX).await?;
            for open in &open {
                let class = Class::parse(&open.discrepancy.kind);
                if class.is_some_and(Class::is_automatic) && self.is_due(open.id, now) {
                    self.one(open).await?;
                }
            }
            // Those that wait for a person must not hide the ones behind them.
            filter.after = open.last().map(|last| last.id);
            if i64::try_from(open.len()).is_ok_and(|count| count < APPLIED_MAX) {
                return Ok(());
            }
        }
    }

    fn is_due(&mut self, id: i64, now: Instant) -> bool {
        let tried = self.tried.entry(id).or_insert(Tried {
            next_at: now,
            pause: self.pause,
        });
        if now < tried.next_at {
            return false;
        }
        tried.next_at = now + tried.pause;
        tried.pause = (tried.pause * 2).min(PAUSE_MAX);
        true
    }

    async fn one(&self, open: &Recorded) -> Result<(), Error> {
        let found = &open.discrepancy;
        let outcome = match repair(&self.repairer, open).await {
            Ok(outcome) => outcome,
            // It will say the same next time, and must not hold back the others.
            Err(error) if error.kind() == ErrorKind::Fatal => {
                RepairOutcome::NeedsPerson(error.to_string())
            }
            Err(error) => return Err(error),
        };
        let outcome = match outcome {
            RepairOutcome::Repaired(what) => {
                tracing::info!(
                    discrepancy_id = open.id,
                    kind = found.kind,
                    reservation_id = found.reservation_id.as_ref().map(|id| id.as_str()),
                    bucket = %found.bucket,
                    what,
                    "repaired a difference"
                );
                what
            }
            RepairOutcome::NeedsPerson(why) => {
                tracing::error!(
                    discrepancy_id = open.id,
                    kind = found.kind,
                    reservation_id = found.reservation_id.as_ref().map(|id| id.as_str()),
                    bucket = %found.bucket,
                    why,
                    "a difference cannot be repaired without a person"
                );
                format!("needs a person: {why}")
            }
            RepairOutcome::AlreadyGone | RepairOutcome::Waiting(_) => return Ok(()),
        };
        let action = ActionRecord {
            discrepancy_id: open.id,
            actor: ACTOR.to_owned(),
            reason: REASON.to_owned(),
            action: found.repair.clone(),
            outcome,
        };
        self.store.record_action(&action).await?;
        Ok(())
    }
}
