//! The statements over activities.

use seckill_state_machine::{Activity, ActivityId, ActivitySettings, ActivityState, Scope};
use tokio_postgres::Row;

use crate::Error;
use crate::pool::Session;
use crate::rows::{ScopeKey, count, get, number, parse, scope, small, time_ms, to_time, version};

/// What is read of an activity, by name: with `*`, a column that a later schema adds would change
/// the result of statements that running programs have prepared.
macro_rules! activity_columns {
    () => {
        "activity_id, sku_id, version, state, starts_at, ends_at, retention_until, total_stock,
        bucket_count, limit_per_user, max_quantity, reservation_ttl_ms, patience_ms, secret_version"
    };
}

pub(crate) use activity_columns;

pub(super) const ACTIVITY: &str = concat!(
    "-- activity
    SELECT ",
    activity_columns!(),
    " FROM activity WHERE activity_id = $1 AND sku_id = $2 AND version = $3"
);

pub(super) const ACTIVITIES: &str = concat!(
    "-- activities
    SELECT ",
    activity_columns!(),
    " FROM activity
    WHERE $1::text IS NULL OR activity_id = $1
    ORDER BY activity_id, version DESC, sku_id"
);

pub(super) const OPEN_SCOPES: &str = concat!(
    "-- open_scopes
    SELECT ",
    activity_columns!(),
    " FROM activity
    WHERE archived_at IS NULL AND retention_until > now()
    ORDER BY activity_id, sku_id, version"
);

const LOCK_VERSIONS: &str = concat!(
    "-- lock_versions
    SELECT ",
    activity_columns!(),
    " FROM activity WHERE activity_id = $1
    ORDER BY sku_id, version
    FOR NO KEY UPDATE"
);

/// Reads a row of the table.
pub(crate) fn activity(row: &Row) -> Result<Activity, Error> {
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

pub(super) async fn insert_activity(
    session: &Session,
    settings: &ActivitySettings,
) -> Result<bool, Error> {
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

pub(super) async fn insert_stock(
    session: &Session,
    settings: &ActivitySettings,
) -> Result<(), Error> {
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
                RETURNING activity_id, sku_id, version, bucket_id, total
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

pub(super) async fn read_activity(
    session: &Session,
    scope: &Scope,
) -> Result<Option<Activity>, Error> {
    let rows = session
        .query(ACTIVITY, &ScopeKey::of(scope).params())
        .await?;
    rows.first().map(activity).transpose()
}

/// Locks every version of an activity, so that two operators cannot open two versions at once.
pub(super) async fn lock_versions(
    session: &Session,
    id: &ActivityId,
) -> Result<Vec<Activity>, Error> {
    let rows = session
        .query(LOCK_VERSIONS, &[/* activity_id */ &id.as_str()])
        .await?;
    rows.iter().map(activity).collect()
}

pub(super) async fn move_state(
    session: &Session,
    scope: &Scope,
    to: ActivityState,
) -> Result<(), Error> {
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

pub(crate) async fn record_move(
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
