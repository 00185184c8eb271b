//! The field-by-field comparison of a bucket in both stores, before anything may be sold from it.

use std::fmt;

use seckill_lua_scripts::{Meta, Recovery, Stock};
use seckill_order_store::StockRow;
use seckill_state_machine::{Activity, ActivityState, BucketId, BucketScope, SCHEMA_VERSION};
use serde::Serialize;

/// One field in which Redis does not hold what PostgreSQL says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldDifference {
    /// In which bucket.
    pub bucket: BucketScope,
    /// Which field.
    pub field: &'static str,
    /// What PostgreSQL demands.
    pub postgres: String,
    /// What Redis holds.
    pub redis: String,
}

impl fmt::Display for FieldDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            bucket,
            field,
            postgres,
            redis,
        } = self;
        write!(
            f,
            "bucket {} {field}: PostgreSQL {postgres}, Redis {redis}",
            bucket.bucket_id
        )
    }
}

/// A bucket as both stores hold it.
#[derive(Debug, Clone)]
pub struct Sides {
    /// Which one.
    pub bucket: BucketScope,
    /// PostgreSQL's stock row.
    pub row: Option<StockRow>,
    /// Redis's meta.
    pub meta: Option<Meta>,
    /// Redis's counters.
    pub stock: Option<Stock>,
}

/// How far a bucket may have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing was ever sold from it: every unit is available.
    Fresh,
    /// It may be on sale: its counters move, but must add up to what it started with.
    OnSale,
}

const MISSING: &str = "missing";

impl Sides {
    /// What is missing in Redis, in words.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let of_bucket = |what: &str| format!("{what} of bucket {}", self.bucket.bucket_id);
        let meta = self.meta.is_none().then(|| of_bucket("meta"));
        let stock = self.stock.is_none().then(|| of_bucket("stock"));
        meta.into_iter().chain(stock).collect()
    }

    /// Every field in which the bucket is not what PostgreSQL's activity demands at this stage.
    #[must_use]
    pub fn differences(&self, activity: &Activity, stage: Stage) -> Vec<FieldDifference> {
        let mut found = Found {
            bucket: &self.bucket,
            list: Vec::new(),
        };
        match &self.meta {
            None => found.push("meta", "present", MISSING),
            Some(meta) => compare_meta(activity, meta, stage, &mut found),
        }
        let share = activity
            .settings
            .bucket_count
            .share(activity.settings.total_stock, self.bucket.bucket_id);
        match &self.row {
            None => found.push("activity_stock row", "missing", "demanded by bucket_count"),
            Some(row) => found.check("total (share of total_stock)", row.total, share),
        }
        let demanded = self.row.map_or(share, |row| row.total);
        match &self.stock {
            None => found.push("stock", "present", MISSING),
            Some(stock) => compare_stock(self.row.as_ref(), demanded, stock, stage, &mut found),
        }
        found.list
    }
}

struct Found<'a> {
    bucket: &'a BucketScope,
    list: Vec<FieldDifference>,
}

impl Found<'_> {
    fn push(&mut self, field: &'static str, postgres: impl ToString, redis: impl ToString) {
        self.list.push(FieldDifference {
            bucket: self.bucket.clone(),
            field,
            postgres: postgres.to_string(),
            redis: redis.to_string(),
        });
    }

    fn check<T: PartialEq + ToString>(&mut self, field: &'static str, postgres: T, redis: T) {
        if postgres != redis {
            self.push(field, postgres, redis);
        }
    }
}

/// Every setting in which a bucket's meta is not PostgreSQL's, and the state. Here the state must be
/// the very one: what a step that was cut short left behind is sold by, and must be found.
#[must_use]
pub fn meta_differences(
    activity: &Activity,
    bucket: &BucketScope,
    meta: &Meta,
) -> Vec<FieldDifference> {
    let mut found = Found {
        bucket,
        list: Vec::new(),
    };
    compare_settings(activity, meta, &mut found);
    found.check("state", activity.state, meta.state);
    found.list
}

fn compare_settings(activity: &Activity, meta: &Meta, found: &mut Found<'_>) {
    let settings = &activity.settings;
    let bucket = found.bucket.clone();
    found.check("scope", bucket.to_string(), meta.bucket.to_string());
    found.check("starts_at_ms", settings.starts_at_ms, meta.starts_at_ms);
    found.check("ends_at_ms", settings.ends_at_ms, meta.ends_at_ms);
    found.check(
        "retention_until_ms",
        settings.retention_until_ms,
        meta.retention_until_ms,
    );
    found.check("bucket_count", settings.bucket_count, meta.bucket_count);
    found.check(
        "limit_per_user",
        settings.limit_per_user,
        meta.limit_per_user,
    );
    found.check("max_quantity", settings.max_quantity, meta.max_quantity);
    found.check(
        "reservation_ttl_ms",
        settings.reservation_ttl_ms,
        meta.reservation_ttl_ms,
    );
    found.check(
        "secret_version",
        settings.secret_version,
        meta.secret_version,
    );
    found.check(
        "schema_version",
        u64::from(SCHEMA_VERSION),
        meta.schema_version,
    );
}

fn compare_meta(activity: &Activity, meta: &Meta, stage: Stage, found: &mut Found<'_>) {
    compare_settings(activity, meta, found);
    let is_expected = match stage {
        Stage::Fresh => meta.state == ActivityState::Prepared,
        // A step that a crash cut short left some buckets in the state before.
        Stage::OnSale => meta.state != ActivityState::Closed,
    };
    if !is_expected {
        found.push("state", activity.state, meta.state);
    }
    if meta.recovery == Recovery::Rebuild {
        found.push("recovery", "none", "rebuild");
    }
}

fn compare_stock(
    row: Option<&StockRow>,
    demanded: u64,
    stock: &Stock,
    stage: Stage,
    found: &mut Found<'_>,
) {
    let counters = stock.counters;
    found.check("initial", demanded, counters.initial);
    match stage {
        Stage::Fresh => {
            let available = row.map_or(demanded, |row| row.available);
            found.check("available", available, counters.available);
            found.check("reserved", 0, counters.reserved);
            found.check("released_total", 0, stock.released_total);
        }
        Stage::OnSale if !counters.is_conserved() => {
            let sum = format!("{} + {}", counters.available, counters.reserved);
            found.push("available + reserved", counters.initial, sum);
        }
        Stage::OnSale => {}
    }
}

/// The stock row of a bucket.
#[must_use]
pub fn row_of(rows: &[StockRow], bucket_id: BucketId) -> Option<StockRow> {
    rows.iter().find(|row| row.bucket_id == bucket_id).copied()
}

#[cfg(test)]
mod tests;
