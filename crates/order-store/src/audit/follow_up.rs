//! What follows from a difference about one reservation: its release is handed over, it is seen
//! again, or it is gone because the two sides agree.

use seckill_state_machine::{BucketScope, OrderRequest, ReservationId};
use tokio_postgres::types::ToSql;

use super::Discrepancy;
use super::discrepancies::{FoundColumns, found_rows};
use crate::pool::Reruns;
use crate::rows::{get, version};
use crate::tasks::{self, Opening};
use crate::{Claim, Error, Store, TaskOrigin};

impl Store {
    /// Opens the task of a reservation that Redis still holds although it was given up. One that is open
    /// already keeps its time, so this may be repeated at any time; if a worker is busy with it, it gets
    /// the next generation, since that worker may have looked before Redis lost what it had done.
    /// `own` is the claim under which the caller itself works on the task.
    ///
    /// # Errors
    /// As every write.
    pub async fn hand_over(&self, request: &OrderRequest, own: Option<Claim>) -> Result<(), Error> {
        let opening = Opening::unless_open(TaskOrigin::HeldAgain, 0, "hand_over");
        let opening = opening.outdating_others(own);
        self.run_tx("hand_over", async |session| {
            tasks::open(session, &[request], &opening).await?;
            Ok(())
        })
        .await
    }

    /// Notes that differences which are open on record, under this kind of run, are still there.
    /// Returns those that are not on record.
    ///
    /// # Errors
    /// As every write.
    pub async fn see_again(
        &self,
        run_kind: &str,
        found: &[Discrepancy],
    ) -> Result<Vec<Discrepancy>, Error> {
        let columns = FoundColumns::of(found.iter());
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![/* run_kind */ &run_kind];
        params.extend(columns.params());
        let mut reruns = Reruns::default();
        let rows = loop {
            let outcome = self
                .run_tx("see_again", async |session| {
                    session.query(SEE_AGAIN, &params).await
                })
                .await;
            if !reruns.again(&outcome) {
                break outcome?;
            }
        };
        let mut known = std::collections::HashSet::new();
        for row in &rows {
            known.insert(get::<i64>(row, "n")?);
        }
        let new = (1..).zip(found).filter(|(n, _)| !known.contains(n));
        Ok(new.map(|(_, found)| found.clone()).collect())
    }

    /// Closes what these kinds of runs have open about a reservation; says how many there were.
    ///
    /// # Errors
    /// As every read and every write.
    pub async fn resolve_reservation(
        &self,
        run_kinds: &[&str],
        bucket: &BucketScope,
        reservation_id: &ReservationId,
    ) -> Result<u64, Error> {
        let (scope, bucket_id) = (&bucket.scope, i64::from(bucket.bucket_id.get()));
        let (activity_id, sku_id) = (scope.activity_id.as_str(), scope.sku_id.as_str());
        let (version, id) = (version(scope), reservation_id.as_str());
        let params: [&(dyn ToSql + Sync); 6] = [
            /* activity_id */ &activity_id,
            /* sku_id */ &sku_id,
            /* version */ &version,
            /* bucket_id */ &bucket_id,
            /* run_kinds */ &run_kinds,
            /* reservation_id */ &id,
        ];
        // Almost always there is nothing, and a look costs a third of a transaction.
        if self.count("open_about", OPEN_ABOUT, &params).await? == 0 {
            return Ok(0);
        }
        self.run_tx("resolve_reservation", async |session| {
            session.execute(RESOLVE_RESERVATION, &params).await
        })
        .await
    }
}

// Rows are locked in the order of their numbers first, as by every statement that meets several.
const SEE_AGAIN: &str = concat!(
    "-- see_again
    WITH met AS (
        SELECT d.discrepancy_id, r.n, r.detail, r.evidence_redis, r.evidence_postgres, r.repair,
            r.repairable
        FROM ",
    found_rows!(),
    "
        JOIN discrepancy AS d
            ON d.activity_id = r.activity_id AND d.sku_id = r.sku_id AND d.version = r.version
            AND d.bucket_id = r.bucket_id AND d.kind = r.kind
            AND d.reservation_id IS NOT DISTINCT FROM r.reservation_id
        WHERE d.resolved_at IS NULL AND d.run_kind = $1
        ORDER BY d.discrepancy_id
        FOR UPDATE OF d
    )
    UPDATE discrepancy AS d
    SET last_seen_at = now(), times_seen = d.times_seen + 1, detail = met.detail,
        evidence_redis = met.evidence_redis, evidence_postgres = met.evidence_postgres,
        repair = met.repair, repairable = met.repairable
    FROM met
    WHERE d.discrepancy_id = met.discrepancy_id
    RETURNING met.n"
);

const OPEN_ABOUT: &str = "-- open_about
    SELECT count(*) AS n
    FROM discrepancy
    WHERE resolved_at IS NULL AND activity_id = $1 AND sku_id = $2 AND version = $3
        AND bucket_id = $4 AND run_kind = ANY($5::text[]) AND reservation_id = $6";

const RESOLVE_RESERVATION: &str = "-- resolve_reservation
    UPDATE discrepancy
    SET resolved_at = now()
    WHERE resolved_at IS NULL AND activity_id = $1 AND sku_id = $2 AND version = $3
        AND bucket_id = $4 AND run_kind = ANY($5::text[]) AND reservation_id = $6";
