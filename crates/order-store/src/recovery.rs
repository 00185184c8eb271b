//! Recovery windows: what each bucket's Redis was when it was last seen, and the time after a
//! failover in which a repeated request must not be refused afresh (M7).
//!
//! A window is named by the instant at which it was opened. Whatever is written about it says which
//! one is meant, so that a reconciler that was held up never ends a window that another one opened
//! after the next failover.

use std::time::Duration;

use seckill_state_machine::{BucketId, BucketScope, Scope, TimestampMs};
use tokio_postgres::Row;

use crate::decide::BucketColumns;
use crate::pool::Session;
use crate::rows::{ScopeKey, bucket, get, millis, time_ms_opt, to_time};
use crate::{Error, Store};

/// A Redis server, as it names its process and the history that it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerNames<'a> {
    /// Of the process.
    pub run_id: &'a str,
    /// Of the history: whoever becomes a primary begins a new one.
    pub replication_id: &'a str,
}

/// What is known about the Redis behind one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryWindow {
    /// The bucket.
    pub bucket: BucketScope,
    /// The run id of the node that served it last.
    pub run_id: String,
    /// The history that it wrote; empty when the row is from before those were noted.
    pub replication_id: String,
    /// How long ago somebody noted to have seen it.
    pub sighted_ms_ago: i64,
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

/// A window that begins now. `opened_at` names it, so that it is later than that of the one before,
/// whatever the clock says.
macro_rules! open_window {
    () => {
        "-- open_window
        INSERT INTO recovery_window AS w (
            activity_id, sku_id, version, bucket_id, run_id, replication_id, reason, opened_at
        )
        VALUES ($1, $2, $3, $4, $5, $6, $7, date_trunc('milliseconds', clock_timestamp()))
        ON CONFLICT (activity_id, sku_id, version, bucket_id) DO UPDATE
        SET run_id = excluded.run_id, replication_id = excluded.replication_id,
            former = CASE
                WHEN w.replication_id = excluded.replication_id THEN w.former
                ELSE (w.former || w.replication_id)[greatest(1, cardinality(w.former) - 14):]
            END,
            reason = excluded.reason,
            opened_at = greatest(excluded.opened_at, w.opened_at + interval '1 ms'),
            end_queues = NULL, end_offsets = NULL, sighted_at = now(),
            seen_at = CASE
                WHEN w.replication_id = excluded.replication_id THEN w.seen_at ELSE now()
            END
        "
    };
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
        replication_id: get(row, "replication_id")?,
        sighted_ms_ago: get(row, "sighted_ms_ago")?,
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
                SELECT activity_id, sku_id, version, bucket_id, run_id, replication_id,
                    opened_at, reason, end_queues, end_offsets,
                    (extract(epoch FROM now() - sighted_at) * 1000)::bigint AS sighted_ms_ago,
                    (extract(epoch FROM now() - opened_at) * 1000)::bigint AS open_for_ms
                FROM recovery_window
                WHERE activity_id = $1 AND sku_id = $2 AND version = $3
                ORDER BY bucket_id",
                &ScopeKey::of(scope).params(),
            )
            .await?;
        rows.iter().map(window).collect()
    }

    /// Notes the server behind a bucket that was never seen before; says whether this call did. One
    /// that is on record stays: another one is a reason to open a window.
    ///
    /// # Errors
    /// As every write.
    pub async fn saw_server(
        &self,
        bucket: &BucketScope,
        server: ServerNames<'_>,
    ) -> Result<bool, Error> {
        self.write_window(
            "saw_server",
            bucket,
            "-- saw_server
            INSERT INTO recovery_window (
                activity_id, sku_id, version, bucket_id, run_id, replication_id
            )
            VALUES ($1, $2, $3, $4, $5, $6)
            ON CONFLICT (activity_id, sku_id, version, bucket_id) DO NOTHING",
            &[
                /* run_id */ &server.run_id,
                /* replication_id */ &server.replication_id,
            ],
        )
        .await
    }

    /// Notes that the server on record calls its history by another name now; says whether it was
    /// still the one before.
    ///
    /// # Errors
    /// As every write.
    pub async fn rename_server(
        &self,
        bucket: &BucketScope,
        before: &str,
        server: ServerNames<'_>,
    ) -> Result<bool, Error> {
        self.write_window(
            "rename_server",
            bucket,
            "-- rename_server
            UPDATE recovery_window SET replication_id = $7, sighted_at = now()
            WHERE activity_id = $1 AND sku_id = $2 AND version = $3 AND bucket_id = $4
                AND run_id = $5 AND replication_id = $6",
            &[
                /* run_id */ &server.run_id,
                /* before */ &before,
                /* replication_id */ &server.replication_id,
            ],
        )
        .await
    }

    /// Notes that these buckets of a version are served by the histories on record; returns for how
    /// many. What somebody else is noting is left to them.
    ///
    /// # Errors
    /// As every write.
    pub async fn sighted(&self, scope: &Scope, seen: &[(BucketId, String)]) -> Result<u64, Error> {
        let key = ScopeKey::of(scope);
        let buckets: Vec<i64> = seen.iter().map(|(id, _)| i64::from(id.get())).collect();
        let histories: Vec<&str> = seen.iter().map(|(_, history)| history.as_str()).collect();
        let mut params = key.params().to_vec();
        params.push(&buckets);
        params.push(&histories);
        self.run_tx("sighted", async |session| {
            session
                .execute(
                    "-- sighted
                    WITH seen AS (
                        SELECT w.bucket_id
                        FROM recovery_window AS w
                        JOIN unnest($4::bigint[], $5::text[]) AS r (bucket_id, replication_id)
                            USING (bucket_id, replication_id)
                        WHERE w.activity_id = $1 AND w.sku_id = $2 AND w.version = $3
                        ORDER BY w.bucket_id
                        FOR UPDATE OF w SKIP LOCKED
                    )
                    UPDATE recovery_window AS w SET sighted_at = now()
                    FROM seen
                    WHERE w.activity_id = $1 AND w.sku_id = $2 AND w.version = $3
                        AND w.bucket_id = seen.bucket_id",
                    &params,
                )
                .await
        })
        .await
    }

    /// Opens the window of a bucket, or starts the open one afresh when its Redis is another one
    /// again; says whether this call did. One that is open for this very history stays as it is. A
    /// history that came before the one on record is taken for what somebody sees from behind a
    /// divided network, unless nobody has seen the one on record for `lost_after`.
    ///
    /// # Errors
    /// As every write; `Refused` for a version that does not exist.
    pub async fn open_window(
        &self,
        bucket: &BucketScope,
        server: ServerNames<'_>,
        reason: &str,
        lost_after: Duration,
    ) -> Result<bool, Error> {
        let lost_after_ms = millis("lost_after", lost_after)?;
        self.write_window(
            "open_window",
            bucket,
            concat!(
                open_window!(),
                "WHERE CASE
                    WHEN w.replication_id = excluded.replication_id THEN w.opened_at IS NULL
                    ELSE excluded.replication_id <> ALL (w.former)
                        OR w.sighted_at < now() - $8::bigint * interval '1 ms'
                END"
            ),
            &[
                /* run_id */ &server.run_id,
                /* replication_id */ &server.replication_id,
                /* reason */ &reason,
                /* lost_after_ms */ &lost_after_ms,
            ],
        )
        .await
    }

    /// Opens the window of a bucket whose data was lost, whatever is on record: the ends of an open
    /// one may have been taken before the loss.
    ///
    /// # Errors
    /// As every write; `Refused` for a version that does not exist.
    pub async fn restart_window(
        &self,
        bucket: &BucketScope,
        server: ServerNames<'_>,
        reason: &str,
    ) -> Result<(), Error> {
        self.write_window(
            "restart_window",
            bucket,
            open_window!(),
            &[
                /* run_id */ &server.run_id,
                /* replication_id */ &server.replication_id,
                /* reason */ &reason,
            ],
        )
        .await?;
        Ok(())
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
