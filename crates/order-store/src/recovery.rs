//! Recovery windows: what each bucket's Redis was when it was last seen, and the time after a
//! failover in which a repeated request must not be refused afresh (M7).
//!
//! A window is named by the instant at which it was opened. Whatever is written about it says which
//! one is meant, so that a reconciler that was held up never ends a window that another one opened
//! after the next failover.

use seckill_state_machine::{BucketScope, Scope, TimestampMs};
use tokio_postgres::Row;

use crate::decide::BucketColumns;
use crate::pool::Session;
use crate::rows::{ScopeKey, bucket, get, time_ms_opt, to_time};
use crate::{Error, Store};

/// What is known about the Redis behind one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryWindow {
    /// The bucket.
    pub bucket: BucketScope,
    /// The run id of the node that served it last.
    pub run_id: String,
    /// When the window was opened; `None` when none is open.
    pub opened_at_ms: Option<TimestampMs>,
    /// How long it has been open, by PostgreSQL's clock.
    pub open_for_ms: Option<i64>,
    /// Where the queues ended some time after the opening, once somebody has read that.
    pub ends: Option<Vec<QueueEnd>>,
    /// Why it was opened last.
    pub reason: String,
}

/// Where a queue ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEnd {
    /// The broker's and the queue's name.
    pub queue: String,
    /// The offset that the next message will get.
    pub offset: i64,
}

fn window(row: &Row) -> Result<RecoveryWindow, Error> {
    let queues: Option<Vec<String>> = get(row, "end_queues")?;
    let offsets: Option<Vec<i64>> = get(row, "end_offsets")?;
    let ends = queues.zip(offsets).map(|(queues, offsets)| {
        let pairs = queues.into_iter().zip(offsets);
        pairs
            .map(|(queue, offset)| QueueEnd { queue, offset })
            .collect()
    });
    Ok(RecoveryWindow {
        bucket: bucket(row)?,
        run_id: get(row, "run_id")?,
        opened_at_ms: time_ms_opt(row, "opened_at")?,
        open_for_ms: get(row, "open_for_ms")?,
        ends,
        reason: get(row, "reason")?,
    })
}

impl Store {
    /// What is known of a version's buckets, in their order. A bucket that was never seen is not
    /// there.
    ///
    /// # Errors
    /// As every read.
    pub async fn recovery_windows(&self, scope: &Scope) -> Result<Vec<RecoveryWindow>, Error> {
        let rows = self
            .read(
                "recovery_windows",
                "-- recovery_windows
                SELECT activity_id, sku_id, version, bucket_id, run_id, opened_at, reason,
                    end_queues, end_offsets,
                    (extract(epoch FROM now() - opened_at) * 1000)::bigint AS open_for_ms
                FROM recovery_window
                WHERE activity_id = $1 AND sku_id = $2 AND version = $3
                ORDER BY bucket_id",
                &ScopeKey::of(scope).params(),
            )
            .await?;
        rows.iter().map(window).collect()
    }

    /// Notes the run id behind a bucket that was never seen before; says whether this call did. One
    /// that is on record stays: another id is a reason to open a window.
    ///
    /// # Errors
    /// As every write.
    pub async fn saw_run_id(&self, bucket: &BucketScope, run_id: &str) -> Result<bool, Error> {
        self.write_window(
            "saw_run_id",
            bucket,
            "-- saw_run_id
            INSERT INTO recovery_window (activity_id, sku_id, version, bucket_id, run_id)
            VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT (activity_id, sku_id, version, bucket_id) DO NOTHING",
            &[/* run_id */ &run_id],
        )
        .await
    }

    /// Opens the window of a bucket, or starts the open one afresh when its Redis is another one
    /// again; says whether this call did. One that is open for this very run id stays as it is.
    ///
    /// # Errors
    /// As every write; `Refused` for a version that does not exist.
    pub async fn open_window(
        &self,
        bucket: &BucketScope,
        run_id: &str,
        reason: &str,
    ) -> Result<bool, Error> {
        self.write_window(
            "open_window",
            bucket,
            "-- open_window
            INSERT INTO recovery_window AS w (
                activity_id, sku_id, version, bucket_id, run_id, reason, opened_at
            )
            VALUES ($1, $2, $3, $4, $5, $6, date_trunc('milliseconds', clock_timestamp()))
            ON CONFLICT (activity_id, sku_id, version, bucket_id) DO UPDATE
            SET run_id = excluded.run_id, reason = excluded.reason,
                opened_at = excluded.opened_at, end_queues = NULL, end_offsets = NULL,
                seen_at = CASE WHEN w.run_id = excluded.run_id THEN w.seen_at ELSE now() END
            WHERE w.run_id <> excluded.run_id OR w.opened_at IS NULL",
            &[/* run_id */ &run_id, /* reason */ &reason],
        )
        .await
    }

    /// Notes where the queues ended, for those of these windows that are still open and have no ends
    /// yet; returns for how many. Windows are taken as they were read, before the queues were.
    ///
    /// # Errors
    /// `Invalid` without an end: a broker that names no queue has not said that its backlog is consumed,
    /// and the window would end at once. Else as every write.
    pub async fn set_window_ends(
        &self,
        windows: &[RecoveryWindow],
        ends: &[QueueEnd],
    ) -> Result<u64, Error> {
        if ends.is_empty() {
            return Err(Error::invalid("ends", "name no queue"));
        }
        let mut open: Vec<(&BucketScope, TimestampMs)> = windows
            .iter()
            .filter_map(|window| Some((&window.bucket, window.opened_at_ms?)))
            .collect();
        open.sort_unstable();
        let columns = BucketColumns::of(open.iter().map(|(bucket, _)| *bucket));
        let opened_at = open
            .iter()
            .map(|(_, at)| to_time("opened_at_ms", *at))
            .collect::<Result<Vec<_>, Error>>()?;
        let queues: Vec<&str> = ends.iter().map(|end| end.queue.as_str()).collect();
        let offsets: Vec<i64> = ends.iter().map(|end| end.offset).collect();
        self.run_tx("set_window_ends", async |session| {
            session
                .execute(
                    "-- set_window_ends
                    WITH meant AS (
                        SELECT w.activity_id, w.sku_id, w.version, w.bucket_id
                        FROM recovery_window AS w
                        JOIN unnest(
                            $1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::timestamptz[]
                        ) AS r (activity_id, sku_id, version, bucket_id, opened_at)
                            USING (activity_id, sku_id, version, bucket_id)
                        WHERE w.opened_at = r.opened_at AND w.end_queues IS NULL
                        ORDER BY w.activity_id, w.sku_id, w.version, w.bucket_id
                        FOR UPDATE OF w
                    )
                    UPDATE recovery_window AS w
                    SET end_queues = $6, end_offsets = $7
                    FROM meant
                    WHERE w.activity_id = meant.activity_id AND w.sku_id = meant.sku_id
                        AND w.version = meant.version AND w.bucket_id = meant.bucket_id",
                    &[
                        &columns.activity_id,
                        &columns.sku_id,
                        &columns.version,
                        &columns.bucket_id,
                        &opened_at,
                        /* end_queues */ &queues,
                        /* end_offsets */ &offsets,
                    ],
                )
                .await
        })
        .await
    }

    /// Ends the window that was opened at that instant; says whether it was still open.
    ///
    /// # Errors
    /// As every write.
    pub async fn close_window(
        &self,
        bucket: &BucketScope,
        opened_at_ms: TimestampMs,
    ) -> Result<bool, Error> {
        let opened_at = to_time("opened_at_ms", opened_at_ms)?;
        self.write_window(
            "close_window",
            bucket,
            "-- close_window
            UPDATE recovery_window
            SET opened_at = NULL, end_queues = NULL, end_offsets = NULL, closed_at = now()
            WHERE activity_id = $1 AND sku_id = $2 AND version = $3 AND bucket_id = $4
                AND opened_at = $5",
            &[/* opened_at */ &opened_at],
        )
        .await
    }

    /// One statement about one bucket, `$1` to `$4`; says whether it wrote a row.
    async fn write_window(
        &self,
        operation: &'static str,
        bucket: &BucketScope,
        sql: &str,
        rest: crate::pool::Params<'_>,
    ) -> Result<bool, Error> {
        let scope = ScopeKey::of(&bucket.scope);
        let bucket_id = i64::from(bucket.bucket_id.get());
        let mut params = scope.params().to_vec();
        params.push(&bucket_id);
        params.extend_from_slice(rest);
        let touched = self
            .run_tx(operation, async |session: &Session| {
                session.execute(sql, &params).await
            })
            .await?;
        Ok(touched == 1)
    }
}
