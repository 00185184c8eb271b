//! Activities: created once, moved by operators, every move on record.
//!
//! Settings never change after creation; a new edition is a new version with its own stock rows.
//! Versions are opened one at a time.

use seckill_state_machine::{
    Activity, ActivityId, ActivitySettings, ActivityState, BucketId, Scope,
};
use tokio_postgres::Row;

use crate::pool::Session;
use crate::rows::{
    ScopeKey, bucket_id, count, get, number, parse, scope, small, time_ms, to_time, version,
};
use crate::{Error, Store};

/// Units a user may hold, until cumulative limits exist.
const LIMIT_PER_USER: u32 = 1;

/// Most units of a version: what Lua's numbers, which the scripts count with, hold exactly.
const STOCK_MAX: u64 = (1 << 53) - 1;

/// Who creates an activity, in its record of moves.
const CREATOR: &str = "create_activity";

/// What creating an activity version did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It is new, in state `PREPARED`, with one stock row a bucket.
    New,
    /// The very same settings were there already.
    Already,
}

/// One bucket's stock as PostgreSQL counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockRow {
    /// Which bucket.
    pub bucket_id: BucketId,
    /// Units the bucket was given.
    pub total: u64,
    /// Units without an active order.
    pub available: u64,
    /// Units in active orders.
    pub sold: u64,
}

fn activity(row: &Row) -> Result<Activity, Error> {
    Ok(Activity {
        settings: ActivitySettings {
            scope: scope(row)?,
            starts_at_ms: time_ms(row, "starts_at")?,
            ends_at_ms: time_ms(row, "ends_at")?,
            retention_until_ms: time_ms(row, "retention_until")?,
            total_stock: number(row, "total_stock")?,
            bucket_count: small(row, "bucket_count")?,
            limit_per_user: number(row, "limit_per_user")?,
            max_quantity: small(row, "max_quantity")?,
            reservation_ttl_ms: get(row, "reservation_ttl_ms")?,
            patience_ms: get(row, "patience_ms")?,
            secret_version: number(row, "secret_version")?,
        },
        state: parse(row, "state")?,
    })
}

/// What makes no sense in the settings, before the table's constraints would say so with less words.
fn check(settings: &ActivitySettings) -> Result<(), Error> {
    if settings.limit_per_user != LIMIT_PER_USER {
        return Err(Error::invalid(
            "limit_per_user",
            "only 1 is supported until cumulative limits exist",
        ));
    }
    if settings.starts_at_ms > settings.ends_at_ms {
        return Err(Error::invalid("ends_at_ms", "lies before the start"));
    }
    if settings.retention_until_ms <= settings.ends_at_ms {
        return Err(Error::invalid(
            "retention_until_ms",
            "does not lie after the end",
        ));
    }
    // A reservation whose life ends after its keys' is refused by the script, so an activity that
    // could only make such ones would sell nothing.
    if settings.starts_at_ms + settings.reservation_ttl_ms >= settings.retention_until_ms {
        return Err(Error::invalid(
            "reservation_ttl_ms",
            "outlasts the retention from the first instant of the sale",
        ));
    }
    for (field, value) in [
        ("reservation_ttl_ms", settings.reservation_ttl_ms),
        ("patience_ms", settings.patience_ms),
    ] {
        if value <= 0 {
            return Err(Error::invalid(field, "must be positive"));
        }
    }
    if settings.total_stock > STOCK_MAX {
        return Err(Error::invalid("total_stock", "is above 2^53 - 1"));
    }
    Ok(())
}

/// Names every setting that differs, with both values.
fn differences(stored: &ActivitySettings, asked: &ActivitySettings) -> Vec<String> {
    let rows: [(&str, i128, i128); 10] = [
        (
            "starts_at_ms",
            stored.starts_at_ms.get().into(),
            asked.starts_at_ms.get().into(),
        ),
        (
            "ends_at_ms",
            stored.ends_at_ms.get().into(),
            asked.ends_at_ms.get().into(),
        ),
        (
            "retention_until_ms",
            stored.retention_until_ms.get().into(),
            asked.retention_until_ms.get().into(),
        ),
        (
            "total_stock",
            stored.total_stock.into(),
            asked.total_stock.into(),
        ),
        (
            "bucket_count",
            stored.bucket_count.get().into(),
            asked.bucket_count.get().into(),
        ),
        (
            "limit_per_user",
            stored.limit_per_user.into(),
            asked.limit_per_user.into(),
        ),
        (
            "max_quantity",
            stored.max_quantity.get().into(),
            asked.max_quantity.get().into(),
        ),
        (
            "reservation_ttl_ms",
            stored.reservation_ttl_ms.into(),
            asked.reservation_ttl_ms.into(),
        ),
        (
            "patience_ms",
            stored.patience_ms.into(),
            asked.patience_ms.into(),
        ),
        (
            "secret_version",
            stored.secret_version.into(),
            asked.secret_version.into(),
        ),
    ];
    rows.into_iter()
        .filter(|(_, stored, asked)| stored != asked)
        .map(|(name, stored, asked)| format!("{name} is {stored}, not {asked}"))
        .collect()
}

impl Store {
    /// Creates an activity version with its stock rows, or finds the identical one.
    ///
    /// # Errors
    /// `Invalid` for settings that make no sense, `Conflict` naming the difference when the version
    /// exists with other settings.
    pub async fn create_activity(&self, settings: &ActivitySettings) -> Result<Created, Error> {
        check(settings)?;
        self.run_tx(CREATOR, async |session| {
            if insert_activity(session, settings).await? {
                insert_stock(session, settings).await?;
                record_move(
                    session,
                    &settings.scope,
                    None,
                    ActivityState::Prepared,
                    CREATOR,
                    "",
                )
                .await?;
                return Ok(Created::New);
            }
            let Some(stored) = read_activity(session, &settings.scope).await? else {
                return Err(Error::Interfered { operation: CREATOR });
            };
            let differences = differences(&stored.settings, settings);
            if differences.is_empty() {
                return Ok(Created::Already);
            }
            Err(Error::Conflict(format!(
                "activity {} exists with other settings: {}",
                settings.scope,
                differences.join(", ")
            )))
        })
        .await
    }

    /// One activity version.
    ///
    /// # Errors
    /// As every read.
    pub async fn activity(&self, scope: &Scope) -> Result<Option<Activity>, Error> {
        let rows = self
            .read("activity", ACTIVITY, &ScopeKey::of(scope).params())
            .await?;
        rows.first().map(activity).transpose()
    }

    /// All versions, newest first; of one activity or of all.
    ///
    /// # Errors
    /// As every read.
    pub async fn activities(
        &self,
        activity_id: Option<&ActivityId>,
    ) -> Result<Vec<Activity>, Error> {
        let id = activity_id.map(ActivityId::as_str);
        let rows = self
            .read(
                "activities",
                "-- activities
                SELECT * FROM activity
                WHERE $1::text IS NULL OR activity_id = $1
                ORDER BY activity_id, version DESC, sku_id",
                &[/* activity_id */ &id],
            )
            .await?;
        rows.iter().map(activity).collect()
    }

    /// The newest version of an activity.
    ///
    /// # Errors
    /// As every read.
    pub async fn latest(&self, activity_id: &ActivityId) -> Result<Option<Activity>, Error> {
        let mut versions = self.activities(Some(activity_id)).await?;
        Ok((!versions.is_empty()).then(|| versions.swap_remove(0)))
    }

    /// The version that is on sale: the `ACTIVE` one, else the newest.
    ///
    /// # Errors
    /// As every read.
    pub async fn current(&self, activity_id: &ActivityId) -> Result<Option<Activity>, Error> {
        let mut versions = self.activities(Some(activity_id)).await?;
        let active = versions
            .iter()
            .position(|a| a.state == ActivityState::Active);
        Ok((!versions.is_empty()).then(|| versions.swap_remove(active.unwrap_or(0))))
    }

    /// Moves an activity's state and records who did it and why. When it is in `to` already, and
    /// `from` names `to` as well, nothing changes.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when the state is none of `from`, when no step leads to `to`, or when
    /// another version of the activity is `ACTIVE`; `Invalid` without an actor.
    pub async fn set_activity_state(
        &self,
        scope: &Scope,
        from: &[ActivityState],
        to: ActivityState,
        actor: &str,
        reason: &str,
    ) -> Result<Activity, Error> {
        if actor.is_empty() {
            return Err(Error::invalid("actor", "must be named"));
        }
        self.run_tx("set_activity_state", async |session| {
            let versions = lock_versions(session, &scope.activity_id).await?;
            let current = versions.iter().find(|a| a.settings.scope == *scope);
            let mut activity = current.cloned().ok_or_else(|| Error::NotFound {
                what: format!("activity {scope}"),
            })?;
            if !permitted(&activity, from, to)? {
                return Ok(activity);
            }
            if to == ActivityState::Active {
                refuse_second_version(&versions, scope)?;
            }
            move_state(session, scope, to).await?;
            record_move(session, scope, Some(activity.state), to, actor, reason).await?;
            activity.state = to;
            Ok(activity)
        })
        .await
    }

    /// Every version that is not archived and whose retention lies ahead, whatever its state: what
    /// an older version left undone must be finished as well.
    ///
    /// # Errors
    /// As every read.
    pub async fn open_scopes(&self) -> Result<Vec<Activity>, Error> {
        let rows = self
            .read(
                "open_scopes",
                "-- open_scopes
                SELECT * FROM activity
                WHERE archived_at IS NULL AND retention_until > now()
                ORDER BY activity_id, sku_id, version",
                &[],
            )
            .await?;
        rows.iter().map(activity).collect()
    }

    /// Whether anything was decided for this version.
    ///
    /// # Errors
    /// As every read.
    pub async fn has_decisions(&self, scope: &Scope) -> Result<bool, Error> {
        let rows = self
            .read(
                "has_decisions",
                "-- has_decisions
                SELECT FROM reservation_decision
                WHERE activity_id = $1 AND sku_id = $2 AND version = $3
                LIMIT 1",
                &ScopeKey::of(scope).params(),
            )
            .await?;
        Ok(!rows.is_empty())
    }

    /// The stock rows in bucket order.
    ///
    /// # Errors
    /// As every read.
    pub async fn stock_rows(&self, scope: &Scope) -> Result<Vec<StockRow>, Error> {
        let rows = self
            .read(
                "stock_rows",
                "-- stock_rows
                SELECT bucket_id, total, available, sold FROM activity_stock
                WHERE activity_id = $1 AND sku_id = $2 AND version = $3
                ORDER BY bucket_id",
                &ScopeKey::of(scope).params(),
            )
            .await?;
        let stock = |row: &Row| {
            Ok(StockRow {
                bucket_id: bucket_id(row)?,
                total: number(row, "total")?,
                available: number(row, "available")?,
                sold: number(row, "sold")?,
            })
        };
        rows.iter().map(stock).collect()
    }
}

const ACTIVITY: &str = "-- activity
    SELECT * FROM activity WHERE activity_id = $1 AND sku_id = $2 AND version = $3";

/// Whether there is a step to take; an error when it may not be taken.
fn permitted(
    activity: &Activity,
    from: &[ActivityState],
    to: ActivityState,
) -> Result<bool, Error> {
    let state = activity.state;
    let scope = &activity.settings.scope;
    if !from.contains(&state) {
        let words: Vec<&str> = from.iter().map(|state| state.as_str()).collect();
        return Err(Error::Conflict(format!(
            "activity {scope} is {state}, not {}",
            words.join(" or ")
        )));
    }
    if state == to {
        return Ok(false);
    }
    if state.may_become(to) {
        Ok(true)
    } else {
        Err(Error::Conflict(format!(
            "activity {scope} is {state} and cannot become {to}"
        )))
    }
}

fn refuse_second_version(versions: &[Activity], scope: &Scope) -> Result<(), Error> {
    let other = versions.iter().find(|activity| {
        activity.state == ActivityState::Active && activity.settings.scope.version != scope.version
    });
    match other {
        Some(other) => Err(Error::Conflict(format!(
            "activity {} is ACTIVE; versions are opened one at a time, so close it before opening {scope}",
            other.settings.scope
        ))),
        None => Ok(()),
    }
}

async fn insert_activity(session: &Session, settings: &ActivitySettings) -> Result<bool, Error> {
    let inserted = session
        .execute(
            "-- insert_activity
            INSERT INTO activity (
                activity_id, sku_id, version, starts_at, ends_at, retention_until, total_stock,
                bucket_count, limit_per_user, max_quantity, reservation_ttl_ms, patience_ms,
                secret_version, updated_by
            )
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 'create_activity')
            ON CONFLICT (activity_id, sku_id, version) DO NOTHING",
            &[
                &settings.scope.activity_id.as_str(),
                &settings.scope.sku_id.as_str(),
                &version(&settings.scope),
                &to_time("starts_at_ms", settings.starts_at_ms)?,
                &to_time("ends_at_ms", settings.ends_at_ms)?,
                &to_time("retention_until_ms", settings.retention_until_ms)?,
                &count("total_stock", settings.total_stock)?,
                &i64::from(settings.bucket_count.get()),
                &i64::from(settings.limit_per_user),
                &i64::from(settings.max_quantity.get()),
                &settings.reservation_ttl_ms,
                &settings.patience_ms,
                &i64::from(settings.secret_version),
            ],
        )
        .await?;
    Ok(inserted == 1)
}

async fn insert_stock(session: &Session, settings: &ActivitySettings) -> Result<(), Error> {
    let mut bucket_ids = Vec::new();
    let mut shares = Vec::new();
    for bucket in settings.bucket_count.buckets() {
        bucket_ids.push(i64::from(bucket.get()));
        let share = settings.bucket_count.share(settings.total_stock, bucket);
        shares.push(count("total_stock", share)?);
    }
    session
        .execute(
            "-- insert_stock
            WITH stock AS (
                INSERT INTO activity_stock (
                    activity_id, sku_id, version, bucket_id, total, available, updated_by
                )
                SELECT $1, $2, $3, r.bucket_id, r.units, r.units, 'create_activity'
                FROM unnest($4::bigint[], $5::bigint[]) AS r (bucket_id, units)
                ORDER BY r.bucket_id
                RETURNING *
            )
            INSERT INTO stock_ledger (activity_id, sku_id, version, bucket_id, kind, delta)
            SELECT activity_id, sku_id, version, bucket_id, 'INITIAL', total FROM stock
            ORDER BY bucket_id",
            &[
                &settings.scope.activity_id.as_str(),
                &settings.scope.sku_id.as_str(),
                &version(&settings.scope),
                &bucket_ids,
                &shares,
            ],
        )
        .await?;
    Ok(())
}

async fn read_activity(session: &Session, scope: &Scope) -> Result<Option<Activity>, Error> {
    let rows = session
        .query(ACTIVITY, &ScopeKey::of(scope).params())
        .await?;
    rows.first().map(activity).transpose()
}

/// Locks every version of an activity, so that two operators cannot open two versions at once.
async fn lock_versions(session: &Session, id: &ActivityId) -> Result<Vec<Activity>, Error> {
    let rows = session
        .query(
            "-- lock_versions
            SELECT * FROM activity WHERE activity_id = $1
            ORDER BY sku_id, version
            FOR NO KEY UPDATE",
            &[/* activity_id */ &id.as_str()],
        )
        .await?;
    rows.iter().map(activity).collect()
}

async fn move_state(session: &Session, scope: &Scope, to: ActivityState) -> Result<(), Error> {
    session
        .execute(
            "-- move_state
            UPDATE activity
            SET state = $4, updated_at = now(), updated_by = 'set_activity_state'
            WHERE activity_id = $1 AND sku_id = $2 AND version = $3",
            &[
                /* activity_id */ &scope.activity_id.as_str(),
                /* sku_id */ &scope.sku_id.as_str(),
                /* version */ &version(scope),
                /* state */ &to.as_str(),
            ],
        )
        .await?;
    Ok(())
}

async fn record_move(
    session: &Session,
    scope: &Scope,
    from: Option<ActivityState>,
    to: ActivityState,
    actor: &str,
    reason: &str,
) -> Result<(), Error> {
    session
        .execute(
            "-- record_move
            INSERT INTO activity_event (
                activity_id, sku_id, version, from_state, to_state, actor, reason
            )
            VALUES ($1, $2, $3, $4, $5, $6, $7)",
            &[
                /* activity_id */ &scope.activity_id.as_str(),
                /* sku_id */ &scope.sku_id.as_str(),
                /* version */ &version(scope),
                /* from_state */ &from.map(ActivityState::as_str),
                /* to_state */ &to.as_str(),
                /* actor */ &actor,
                /* reason */ &reason,
            ],
        )
        .await?;
    Ok(())
}
