//! What the audit and the reconciler read, and where they record what they found.
//!
//! The constraints make most of these differences impossible. They are counted all the same: an
//! audit that trusts what it audits proves nothing.

mod actions;
mod discrepancies;
mod follow_up;

use seckill_state_machine::{BucketId, Scope};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::rows::{ScopeFilter, ScopeKey, bucket_id, count, get, number, storable};
use crate::{Error, Store};

pub(crate) use actions::RESOLVE;
pub use actions::{Action, ActionFilter, ActionRecord};
pub use discrepancies::{Discrepancy, DiscrepancyFilter, Recorded, Repairable};

/// One bucket, counted twice: by its stock row and by its orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketTotals {
    /// Which bucket.
    pub bucket_id: BucketId,
    /// Units the bucket was given.
    pub total: u64,
    /// Units without an active order, as the stock row says.
    pub available: u64,
    /// Units in active orders, as the stock row says.
    pub sold: u64,
    /// Units in active orders, as the orders say.
    pub active_units: u64,
    /// Active orders.
    pub active_orders: u64,
    /// What the journal's entries add up to; the stock row's `available`, if nothing is missing.
    pub journal_units: i64,
}

impl BucketTotals {
    /// `total = available + active orders`, and row, orders and journal agree.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        self.sold == self.active_units
            && self.available.checked_add(self.active_units) == Some(self.total)
            && u64::try_from(self.journal_units) == Ok(self.available)
    }
}

/// A round of checks that begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    /// What is checked: a lower-case word such as `totals` or `expiry`.
    pub kind: String,
    /// Who checks: the process's instance name.
    pub instance: String,
    /// Which version, unless all.
    pub scope: Option<Scope>,
}

/// How a round ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunOutcome {
    /// Things compared.
    pub checked: u64,
    /// Steps taken towards agreement.
    pub settled: u64,
    /// Differences found.
    pub discrepancies: u64,
    /// Why it did not finish, if so.
    pub error: Option<String>,
}

impl Store {
    /// Totals of each bucket, in one snapshot, archived rows included. A bucket that only has orders
    /// is there as well, with a total of 0.
    ///
    /// # Errors
    /// As every read.
    pub async fn bucket_totals(&self, scope: &Scope) -> Result<Vec<BucketTotals>, Error> {
        let rows = self
            .read(
                "bucket_totals",
                BUCKET_TOTALS,
                &ScopeKey::of(scope).params(),
            )
            .await?;
        let totals = |row: &Row| {
            Ok(BucketTotals {
                bucket_id: bucket_id(row)?,
                total: number(row, "total")?,
                available: number(row, "available")?,
                sold: number(row, "sold")?,
                active_units: number(row, "active_units")?,
                active_orders: number(row, "active_orders")?,
                journal_units: get(row, "journal_units")?,
            })
        };
        rows.iter().map(totals).collect()
    }

    /// Orders too many: active ones beyond one a user of the activity's SKU, those of archived versions
    /// included, and any beyond one a reservation or a request of this version.
    ///
    /// # Errors
    /// As every read.
    pub async fn duplicate_orders(&self, scope: &Scope) -> Result<u64, Error> {
        self.count(
            "duplicate_orders",
            DUPLICATE_ORDERS,
            &ScopeKey::of(scope).params(),
        )
        .await
    }

    /// `ORDERED` decisions of a version without an order, and orders without such a decision, archived
    /// rows included.
    ///
    /// # Errors
    /// As every read.
    pub async fn orders_without_decision(&self, scope: &Scope) -> Result<u64, Error> {
        self.count(
            "orders_without_decision",
            "-- orders_without_decision
            SELECT count(*) AS n
            FROM (
                SELECT reservation_id FROM reservation_decision
                WHERE activity_id = $1 AND sku_id = $2 AND version = $3 AND kind = 'ORDERED'
                UNION ALL
                SELECT reservation_id FROM reservation_decision_archive
                WHERE activity_id = $1 AND sku_id = $2 AND version = $3 AND kind = 'ORDERED'
            ) AS d
            FULL JOIN (
                SELECT reservation_id FROM orders
                WHERE activity_id = $1 AND sku_id = $2 AND version = $3
                UNION ALL
                SELECT reservation_id FROM orders_archive
                WHERE activity_id = $1 AND sku_id = $2 AND version = $3
            ) AS o ON o.reservation_id = d.reservation_id
            WHERE d.reservation_id IS NULL OR o.reservation_id IS NULL",
            &ScopeKey::of(scope).params(),
        )
        .await
    }

    /// Opens a round of checks.
    ///
    /// # Errors
    /// As every write.
    pub async fn start_run(&self, run: &NewRun) -> Result<Uuid, Error> {
        let filter = ScopeFilter::from(run.scope.as_ref());
        let rows = self
            .run_tx("start_run", async |session| {
                session
                    .query(
                        "-- start_run
                        INSERT INTO reconciliation_run (
                            kind, instance, activity_id, sku_id, version
                        )
                        VALUES ($1, $2, $3, $4, $5)
                        RETURNING run_id",
                        &[
                            /* kind */ &run.kind,
                            /* instance */ &run.instance,
                            /* activity_id */ &filter.activity_id,
                            /* sku_id */ &filter.sku_id,
                            /* version */ &filter.version,
                        ],
                    )
                    .await
            })
            .await?;
        match rows.first() {
            Some(row) => get(row, "run_id"),
            None => Err(Error::stored("reconciliation_run", "a new row is missing")),
        }
    }

    /// Closes a round of checks.
    ///
    /// # Errors
    /// As every write; `NotFound` for an unknown run.
    pub async fn finish_run(&self, run: Uuid, outcome: &RunOutcome) -> Result<(), Error> {
        let checked = count("checked", outcome.checked)?;
        let settled = count("settled", outcome.settled)?;
        let discrepancies = count("discrepancies", outcome.discrepancies)?;
        let error = outcome.error.as_deref().map(storable);
        let touched = self
            .run_tx("finish_run", async |session| {
                session
                    .execute(
                        "-- finish_run
                        UPDATE reconciliation_run
                        SET finished_at = now(), checked = $2, settled = $3, discrepancies = $4,
                            error = $5
                        WHERE run_id = $1",
                        &[&run, &checked, &settled, &discrepancies, &error],
                    )
                    .await
            })
            .await?;
        if touched == 1 {
            Ok(())
        } else {
            Err(Error::NotFound {
                what: format!("reconciliation run {run}"),
            })
        }
    }
}

const BUCKET_TOTALS: &str = "-- bucket_totals
    WITH stock AS (
        SELECT bucket_id, total, available, sold FROM activity_stock
        WHERE activity_id = $1 AND sku_id = $2 AND version = $3
    ), active AS (
        SELECT bucket_id, sum(quantity)::bigint AS units, count(*) AS orders
        FROM (
            SELECT bucket_id, quantity FROM orders
            WHERE activity_id = $1 AND sku_id = $2 AND version = $3 AND state = 'ACTIVE'
            UNION ALL
            SELECT bucket_id, quantity FROM orders_archive
            WHERE activity_id = $1 AND sku_id = $2 AND version = $3 AND state = 'ACTIVE'
        ) AS o
        GROUP BY bucket_id
    ), journal AS (
        SELECT bucket_id, sum(delta)::bigint AS units
        FROM (
            SELECT bucket_id, delta FROM stock_ledger
            WHERE activity_id = $1 AND sku_id = $2 AND version = $3
            UNION ALL
            SELECT bucket_id, delta FROM stock_ledger_archive
            WHERE activity_id = $1 AND sku_id = $2 AND version = $3
        ) AS l
        GROUP BY bucket_id
    )
    SELECT bucket_id, coalesce(total, 0) AS total, coalesce(available, 0) AS available,
        coalesce(sold, 0) AS sold, coalesce(active.units, 0) AS active_units,
        coalesce(active.orders, 0) AS active_orders, coalesce(journal.units, 0) AS journal_units
    FROM stock
    FULL JOIN active USING (bucket_id)
    FULL JOIN journal USING (bucket_id)
    ORDER BY bucket_id";

/// How often a key that must be unique is not.
///
/// No join: right after a sale the statistics do not know the activity yet, and a join over 10,000
/// orders then took 7 s instead of 6 ms.
const DUPLICATE_ORDERS: &str = "-- duplicate_orders
    WITH version_orders AS (
        SELECT reservation_id, request_id, user_id FROM orders
        WHERE activity_id = $1 AND sku_id = $2 AND version = $3
    ), of_user AS (
        SELECT count(*) - 1 AS surplus
        FROM (
            SELECT user_id, version FROM orders
            WHERE activity_id = $1 AND sku_id = $2 AND state = 'ACTIVE'
            UNION ALL
            SELECT user_id, version FROM orders_archive
            WHERE activity_id = $1 AND sku_id = $2 AND state = 'ACTIVE'
        ) AS o
        GROUP BY user_id HAVING count(*) > 1 AND bool_or(version = $3)
    ), of_reservation AS (
        SELECT count(*) - 1 AS surplus FROM version_orders GROUP BY reservation_id
    ), of_request AS (
        SELECT count(*) - 1 AS surplus FROM version_orders GROUP BY request_id
    )
    SELECT greatest(
        (SELECT coalesce(sum(surplus), 0) FROM of_user),
        (SELECT coalesce(sum(surplus), 0) FROM of_reservation),
        (SELECT coalesce(sum(surplus), 0) FROM of_request)
    )::bigint AS n";
