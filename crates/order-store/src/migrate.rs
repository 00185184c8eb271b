//! The schema: embedded, applied by a command, checked by services.
//!
//! refinery wraps each file in a transaction but takes no lock, so an advisory lock keeps two
//! migrators apart. Services never migrate; they refuse a schema on which a migration that they know
//! is missing or was changed. What a newer program has added on top is made to suit them as well.

use std::collections::BTreeMap;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use crate::rows::{get, number};
use crate::{Cause, Error, Store};

mod embedded {
    refinery::embed_migrations!("../../migrations");
}

/// The advisory lock's number: "seckill" in ASCII, so that nobody else's lock is met by accident.
const LOCK: i64 = 0x0073_6563_6b69_6c6c;

/// How long the migrator waits for the server.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// What migrating did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The schema's version now.
    pub version: u32,
    /// Files applied by this call, in order; none when it was up to date.
    pub applied: Vec<String>,
}

/// The newest version that this program knows.
fn wanted() -> u32 {
    let runner = embedded::migrations::runner();
    let versions = runner.get_migrations().iter().map(|m| m.version());
    versions
        .max()
        .and_then(|version| u32::try_from(version).ok())
        .unwrap_or(0)
}

/// A number that changes with any embedded migration, for instance to name a prepared database by.
#[must_use]
pub fn schema_fingerprint() -> u64 {
    let runner = embedded::migrations::runner();
    let mut checksums: Vec<u64> = runner
        .get_migrations()
        .iter()
        .map(|m| m.checksum())
        .collect();
    checksums.sort_unstable();
    // FNV-1a over the files' own checksums.
    checksums
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, checksum| {
            (hash ^ checksum).wrapping_mul(0x0000_0100_0000_01b3)
        })
}

/// Brings the schema to this program's version. Running it again, or twice at once, is harmless.
///
/// # Errors
/// `Schema` when the database is newer than this program; `Migration` when a file fails or an
/// applied one was changed; `Connection` when the server cannot be reached.
pub async fn migrate(url: &SecretString) -> Result<Migrated, Error> {
    let mut config: tokio_postgres::Config = url
        .expose_secret()
        .parse()
        .map_err(|error: tokio_postgres::Error| Error::Url(Cause::from(&error).to_string()))?;
    config
        .connect_timeout(CONNECT_LIMIT)
        .application_name("seckill-migrate")
        .target_session_attrs(TargetSessionAttrs::ReadWrite);
    let (mut client, connection) = config.connect(NoTls).await.map_err(|e| lost(&e))?;
    let driver = tokio::spawn(connection);
    let outcome = under_lock(&mut client).await;
    // The session's end releases the lock, whatever happened.
    drop(client);
    let ended = driver.await;
    tracing::debug!(
        clean = matches!(ended, Ok(Ok(()))),
        "migration session ended"
    );
    outcome
}

fn lost(error: &tokio_postgres::Error) -> Error {
    Error::Connection {
        operation: "migrate",
        cause: Cause::from(error),
    }
}

async fn under_lock(client: &mut Client) -> Result<Migrated, Error> {
    client
        .execute("-- migrate\nSELECT pg_advisory_lock($1)", &[&LOCK])
        .await
        .map_err(|error| lost(&error))?;
    // A file that has to wait for a table holds up everybody behind it, so it gives up soon.
    client
        .batch_execute("SET lock_timeout = '5s'; SET statement_timeout = '60s'")
        .await
        .map_err(|error| lost(&error))?;
    let found = applied_version(client)
        .await
        .map_err(|error| lost(&error))?;
    let wanted = wanted();
    if found > wanted {
        return Err(Error::Schema { found, wanted });
    }
    let report = embedded::migrations::runner()
        .run_async(client)
        .await
        .map_err(|error| Error::Migration(failure(&error)))?;
    let applied = report.applied_migrations().iter().map(ToString::to_string);
    Ok(Migrated {
        version: wanted,
        applied: applied.collect(),
    })
}

/// refinery's message with what the server said, which it keeps as a source.
fn failure(error: &refinery::Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        text = match source.downcast_ref::<tokio_postgres::Error>() {
            Some(server) => format!("{text}: {}", Cause::from(server)),
            None => format!("{text}: {source}"),
        };
        next = source.source();
    }
    text
}

const APPLIED_VERSION: &str = "-- applied_version
    SELECT coalesce(max(version), 0)::bigint AS version
    FROM refinery_schema_history";

async fn applied_version(client: &Client) -> Result<u32, tokio_postgres::Error> {
    match client.query_one(APPLIED_VERSION, &[]).await {
        Ok(row) => Ok(u32::try_from(row.get::<_, i64>("version")).unwrap_or(u32::MAX)),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(0),
        Err(error) => Err(error),
    }
}

const APPLIED: &str = "-- check_schema
    SELECT version::bigint AS version, checksum
    FROM refinery_schema_history
    ORDER BY version";

/// Whether every migration that this program knows is applied as it knows it. Newer ones may follow:
/// each suits the program before it, so that the schema can be expanded under running services.
fn compare(applied: &BTreeMap<u32, String>) -> Result<(), Error> {
    let found = applied.keys().next_back().copied().unwrap_or(0);
    let wanted = wanted();
    if found < wanted {
        return Err(Error::Schema { found, wanted });
    }
    for known in embedded::migrations::runner().get_migrations() {
        let version = u32::try_from(known.version()).unwrap_or(u32::MAX);
        if applied.get(&version) != Some(&known.checksum().to_string()) {
            return Err(Error::SchemaDiffers { version });
        }
    }
    Ok(())
}

impl Store {
    /// Whether the schema has every migration that this program knows, unchanged.
    ///
    /// # Errors
    /// `Schema` when it is older or not there at all, `SchemaDiffers` when a migration was changed.
    pub async fn check_schema(&self) -> Result<(), Error> {
        let rows = match self.read("check_schema", APPLIED, &[]).await {
            Ok(rows) => rows,
            Err(error)
                if error
                    .cause()
                    .is_some_and(|c| c.is(&SqlState::UNDEFINED_TABLE)) =>
            {
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let applied = rows
            .iter()
            .map(|row| Ok((number(row, "version")?, get(row, "checksum")?)))
            .collect::<Result<BTreeMap<u32, String>, Error>>()?;
        compare(&applied)
    }
}
