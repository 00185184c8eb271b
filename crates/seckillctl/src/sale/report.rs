//! The report of a sale: its fields are read by scripts and by people who check a run.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use seckill_activity_control::{Difference, Settledness};
use seckill_key_layout::bucket_of_user;
use seckill_state_machine::{BucketCount, BucketId, Scope, UserId};
use serde::Serialize;

use super::answers::Tally;
use super::caller::user_name;

/// What the stores hold after the sale, each figure by a query of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreFigures {
    /// Active orders in PostgreSQL.
    pub orders: u64,
    /// Units on sale in Redis.
    pub available: u64,
    /// Units held in Redis.
    pub reserved: u64,
    /// Units in active orders beyond the stock, over all buckets.
    pub oversold: u64,
    /// Orders too many of one user, reservation or request.
    pub duplicate_orders: u64,
    /// Whatever is not finished: members of indexes, outbox rows, tasks, messages.
    pub unsettled: u64,
    /// Reservations that callers were promised and that became no order.
    pub accepted_without_order: u64,
    /// Orders of reservations that no caller was told of.
    pub orders_without_acceptance: u64,
}

/// How a front that was killed came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Kill {
    /// The process that was killed.
    pub pid: u32,
    /// Its successor.
    pub successor: u32,
    /// Acceptances when it was killed.
    pub accepted: u64,
    /// From the kill to the successor's readiness.
    pub ready_after_ms: u64,
}

/// The audit's verdict: `"ok"`, the list of differences, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Verdict {
    /// No difference.
    Fine(Word),
    /// Every difference.
    Differences(Vec<Difference>),
    /// It could not be carried out.
    NotDone(String),
}

/// The word that stands for "no difference".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// `"ok"`.
    Ok,
}

impl Verdict {
    /// No difference.
    pub const OK: Self = Self::Fine(Word::Ok);
}

impl Default for Verdict {
    fn default() -> Self {
        Self::NotDone("the run did not come that far".to_owned())
    }
}

/// A whole run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The activity that was made for the run.
    pub activity_id: String,
    /// Its SKU.
    pub sku_id: String,
    /// Its version.
    pub activity_version: u64,
    /// Buckets its stock is split into.
    pub buckets: u32,
    /// Units.
    pub stock: u64,
    /// Buyers.
    pub buyers: u32,
    /// Units that the buyers can take: of each bucket, as many as it has or as it has buyers.
    pub expected: u64,
    /// Calls in flight at once.
    pub concurrency: usize,
    /// What the calls were drawn from.
    pub seed: u64,
    /// Calls; also the sum of `by_code`.
    pub calls: u64,
    /// Requests that hold a reservation.
    pub accepted: u64,
    /// Answers of earlier calls.
    pub replayed: u64,
    /// Refused: the buyer holds a reservation.
    pub user_already_reserved: u64,
    /// Refused: nothing left.
    pub sold_out: u64,
    /// Refused for another reason of the sale.
    pub other: u64,
    /// Malformed calls, refused as they had to be.
    pub invalid: u64,
    /// Answers that must not be.
    pub errors: u64,
    /// The first errors in words.
    pub error_samples: Vec<String>,
    /// Attempts repeated because of a fault; such a call counts once, by its final answer.
    pub retries: u64,
    /// The first kinds of these faults, each with its count.
    pub retry_reasons: BTreeMap<String, u64>,
    /// Requests that were sent twice on purpose.
    pub repeats: u64,
    /// Repeats that were told something else than the first attempt.
    pub inconsistent_repeats: u64,
    /// Buyers who were accepted twice.
    pub accepted_twice: u64,
    /// Accepted requests without exactly one fresh answer.
    pub unclear_replays: u64,
    /// Calls by outcome.
    pub by_code: BTreeMap<&'static str, u64>,
    /// Active orders in PostgreSQL.
    pub orders: u64,
    /// Units on sale in Redis.
    pub available: u64,
    /// Units held in Redis.
    pub reserved: u64,
    /// Units ordered beyond the stock.
    pub oversold: u64,
    /// Orders too many.
    pub duplicate_orders: u64,
    /// What is not finished.
    pub unsettled: u64,
    /// The same in detail, if anything is not finished.
    pub on_its_way: Option<Settledness>,
    /// Promised, but no order.
    pub accepted_without_order: u64,
    /// Ordered, but never promised.
    pub orders_without_acceptance: u64,
    /// Latency of a call, all its attempts included.
    pub p50_ms: f64,
    /// 95 of 100 calls were faster.
    pub p95_ms: f64,
    /// 99 of 100 calls were faster.
    pub p99_ms: f64,
    /// 999 of 1,000 calls were faster.
    pub p999_ms: f64,
    /// The slowest call.
    pub max_ms: f64,
    /// From the first call to the last answer.
    pub reserve_seconds: f64,
    /// Calls answered a second in that time.
    pub calls_per_second: f64,
    /// From the last answer until everything was settled.
    pub settle_seconds: f64,
    /// The audit and the other store queries.
    pub audit_seconds: f64,
    /// From the first call to the end of the audit.
    pub total_seconds: f64,
    /// The front that was killed, if one was.
    pub front_killed: Option<Kill>,
    /// `"ok"`, or the differences.
    pub audit: Verdict,
    /// Every condition that the run does not meet; none in a good run.
    pub failures: Vec<String>,
}

impl Report {
    /// Fills in what the callers were told.
    pub fn set_answers(&mut self, tally: Tally) {
        self.calls = tally.calls;
        self.accepted = tally.accepted;
        self.replayed = tally.replayed;
        self.user_already_reserved = tally.user_already_reserved;
        self.sold_out = tally.sold_out;
        self.other = tally.other;
        self.invalid = tally.invalid;
        self.errors = tally.errors;
        self.error_samples = tally.error_samples;
        self.repeats = tally.repeats;
        self.inconsistent_repeats = tally.inconsistent;
        self.accepted_twice = tally.accepted_twice;
        self.unclear_replays = tally.unclear_replays;
        self.by_code = tally.by_code;
    }

    /// Fills in how long calls took.
    pub fn set_latency(&mut self, latency: &Histogram<u64>, seconds: f64) {
        let at = |quantile| millis(latency.value_at_quantile(quantile));
        self.p50_ms = at(0.5);
        self.p95_ms = at(0.95);
        self.p99_ms = at(0.99);
        self.p999_ms = at(0.999);
        self.max_ms = millis(latency.max());
        self.reserve_seconds = round(seconds);
        // Counts of a run are far below 2^52, where a float is exact.
        #[expect(
            clippy::cast_precision_loss,
            reason = "counts of a run are far below 2^52"
        )]
        let calls = self.calls as f64;
        self.calls_per_second = (calls / seconds.max(0.001)).round();
    }

    /// Fills in what the stores hold.
    pub const fn set_stores(&mut self, figures: StoreFigures) {
        self.orders = figures.orders;
        self.available = figures.available;
        self.reserved = figures.reserved;
        self.oversold = figures.oversold;
        self.duplicate_orders = figures.duplicate_orders;
        self.unsettled = figures.unsettled;
        self.accepted_without_order = figures.accepted_without_order;
        self.orders_without_acceptance = figures.orders_without_acceptance;
    }

    /// The calls by class, added up.
    const fn classified(&self) -> u64 {
        self.accepted
            + self.replayed
            + self.user_already_reserved
            + self.sold_out
            + self.other
            + self.invalid
            + self.errors
    }

    /// Counts that a right sale leaves at zero.
    const fn must_be_zero(&self) -> [(u64, &'static str); 7] {
        [
            (self.other, "refusals that no buyer caused"),
            (
                self.inconsistent_repeats,
                "repeats were told something else",
            ),
            (self.accepted_twice, "buyers were accepted twice"),
            (self.oversold, "units oversold"),
            (self.duplicate_orders, "duplicate orders"),
            (
                self.accepted_without_order,
                "accepted reservations without an order",
            ),
            (
                self.orders_without_acceptance,
                "orders that nobody was told of",
            ),
        ]
    }

    /// Finds every condition that the run does not meet. A bucket to which fewer buyers come than it
    /// has units must sell to each of them; otherwise it must sell out.
    pub fn judge(&mut self) {
        let expected = self.expected;
        let mut failures = Vec::new();
        let mut require = |holds: bool, failure: String| {
            if !holds {
                failures.push(failure);
            }
        };
        let sum: u64 = self.by_code.values().sum();
        require(
            self.classified() == self.calls,
            format!("{} calls, but {} in classes", self.calls, self.classified()),
        );
        require(
            sum == self.calls,
            format!("{} calls, but {sum} outcomes", self.calls),
        );
        require(self.errors == 0, format!("{} errors", self.errors));
        require(
            self.accepted == expected,
            format!("accepted {} of {expected}", self.accepted),
        );
        require(
            self.orders == expected,
            format!("{} orders of {expected}", self.orders),
        );
        require(
            (self.available, self.reserved) == (self.stock.saturating_sub(expected), expected),
            format!(
                "Redis has {} available and {} reserved",
                self.available, self.reserved
            ),
        );
        // A killed front may take the one fresh answer with it, one for each attempt that it broke.
        let replays_are_clear = self.unclear_replays <= self.retries;
        require(
            replays_are_clear,
            format!(
                "{} acceptances not fresh exactly once",
                self.unclear_replays
            ),
        );
        for (count, what) in self.must_be_zero() {
            require(count == 0, format!("{count} {what}"));
        }
        match &self.audit {
            Verdict::Fine(_) => {}
            Verdict::Differences(found) => {
                require(
                    false,
                    format!("the audit found {} differences", found.len()),
                );
            }
            Verdict::NotDone(reason) => require(false, format!("no audit: {reason}")),
        }
        if let Some(open) = &self.on_its_way {
            require(false, format!("not settled: {}", open.words()));
        }
        self.failures = failures;
    }
}

/// Units that the buyers of a run can take. A buyer's bucket is fixed, so that one bucket may be sold
/// out to more buyers than it has units while another has units left.
#[must_use]
pub fn expected(scope: &Scope, buckets: BucketCount, stock: u64, buyers: u32) -> u64 {
    let mut comers: BTreeMap<BucketId, u64> = BTreeMap::new();
    for user_id in (0..buyers).filter_map(|buyer| UserId::parse(user_name(buyer)).ok()) {
        let bucket = bucket_of_user(scope, &user_id, buckets);
        *comers.entry(bucket).or_insert(0) += 1;
    }
    comers
        .into_iter()
        .map(|(bucket, comers)| comers.min(buckets.share(stock, bucket)))
        .sum()
}

/// Microseconds as milliseconds.
fn millis(micros: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "latencies are below 2^52 µs")]
    let micros = micros as f64;
    micros / 1_000.0
}

/// Seconds to the millisecond: more digits would only be noise in a report.
#[must_use]
pub fn round(seconds: f64) -> f64 {
    (seconds * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests;
