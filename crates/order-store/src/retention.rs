//! The end of a version's retention: what is still open then, and more time for it.

use std::time::Duration;

use seckill_state_machine::{Activity, ActivityState, Scope, TimestampMs};
use tokio_postgres::Row;

use crate::activities::{activity, activity_columns, record_move};
use crate::audit::RESOLVE;
use crate::pool::Session;
use crate::rows::{ScopeKey, get, millis, number, parse, time_ms, to_time};
use crate::{Error, Store};

/// What a version has open. It may be archived only when there is nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenWork {
    /// Reservations with an open task and no decision.
    pub undecided: u64,
    /// Open compensation tasks, those of `undecided` included.
    pub tasks: u64,
    /// Order events that are not published.
    pub unpublished: u64,
    /// Differences on record.
    pub discrepancies: u64,
    /// Recovery windows. Those of a version whose keys have expired shelter nobody, and nobody looks
    /// after them any more.
    pub windows: u64,
    /// Transfers between buckets.
    pub transfers: u64,
    /// Parked messages that were neither replayed nor discarded.
    pub letters: u64,
}

impl OpenWork {
    /// Whether there is nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl std::fmt::Display for OpenWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} tasks ({} undecided), {} unpublished events, {} differences, {} recovery windows, \
             {} transfers, {} dead letters",
            self.tasks,
            self.undecided,
            self.unpublished,
            self.discrepancies,
            self.windows,
            self.transfers,
            self.letters,
        )
    }
}

const OPEN_WORK: &str = "-- open_work
    SELECT
        (
            SELECT count(*) FROM compensation_task
            WHERE closed_at IS NULL AND activity_id = $1 AND sku_id = $2 AND version = $3
        ) AS tasks,
        (
            SELECT count(*) FROM compensation_task AS t
            WHERE t.closed_at IS NULL
                AND t.activity_id = $1 AND t.sku_id = $2 AND t.version = $3
                AND NOT EXISTS (
                    SELECT FROM reservation_decision AS d
                    WHERE d.reservation_id = t.reservation_id
                )
        ) AS undecided,
        (
            SELECT count(*) FROM outbox
            WHERE published_at IS NULL AND activity_id = $1 AND sku_id = $2 AND version = $3
        ) AS unpublished,
        (
            SELECT count(*) FROM discrepancy
            WHERE resolved_at IS NULL AND activity_id = $1 AND sku_id = $2 AND version = $3
        ) AS discrepancies,
        (
            SELECT count(*)
            FROM recovery_window AS w
            JOIN activity AS a USING (activity_id, sku_id, version)
            WHERE w.opened_at IS NOT NULL AND a.retention_until > now()
                AND w.activity_id = $1 AND w.sku_id = $2 AND w.version = $3
        ) AS windows,
        (
            SELECT count(*) FROM bucket_transfer
            WHERE closed_at IS NULL AND activity_id = $1 AND sku_id = $2 AND version = $3
        ) AS transfers,
        (
            SELECT count(*) FROM dead_letter
            WHERE status = 'OPEN' AND activity_id = $1 AND sku_id = $2 AND version = $3
        ) AS letters";

fn open_work(row: &Row) -> Result<OpenWork, Error> {
    Ok(OpenWork {
        undecided: number(row, "undecided")?,
        tasks: number(row, "tasks")?,
        unpublished: number(row, "unpublished")?,
        discrepancies: number(row, "discrepancies")?,
        windows: number(row, "windows")?,
        transfers: number(row, "transfers")?,
        letters: number(row, "letters")?,
    })
}

/// What a version has open, as a transaction sees it.
pub(crate) async fn read_open_work(session: &Session, scope: &Scope) -> Result<OpenWork, Error> {
    let rows = session
        .query(OPEN_WORK, &ScopeKey::of(scope).params())
        .await?;
    rows.first()
        .map_or_else(|| Ok(OpenWork::default()), open_work)
}

/// What is on record of a version's last looks at Redis, for when its keys can no longer be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastSight {
    /// Whether it was ever on sale. One that was not has never held a unit.
    pub was_on_sale: bool,
    /// What Redis had open when something last was; `None` when that was never put on record.
    pub redis: Option<String>,
    /// Whether the difference that says so is open.
    pub is_open: bool,
    /// Whether a person closed it after the retention had ended.
    pub is_accepted: bool,
}

fn last_sight(row: &Row) -> Result<LastSight, Error> {
    Ok(LastSight {
        was_on_sale: get(row, "was_on_sale")?,
        redis: get(row, "evidence_redis")?,
        is_open: get(row, "is_open")?,
        is_accepted: get(row, "is_accepted")?,
    })
}

// The newest difference decides: a word about an older one was about something else.
const LAST_SIGHT: &str = "-- last_sight
    SELECT
        EXISTS (
            SELECT FROM activity_event AS e
            WHERE e.activity_id = $1 AND e.sku_id = $2 AND e.version = $3
                AND e.to_state = 'ACTIVE'
        ) AS was_on_sale,
        d.evidence_redis,
        d.discrepancy_id IS NOT NULL AND d.resolved_at IS NULL AS is_open,
        d.resolved_at IS NOT NULL AND EXISTS (
            SELECT FROM reconciliation_action AS r
            WHERE r.discrepancy_id = d.discrepancy_id AND r.action = $6
                AND r.happened_at >= a.retention_until
        ) AS is_accepted
    FROM activity AS a
    LEFT JOIN LATERAL (
        SELECT discrepancy_id, evidence_redis, resolved_at
        FROM discrepancy
        WHERE activity_id = $1 AND sku_id = $2 AND version = $3 AND run_kind = $4 AND kind = $5
        ORDER BY discrepancy_id DESC
        LIMIT 1
    ) AS d ON true
    WHERE a.activity_id = $1 AND a.sku_id = $2 AND a.version = $3";

const RETENTION_DUE: &str = concat!(
    "-- retention_due
    SELECT ",
    activity_columns!(),
    " FROM activity
    WHERE archived_at IS NULL AND retention_until <= now() + $1::bigint * interval '1 millisecond'
    ORDER BY retention_until, activity_id, sku_id, version"
);

const EXTEND_RETENTION: &str = "-- extend_retention
    UPDATE activity
    SET retention_until = $4, updated_at = now(), updated_by = 'extend_retention'
    WHERE activity_id = $1 AND sku_id = $2 AND version = $3 AND retention_until < $4";

const LOCK_RETENTION: &str = "-- lock_retention
    SELECT state, retention_until, archived_at IS NOT NULL AS archived
    FROM activity
    WHERE activity_id = $1 AND sku_id = $2 AND version = $3
    FOR NO KEY UPDATE";

/// Whether a version's retention was ever extended. Nothing else is on record as a move from a state
/// to itself.
pub(crate) async fn was_extended(session: &Session, scope: &Scope) -> Result<bool, Error> {
    let rows = session
        .query(
            "-- was_extended
            SELECT FROM activity_event
            WHERE activity_id = $1 AND sku_id = $2 AND version = $3 AND from_state = to_state
            LIMIT 1",
            &ScopeKey::of(scope).params(),
        )
        .await?;
    Ok(!rows.is_empty())
}

impl Store {
    /// What a version has open, in one snapshot.
    ///
    /// # Errors
    /// As every read.
    pub async fn open_work(&self, scope: &Scope) -> Result<OpenWork, Error> {
        let rows = self
            .read("open_work", OPEN_WORK, &ScopeKey::of(scope).params())
            .await?;
        rows.first()
            .map_or_else(|| Ok(OpenWork::default()), open_work)
    }

    /// What is on record of a version under this kind of difference, as this kind of run put it there.
    ///
    /// # Errors
    /// As every read.
    pub async fn last_sight(
        &self,
        scope: &Scope,
        run_kind: &str,
        kind: &str,
    ) -> Result<LastSight, Error> {
        let key = ScopeKey::of(scope);
        let [activity_id, sku_id, version] = key.params();
        let rows = self
            .read(
                "last_sight",
                LAST_SIGHT,
                &[
                    activity_id,
                    sku_id,
                    version,
                    /* run_kind */ &run_kind,
                    /* kind */ &kind,
                    /* action */ &RESOLVE,
                ],
            )
            .await?;
        rows.first()
            .map_or_else(|| Ok(LastSight::default()), last_sight)
    }

    /// The versions that are not archived and whose retention ends within that time, or is over
    /// already: those that [`Store::open_scopes`] is about to forget, or has forgotten.
    ///
    /// # Errors
    /// As every read.
    pub async fn retention_due(&self, within: Duration) -> Result<Vec<Activity>, Error> {
        let within_ms = millis("within", within)?;
        let rows = self
            .read("retention_due", RETENTION_DUE, &[/* within */ &within_ms])
            .await?;
        rows.iter().map(activity).collect()
    }

    /// Moves the end of a version's retention forward, never back, and returns where it is then. The
    /// extension is on record with the moves of the activity's state.
    ///
    /// # Errors
    /// `NotFound` for an unknown version, `Conflict` for an archived one, `Invalid` without a named
    /// actor; else as every write.
    pub async fn extend_retention(
        &self,
        scope: &Scope,
        until: TimestampMs,
        actor: &str,
        reason: &str,
    ) -> Result<TimestampMs, Error> {
        if actor.is_empty() {
            return Err(Error::invalid("actor", "must be named"));
        }
        let until_time = to_time("until", until)?;
        self.run_tx("extend_retention", async |session| {
            let key = ScopeKey::of(scope);
            let rows = session.query(LOCK_RETENTION, &key.params()).await?;
            let Some(row) = rows.first() else {
                return Err(Error::NotFound {
                    what: format!("activity {scope}"),
                });
            };
            if get(row, "archived")? {
                return Err(Error::Conflict(format!("activity {scope} is archived")));
            }
            let before = time_ms(row, "retention_until")?;
            let [activity_id, sku_id, version] = key.params();
            let moved = session
                .execute(
                    EXTEND_RETENTION,
                    &[activity_id, sku_id, version, /* until */ &until_time],
                )
                .await?;
            if moved == 0 {
                return Ok(before);
            }
            let state: ActivityState = parse(row, "state")?;
            let told = format!("retention extended to {until_time}: {reason}");
            record_move(session, scope, Some(state), state, actor, &told).await?;
            Ok(until)
        })
        .await
    }
}
