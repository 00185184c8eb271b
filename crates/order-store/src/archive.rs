//! Archiving a version: its result is put on record, its stock is sealed, its rows move away.
//!
//! | a crash | leaves | goes on |
//! | --- | --- | --- |
//! | before the seal is committed | the version as it was | archive it again |
//! | after the seal, between two batches | some rows here, some there, each in one place | `archives_under_way` names it, `resume_archive` moves the rest |
//! | after the last batch | nothing to do | |
//! | a message is parked, or a task opened, after the seal has looked | an open letter or task of a sealed version | workers claim tasks of every version; the fence finds the decision that has moved, or puts one up and opens the move again |
//! | a fence is put up while the move is under way | a decision that no batch has met | the last step looks from the start once more |
//! | a fence that began before the seal is committed after the last step | one decision `RELEASED` here | it counts for nothing and is found by its key; the next fence of the version moves it |
//!
//! The seal is one transaction: it finds nothing open, stores the figures, and from then on nobody
//! visits the version and no message that comes late finds its stock. Only then rows move, so that
//! nobody takes a reservation whose decision has moved for an undecided one. Each batch is a
//! transaction of its own, and two archivers of one version take turns.

mod statements;

use seckill_state_machine::{ActivityState, ReservationId, Scope, TimestampMs};
use tokio_postgres::Row;

use self::statements::{
    COUNTS, FINISH, FORGET_EVENTS, FORGET_MESSAGES, FORGET_TASKS, FORGET_WINDOWS, LOCK_ACTIVITY,
    LOCK_BUCKETS, LOCK_RESULT, MOVE_DECISIONS, MOVE_JOURNAL, MOVE_JOURNAL_REST, MOVE_ORDERS,
    NEXT_BATCH, RESULT, SEAL_ACTIVITY, SEAL_STOCK, STRAY_ORDER,
};
use crate::pool::Session;
use crate::retention::read_open_work;
use crate::rows::{ScopeKey, count, get, number, parse, scope, time_ms, time_ms_opt};
use crate::{Error, Store};

/// Decisions of one batch, with their orders, journal entries, messages and tasks: about 5,000 rows,
/// a tenth of a second.
const BATCH: i64 = 1_000;

/// Events that one batch looks at, whosever they are: the outbox has no index by version, which would
/// cost every order of a sale. Ten thousand are read in some 10 ms, and deleted in a tenth of a second.
const EVENTS_PAGE: i64 = 10_000;

/// Most versions of one answer; a thousand that are all under way mean that nobody goes on.
const PAGE_MAX: i64 = 1_000;

/// What PostgreSQL counts of a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VersionCounts {
    /// Units that were on sale.
    pub total_stock: u64,
    /// Active orders.
    pub orders: u64,
    /// Units in active orders.
    pub order_units: u64,
    /// Cancelled orders.
    pub cancelled: u64,
    /// Reservations that were released.
    pub released: u64,
    /// Reservations that were rejected.
    pub rejected: u64,
}

/// What a version came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VersionResult {
    /// What PostgreSQL counts.
    pub counts: VersionCounts,
    /// Units that Redis had left over all buckets; `None` when it could not tell any more.
    pub redis_left: Option<u64>,
    /// Units by which the two sides disagree; 0 when all is well.
    pub difference: i64,
}

/// The result of an archived version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedVersion {
    /// Which version.
    pub scope: Scope,
    /// The figures.
    pub result: VersionResult,
    /// Who archived it.
    pub archived_by: String,
    /// When.
    pub archived_at_ms: TimestampMs,
    /// When the last of its rows had moved; `None` while the move is under way.
    pub moved_at_ms: Option<TimestampMs>,
}

/// Rows that a call moved to the archive tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Decisions.
    pub decisions: u64,
    /// Orders.
    pub orders: u64,
    /// Entries of the stock journal.
    pub journal: u64,
}

impl Store {
    /// What PostgreSQL counts of a version that is not archived.
    ///
    /// # Errors
    /// As every read.
    pub async fn version_counts(&self, scope: &Scope) -> Result<VersionCounts, Error> {
        let rows = self
            .read("version_counts", COUNTS, &ScopeKey::of(scope).params())
            .await?;
        rows.first()
            .map_or_else(|| Ok(VersionCounts::default()), counts)
    }

    /// Archives a closed version that has nothing open: stores its result, seals its stock and moves
    /// its rows. One that is sealed already keeps its result, and the rest of its rows moves.
    ///
    /// # Errors
    /// `NotFound` for an unknown version; `Conflict` when it is not closed, has something open, or
    /// does not count what the result says; `Invalid` without a named actor; else as every write.
    /// After any error the call may be repeated.
    pub async fn archive_version(
        &self,
        scope: &Scope,
        result: &VersionResult,
        actor: &str,
    ) -> Result<Moved, Error> {
        if actor.is_empty() {
            return Err(Error::invalid("actor", "must be named"));
        }
        self.run_tx("seal_version", async |session| {
            seal(session, scope, result, actor).await
        })
        .await?;
        self.resume_archive(scope).await
    }

    /// Moves the rest of a sealed version's rows; nothing when all have moved.
    ///
    /// # Errors
    /// `NotFound` for a version without a result, `Conflict` when orders stay behind that have no
    /// decision; else as every write. After any error the call may be repeated.
    pub async fn resume_archive(&self, scope: &Scope) -> Result<Moved, Error> {
        let mut moved = Moved::default();
        let mut place = Some(Place::START);
        while let Some(from) = place {
            let step = self
                .run_tx("archive_batch", async |session| {
                    take_step(session, scope, &from).await
                })
                .await?;
            moved.decisions += step.moved.decisions;
            moved.orders += step.moved.orders;
            moved.journal += step.moved.journal;
            place = step.next;
        }
        Ok(moved)
    }

    /// Sealed versions whose rows have not all moved, the longest first; at most 1,000.
    ///
    /// # Errors
    /// As every read.
    pub async fn archives_under_way(&self) -> Result<Vec<Scope>, Error> {
        let rows = self
            .read(
                "archives_under_way",
                "-- archives_under_way
                SELECT activity_id, sku_id, version FROM version_result
                WHERE moved_at IS NULL
                ORDER BY archived_at, activity_id, sku_id, version
                LIMIT $1",
                &[/* limit */ &PAGE_MAX],
            )
            .await?;
        rows.iter().map(scope).collect()
    }

    /// The result of an archived version.
    ///
    /// # Errors
    /// As every read.
    pub async fn version_result(&self, scope: &Scope) -> Result<Option<ArchivedVersion>, Error> {
        let rows = self
            .read("version_result", RESULT, &ScopeKey::of(scope).params())
            .await?;
        rows.first().map(archived).transpose()
    }
}

fn counts(row: &Row) -> Result<VersionCounts, Error> {
    Ok(VersionCounts {
        total_stock: number(row, "total_stock")?,
        orders: number(row, "orders")?,
        order_units: number(row, "order_units")?,
        cancelled: number(row, "cancelled")?,
        released: number(row, "released")?,
        rejected: number(row, "rejected")?,
    })
}

fn archived(row: &Row) -> Result<ArchivedVersion, Error> {
    let redis_left = match get::<Option<i64>>(row, "redis_left")? {
        Some(_) => Some(number(row, "redis_left")?),
        None => None,
    };
    Ok(ArchivedVersion {
        scope: scope(row)?,
        result: VersionResult {
            counts: counts(row)?,
            redis_left,
            difference: get(row, "difference")?,
        },
        archived_by: get(row, "archived_by")?,
        archived_at_ms: time_ms(row, "archived_at")?,
        moved_at_ms: time_ms_opt(row, "moved_at")?,
    })
}

/// Seals a version, unless it is sealed. Activity and stock rows are locked before anything is
/// judged, so that no order, cancellation or transfer is under way.
async fn seal(
    session: &Session,
    scope: &Scope,
    result: &VersionResult,
    actor: &str,
) -> Result<(), Error> {
    let key = ScopeKey::of(scope);
    let rows = session.query(LOCK_ACTIVITY, &key.params()).await?;
    let Some(row) = rows.first() else {
        return Err(Error::NotFound {
            what: format!("activity {scope}"),
        });
    };
    if get(row, "archived")? {
        return Ok(());
    }
    let state: ActivityState = parse(row, "state")?;
    if state != ActivityState::Closed {
        return Err(Error::Conflict(format!(
            "activity {scope} is {state}, not {}",
            ActivityState::Closed
        )));
    }
    session.query(LOCK_BUCKETS, &key.params()).await?;
    let open = read_open_work(session, scope).await?;
    if !open.is_none() {
        return Err(Error::Conflict(format!(
            "activity {scope} has open: {open}"
        )));
    }
    let rows = session.query(COUNTS, &key.params()).await?;
    let found = rows.first().map(counts).transpose()?.unwrap_or_default();
    if found != result.counts {
        return Err(Error::Conflict(format!(
            "activity {scope} counts {found:?}, the result says {:?}",
            result.counts
        )));
    }
    session.execute(SEAL_STOCK, &key.params()).await?;
    session.execute(SEAL_ACTIVITY, &key.params()).await?;
    insert_result(session, scope, result, actor).await
}

async fn insert_result(
    session: &Session,
    scope: &Scope,
    result: &VersionResult,
    actor: &str,
) -> Result<(), Error> {
    let key = ScopeKey::of(scope);
    let [activity_id, sku_id, version] = key.params();
    let counts = &result.counts;
    let redis_left = result
        .redis_left
        .map(|units| count("redis_left", units))
        .transpose()?;
    session
        .execute(
            "-- insert_result
            INSERT INTO version_result (
                activity_id, sku_id, version, total_stock, redis_left, orders, order_units,
                cancelled, released, rejected, difference, archived_by
            )
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
            &[
                activity_id,
                sku_id,
                version,
                &count("total_stock", counts.total_stock)?,
                &redis_left,
                &count("orders", counts.orders)?,
                &count("order_units", counts.order_units)?,
                &count("cancelled", counts.cancelled)?,
                &count("released", counts.released)?,
                &count("rejected", counts.rejected)?,
                &result.difference,
                /* archived_by */ &actor,
            ],
        )
        .await?;
    Ok(())
}

/// How far a caller is with a move. It is kept nowhere else: whoever goes on after a crash starts
/// again, and what has moved is not met any more. Without it every batch would walk over the index
/// entries of all rows that have moved before.
enum Place {
    /// Decisions after this one, and what belongs to them.
    Decisions(String),
    /// Events after this one.
    Events(i64),
}

impl Place {
    const START: Self = Self::Decisions(String::new());
}

/// What a transaction moved, and where the next one goes on; `None` at the end.
struct Step {
    moved: Moved,
    next: Option<Place>,
}

async fn take_step(session: &Session, scope: &Scope, from: &Place) -> Result<Step, Error> {
    let rows = session
        .query(LOCK_RESULT, &ScopeKey::of(scope).params())
        .await?;
    let Some(row) = rows.first() else {
        return Err(Error::NotFound {
            what: format!("the result of {scope}"),
        });
    };
    if get(row, "moved")? {
        return Ok(Step {
            moved: Moved::default(),
            next: None,
        });
    }
    match from {
        Place::Decisions(after) => move_batch(session, scope, after).await,
        Place::Events(after) => forget_events(session, scope, *after).await,
    }
}

async fn next_batch(session: &Session, scope: &Scope, after: &str) -> Result<Vec<Row>, Error> {
    let key = ScopeKey::of(scope);
    let [activity_id, sku_id, version] = key.params();
    session
        .query(
            NEXT_BATCH,
            &[
                activity_id,
                sku_id,
                version,
                /* after */ &after,
                /* limit */ &BATCH,
            ],
        )
        .await
}

async fn move_batch(session: &Session, scope: &Scope, after: &str) -> Result<Step, Error> {
    let rows = next_batch(session, scope, after).await?;
    let mut ids: Vec<&str> = Vec::with_capacity(rows.len());
    let mut messages: Vec<&str> = Vec::with_capacity(rows.len());
    for row in &rows {
        ids.push(get(row, "reservation_id")?);
        messages.push(get(row, "message_id")?);
    }
    let Some(last) = ids.last() else {
        return Ok(Step {
            moved: Moved::default(),
            next: Some(Place::Events(0)),
        });
    };
    session.execute(FORGET_MESSAGES, &[&messages]).await?;
    let moved = Moved {
        decisions: session.execute(MOVE_DECISIONS, &[&ids]).await?,
        orders: session.execute(MOVE_ORDERS, &[&ids]).await?,
        journal: session.execute(MOVE_JOURNAL, &[&ids]).await?,
    };
    session.execute(FORGET_TASKS, &[&ids]).await?;
    Ok(Step {
        moved,
        next: Some(Place::Decisions((*last).to_owned())),
    })
}

/// Deletes the version's events among the next ones of all. All were published before the seal.
async fn forget_events(session: &Session, scope: &Scope, after: i64) -> Result<Step, Error> {
    let key = ScopeKey::of(scope);
    let [activity_id, sku_id, version] = key.params();
    let rows = session
        .query(
            FORGET_EVENTS,
            &[
                activity_id,
                sku_id,
                version,
                /* after */ &after,
                /* limit */ &EVENTS_PAGE,
            ],
        )
        .await?;
    let last: Option<i64> = rows.first().map_or(Ok(None), |row| get(row, "last_id"))?;
    if let Some(last) = last {
        return Ok(Step {
            moved: Moved::default(),
            next: Some(Place::Events(last)),
        });
    }
    // A fence may have been put up at a place that was passed already.
    if !next_batch(session, scope, "").await?.is_empty() {
        return Ok(Step {
            moved: Moved::default(),
            next: Some(Place::START),
        });
    }
    let moved = finish(session, scope).await?;
    Ok(Step { moved, next: None })
}

/// Moves the journal's entries that belong to no reservation, forgets what was known of the buckets'
/// Redis, and notes the end of the move.
async fn finish(session: &Session, scope: &Scope) -> Result<Moved, Error> {
    let key = ScopeKey::of(scope);
    let strays = session.query(STRAY_ORDER, &key.params()).await?;
    if let Some(row) = strays.first() {
        let id: ReservationId = parse(row, "reservation_id")?;
        return Err(Error::Conflict(format!(
            "an order of {scope} has no decision: reservation {id}"
        )));
    }
    let journal = session.execute(MOVE_JOURNAL_REST, &key.params()).await?;
    session.execute(FORGET_WINDOWS, &key.params()).await?;
    session.execute(FINISH, &key.params()).await?;
    Ok(Moved {
        journal,
        ..Moved::default()
    })
}
