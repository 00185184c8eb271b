//! Compensation tasks: opened, claimed, finished or given back.
//!
//! A task is claimed by lease in a transaction of its own and carries a generation. It is done only
//! relative to the Redis state that its worker saw: whoever hands the reservation over again adds
//! one to the generation, and a result counts only for the generation it was worked on.

use std::collections::BTreeSet;
use std::time::Duration;

use seckill_state_machine::{OrderRequest, ReservationId, Scope, UnknownDecision};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::decide::Columns;
use crate::pool::Session;
use crate::rows::{ScopeFilter, get, millis, number, parse, request, storable};
use crate::{Error, Store};

/// Most tasks of one claim: what one worker can finish within a lease of some seconds.
const CLAIM_MAX: i64 = 1_000;

/// Why a task was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskOrigin {
    /// PostgreSQL rejected the request.
    Rejected,
    /// The undecided request was parked.
    Parked,
    /// Undecided for longer than patience.
    Overdue,
    /// Redis holds units again that were given up before.
    HeldAgain,
    /// The order was cancelled.
    Cancelled,
}

impl TaskOrigin {
    /// Every origin.
    pub const ALL: [Self; 5] = [
        Self::Rejected,
        Self::Parked,
        Self::Overdue,
        Self::HeldAgain,
        Self::Cancelled,
    ];

    /// The word that PostgreSQL stores; of a fence it becomes the release's reason.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "REJECTED",
            Self::Parked => "PARKED",
            Self::Overdue => "OVERDUE",
            Self::HeldAgain => "HELD_AGAIN",
            Self::Cancelled => "CANCELLED",
        }
    }
}

impl std::str::FromStr for TaskOrigin {
    type Err = UnknownDecision;
    fn from_str(text: &str) -> Result<Self, UnknownDecision> {
        Self::ALL
            .into_iter()
            .find(|origin| origin.as_str() == text)
            .ok_or(UnknownDecision)
    }
}

/// A task to be opened or reopened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// The reservation, as its order request tells it.
    pub request: OrderRequest,
    /// Why.
    pub origin: TaskOrigin,
    /// When it is due, from now.
    pub due_in: Duration,
}

/// A claimed task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompensationTask {
    /// The reservation, as its order request tells it.
    pub request: OrderRequest,
    /// Why it was last opened.
    pub origin: TaskOrigin,
    /// Adds one with every reopening; a result only counts for the generation it was worked on.
    pub generation: i64,
    /// Attempts since it was last closed, this one included.
    pub attempts: u32,
    /// Proves the claim.
    pub lease_token: Uuid,
}

/// The claim of one worker on a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim(Uuid);

impl CompensationTask {
    /// The claim under which its worker holds it.
    #[must_use]
    pub const fn claim(&self) -> Claim {
        Claim(self.lease_token)
    }
}

/// How tasks are opened by another transaction.
pub(crate) struct Opening {
    origin: TaskOrigin,
    due_in_ms: i64,
    reopen_open: bool,
    outdates: Outdates,
    by: &'static str,
}

/// Which claims on an open task lose their result, next to all when it is reopened.
enum Outdates {
    None,
    /// Every one but the caller's own.
    AllBut(Option<Claim>),
}

impl Opening {
    /// Due at once; one that is open already gets the next generation.
    pub(crate) const fn now(origin: TaskOrigin, by: &'static str) -> Self {
        Self {
            origin,
            due_in_ms: 0,
            reopen_open: true,
            outdates: Outdates::None,
            by,
        }
    }

    /// Due later; one that is open already stays as it is.
    pub(crate) const fn unless_open(origin: TaskOrigin, due_in_ms: i64, by: &'static str) -> Self {
        Self {
            origin,
            due_in_ms,
            reopen_open: false,
            outdates: Outdates::None,
            by,
        }
    }

    /// The same, but whoever works on an open one, other than the caller, may have looked before the
    /// caller did: it gets the next generation, so that the result of that work does not close it.
    pub(crate) const fn outdating_others(mut self, own: Option<Claim>) -> Self {
        self.outdates = Outdates::AllBut(own);
        self
    }
}

/// Opens or reopens tasks in the caller's transaction, and says for which reservations it did.
///
/// A claim on a task that is reopened stays, so that no two workers are busy with one reservation;
/// it ends when its worker finds out that its generation is over.
pub(crate) async fn open(
    session: &Session,
    requests: &[&OrderRequest],
    opening: &Opening,
) -> Result<BTreeSet<ReservationId>, Error> {
    if requests.is_empty() {
        return Ok(BTreeSet::new());
    }
    let columns = Columns::of(requests);
    let (outdates, own) = match opening.outdates {
        Outdates::None => (false, None),
        Outdates::AllBut(own) => (true, own.map(|Claim(token)| token)),
    };
    let rows = session
        .query(
            "-- open_tasks
            INSERT INTO compensation_task AS t (
                reservation_id, request_id, user_id, activity_id, sku_id, version, bucket_id,
                quantity, reserved_at, traceparent, origin, next_attempt_at, updated_by
            )
            SELECT r.*, $11::text, now() + $12::bigint * interval '1 millisecond', $14::text
            FROM unnest(
                $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[],
                $7::bigint[], $8::bigint[], $9::timestamptz[], $10::text[]
            ) AS r (
                reservation_id, request_id, user_id, activity_id, sku_id, version, bucket_id,
                quantity, reserved_at, traceparent
            )
            ORDER BY r.reservation_id COLLATE \"C\"
            ON CONFLICT (reservation_id) DO UPDATE
            SET origin = CASE
                    WHEN t.closed_at IS NULL AND NOT $13 THEN t.origin
                    ELSE excluded.origin
                END,
                generation = t.generation + 1,
                next_attempt_at = CASE
                    WHEN t.closed_at IS NULL
                        THEN least(t.next_attempt_at, excluded.next_attempt_at)
                    ELSE excluded.next_attempt_at
                END,
                attempts = CASE WHEN t.closed_at IS NULL THEN t.attempts ELSE 0 END,
                opened_at = CASE
                    WHEN t.closed_at IS NULL AND NOT $13 THEN t.opened_at
                    ELSE now()
                END,
                closed_at = NULL, result = NULL, updated_by = excluded.updated_by
            WHERE t.closed_at IS NOT NULL OR $13
                -- A claim whose time is over counts as well: its worker may still end the task.
                OR ($15 AND t.lease_token IS NOT NULL AND t.lease_token IS DISTINCT FROM $16::uuid)
            RETURNING t.reservation_id",
            &[
                &columns.reservation_id,
                &columns.request_id,
                &columns.user_id,
                &columns.activity_id,
                &columns.sku_id,
                &columns.version,
                &columns.bucket_id,
                &columns.quantity,
                &columns.reserved_at,
                &columns.traceparent,
                /* origin */ &opening.origin.as_str(),
                /* due_in_ms */ &opening.due_in_ms,
                /* reopen_open */ &opening.reopen_open,
                /* updated_by */ &opening.by,
                /* outdates_claims */ &outdates,
                /* own_token */ &own,
            ],
        )
        .await?;
    rows.iter()
        .map(|row| parse(row, "reservation_id"))
        .collect()
}

fn task(row: &Row) -> Result<CompensationTask, Error> {
    Ok(CompensationTask {
        request: request(row)?,
        origin: parse(row, "origin")?,
        generation: get(row, "generation")?,
        attempts: number(row, "attempts")?,
        lease_token: get(row, "lease_token")?,
    })
}

impl Store {
    /// Claims due tasks for a while, the longest due first; at most 1,000.
    ///
    /// # Errors
    /// As every write.
    pub async fn claim_tasks(
        &self,
        limit: i64,
        lease: Duration,
    ) -> Result<Vec<CompensationTask>, Error> {
        let lease = millis("lease", lease)?;
        let rows = self
            .run_tx("claim_tasks", async |session| {
                session
                    .query(
                        "-- claim_tasks
                        WITH due AS (
                            SELECT reservation_id
                            FROM compensation_task
                            WHERE closed_at IS NULL AND next_attempt_at <= now()
                                AND (lease_until IS NULL OR lease_until <= now())
                            ORDER BY next_attempt_at, reservation_id
                            LIMIT $1
                            FOR UPDATE SKIP LOCKED
                        ), claim AS MATERIALIZED (
                            SELECT gen_random_uuid() AS token
                        ), claimed AS (
                            UPDATE compensation_task AS t
                            SET lease_until = now() + $2::bigint * interval '1 millisecond',
                                lease_token = claim.token, attempts = t.attempts + 1,
                                updated_by = 'claim_tasks'
                            FROM due, claim
                            WHERE t.reservation_id = due.reservation_id
                            RETURNING t.reservation_id, t.request_id, t.user_id, t.activity_id,
                                t.sku_id, t.version, t.bucket_id, t.quantity, t.reserved_at,
                                t.traceparent, t.origin, t.generation, t.attempts, t.lease_token,
                                t.next_attempt_at
                        )
                        SELECT reservation_id, request_id, user_id, activity_id, sku_id, version,
                            bucket_id, quantity, reserved_at, traceparent, origin, generation,
                            attempts, lease_token
                        FROM claimed ORDER BY next_attempt_at, reservation_id",
                        &[
                            /* limit */ &limit.min(CLAIM_MAX),
                            /* lease */ &lease,
                        ],
                    )
                    .await
            })
            .await?;
        Ok(readable(&rows))
    }

    /// Closes a task, if nobody reopened or took it over meanwhile; says whether it did.
    ///
    /// A task that was reopened meanwhile is given back at once.
    ///
    /// # Errors
    /// As every write.
    pub async fn finish_task(&self, task: &CompensationTask, result: &str) -> Result<bool, Error> {
        let rows = self
            .run_tx("finish_task", async |session| {
                session
                    .query(
                        "-- finish_task
                        UPDATE compensation_task AS t
                        SET closed_at = CASE WHEN t.generation = $2 THEN now() END,
                            result = CASE WHEN t.generation = $2 THEN $4 END,
                            last_error = CASE WHEN t.generation <> $2 THEN t.last_error END,
                            lease_until = NULL, lease_token = NULL, updated_by = 'finish_task'
                        WHERE t.reservation_id = $1 AND t.lease_token = $3
                            AND t.closed_at IS NULL
                        RETURNING t.closed_at IS NOT NULL AS held",
                        &[
                            /* reservation_id */ &task.request.reservation_id.as_str(),
                            /* generation */ &task.generation,
                            /* lease_token */ &task.lease_token,
                            /* result */ &result,
                        ],
                    )
                    .await
            })
            .await?;
        held(&rows)
    }

    /// Gives a task back for a later attempt; says whether the claim still held.
    ///
    /// A task that was reopened meanwhile keeps its own due time.
    ///
    /// # Errors
    /// As every write.
    pub async fn retry_task(
        &self,
        task: &CompensationTask,
        error: &str,
        delay: Duration,
    ) -> Result<bool, Error> {
        let delay = millis("delay", delay)?;
        let rows = self
            .run_tx("retry_task", async |session| {
                session
                    .query(
                        "-- retry_task
                        UPDATE compensation_task AS t
                        SET next_attempt_at = CASE
                                WHEN t.generation = $2
                                    THEN now() + $5::bigint * interval '1 millisecond'
                                ELSE t.next_attempt_at
                            END,
                            last_error = $4,
                            lease_until = NULL, lease_token = NULL, updated_by = 'retry_task'
                        WHERE t.reservation_id = $1 AND t.lease_token = $3
                            AND t.closed_at IS NULL
                        RETURNING t.generation = $2 AS held",
                        &[
                            /* reservation_id */ &task.request.reservation_id.as_str(),
                            /* generation */ &task.generation,
                            /* lease_token */ &task.lease_token,
                            /* last_error */ &storable(error),
                            /* delay */ &delay,
                        ],
                    )
                    .await
            })
            .await?;
        held(&rows)
    }

    /// Opens a task, or reopens it with the next generation.
    ///
    /// # Errors
    /// As every write.
    pub async fn open_task(&self, task: &NewTask) -> Result<(), Error> {
        let opening = Opening {
            origin: task.origin,
            due_in_ms: millis("due_in", task.due_in)?,
            reopen_open: true,
            outdates: Outdates::None,
            by: "open_task",
        };
        self.run_tx("open_task", async |session| {
            open(session, &[&task.request], &opening).await?;
            Ok(())
        })
        .await
    }

    /// Open tasks, of one version or of all.
    ///
    /// # Errors
    /// As every read.
    pub async fn open_tasks(&self, scope: Option<&Scope>) -> Result<u64, Error> {
        let filter = ScopeFilter::from(scope);
        self.count(
            "open_tasks",
            "-- open_tasks
            SELECT count(*) AS n
            FROM compensation_task
            WHERE closed_at IS NULL
                AND ($1::text IS NULL OR (activity_id = $1 AND sku_id = $2 AND version = $3))",
            &[
                /* activity_id */ &filter.activity_id,
                /* sku_id */ &filter.sku_id,
                /* version */ &filter.version,
            ],
        )
        .await
    }
}

/// Whether the one row that was touched, if any, still belonged to the caller.
fn held(rows: &[Row]) -> Result<bool, Error> {
    rows.first().map_or(Ok(false), |row| get(row, "held"))
}

/// The tasks that can be read. One that cannot must not hold back the others; it stays open, which
/// the settled check and its alarm show.
fn readable(rows: &[Row]) -> Vec<CompensationTask> {
    let mut tasks = Vec::with_capacity(rows.len());
    for row in rows {
        match task(row) {
            Ok(task) => tasks.push(task),
            Err(error) => {
                let id = get::<&str>(row, "reservation_id").ok();
                tracing::error!(reservation_id = id, %error, "a compensation task cannot be read");
            }
        }
    }
    tasks
}
