//! The slow pass: looks at every decision, every key and every index member of a bucket, and adds up
//! what its reservations hold (I3). The counters alone would not show a double release, and the walk
//! over what is due would not show what no index names.
//!
//! It is the one place of this service that scans keys. One step looks at 500 of them, steps are a
//! pause apart, and one bucket is passed after the other, so a sale does not feel it. A crash or a
//! failed step loses no more than the pass.

mod found;
pub mod judge;
mod pass;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use seckill_lua_scripts::Error as RedisError;
use seckill_order_store::Error as StoreError;
use seckill_settlement::{Class, Error as SettlementError};
use seckill_state_machine::{BucketId, BucketScope, Scope};
use tokio::time::Instant;

use crate::apply::Applier;
use crate::finding::{Finding, FindingKey};
use crate::persistence::{Persistence, Seen};
use crate::rounds::{Round, Rounds, alert};
use crate::tally::Tally;
use pass::{Outcome, Pass};

pub use pass::Sides;

/// Why a step did not get through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis did not answer.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// PostgreSQL did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A repair did not get through.
    #[error(transparent)]
    Settlement(#[from] SettlementError),
}

/// How far the passes that follow a start are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Starting {
    /// None has begun.
    First,
    /// The first one is under way; the second one follows as soon as what it saw may count.
    Second,
    /// Passes come by the interval.
    Over,
}

/// The slow pass over all open buckets, one step at a time.
pub struct Sweep {
    sides: Sides,
    rounds: Rounds,
    applier: Applier,
    interval: Duration,
    next_pass: Instant,
    queue: VecDeque<BucketScope>,
    pass: Option<Pass>,
    version: Option<(Scope, Round)>,
    /// A version's round that is done and not on record yet.
    done: Option<(Scope, Round)>,
    grace: Duration,
    starting: Starting,
    /// A bucket's round of the rule ends when it was judged: one that could not be is no proof.
    rules: HashMap<BucketScope, Persistence<FindingKey>>,
    /// The same for what concerns a version as a whole.
    version_rules: HashMap<Scope, Persistence<FindingKey>>,
}

impl Sweep {
    /// A pass begins at once, the second one after `grace`, which is how long a difference may be something
    /// on its way, and from then on one every `interval`. What was seen once is not remembered over a
    /// restart: so the two looks that a difference needs lie close behind each other after one.
    #[must_use]
    pub fn new(
        sides: Sides,
        rounds: Rounds,
        applier: Applier,
        interval: Duration,
        grace: Duration,
    ) -> Self {
        Self {
            sides,
            rounds,
            applier,
            interval,
            next_pass: Instant::now(),
            queue: VecDeque::new(),
            pass: None,
            version: None,
            done: None,
            grace,
            starting: Starting::First,
            rules: HashMap::new(),
            version_rules: HashMap::new(),
        }
    }

    /// One step: of the pass under way, else the beginning of the next one, else nothing.
    ///
    /// # Errors
    /// Whatever the step met; the bucket is then looked at again in the next pass.
    pub async fn step(&mut self) -> Result<(), Error> {
        let Some(mut pass) = self.pass.take() else {
            return self.begin().await;
        };
        match pass.step(&self.sides).await {
            Ok(false) => self.pass = Some(pass),
            Ok(true) => self.end(pass),
            Err(error) => return Err(self.drop_bucket(pass.bucket(), error)),
        }
        Ok(())
    }

    /// A bucket that is not looked at to the end leaves its version's round incomplete.
    fn drop_bucket(&mut self, bucket: &BucketScope, error: Error) -> Error {
        if let Some((_, round)) = &mut self.version {
            let why = format!("bucket {}: {error}", bucket.bucket_id);
            round.error.get_or_insert(why);
        }
        error
    }

    async fn begin(&mut self) -> Result<(), Error> {
        if let Some(bucket) = self.queue.front().cloned() {
            // It stays in the queue if the version before it cannot be put on record.
            self.change_version(&bucket.scope).await?;
            self.queue.pop_front();
            match Pass::begin(&bucket, &self.sides).await {
                Ok(pass) => self.pass = Some(pass),
                Err(error) => return Err(self.drop_bucket(&bucket, error)),
            }
            return Ok(());
        }
        self.finish_version().await?;
        if self.starting == Starting::Second {
            self.starting = Starting::Over;
            self.next_pass = Instant::now() + self.grace.min(self.interval);
        }
        if Instant::now() >= self.next_pass {
            self.queue = self.open_buckets().await?;
            self.next_pass = Instant::now() + self.interval;
            self.starting = match self.starting {
                Starting::First => Starting::Second,
                Starting::Second | Starting::Over => Starting::Over,
            };
            let open: HashSet<&BucketScope> = self.queue.iter().collect();
            self.rules.retain(|bucket, _| open.contains(bucket));
            let scopes: HashSet<&Scope> = self.queue.iter().map(|bucket| &bucket.scope).collect();
            self.version_rules.retain(|scope, _| scopes.contains(scope));
        }
        Ok(())
    }

    async fn open_buckets(&self) -> Result<VecDeque<BucketScope>, StoreError> {
        let open = self.sides.store.open_scopes().await?;
        let buckets = open.iter().flat_map(|activity| {
            let settings = &activity.settings;
            let buckets = settings.bucket_count.buckets();
            buckets.map(|bucket_id| settings.scope.bucket(bucket_id))
        });
        Ok(buckets.collect())
    }

    fn end(&mut self, pass: Pass) {
        let bucket = pass.bucket().clone();
        let rule = self
            .rules
            .entry(bucket.clone())
            .or_insert_with(|| Persistence::new(self.grace));
        let round = judged(rule, &bucket, pass.into_outcome());
        if let Some((_, of_version)) = &mut self.version {
            of_version.add(round);
        }
    }

    /// Buckets come version by version; a version's round is recorded when its last bucket is done.
    async fn change_version(&mut self, scope: &Scope) -> Result<(), Error> {
        if self
            .version
            .as_ref()
            .is_some_and(|(current, _)| current == scope)
        {
            return Ok(());
        }
        self.finish_version().await?;
        self.version = Some((scope.clone(), Round::begin()));
        Ok(())
    }

    async fn finish_version(&mut self) -> Result<(), Error> {
        if let Some((scope, mut round)) = self.version.take() {
            match self.orders(&scope, &round).await {
                Ok(orders) => round.add(orders),
                Err(error) => round.error = Some(error.to_string()),
            }
            self.done = Some((scope, round));
        }
        // It stays until it is on record: what it found counts from now on and would be known, and not
        // told again, in the next pass.
        let Some((scope, round)) = &self.done else {
            return Ok(());
        };
        self.rounds.record(scope, round).await?;
        if let Some((scope, _)) = self.done.take() {
            self.applier.apply(&scope, self.rounds.kind()).await?;
        }
        Ok(())
    }

    /// What PostgreSQL's orders say against each other. Its constraints make that impossible; it is
    /// counted all the same.
    async fn orders(&mut self, scope: &Scope, round: &Round) -> Result<Round, StoreError> {
        let duplicates = self.sides.store.duplicate_orders(scope).await?;
        let both = self.sides.store.orders_without_decision(scope).await?;
        // The store counts both directions; the other one is named already, decision by decision.
        let named = Class::DecisionWithoutOrder.word();
        let named = round.found.iter().filter(|found| found.kind == named);
        let orphans = both.saturating_sub(named.count() as u64);
        let mut findings = Vec::new();
        if duplicates > 0 {
            let what = format!("{duplicates} active orders too many, over all buckets");
            findings.push(Finding::of_bucket(Class::DuplicateOrder, "", what));
        }
        if orphans > 0 {
            let what = format!("{orphans} orders without a decision, over all buckets");
            findings.push(Finding::of_bucket(Class::OrderWithoutDecision, "", what));
        }
        let rule = self
            .version_rules
            .entry(scope.clone())
            .or_insert_with(|| Persistence::new(self.grace));
        let outcome = Outcome {
            checked: 0,
            findings,
            incomplete: None,
            unjudged: &[],
        };
        Ok(judged(rule, &scope.bucket(BucketId::ZERO), outcome))
    }
}

/// Applies the two-round rule to what a pass came to.
fn judged(rule: &mut Persistence<FindingKey>, bucket: &BucketScope, outcome: Outcome) -> Round {
    let now = Instant::now();
    let mut tally = Tally::begin();
    tally.checked(outcome.checked);
    for finding in outcome.findings {
        let seen = rule.see(finding.key(), now);
        let class = finding.class;
        let found = finding.in_bucket(bucket);
        if seen == Seen::Waiting {
            tally.wait_for(found);
            continue;
        }
        if seen == Seen::Confirmed && tally.is_listed(class) {
            alert(&found, class);
        }
        tally.add(class, found);
    }
    rule.end_round();
    if let Some(why) = outcome.incomplete {
        tally.give_up(why);
    }
    let mut round = tally.into_round(bucket);
    let unjudged = outcome.unjudged.iter();
    round.unjudged = unjudged.map(|class| (bucket.bucket_id, *class)).collect();
    round
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::{ActivityId, ActivityVersion, SkuId};

    use super::*;

    fn bucket() -> BucketScope {
        let scope = Scope {
            activity_id: ActivityId::parse("a1").unwrap(),
            sku_id: SkuId::parse("s1").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        };
        scope.bucket(BucketId::ZERO)
    }

    fn outcome(redis: &str) -> Outcome {
        Outcome {
            checked: 1,
            findings: vec![Finding::of_bucket(Class::HoldersDiffer, redis, "")],
            incomplete: None,
            unjudged: &[],
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_difference_counts_in_the_second_pass_beyond_the_grace_and_only_unchanged() {
        let grace = Duration::from_secs(10);
        let mut rule = Persistence::new(grace);
        let first = judged(&mut rule, &bucket(), outcome("3"));
        assert!(first.found.is_empty());
        assert_eq!(first.waiting.len(), 1);
        tokio::time::advance(grace).await;
        let moved = judged(&mut rule, &bucket(), outcome("4"));
        assert!(moved.found.is_empty());
        tokio::time::advance(grace).await;
        let stays = judged(&mut rule, &bucket(), outcome("4"));
        assert_eq!(stays.found.len(), 1);
        assert_eq!(stays.found[0].kind, "holders_differ");
    }
}
