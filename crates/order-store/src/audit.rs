//! What the audit and the reconciler read, and where they record what they found.
//!
//! The constraints make most of these differences impossible. They are counted all the same: an
//! audit that trusts what it audits proves nothing.

mod follow_up;

use std::time::Duration;

use seckill_state_machine::{BucketId, BucketScope, ReservationId, Scope};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::facts::decision_record;
use crate::rows::{
    ScopeFilter, ScopeKey, bucket, bucket_id, count, get, millis, number, parse_opt, version,
};
use crate::{DecisionRecord, Error, Store};

/// Most rows of one page.
const PAGE_MAX: i64 = 10_000;

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

/// A difference that no rule can settle by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discrepancy {
    /// A lower-case word that names the kind.
    pub kind: String,
    /// Where.
    pub bucket: BucketScope,
    /// Which reservation, unless the bucket as a whole.
    pub reservation_id: Option<ReservationId>,
    /// Both sides' values, for a person. Never a user id.
    pub detail: String,
}

impl Store {
    /// Totals of each bucket, in one snapshot. A bucket that only has orders is there as well, with
    /// a total of 0.
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

    /// Decisions of a version by reservation id, after a given one; at most 10,000 a page.
    ///
    /// # Errors
    /// As every read.
    pub async fn decisions_page(
        &self,
        scope: &Scope,
        after: Option<&ReservationId>,
        limit: i64,
    ) -> Result<Vec<DecisionRecord>, Error> {
        let rows = self
            .read(
                "decisions_page",
                "-- decisions_page
                SELECT d.*, o.order_id, o.state AS order_state
                FROM reservation_decision AS d
                LEFT JOIN orders AS o ON o.reservation_id = d.reservation_id
                WHERE d.activity_id = $1 AND d.sku_id = $2 AND d.version = $3
                    AND d.reservation_id > $4
                ORDER BY d.reservation_id
                LIMIT $5",
                &[
                    /* activity_id */ &scope.activity_id.as_str(),
                    /* sku_id */ &scope.sku_id.as_str(),
                    /* version */ &version(scope),
                    /* after */ &after.map_or("", ReservationId::as_str),
                    /* limit */ &limit.min(PAGE_MAX),
                ],
            )
            .await?;
        rows.iter().map(decision_record).collect()
    }

    /// Orders too many: active ones beyond one a user of the activity's SKU, and any beyond one a
    /// reservation or a request of this version.
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

    /// `ORDERED` decisions of a version without an order, and orders without such a decision.
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
            ) AS d
            FULL JOIN (
                SELECT reservation_id FROM orders
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
        let touched = self
            .run_tx("finish_run", async |session| {
                session
                    .execute(
                        "-- finish_run
                        UPDATE reconciliation_run
                        SET finished_at = now(), checked = $2, settled = $3, discrepancies = $4,
                            error = $5
                        WHERE run_id = $1",
                        &[&run, &checked, &settled, &discrepancies, &outcome.error],
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

    /// Records differences that a run found; one that is open already is seen once more. Returns
    /// how many are new.
    ///
    /// # Errors
    /// As every write; `NotFound` for an unknown run.
    pub async fn record_discrepancies(
        &self,
        run: Uuid,
        found: &[Discrepancy],
    ) -> Result<u64, Error> {
        // One row a key, or the statement would meet its own rows; the last description wins.
        let mut unique = std::collections::BTreeMap::new();
        for discrepancy in found {
            let key = (
                &discrepancy.bucket,
                &discrepancy.kind,
                &discrepancy.reservation_id,
            );
            unique.insert(key, discrepancy);
        }
        let found: Vec<&Discrepancy> = unique.into_values().collect();
        if found.is_empty() {
            return Ok(0);
        }
        self.run_tx("record_discrepancies", async |session| {
            insert_discrepancies(session, run, &found).await
        })
        .await
    }

    /// Closes the open differences that a finished run of the same kind and scope did not see again.
    /// One that anybody saw within `margin` before the run was put on record stays: the run may have
    /// looked before it came up. Returns how many were closed and how many are still open.
    ///
    /// # Errors
    /// As every write.
    pub async fn resolve_unseen(&self, run: Uuid, margin: Duration) -> Result<(u64, u64), Error> {
        let margin_ms = millis("margin", margin)?;
        self.run_tx("resolve_unseen", async |session| {
            let closed = session
                .execute(RESOLVE_UNSEEN, &[&run, /* margin_ms */ &margin_ms])
                .await?;
            let rows = session.query(OPEN_OF_RUN_KIND, &[&run]).await?;
            let open = rows.first().map_or(Ok(0), |row| number(row, "n"))?;
            Ok((closed, open))
        })
        .await
    }

    /// Open differences, of one version or of all, the oldest first; at most 10,000.
    ///
    /// # Errors
    /// As every read.
    pub async fn open_discrepancies(
        &self,
        scope: Option<&Scope>,
        limit: i64,
    ) -> Result<Vec<Discrepancy>, Error> {
        let filter = ScopeFilter::from(scope);
        let rows = self
            .read(
                "open_discrepancies",
                "-- open_discrepancies
                SELECT * FROM discrepancy
                WHERE resolved_at IS NULL
                    AND ($1::text IS NULL OR (activity_id = $1 AND sku_id = $2 AND version = $3))
                ORDER BY discrepancy_id
                LIMIT $4",
                &[
                    /* activity_id */ &filter.activity_id,
                    /* sku_id */ &filter.sku_id,
                    /* version */ &filter.version,
                    /* limit */ &limit.min(PAGE_MAX),
                ],
            )
            .await?;
        let discrepancy = |row: &Row| {
            Ok(Discrepancy {
                kind: get(row, "kind")?,
                bucket: bucket(row)?,
                reservation_id: parse_opt(row, "reservation_id")?,
                detail: get(row, "detail")?,
            })
        };
        rows.iter().map(discrepancy).collect()
    }
}

/// Differences, one array a column.
struct FoundColumns<'a> {
    kind: Vec<&'a str>,
    detail: Vec<&'a str>,
    activity_id: Vec<&'a str>,
    sku_id: Vec<&'a str>,
    version: Vec<i64>,
    bucket_id: Vec<i64>,
    reservation_id: Vec<Option<&'a str>>,
}

impl<'a> FoundColumns<'a> {
    fn of(found: impl Iterator<Item = &'a Discrepancy> + Clone) -> Self {
        let scopes = || found.clone().map(|d| &d.bucket.scope);
        let buckets = found.clone().map(|d| i64::from(d.bucket.bucket_id.get()));
        let reservations = found.clone().map(|d| d.reservation_id.as_ref());
        Self {
            kind: found.clone().map(|d| d.kind.as_str()).collect(),
            detail: found.clone().map(|d| d.detail.as_str()).collect(),
            activity_id: scopes().map(|s| s.activity_id.as_str()).collect(),
            sku_id: scopes().map(|s| s.sku_id.as_str()).collect(),
            version: scopes().map(version).collect(),
            bucket_id: buckets.collect(),
            reservation_id: reservations
                .map(|id| id.map(ReservationId::as_str))
                .collect(),
        }
    }
}

async fn insert_discrepancies(
    session: &crate::pool::Session,
    run: Uuid,
    found: &[&Discrepancy],
) -> Result<u64, Error> {
    let columns = FoundColumns::of(found.iter().copied());
    let rows = session
        .query(
            "-- record_discrepancies
            INSERT INTO discrepancy AS d (
                run_kind, kind, detail, activity_id, sku_id, version, bucket_id, reservation_id,
                first_run_id, last_run_id
            )
            SELECT run.kind, r.*, run.run_id, run.run_id
            FROM reconciliation_run AS run,
                unnest(
                    $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[],
                    $8::text[]
                ) AS r (kind, detail, activity_id, sku_id, version, bucket_id, reservation_id)
            WHERE run.run_id = $1
            ON CONFLICT (
                activity_id, sku_id, version, bucket_id, run_kind, kind, reservation_id
            ) WHERE resolved_at IS NULL
            DO UPDATE
            SET last_run_id = excluded.last_run_id, last_seen_at = now(),
                times_seen = d.times_seen + 1, detail = excluded.detail
            RETURNING times_seen = 1 AS is_new",
            &[
                /* run_id */ &run,
                &columns.kind,
                &columns.detail,
                &columns.activity_id,
                &columns.sku_id,
                &columns.version,
                &columns.bucket_id,
                &columns.reservation_id,
            ],
        )
        .await?;
    if rows.len() != found.len() {
        return Err(Error::NotFound {
            what: format!("reconciliation run {run}"),
        });
    }
    let mut new = 0;
    for row in &rows {
        new += u64::from(get::<bool>(row, "is_new")?);
    }
    Ok(new)
}

const RESOLVE_UNSEEN: &str = "-- resolve_unseen
    UPDATE discrepancy AS d
    SET resolved_at = now()
    FROM reconciliation_run AS r
    WHERE r.run_id = $1 AND r.finished_at IS NOT NULL AND r.error IS NULL
        AND d.resolved_at IS NULL AND d.last_run_id <> r.run_id
        AND d.last_seen_at < r.started_at - $2::bigint * interval '1 millisecond'
        AND d.run_kind = r.kind
        AND (
            r.activity_id IS NULL
            OR (d.activity_id, d.sku_id, d.version) = (r.activity_id, r.sku_id, r.version)
        )";

const OPEN_OF_RUN_KIND: &str = "-- open_of_run_kind
    SELECT count(*) AS n
    FROM discrepancy AS d, reconciliation_run AS r
    WHERE r.run_id = $1 AND d.resolved_at IS NULL AND d.run_kind = r.kind
        AND (
            r.activity_id IS NULL
            OR (d.activity_id, d.sku_id, d.version) = (r.activity_id, r.sku_id, r.version)
        )";

const BUCKET_TOTALS: &str = "-- bucket_totals
    WITH stock AS (
        SELECT bucket_id, total, available, sold FROM activity_stock
        WHERE activity_id = $1 AND sku_id = $2 AND version = $3
    ), active AS (
        SELECT bucket_id, sum(quantity)::bigint AS units, count(*) AS orders FROM orders
        WHERE activity_id = $1 AND sku_id = $2 AND version = $3 AND state = 'ACTIVE'
        GROUP BY bucket_id
    ), journal AS (
        SELECT bucket_id, sum(delta)::bigint AS units FROM stock_ledger
        WHERE activity_id = $1 AND sku_id = $2 AND version = $3
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
        SELECT count(*) - 1 AS surplus FROM orders
        WHERE activity_id = $1 AND sku_id = $2 AND state = 'ACTIVE'
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
