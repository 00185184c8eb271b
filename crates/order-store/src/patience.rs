//! Patience with undecided reservations, and the time that it does not count.
//!
//! The key idea: patience runs only between two sightings of health that are at most `max_gap`
//! apart. Whatever lies between two that are further apart is a standstill: the broker or every
//! consumer was down, or nobody looked. A sighting of health is proof whoever had it, and a watcher
//! that sees none may be cut off itself; so any number of watchers share one row, a watcher that dies
//! while it sees nothing holds nothing up, and an outage shorter than `max_gap` is part of patience.
//!
//! Ages are taken by PostgreSQL's clock alone. A reservation that says to have been accepted in the
//! future, as one may after the clock of its Redis was set back, has its whole patience from then on. It judges nothing for good: the release fence decides
//! between an order and a release, and this only decides when the fence is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use seckill_state_machine::{OrderRequest, ReservationId};
use tokio_postgres::Row;

use crate::decide::Columns;
use crate::facts::IDS_MAX;
use crate::pool::Session;
use crate::rows::{get, millis, parse, storable};
use crate::tasks::{self, Opening};
use crate::{CompensationTask, Error, Store, TaskOrigin};

/// How long an undecided reservation is left alone when its activity is not known here.
pub(crate) const PATIENCE_DEFAULT_MS: i64 = 15 * 60 * 1_000;

/// What a watcher saw of the broker and its consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchNote<'a> {
    /// Whether the broker answers and a consumer is alive.
    pub healthy: bool,
    /// What ails, when it is not; a few words for a person.
    pub cause: &'a str,
    /// How far apart two sightings of health may be for the time between them to count: a few times
    /// the watchers' interval, and far less than any patience.
    pub max_gap: Duration,
}

/// What became of a reservation that was thought to be overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overdue {
    /// Its task is open now, by this call.
    Opened,
    /// Its task was open.
    AlreadyOpen,
    /// It was decided meanwhile: settle it.
    Decided,
    /// It is not overdue yet.
    Patient {
        /// What is left of its patience, in milliseconds that count.
        for_ms: i64,
    },
}

impl Store {
    /// Notes what a watcher saw. Every reconciler may do so, as often as it likes.
    ///
    /// # Errors
    /// As every write; a note that is lost is one look less.
    pub async fn note_watch(&self, note: &WatchNote<'_>) -> Result<(), Error> {
        let max_gap_ms = millis("max_gap", note.max_gap)?;
        self.run_tx("note_watch", async |session| {
            // Whatever follows in this transaction is alone with the row.
            session.query(LOCK_WATCH, &[]).await?;
            if !note.healthy {
                session
                    .execute(
                        NOTE_ILLNESS,
                        &[
                            /* max_gap_ms */ &max_gap_ms,
                            /* cause */ &storable(note.cause),
                        ],
                    )
                    .await?;
                return Ok(());
            }
            let rows = session
                .query(NOTE_HEALTH, &[/* max_gap_ms */ &max_gap_ms])
                .await?;
            if rows
                .first()
                .map_or(Ok(false), |row| get(row, "stood_still"))?
            {
                session.execute(FORGET_STANDSTILLS, &[]).await?;
            }
            Ok(())
        })
        .await
    }

    /// What patience stands still for right now, if it does.
    ///
    /// # Errors
    /// As every read.
    pub async fn standstill_now(&self) -> Result<Option<String>, Error> {
        let rows = self.read("standstill_now", STANDSTILL_NOW, &[]).await?;
        rows.first().map(|row| get(row, "cause")).transpose()
    }

    /// What is left of the patience with a parked message's reservation before it may be fenced;
    /// `None` when nothing is, when it is decided, or when the task was opened for another reason. It
    /// counts from the parking, and stands still with everybody's: a message that was parked before an
    /// outage can be replayed after it.
    ///
    /// # Errors
    /// As every read.
    pub async fn patience_left(&self, task: &CompensationTask) -> Result<Option<Duration>, Error> {
        if task.origin != TaskOrigin::Parked {
            return Ok(None);
        }
        let rows = self
            .read(
                "patience_left",
                PATIENCE_LEFT,
                &[
                    /* reservation_id */ &task.request.reservation_id.as_str(),
                    /* patience_default_ms */ &PATIENCE_DEFAULT_MS,
                ],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let left_ms: i64 = get(row, "left_ms")?;
        let waits = left_ms > 0 && !get::<bool>(row, "decided")?;
        Ok(waits.then(|| Duration::from_millis(left_ms.unsigned_abs())))
    }

    /// Opens the tasks of reservations that nobody has decided within their activity's patience.
    /// The answers are in the order of the requests.
    ///
    /// Everything is looked at again in this one transaction, so a decision that was made since the
    /// caller looked wins. One that is made afterwards wins at the fence.
    ///
    /// # Errors
    /// `Invalid` for more requests than a page of an index has; else as every write.
    pub async fn hand_over_overdue(
        &self,
        requests: &[OrderRequest],
    ) -> Result<Vec<Overdue>, Error> {
        if requests.len() > IDS_MAX {
            return Err(Error::invalid("requests", format!("more than {IDS_MAX}")));
        }
        let mut seen = BTreeSet::new();
        let unique: Vec<&OrderRequest> = requests
            .iter()
            .filter(|request| seen.insert(&request.reservation_id))
            .collect();
        if unique.is_empty() {
            return Ok(Vec::new());
        }
        let verdicts = self
            .run_tx("hand_over_overdue", async |session| {
                hand_over(session, &unique).await
            })
            .await?;
        requests
            .iter()
            .map(|request| verdicts.get(&request.reservation_id).copied())
            .collect::<Option<Vec<Overdue>>>()
            .ok_or_else(|| Error::stored("reservation_id", "an answer is missing"))
    }
}

async fn hand_over(
    session: &Session,
    unique: &[&OrderRequest],
) -> Result<BTreeMap<ReservationId, Overdue>, Error> {
    let mut verdicts = judge(session, unique).await?;
    let overdue: Vec<&OrderRequest> = unique
        .iter()
        .copied()
        .filter(|request| verdicts.get(&request.reservation_id) == Some(&Overdue::Opened))
        .collect();
    let opening = Opening::unless_open(TaskOrigin::Overdue, 0, "hand_over_overdue");
    let opened = tasks::open(session, &overdue, &opening).await?;
    for request in overdue {
        if !opened.contains(&request.reservation_id) {
            // Another process handed it over after this one had looked.
            verdicts.insert(request.reservation_id.clone(), Overdue::AlreadyOpen);
        }
    }
    Ok(verdicts)
}

async fn judge(
    session: &Session,
    unique: &[&OrderRequest],
) -> Result<BTreeMap<ReservationId, Overdue>, Error> {
    let columns = Columns::of(unique);
    let rows = session
        .query(
            JUDGE,
            &[
                &columns.reservation_id,
                &columns.activity_id,
                &columns.sku_id,
                &columns.version,
                &columns.reserved_at,
                /* patience_default_ms */ &PATIENCE_DEFAULT_MS,
            ],
        )
        .await?;
    rows.iter()
        .map(|row| Ok((parse(row, "reservation_id")?, verdict(row)?)))
        .collect()
}

fn verdict(row: &Row) -> Result<Overdue, Error> {
    let left_ms: i64 = get(row, "left_ms")?;
    Ok(if get(row, "decided")? {
        Overdue::Decided
    } else if get(row, "has_task")? {
        Overdue::AlreadyOpen
    } else if left_ms > 0 {
        Overdue::Patient { for_ms: left_ms }
    } else {
        Overdue::Opened
    })
}

const LOCK_WATCH: &str = "-- lock_watch
    SELECT FROM patience_watch FOR UPDATE";

const NOTE_ILLNESS: &str = "-- note_illness
    UPDATE patience_watch
    SET healthy_at = least(healthy_at, clock_timestamp()), observed_at = clock_timestamp(),
        healthy = false,
        cause = coalesce(nullif($2, ''), 'unhealthy'), max_gap_ms = $1";

// A clock that was set back, or a promoted server whose clock is behind, takes the last sighting back
// with it: a sighting in the future would hide every outage until the clock has caught up.
const NOTE_HEALTH: &str = "-- note_health
    WITH look AS MATERIALIZED (
        SELECT healthy_at AS since, clock_timestamp() AS at,
            coalesce(nullif(cause, ''), 'unobserved') AS cause
        FROM patience_watch
    ), gap AS MATERIALIZED (
        SELECT since, at, cause FROM look
        WHERE since < at - $1::bigint * interval '1 millisecond'
    ), longer AS (
        UPDATE standstill AS s
        SET ended_at = gap.at
        FROM gap
        WHERE s.ended_at = gap.since AND s.cause = gap.cause
        RETURNING s.standstill_id
    ), new AS (
        INSERT INTO standstill (began_at, ended_at, cause)
        SELECT since, at, cause FROM gap
        WHERE NOT EXISTS (SELECT FROM longer)
    )
    UPDATE patience_watch
    SET healthy_at = look.at, observed_at = look.at, healthy = true, cause = '', max_gap_ms = $1
    FROM look
    RETURNING EXISTS (SELECT FROM gap) AS stood_still";

// No reservation is older than its sale, and none outlives its version's retention.
const FORGET_STANDSTILLS: &str = "-- forget_standstills
    DELETE FROM standstill
    WHERE ended_at < (
        SELECT coalesce(min(starts_at), now()) FROM activity
        WHERE archived_at IS NULL AND retention_until > now()
    )";

const STANDSTILL_NOW: &str = "-- standstill_now
    SELECT coalesce(nullif(cause, ''), 'unobserved') AS cause
    FROM patience_watch
    WHERE NOT healthy OR healthy_at < now() - max_gap_ms * interval '1 millisecond'
        OR healthy_at > now() + max_gap_ms * interval '1 millisecond'";

// Standstills that overlap count once: they are joined before they are added up. What follows the
// last sighting of health counts as one of them while the last look saw none, or is too long ago. One
// that lies ahead says that the clock was set back and that nobody has looked since. What is asked
// for is a row each, with the instant from which its patience counts.
macro_rules! judge {
    ($name:literal, $asked:literal, $patience_default:literal) => {
        concat!(
            "-- ",
            $name,
            "
    WITH asked AS (
        ",
            $asked,
            "
    ), standing AS MATERIALIZED (
        SELECT coalesce(range_agg(tstzrange(t.began_at, t.ended_at)), '{}'::tstzmultirange) AS times
        FROM (
            SELECT began_at, ended_at FROM standstill
            WHERE ended_at > (SELECT min(since) FROM asked)
            UNION ALL
            SELECT healthy_at, now() FROM patience_watch
            WHERE healthy_at < now()
                AND (NOT healthy OR healthy_at < now() - max_gap_ms * interval '1 millisecond')
            UNION ALL
            SELECT '-infinity', now() FROM patience_watch
            WHERE healthy_at > now() + max_gap_ms * interval '1 millisecond'
        ) AS t
    )
    SELECT asked.reservation_id,
        EXISTS (
            SELECT FROM reservation_decision AS d WHERE d.reservation_id = asked.reservation_id
        ) OR EXISTS (
            SELECT FROM reservation_decision_archive AS d
            WHERE d.reservation_id = asked.reservation_id
        ) AS decided,
        EXISTS (
            SELECT FROM compensation_task AS t
            WHERE t.reservation_id = asked.reservation_id AND t.closed_at IS NULL
        ) AS has_task,
        ceil(
            coalesce(a.patience_ms, ",
            $patience_default,
            "::bigint)
            - 1000 * extract(epoch FROM now() - asked.since)
            + 1000 * (
                SELECT coalesce(sum(extract(epoch FROM upper(still) - lower(still))), 0)
                FROM standing,
                    unnest(
                        standing.times * tstzmultirange(tstzrange(asked.since, now()))
                    ) AS still
            )
        )::bigint AS left_ms
    FROM asked
    LEFT JOIN activity AS a
        ON a.activity_id = asked.activity_id AND a.sku_id = asked.sku_id
        AND a.version = asked.version"
        )
    };
}

const JUDGE: &str = judge!(
    "judge_overdue",
    "SELECT r.reservation_id, r.activity_id, r.sku_id, r.version,
            least(r.reserved_at, now()) AS since
        FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::timestamptz[])
            AS r (reservation_id, activity_id, sku_id, version, reserved_at)",
    "$6"
);

const PATIENCE_LEFT: &str = judge!(
    "patience_left",
    "SELECT t.reservation_id, t.activity_id, t.sku_id, t.version,
            least(t.opened_at, now()) AS since
        FROM compensation_task AS t
        WHERE t.reservation_id = $1 AND t.closed_at IS NULL AND t.origin = 'PARKED'",
    "$2"
);
