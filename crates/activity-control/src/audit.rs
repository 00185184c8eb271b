//! The ledger check: proves that every unit of an activity is accounted for on both sides.
//!
//! Reads only. Redis is scanned in paced steps, PostgreSQL is read page by page, and the rules of
//! `ledger` judge what was read. Since the two are not read at one instant, a purchase in flight may
//! look like a difference; what stands is therefore only what two rounds have found. Whether work is
//! still on its way is another question, answered by [`Settledness`].

mod difference;
mod facts;
mod ledger;
mod redis_side;
mod settled;

use std::time::Duration;

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::ErrorKind as RedisErrorKind;
use seckill_order_store::DecisionRecord;
use seckill_state_machine::{Activity, ActivityState, BucketId, Scope};
use serde::Serialize;

use crate::Error;
use crate::compare::meta_differences;
use crate::control::Control;

pub use difference::{Difference, DifferenceKind};
pub use facts::{BookFacts, BucketFacts, DecisionFacts, ReservationFacts, StockFacts, Subject};
pub use ledger::{Ledger, judge_book, judge_bucket};
pub use settled::{Lag, Settledness};

/// Decisions read in one page: about 300 KB, a few milliseconds of PostgreSQL.
const DECISIONS_PER_PAGE: i64 = 1_000;

/// How an audit looks twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditOptions {
    /// The wait before the second look at what the first one found. Long enough for a purchase in
    /// flight to get from one side to the other.
    pub recheck_after: Duration,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self {
            recheck_after: Duration::from_secs(2),
        }
    }
}

/// A bucket's figures on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BucketFigures {
    /// Which one.
    pub bucket_id: BucketId,
    /// In Redis, unless there is nothing.
    pub redis: Option<RedisFigures>,
    /// In PostgreSQL, unless the row is missing.
    pub postgres: Option<BookFigures>,
}

/// `initial = available + open + ordered`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RedisFigures {
    /// Units it started with.
    pub initial: u64,
    /// Units on sale.
    pub available: u64,
    /// Units of reservations that are on their way.
    pub open: u64,
    /// Units of reservations that became orders.
    pub ordered: u64,
}

/// `total = available + ordered`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BookFigures {
    /// Units in all.
    pub total: u64,
    /// Units without an active order.
    pub available: u64,
    /// Units of active orders.
    pub ordered: u64,
    /// Active orders.
    pub orders: u64,
}

/// What an audit of one version found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditReport {
    /// Which version.
    pub scope: Scope,
    /// Where PostgreSQL says it stands.
    pub state: ActivityState,
    /// Whether its keys have expired as planned; then PostgreSQL's side alone was checked.
    pub redis_expired: bool,
    /// Each bucket's sums.
    pub buckets: Vec<BucketFigures>,
    /// Decisions that were matched.
    pub decisions: u64,
    /// Every difference that two rounds found.
    pub differences: Vec<Difference>,
}

impl AuditReport {
    /// Whether nothing differs.
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        self.differences.is_empty()
    }
}

impl Control {
    /// Audits one version.
    ///
    /// # Errors
    /// [`Error::Unknown`] when it does not exist, and errors of the stores: an audit that could not
    /// read everything has proved nothing.
    pub async fn audit(&self, scope: &Scope, options: AuditOptions) -> Result<AuditReport, Error> {
        let activity = self.activity(scope).await?;
        let first = self.audit_once(&activity).await?;
        if first.is_ok() {
            return Ok(first);
        }
        tokio::time::sleep(options.recheck_after).await;
        // Read again: an operator may have moved it between the looks.
        let activity = self.activity(scope).await?;
        let mut second = self.audit_once(&activity).await?;
        second.differences.retain(|found| {
            first
                .differences
                .iter()
                .any(|before| before.is_same_as(found))
        });
        Ok(second)
    }

    /// One round: Redis first, so that whatever it holds as ordered must already be in PostgreSQL.
    async fn audit_once(&self, activity: &Activity) -> Result<AuditReport, Error> {
        let settings = &activity.settings;
        let scope = &settings.scope;
        let redis_expired = self.now(scope).await? >= settings.retention_until_ms;
        let mut buckets = Vec::new();
        if !redis_expired {
            for bucket_id in settings.bucket_count.buckets() {
                let keys = BucketKeys::new(&scope.bucket(bucket_id));
                buckets.push(redis_side::read(&self.redis, &keys).await?);
            }
        }
        let was_opened = activity.state != ActivityState::Prepared;
        let mut differences: Vec<Difference> = Vec::new();
        for facts in &buckets {
            // A version that was closed without ever being preheated owes Redis nothing.
            let never_preheated = activity.state == ActivityState::Closed && facts.is_untouched();
            differences.extend(judge_bucket(facts, was_opened && !never_preheated));
            differences.extend(judge_meta(activity, facts));
        }
        if !redis_expired {
            differences.extend(self.judge_pointer(activity).await?);
        }
        let figures = self
            .judge_books(activity, &buckets, &mut differences)
            .await?;
        let decisions = self
            .match_decisions(scope, &buckets, redis_expired, &mut differences)
            .await?;
        self.count_undecided_orders(scope, &mut differences).await?;
        differences.sort();
        Ok(AuditReport {
            scope: scope.clone(),
            state: activity.state,
            redis_expired,
            buckets: figures,
            decisions,
            differences,
        })
    }

    /// Buyers of the version on sale must be pointed at it.
    async fn judge_pointer(&self, activity: &Activity) -> Result<Option<Difference>, Error> {
        if activity.state != ActivityState::Active {
            return Ok(None);
        }
        let scope = &activity.settings.scope;
        let detail = match self.redis.current_version(&scope.activity_id).await {
            Ok(Some(version)) if version == scope.version => return Ok(None),
            Ok(Some(version)) => format!("it is on sale, but current_version names {version}"),
            Ok(None) => "it is on sale, but there is no current_version".to_owned(),
            Err(error) if error.kind() == RedisErrorKind::Broken => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(Difference::of_bucket(
            &scope.bucket(BucketId::ZERO),
            DifferenceKind::PointerMismatch,
            detail,
        )))
    }

    async fn judge_books(
        &self,
        activity: &Activity,
        buckets: &[BucketFacts],
        differences: &mut Vec<Difference>,
    ) -> Result<Vec<BucketFigures>, Error> {
        let scope = &activity.settings.scope;
        let totals = self.store.bucket_totals(scope).await?;
        let mut figures = Vec::new();
        for bucket_id in activity.settings.bucket_count.buckets() {
            let bucket = scope.bucket(bucket_id);
            let facts = buckets.iter().find(|facts| facts.bucket == bucket);
            let stock = facts.and_then(|facts| facts.stock);
            let book = totals
                .iter()
                .find(|total| total.bucket_id == bucket_id)
                .map(|total| BookFacts {
                    total: total.total,
                    available: total.available,
                    ordered_units: total.active_units,
                    orders: total.active_orders,
                });
            match book {
                Some(book) => {
                    let initial = stock.map(|stock| stock.counters.initial);
                    differences.extend(judge_book(&bucket, book, initial));
                }
                None => differences.push(Difference::of_bucket(
                    &bucket,
                    DifferenceKind::BookNotConserved,
                    "PostgreSQL has no stock row",
                )),
            }
            figures.push(BucketFigures {
                bucket_id,
                redis: facts.zip(stock).map(|(facts, stock)| RedisFigures {
                    initial: stock.counters.initial,
                    available: stock.counters.available,
                    open: facts.open_units(),
                    ordered: facts.ordered_units(),
                }),
                postgres: book.map(|book| BookFigures {
                    total: book.total,
                    available: book.available,
                    ordered: book.ordered_units,
                    orders: book.orders,
                }),
            });
        }
        let duplicates = self.store.duplicate_orders(scope).await?;
        if duplicates > 0 {
            differences.push(Difference::of_bucket(
                &scope.bucket(BucketId::ZERO),
                DifferenceKind::DuplicateOrder,
                format!("{duplicates} active orders too many, over all buckets"),
            ));
        }
        Ok(figures)
    }

    async fn match_decisions(
        &self,
        scope: &Scope,
        buckets: &[BucketFacts],
        redis_expired: bool,
        differences: &mut Vec<Difference>,
    ) -> Result<u64, Error> {
        let mut ledger = Ledger::new(buckets);
        let mut after = None;
        let mut entered = 0;
        loop {
            let page = self
                .store
                .decisions_page(scope, after.as_ref(), DECISIONS_PER_PAGE)
                .await?;
            let Some(last) = page.last() else { break };
            after = Some(last.reservation_id.clone());
            for record in &page {
                entered += 1;
                let found = ledger.enter(&decision_facts(record));
                // Without Redis's side, only what PostgreSQL contradicts by itself can be judged.
                let counts = |found: &Difference| {
                    !redis_expired || found.kind == DifferenceKind::DecisionWithoutOrder
                };
                differences.extend(found.filter(counts));
            }
        }
        differences.extend(ledger.finish());
        Ok(entered)
    }

    /// Orders that no decision stands for are in no page of decisions; they are counted apart.
    async fn count_undecided_orders(
        &self,
        scope: &Scope,
        differences: &mut Vec<Difference>,
    ) -> Result<(), Error> {
        // The store counts both directions; the other one is named already, decision by decision.
        let both = self.store.orders_without_decision(scope).await?;
        let is_named = |found: &&Difference| found.kind == DifferenceKind::DecisionWithoutOrder;
        let named = differences.iter().filter(is_named).count() as u64;
        let undecided = both.saturating_sub(named);
        if undecided > 0 {
            differences.push(Difference::of_bucket(
                &scope.bucket(BucketId::ZERO),
                DifferenceKind::OrderWithoutDecision,
                format!("{undecided} orders without a decision, over all buckets"),
            ));
        }
        Ok(())
    }
}

/// What Redis sells by must be what PostgreSQL says, all fields of a bucket in one difference.
fn judge_meta(activity: &Activity, facts: &BucketFacts) -> Option<Difference> {
    let found = meta_differences(activity, &facts.bucket, facts.meta.as_ref()?);
    let fields: Vec<String> = found
        .iter()
        .map(|one| {
            format!(
                "{}: PostgreSQL {}, Redis {}",
                one.field, one.postgres, one.redis
            )
        })
        .collect();
    (!fields.is_empty()).then(|| {
        Difference::of_bucket(
            &facts.bucket,
            DifferenceKind::MetaMismatch,
            fields.join("; "),
        )
    })
}

fn decision_facts(record: &DecisionRecord) -> DecisionFacts {
    DecisionFacts {
        reservation_id: record.reservation_id.clone(),
        bucket: record.bucket.clone(),
        user_id: record.user_id.clone(),
        quantity: u64::from(record.quantity.get()),
        kind: record.kind,
        order: record.order.clone(),
    }
}
