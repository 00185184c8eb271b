//! What the server says about itself and the last rounds of checks, for operators.

use std::collections::BTreeMap;

use seckill_state_machine::{Scope, TimestampMs};
use tokio_postgres::Row;

use crate::rows::{ScopeKey, get, number, time_ms, time_ms_opt};
use crate::{Error, RunOutcome, Store};

/// The settings that are asked for: durability, isolation, room for connections, upkeep.
const SETTINGS: [&str; 8] = [
    "autovacuum",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "fsync",
    "full_page_writes",
    "max_connections",
    "superuser_reserved_connections",
    "synchronous_commit",
];

/// A server's version, settings, load and clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// `150018` for 15.18.
    pub version_num: u32,
    /// Settings by name.
    pub settings: BTreeMap<String, String>,
    /// Clients that are connected.
    pub connections: u64,
    /// Whether it is a standby, which takes no writes.
    pub in_recovery: bool,
    /// Its clock when it answered.
    pub now: TimestampMs,
}

/// The last round of one kind of check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastRun {
    /// What was checked.
    pub kind: String,
    /// Who checked.
    pub instance: String,
    /// When it began.
    pub started_at_ms: TimestampMs,
    /// When it ended; none while it runs, or after a crash.
    pub finished_at_ms: Option<TimestampMs>,
    /// What it did.
    pub outcome: RunOutcome,
}

/// How much of one kind waits for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Why messages were parked, or the class of differences.
    pub kind: String,
    /// Whether a service is about to do away with it by itself.
    pub is_mended: bool,
    /// How many.
    pub count: u64,
}

impl Store {
    /// Parked messages that nobody has done anything about, by reason.
    ///
    /// # Errors
    /// As every read.
    pub async fn waiting_letters(&self) -> Result<Vec<Waiting>, Error> {
        self.waiting(
            "waiting_letters",
            "-- waiting_letters
            SELECT reason AS kind, false AS is_mended, count(*) AS n
            FROM dead_letter WHERE status = 'OPEN'
            GROUP BY reason ORDER BY n DESC, reason",
        )
        .await
    }

    /// Differences that are there, by class; those that wait for a person come first.
    ///
    /// # Errors
    /// As every read.
    pub async fn waiting_differences(&self) -> Result<Vec<Waiting>, Error> {
        self.waiting(
            "waiting_differences",
            "-- waiting_differences
            SELECT kind, repairable = 'AUTOMATIC' AS is_mended, count(*) AS n
            FROM discrepancy WHERE resolved_at IS NULL
            GROUP BY kind, repairable = 'AUTOMATIC' ORDER BY is_mended, n DESC, kind",
        )
        .await
    }

    async fn waiting(&self, name: &'static str, query: &str) -> Result<Vec<Waiting>, Error> {
        let waiting = |row: &Row| {
            Ok(Waiting {
                kind: get(row, "kind")?,
                is_mended: get(row, "is_mended")?,
                count: number(row, "n")?,
            })
        };
        let rows = self.read(name, query, &[]).await?;
        rows.iter().map(waiting).collect()
    }

    /// The last round of every kind of check that looked at a version within the last week.
    ///
    /// # Errors
    /// As every read.
    pub async fn last_runs(&self, scope: &Scope) -> Result<Vec<LastRun>, Error> {
        let rows = self
            .read(
                "last_runs",
                "-- last_runs
                SELECT DISTINCT ON (kind)
                    kind, instance, started_at, finished_at, checked, settled, discrepancies, error
                FROM reconciliation_run
                WHERE started_at > now() - interval '7 days'
                    AND (
                        activity_id IS NULL
                        OR (activity_id = $1 AND sku_id = $2 AND version = $3)
                    )
                ORDER BY kind, started_at DESC",
                &ScopeKey::of(scope).params(),
            )
            .await?;
        let last_run = |row: &Row| {
            Ok(LastRun {
                kind: get(row, "kind")?,
                instance: get(row, "instance")?,
                started_at_ms: time_ms(row, "started_at")?,
                finished_at_ms: time_ms_opt(row, "finished_at")?,
                outcome: RunOutcome {
                    checked: number(row, "checked")?,
                    settled: number(row, "settled")?,
                    discrepancies: number(row, "discrepancies")?,
                    error: get(row, "error")?,
                },
            })
        };
        rows.iter().map(last_run).collect()
    }

    /// The server's clock, which the times of decisions are of.
    ///
    /// # Errors
    /// As every read.
    pub async fn clock(&self) -> Result<TimestampMs, Error> {
        let rows = self
            .read(
                "clock",
                "-- clock\n                SELECT clock_timestamp() AS now",
                &[],
            )
            .await?;
        let row = rows
            .first()
            .ok_or_else(|| Error::stored("clock", "no row"))?;
        time_ms(row, "now")
    }

    /// Asks the server about itself.
    ///
    /// # Errors
    /// As every read.
    pub async fn server_facts(&self) -> Result<ServerFacts, Error> {
        let names: Vec<&str> = SETTINGS.to_vec();
        let settings = self
            .read(
                "server_settings",
                "-- server_settings
                SELECT name, setting FROM pg_settings WHERE name = ANY($1) ORDER BY name",
                &[/* names */ &names],
            )
            .await?
            .iter()
            .map(|row| Ok((get(row, "name")?, get(row, "setting")?)))
            .collect::<Result<BTreeMap<String, String>, Error>>()?;
        let rows = self
            .read(
                "server_facts",
                "-- server_facts
                SELECT
                    current_setting('server_version_num')::bigint AS version_num,
                    pg_is_in_recovery() AS in_recovery,
                    (
                        SELECT count(*) FROM pg_stat_activity
                        WHERE backend_type = 'client backend'
                    ) AS connections,
                    clock_timestamp() AS now",
                &[],
            )
            .await?;
        let row = rows
            .first()
            .ok_or_else(|| Error::stored("server_facts", "no row"))?;
        Ok(ServerFacts {
            version_num: number(row, "version_num")?,
            settings,
            connections: number(row, "connections")?,
            in_recovery: get(row, "in_recovery")?,
            now: time_ms(row, "now")?,
        })
    }
}
