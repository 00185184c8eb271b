//! The end of a version: before its keys expire, proves that nothing is open and archives its result;
//! else alarms, and extends the keys' life if a setting allows.
//!
//! At its retention's end every key of a version vanishes, unresolved ones too. So from a margin before
//! it, PostgreSQL must have nothing open, both indexes of every bucket must be empty, a replay must
//! find nothing to do, and both sides must count the same units left.
//!
//! A version whose keys have expired before that was shown can never show it. What Redis was last seen to
//! have stays on record, and only a person's word about it (`seckillctl reconcile resolve`) lets the
//! version be archived.
//!
//! Extending writes Redis first, meta before the other keys, and PostgreSQL last:
//!
//! | crash after | is left | who repairs it |
//! | --- | --- | --- |
//! | meta of some buckets | keys that are written from now on live longer than the rest | the next look: PostgreSQL still says that the end is near |
//! | all keys of Redis | keys that live longer than PostgreSQL says | the same; no key is ever shortened |
//! | PostgreSQL | nothing | — |
//!
//! Were PostgreSQL written first, a crash would leave keys that vanish while everybody believes that
//! they live, and nobody would look again before that.
//!
//! Archiving has a table of its own in `order_store`; what it leaves half way is finished here.

mod proof;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    EXTEND_KEYS_MAX, Error as RedisError, ExtendRetention, Redis, SCAN_STEP, ScanCursor,
};
use seckill_order_store::{Error as StoreError, ErrorKind as StoreErrorKind, Store, VersionResult};
use seckill_settlement::{Error as SettlementError, Evidence, Replayer};
use seckill_state_machine::{Activity, BucketId, Scope, TimestampMs};
use tokio::time::{Instant, sleep};

use crate::finding::{Finding, FindingKey};
use crate::persistence::{Persistence, Seen};
use crate::rounds::{Round, Rounds, alert};
use proof::{CLASS, Proof};

/// Who archives and extends, on record.
const ACTOR: &str = "reconciler";

/// What is known of a version whose keys are gone.
const EXPIRED: &str = "expired";

/// Why a look did not get through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis did not answer.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// PostgreSQL did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A replay did not get through.
    #[error(transparent)]
    Settlement(#[from] SettlementError),
}

/// What an operator has set.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// How long before its retention's end a version must have nothing open.
    pub margin: Duration,
    /// For how long one that has is left alone then, its retention extended; zero for not at all.
    pub extension: Duration,
    /// Between two steps over a bucket's keys.
    pub pause: Duration,
}

/// What a version has open.
struct Open {
    evidence: Evidence,
    /// Its keys have expired.
    is_over: bool,
    /// It is on record and may be closed by a person at any moment: it is only seen again, or their word
    /// would count for nothing.
    is_known: bool,
}

/// Looks after versions whose retention ends.
pub struct Retention {
    redis: Redis,
    store: Store,
    replayer: Replayer,
    rounds: Rounds,
    terms: Terms,
    rules: HashMap<Scope, Persistence<FindingKey>>,
}

impl Retention {
    /// By these terms.
    #[must_use]
    pub fn new(redis: Redis, store: Store, rounds: Rounds, terms: Terms) -> Self {
        Self {
            replayer: Replayer::new(redis.clone(), store.clone()),
            redis,
            store,
            rounds,
            terms,
            rules: HashMap::new(),
        }
    }

    /// One look at every version whose retention ends within the margin.
    ///
    /// # Errors
    /// The first failure, after every version had its turn.
    pub async fn look(&mut self) -> Result<(), Error> {
        let mut failure: Option<Error> = None;
        for scope in self.store.archives_under_way().await? {
            let end = self.store.resume_archive(&scope).await;
            failure = failure.or(end.err().map(Error::from));
        }
        let over: HashSet<Scope> = self.ending(Duration::ZERO).await?.map(scope_of).collect();
        let ending: Vec<Activity> = self.ending(self.terms.margin).await?.collect();
        self.rules
            .retain(|scope, _| ending.iter().any(|a| a.settings.scope == *scope));
        for activity in &ending {
            let is_over = over.contains(&activity.settings.scope);
            let end = self.version(activity, is_over).await;
            failure = failure.or(end.err());
        }
        failure.map_or(Ok(()), Err)
    }

    async fn ending(
        &self,
        within: Duration,
    ) -> Result<impl Iterator<Item = Activity> + use<>, StoreError> {
        Ok(self.store.retention_due(within).await?.into_iter())
    }

    async fn version(&mut self, activity: &Activity, is_over: bool) -> Result<(), Error> {
        let scope = &activity.settings.scope;
        let kind = self.rounds.kind();
        let sight = self.store.last_sight(scope, kind, CLASS.word()).await?;
        let proof = if is_over {
            proof::of_postgres(&self.store, activity, &sight, kind).await?
        } else {
            let stores = (&self.redis, &self.store);
            proof::of_both(stores, &self.replayer, activity, &sight, kind).await?
        };
        match proof {
            Proof::Done(result) => {
                self.record(scope, None).await?;
                self.archive(scope, &result).await
            }
            Proof::Open(evidence) => {
                let reasons = format!("{}; {}", evidence.redis, evidence.postgres);
                let open = Open {
                    evidence,
                    is_over,
                    is_known: is_over && sight.is_open,
                };
                self.record(scope, Some(open)).await?;
                if is_over || self.terms.extension.is_zero() {
                    return Ok(());
                }
                self.extend(activity, &reasons).await
            }
        }
    }

    async fn archive(&self, scope: &Scope, result: &VersionResult) -> Result<(), Error> {
        match self.store.archive_version(scope, result, ACTOR).await {
            Ok(moved) => {
                tracing::info!(%scope, ?result, ?moved, "archived a version");
                Ok(())
            }
            // Something came up since it was looked at; so it is looked at again.
            Err(error) if error.kind() == StoreErrorKind::Conflict => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts on record that a version has something open, or that it has not any more.
    async fn record(&mut self, scope: &Scope, open: Option<Open>) -> Result<(), StoreError> {
        let bucket = scope.bucket(BucketId::ZERO);
        let rule = self
            .rules
            .entry(scope.clone())
            .or_insert_with(|| Persistence::new(Duration::ZERO));
        let mut round = Round::begin();
        round.checked = 1;
        if let Some(open) = open {
            let finding = Finding {
                class: CLASS,
                reservation_id: None,
                // It is the same difference, whatever of it is done meanwhile; but it is told once more
                // when it is too late for anything but a person's word.
                subject: if open.is_over { EXPIRED } else { "" }.to_owned(),
                evidence: open.evidence,
            };
            let seen = rule.see(finding.key(), Instant::now());
            let found = finding.in_bucket(&bucket);
            if seen == Seen::Confirmed {
                alert(&found, CLASS);
            }
            if open.is_known {
                round.waiting.push(found);
            } else {
                round.found.push(found);
            }
        }
        rule.end_round();
        self.rounds.record(scope, &round).await.map(|_| ())
    }

    async fn extend(&self, activity: &Activity, reasons: &str) -> Result<(), Error> {
        let scope = &activity.settings.scope;
        // As much as takes it out of the margin, so that it is not extended at every look.
        let by = (self.terms.margin + self.terms.extension).as_millis();
        let by = i64::try_from(by).unwrap_or(i64::MAX);
        let keys = BucketKeys::new(&scope.bucket(BucketId::ZERO));
        let now = self.redis.server_time(&keys).await?;
        let until = TimestampMs::new(now.get().saturating_add(by));
        for bucket_id in activity.settings.bucket_count.buckets() {
            let keys = BucketKeys::new(&scope.bucket(bucket_id));
            self.extend_bucket(&keys, until).await?;
        }
        self.store
            .extend_retention(scope, until, ACTOR, reasons)
            .await?;
        tracing::warn!(%scope, %until, reasons, "extended the retention of a version");
        Ok(())
    }

    /// All keys that the bucket has, found by a scan: those of PostgreSQL's decisions and of the
    /// indexes' members are among them, and so are those that neither knows. A scan finds every key
    /// that is there from its beginning to its end.
    async fn extend_bucket(&self, keys: &BucketKeys, until: TimestampMs) -> Result<(), RedisError> {
        self.extend_keys(keys, &[keys.meta()], until).await?;
        let mut cursor = Some(ScanCursor::start());
        while let Some(at) = cursor {
            let page = self.redis.scan_bucket(keys, at, SCAN_STEP).await?;
            for names in page.keys.chunks(EXTEND_KEYS_MAX) {
                self.extend_keys(keys, names, until).await?;
            }
            cursor = page.next;
            // So that a sale on the same server does not feel it.
            sleep(self.terms.pause).await;
        }
        Ok(())
    }

    async fn extend_keys(
        &self,
        keys: &BucketKeys,
        names: &[String],
        until: TimestampMs,
    ) -> Result<u64, RedisError> {
        let call = ExtendRetention {
            keys,
            names,
            until,
            now_override: None,
        };
        self.redis.extend_retention(&call).await
    }
}

fn scope_of(activity: Activity) -> Scope {
    activity.settings.scope
}
