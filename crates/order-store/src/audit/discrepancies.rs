//! Differences on record: one row each for as long as it lasts, with what either side said and what
//! would mend it.

use std::borrow::Cow;
use std::time::Duration;

use seckill_state_machine::{BucketId, BucketScope, ReservationId, Scope, TimestampMs};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::decide::BucketColumns;
use crate::pool::{Reruns, Session};
use crate::rows::{
    ScopeFilter, bucket, get, millis, number, parse, parse_opt, storable, time_ms, time_ms_opt,
};
use crate::{Error, Store};

/// Most rows of one page.
const PAGE_MAX: i64 = 10_000;

/// Who can mend a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Repairable {
    /// The services do, by themselves.
    Automatic,
    /// A person applies a repair that is known.
    Operator,
    /// No repair is known: a person has to look.
    #[default]
    None,
}

impl Repairable {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Automatic, Self::Operator, Self::None];

    /// The word that PostgreSQL stores.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Automatic => "AUTOMATIC",
            Self::Operator => "OPERATOR",
            Self::None => "NONE",
        }
    }
}

/// A word that names no kind of repair.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown word for who repairs")]
pub struct UnknownRepairable;

impl std::str::FromStr for Repairable {
    type Err = UnknownRepairable;
    fn from_str(text: &str) -> Result<Self, UnknownRepairable> {
        Self::ALL
            .into_iter()
            .find(|repairable| repairable.as_str() == text)
            .ok_or(UnknownRepairable)
    }
}

/// A difference between the stores.
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
    /// What Redis said. Never a user id.
    pub evidence_redis: String,
    /// What PostgreSQL said. Never a user id.
    pub evidence_postgres: String,
    /// A word for what would mend it; empty when nothing is known to.
    pub repair: String,
    /// Who can mend it.
    pub repairable: Repairable,
}

impl Discrepancy {
    /// A difference that a person has to look at, without evidence yet.
    #[must_use]
    pub fn new(
        kind: &str,
        bucket: BucketScope,
        reservation_id: Option<ReservationId>,
        detail: String,
    ) -> Self {
        Self {
            kind: kind.to_owned(),
            bucket,
            reservation_id,
            detail,
            evidence_redis: String::new(),
            evidence_postgres: String::new(),
            repair: String::new(),
            repairable: Repairable::None,
        }
    }

    /// The same with what either side said.
    #[must_use]
    pub fn with_evidence(self, redis: String, postgres: String) -> Self {
        Self {
            evidence_redis: redis,
            evidence_postgres: postgres,
            ..self
        }
    }

    /// The same with what would mend it.
    #[must_use]
    pub fn with_repair(self, repair: &str, repairable: Repairable) -> Self {
        Self {
            repair: repair.to_owned(),
            repairable,
            ..self
        }
    }
}

/// A difference on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Its number, by which operators name it.
    pub id: i64,
    /// The kind of run that found it.
    pub run_kind: String,
    /// What differs.
    pub discrepancy: Discrepancy,
    /// When it was put on record.
    pub first_seen_at_ms: TimestampMs,
    /// When it was seen last.
    pub last_seen_at_ms: TimestampMs,
    /// How often it was seen.
    pub times_seen: u64,
    /// When it was gone.
    pub resolved_at_ms: Option<TimestampMs>,
}

/// Which differences to list. Everything that is left empty lets all pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiscrepancyFilter {
    /// Of this version.
    pub scope: Option<Scope>,
    /// Of this kind.
    pub kind: Option<String>,
    /// Found by this kind of run.
    pub run_kind: Option<String>,
    /// About this reservation.
    pub reservation_id: Option<ReservationId>,
    /// After this number, for paging.
    pub after: Option<i64>,
}

macro_rules! recorded_columns {
    () => {
        "discrepancy_id, run_kind, kind, activity_id, sku_id, version, bucket_id, reservation_id,
        detail, evidence_redis, evidence_postgres, repair, repairable, first_seen_at,
        last_seen_at, times_seen, resolved_at"
    };
}

fn recorded(row: &Row) -> Result<Recorded, Error> {
    Ok(Recorded {
        id: get(row, "discrepancy_id")?,
        run_kind: get(row, "run_kind")?,
        discrepancy: Discrepancy {
            kind: get(row, "kind")?,
            bucket: bucket(row)?,
            reservation_id: parse_opt(row, "reservation_id")?,
            detail: get(row, "detail")?,
            evidence_redis: get(row, "evidence_redis")?,
            evidence_postgres: get(row, "evidence_postgres")?,
            repair: get(row, "repair")?,
            repairable: parse(row, "repairable")?,
        },
        first_seen_at_ms: time_ms(row, "first_seen_at")?,
        last_seen_at_ms: time_ms(row, "last_seen_at")?,
        times_seen: number(row, "times_seen")?,
        resolved_at_ms: time_ms_opt(row, "resolved_at")?,
    })
}

impl Store {
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
        let mut reruns = Reruns::default();
        loop {
            let outcome = self
                .run_tx("record_discrepancies", async |session| {
                    insert_discrepancies(session, run, &found).await
                })
                .await;
            if !reruns.again(&outcome) {
                return outcome;
            }
        }
    }

    /// Closes the open differences that a finished run of the same kind and scope did not see again.
    /// One that anybody saw within `margin` before the run was put on record stays: the run may have
    /// looked before it came up. So does one of a kind that the run could not judge in that bucket, by
    /// `unjudged`. Returns how many were closed and how many are still open.
    ///
    /// # Errors
    /// As every write.
    pub async fn resolve_unseen(
        &self,
        run: Uuid,
        margin: Duration,
        unjudged: &[(BucketId, &str)],
    ) -> Result<(u64, u64), Error> {
        let margin_ms = millis("margin", margin)?;
        let (buckets, kinds): (Vec<i64>, Vec<&str>) = unjudged
            .iter()
            .map(|(bucket, kind)| (i64::from(bucket.get()), *kind))
            .unzip();
        let mut reruns = Reruns::default();
        loop {
            let outcome = self
                .run_tx("resolve_unseen", async |session| {
                    let closed = session
                        .execute(
                            RESOLVE_UNSEEN,
                            &[&run, /* margin_ms */ &margin_ms, &buckets, &kinds],
                        )
                        .await?;
                    let rows = session.query(OPEN_OF_RUN_KIND, &[&run]).await?;
                    let open = rows.first().map_or(Ok(0), |row| number(row, "n"))?;
                    Ok((closed, open))
                })
                .await;
            if !reruns.again(&outcome) {
                return outcome;
            }
        }
    }

    /// Open differences by number, the oldest first; at most 10,000 a page.
    ///
    /// # Errors
    /// As every read.
    pub async fn open_discrepancies(
        &self,
        filter: &DiscrepancyFilter,
        limit: i64,
    ) -> Result<Vec<Recorded>, Error> {
        let scope = ScopeFilter::from(filter.scope.as_ref());
        let reservation_id = filter.reservation_id.as_ref().map(ReservationId::as_str);
        let rows = self
            .read(
                "open_discrepancies",
                OPEN_DISCREPANCIES,
                &[
                    /* activity_id */ &scope.activity_id,
                    /* sku_id */ &scope.sku_id,
                    /* version */ &scope.version,
                    /* kind */ &filter.kind,
                    /* run_kind */ &filter.run_kind,
                    /* reservation_id */ &reservation_id,
                    /* after */ &filter.after.unwrap_or(0),
                    /* limit */ &limit.min(PAGE_MAX),
                ],
            )
            .await?;
        rows.iter().map(recorded).collect()
    }

    /// One difference by its number, open or gone.
    ///
    /// # Errors
    /// As every read.
    pub async fn discrepancy(&self, id: i64) -> Result<Option<Recorded>, Error> {
        let rows = self
            .read("discrepancy", DISCREPANCY, &[/* discrepancy_id */ &id])
            .await?;
        rows.first().map(recorded).transpose()
    }
}

/// Differences, one array a column.
pub(super) struct FoundColumns<'a> {
    pub kind: Vec<&'a str>,
    pub detail: Vec<Cow<'a, str>>,
    pub buckets: BucketColumns<'a>,
    pub reservation_id: Vec<Option<&'a str>>,
    pub evidence_redis: Vec<Cow<'a, str>>,
    pub evidence_postgres: Vec<Cow<'a, str>>,
    pub repair: Vec<&'a str>,
    pub repairable: Vec<&'static str>,
}

impl<'a> FoundColumns<'a> {
    pub(super) fn of(found: impl Iterator<Item = &'a Discrepancy> + Clone) -> Self {
        let reservations = found.clone().map(|d| d.reservation_id.as_ref());
        Self {
            kind: found.clone().map(|d| d.kind.as_str()).collect(),
            detail: found.clone().map(|d| storable(&d.detail)).collect(),
            buckets: BucketColumns::of(found.clone().map(|d| &d.bucket)),
            reservation_id: reservations
                .map(|id| id.map(ReservationId::as_str))
                .collect(),
            evidence_redis: found.clone().map(|d| storable(&d.evidence_redis)).collect(),
            evidence_postgres: found
                .clone()
                .map(|d| storable(&d.evidence_postgres))
                .collect(),
            repair: found.clone().map(|d| d.repair.as_str()).collect(),
            repairable: found.map(|d| d.repairable.as_str()).collect(),
        }
    }

    /// Eleven parameters, in the order of `found_rows!`.
    pub(super) fn params(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 11] {
        [
            &self.kind,
            &self.detail,
            &self.buckets.activity_id,
            &self.buckets.sku_id,
            &self.buckets.version,
            &self.buckets.bucket_id,
            &self.reservation_id,
            &self.evidence_redis,
            &self.evidence_postgres,
            &self.repair,
            &self.repairable,
        ]
    }
}

/// The columns of [`FoundColumns`] as rows `r`, numbered by `n`; `$1` is the statement's own.
macro_rules! found_rows {
    () => {
        "unnest(
            $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::text[],
            $9::text[], $10::text[], $11::text[], $12::text[]
        ) WITH ORDINALITY AS r (
            kind, detail, activity_id, sku_id, version, bucket_id, reservation_id, evidence_redis,
            evidence_postgres, repair, repairable, n
        )"
    };
}
pub(super) use found_rows;

async fn insert_discrepancies(
    session: &Session,
    run: Uuid,
    found: &[&Discrepancy],
) -> Result<u64, Error> {
    let columns = FoundColumns::of(found.iter().copied());
    let mut params: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> = vec![/* run_id */ &run];
    params.extend(columns.params());
    let rows = session.query(RECORD_DISCREPANCIES, &params).await?;
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

const RECORD_DISCREPANCIES: &str = concat!(
    "-- record_discrepancies
    INSERT INTO discrepancy AS d (
        run_kind, kind, detail, activity_id, sku_id, version, bucket_id, reservation_id,
        evidence_redis, evidence_postgres, repair, repairable, first_run_id, last_run_id
    )
    SELECT run.kind, r.kind, r.detail, r.activity_id, r.sku_id, r.version, r.bucket_id,
        r.reservation_id, r.evidence_redis, r.evidence_postgres, r.repair, r.repairable,
        run.run_id, run.run_id
    FROM reconciliation_run AS run,
        ",
    found_rows!(),
    "
    WHERE run.run_id = $1
    ORDER BY r.n
    ON CONFLICT (
        activity_id, sku_id, version, bucket_id, run_kind, kind, reservation_id
    ) WHERE resolved_at IS NULL
    DO UPDATE
    SET last_run_id = excluded.last_run_id, last_seen_at = now(),
        times_seen = d.times_seen + 1, detail = excluded.detail,
        evidence_redis = excluded.evidence_redis,
        evidence_postgres = excluded.evidence_postgres, repair = excluded.repair,
        repairable = excluded.repairable
    RETURNING times_seen = 1 AS is_new"
);

const RESOLVE_UNSEEN: &str = "-- resolve_unseen
    WITH unseen AS (
        SELECT d.discrepancy_id
        FROM discrepancy AS d, reconciliation_run AS r
        WHERE r.run_id = $1 AND r.finished_at IS NOT NULL AND r.error IS NULL
            AND d.resolved_at IS NULL AND d.last_run_id <> r.run_id
            AND d.last_seen_at < r.started_at - $2::bigint * interval '1 millisecond'
            AND d.run_kind = r.kind
            AND (
                r.activity_id IS NULL
                OR (d.activity_id, d.sku_id, d.version) = (r.activity_id, r.sku_id, r.version)
            )
            AND NOT EXISTS (
                SELECT FROM unnest($3::bigint[], $4::text[]) AS u (bucket_id, kind)
                WHERE u.bucket_id = d.bucket_id AND u.kind = d.kind
            )
        ORDER BY d.discrepancy_id
        FOR UPDATE OF d
    )
    UPDATE discrepancy AS d
    SET resolved_at = now()
    FROM unseen
    WHERE d.discrepancy_id = unseen.discrepancy_id";

const OPEN_OF_RUN_KIND: &str = "-- open_of_run_kind
    SELECT count(*) AS n
    FROM discrepancy AS d, reconciliation_run AS r
    WHERE r.run_id = $1 AND d.resolved_at IS NULL AND d.run_kind = r.kind
        AND (
            r.activity_id IS NULL
            OR (d.activity_id, d.sku_id, d.version) = (r.activity_id, r.sku_id, r.version)
        )";

const OPEN_DISCREPANCIES: &str = concat!(
    "-- open_discrepancies
    SELECT ",
    recorded_columns!(),
    " FROM discrepancy
    WHERE resolved_at IS NULL AND discrepancy_id > $7
        AND ($1::text IS NULL OR (activity_id = $1 AND sku_id = $2 AND version = $3))
        AND ($4::text IS NULL OR kind = $4)
        AND ($5::text IS NULL OR run_kind = $5)
        AND ($6::text IS NULL OR reservation_id = $6)
    ORDER BY discrepancy_id
    LIMIT $8"
);

const DISCREPANCY: &str = concat!(
    "-- discrepancy
    SELECT ",
    recorded_columns!(),
    " FROM discrepancy WHERE discrepancy_id = $1"
);
