//! What was done about differences: who, when, why, and what came of it.

use seckill_state_machine::{Scope, TimestampMs};
use tokio_postgres::Row;

use crate::pool::Session;
use crate::rows::{ScopeFilter, get, storable, time_ms};
use crate::{Error, Store};

/// Most rows of one page.
const PAGE_MAX: i64 = 1_000;

/// The action by which an operator closes a difference, and what comes of it.
pub(crate) const RESOLVE: &str = "resolve";
const RESOLVED: &str = "resolved";

/// A repair that was applied, or tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionRecord {
    /// The difference, by its number.
    pub discrepancy_id: i64,
    /// The operator or the service, as it names itself.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// A word for what was done.
    pub action: String,
    /// What came of it, in a word.
    pub outcome: String,
}

/// An action on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// Its number.
    pub id: i64,
    /// What was done.
    pub record: ActionRecord,
    /// When.
    pub happened_at_ms: TimestampMs,
}

/// Which actions to list. Everything that is left empty lets all pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActionFilter {
    /// About this difference.
    pub discrepancy_id: Option<i64>,
    /// About differences of this version.
    pub scope: Option<Scope>,
    /// After this number, for paging.
    pub after: Option<i64>,
}

impl Store {
    /// Puts an action on record and returns its number.
    ///
    /// # Errors
    /// `Invalid` without a named actor, `NotFound` for an unknown difference; else as every write.
    pub async fn record_action(&self, action: &ActionRecord) -> Result<i64, Error> {
        if action.actor.is_empty() {
            return Err(Error::invalid("actor", "must be named"));
        }
        self.run_tx("record_action", async |session| {
            insert_action(session, action).await
        })
        .await
    }

    /// Closes a difference by an operator's word, with the action on record; says whether this call
    /// did, or one before it by the same actor for the same reason whose answer may have been lost.
    /// `false`: it was closed already. One that is still there is found again, as a new one.
    ///
    /// # Errors
    /// `Invalid` without a named actor and a reason, `NotFound` for an unknown difference; else as every
    /// write.
    pub async fn resolve_discrepancy(
        &self,
        id: i64,
        actor: &str,
        reason: &str,
    ) -> Result<bool, Error> {
        for (field, text) in [("actor", actor), ("reason", reason)] {
            if text.is_empty() {
                return Err(Error::invalid(field, "must be given"));
            }
        }
        let action = ActionRecord {
            discrepancy_id: id,
            actor: actor.to_owned(),
            reason: reason.to_owned(),
            action: RESOLVE.to_owned(),
            outcome: RESOLVED.to_owned(),
        };
        self.run_tx("resolve_discrepancy", async |session| {
            resolve(session, &action).await
        })
        .await
    }

    /// Actions by number, at most 1,000 a page.
    ///
    /// # Errors
    /// As every read.
    pub async fn actions(&self, filter: &ActionFilter, limit: i64) -> Result<Vec<Action>, Error> {
        let scope = ScopeFilter::from(filter.scope.as_ref());
        let rows = self
            .read(
                "actions",
                "-- actions
                SELECT a.action_id, a.discrepancy_id, a.action, a.actor, a.reason, a.outcome,
                    a.happened_at
                FROM reconciliation_action AS a
                JOIN discrepancy AS d ON d.discrepancy_id = a.discrepancy_id
                WHERE a.action_id > $5 AND ($1::bigint IS NULL OR a.discrepancy_id = $1)
                    AND (
                        $2::text IS NULL
                        OR (d.activity_id = $2 AND d.sku_id = $3 AND d.version = $4)
                    )
                ORDER BY a.action_id
                LIMIT $6",
                &[
                    /* discrepancy_id */ &filter.discrepancy_id,
                    /* activity_id */ &scope.activity_id,
                    /* sku_id */ &scope.sku_id,
                    /* version */ &scope.version,
                    /* after */ &filter.after.unwrap_or(0),
                    /* limit */ &limit.min(PAGE_MAX),
                ],
            )
            .await?;
        rows.iter().map(action).collect()
    }
}

async fn insert_action(session: &Session, action: &ActionRecord) -> Result<i64, Error> {
    let rows = session
        .query(
            "-- record_action
            INSERT INTO reconciliation_action (discrepancy_id, action, actor, reason, outcome)
            SELECT discrepancy_id, $2::text, $3::text, $4::text, $5::text
            FROM discrepancy WHERE discrepancy_id = $1
            RETURNING action_id",
            &[
                /* discrepancy_id */ &action.discrepancy_id,
                /* action */ &action.action,
                /* actor */ &action.actor,
                /* reason */ &storable(&action.reason),
                /* outcome */ &storable(&action.outcome),
            ],
        )
        .await?;
    match rows.first() {
        Some(row) => get(row, "action_id"),
        None => Err(unknown(action.discrepancy_id)),
    }
}

/// The row is locked before it is judged, so that of two who close it at once one did.
async fn resolve(session: &Session, action: &ActionRecord) -> Result<bool, Error> {
    let closed = session
        .execute(
            "-- resolve_discrepancy
            UPDATE discrepancy SET resolved_at = now()
            WHERE discrepancy_id = $1 AND resolved_at IS NULL",
            &[/* discrepancy_id */ &action.discrepancy_id],
        )
        .await?;
    if closed == 1 {
        insert_action(session, action).await?;
        return Ok(true);
    }
    let rows = session
        .query(
            "-- resolved_by
            SELECT EXISTS (
                SELECT FROM reconciliation_action AS a
                WHERE a.discrepancy_id = d.discrepancy_id AND a.action = $2
                    AND a.actor = $3 AND a.reason = $4
            ) AS own
            FROM discrepancy AS d WHERE d.discrepancy_id = $1",
            &[
                /* discrepancy_id */ &action.discrepancy_id,
                /* action */ &action.action,
                /* actor */ &action.actor,
                /* reason */ &storable(&action.reason),
            ],
        )
        .await?;
    match rows.first() {
        Some(row) => get(row, "own"),
        None => Err(unknown(action.discrepancy_id)),
    }
}

fn unknown(id: i64) -> Error {
    Error::NotFound {
        what: format!("discrepancy {id}"),
    }
}

fn action(row: &Row) -> Result<Action, Error> {
    Ok(Action {
        id: get(row, "action_id")?,
        record: ActionRecord {
            discrepancy_id: get(row, "discrepancy_id")?,
            actor: get(row, "actor")?,
            reason: get(row, "reason")?,
            action: get(row, "action")?,
            outcome: get(row, "outcome")?,
        },
        happened_at_ms: time_ms(row, "happened_at")?,
    })
}
