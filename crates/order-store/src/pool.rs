//! Connections and transactions: the only way to the server.
//!
//! The key idea is [`Session`]: it owns its pooled connection, and gives it back only after the
//! transaction has ended with an answer. A future that is dropped half way, a time-out or a broken
//! connection closes it instead, so no task can ever inherit a transaction that another one left
//! open.

use std::fmt;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime, Timeouts};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::types::ToSql;
use tokio_postgres::{NoTls, Row};

use crate::{Cause, Error};

/// A transaction is given up after this many times the limit of one statement. The server keeps the
/// limit of each statement by itself; the client's own one only ends waits for a server that has
/// gone silent, so it is loose: the longest transaction has nine statements, and all of them at
/// their limit means that the server is lost anyway.
const TRANSACTION_STATEMENTS: u32 = 3;

/// How long a cancel request may take that frees the locks of an abandoned statement.
const CANCEL_LIMIT: Duration = Duration::from_secs(2);

/// When an idle connection is first probed, so that a silent peer is noticed without traffic.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

/// A statement's parameters.
pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// How to reach the database, and how long to wait for it.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// `postgres://user:password@host:port/database`; several hosts may be named.
    pub url: SecretString,
    /// Most connections at once.
    pub pool_size: usize,
    /// How long to wait for a free connection, and again for a new one.
    pub acquire_timeout: Duration,
    /// The server's limit for one statement.
    pub statement_timeout: Duration,
    /// The server's limit for one wait for a lock.
    pub lock_timeout: Duration,
    /// When the server ends a session that sits in a transaction and says nothing.
    pub idle_in_transaction_timeout: Duration,
    /// The name that `pg_stat_activity` shows.
    pub application_name: String,
}

/// The database, as a cheap handle.
#[derive(Clone)]
pub struct Store {
    pool: Pool,
    transaction_limit: Duration,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("pool", &self.pool.status())
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Prepares a pool. Nothing is connected yet, so the server may be down.
    ///
    /// # Errors
    /// [`Error::Url`] when the URL cannot be used.
    pub fn connect(config: &StoreConfig) -> Result<Self, Error> {
        let manager = Manager::from_config(
            connection_config(config)?,
            NoTls,
            ManagerConfig {
                // A round trip at each checkout would prove nothing: a demoted server answers it
                // too. Sessions that are in doubt are closed instead of being given back.
                recycling_method: RecyclingMethod::Fast,
            },
        );
        let pool = Pool::builder(manager)
            .max_size(config.pool_size.max(1))
            .runtime(Runtime::Tokio1)
            .timeouts(Timeouts {
                wait: Some(config.acquire_timeout),
                create: Some(config.acquire_timeout),
                recycle: Some(config.acquire_timeout),
            })
            .build()
            .map_err(|error| Error::Url(error.to_string()))?;
        Ok(Self {
            pool,
            transaction_limit: config.statement_timeout * TRANSACTION_STATEMENTS,
        })
    }

    /// Asks the server for an answer.
    ///
    /// # Errors
    /// Retryable while the server does not answer.
    pub async fn ping(&self) -> Result<(), Error> {
        self.read("ping", "-- ping\nSELECT 1", &[]).await?;
        Ok(())
    }

    /// Closes the idle connections; calls from then on fail.
    pub fn close(&self) {
        self.pool.close();
    }

    async fn session(&self, operation: &'static str) -> Result<Session, Error> {
        let object = self.pool.get().await.map_err(|error| Error::Connection {
            operation,
            cause: Cause::from(&error),
        })?;
        Ok(Session {
            object: Some(object),
            operation,
        })
    }

    /// One statement outside a transaction, for reads.
    pub(crate) async fn read(
        &self,
        operation: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        let session = self.session(operation).await?;
        let answer = timeout(self.transaction_limit, session.query(sql, params)).await;
        match answer {
            Ok(answer) => {
                self.end(session, answer.as_ref().err());
                answer
            }
            Err(_silence) => Err(Error::TimedOut {
                operation,
                limit: self.transaction_limit,
            }),
        }
    }

    /// One number, column `n`.
    pub(crate) async fn count(
        &self,
        operation: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<u64, Error> {
        let rows = self.read(operation, sql, params).await?;
        rows.first()
            .map_or(Ok(0), |row| crate::rows::number(row, "n"))
    }

    /// Runs `body` in one READ COMMITTED transaction.
    ///
    /// Its own error rolls the transaction back. A failed commit that the server answered was
    /// rolled back as well; one without an answer is unknown.
    pub(crate) async fn run_tx<T>(
        &self,
        operation: &'static str,
        body: impl AsyncFnOnce(&Session) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let session = self.session(operation).await?;
        let work = async {
            session
                .batch("BEGIN ISOLATION LEVEL READ COMMITTED")
                .await?;
            body(&session).await
        };
        match timeout(self.transaction_limit, work).await {
            Ok(Ok(value)) => {
                self.commit(session).await?;
                Ok(value)
            }
            Ok(Err(error)) => {
                self.roll_back(session, &error).await;
                Err(error)
            }
            Err(_silence) => Err(Error::TimedOut {
                operation,
                limit: self.transaction_limit,
            }),
        }
    }

    async fn commit(&self, session: Session) -> Result<(), Error> {
        let operation = session.operation;
        match timeout(self.transaction_limit, session.batch("COMMIT")).await {
            Ok(Ok(())) => {
                session.give_back();
                Ok(())
            }
            Ok(Err(error)) => {
                self.end(session, Some(&error));
                Err(commit_error(operation, error))
            }
            Err(_silence) => Err(Error::CommitUnknown {
                operation,
                cause: None,
            }),
        }
    }

    async fn roll_back(&self, session: Session, error: &Error) {
        if error.cause().is_some_and(Cause::ends_connection) {
            self.end(session, Some(error));
            return;
        }
        if let Ok(Ok(())) = timeout(self.transaction_limit, session.batch("ROLLBACK")).await {
            session.give_back();
        }
    }

    /// Gives the connection back, or closes it when it is of no more use.
    fn end(&self, session: Session, error: Option<&Error>) {
        if error
            .and_then(Error::cause)
            .is_some_and(Cause::ends_connection)
        {
            // The other idle ones most likely lead to the same demoted or restarted server, or have
            // prepared the same statement.
            self.pool.retain(|_, _| false);
        } else {
            session.give_back();
        }
    }
}

/// What a failed COMMIT means. An answer of severity ERROR proves the rollback (a deferred
/// constraint, a time limit); everything else leaves the outcome open.
fn commit_error(operation: &'static str, error: Error) -> Error {
    match error {
        Error::Statement { cause, .. } if cause.sqlstate().is_none() || cause.session_ended() => {
            Error::CommitUnknown {
                operation,
                cause: Some(cause),
            }
        }
        other => other,
    }
}

fn connection_config(config: &StoreConfig) -> Result<tokio_postgres::Config, Error> {
    let mut connection: tokio_postgres::Config = config
        .url
        .expose_secret()
        .parse()
        .map_err(|error: tokio_postgres::Error| Error::Url(Cause::from(&error).to_string()))?;
    // Plans must follow a table that grows from nothing to a sale's size within seconds; a cached
    // generic plan from its first rows would read it whole for every batch.
    let settings = format!(
        "{} -c statement_timeout={} -c lock_timeout={} -c idle_in_transaction_session_timeout={} \
         -c timezone=UTC -c plan_cache_mode=force_custom_plan",
        connection.get_options().unwrap_or_default(),
        config.statement_timeout.as_millis(),
        config.lock_timeout.as_millis(),
        config.idle_in_transaction_timeout.as_millis(),
    );
    connection
        .options(settings.trim_start())
        .application_name(&config.application_name)
        .connect_timeout(config.acquire_timeout)
        .keepalives(true)
        .keepalives_idle(KEEPALIVE_IDLE)
        // Whoever connects to a server that was demoted looks for the one that was promoted.
        .target_session_attrs(TargetSessionAttrs::ReadWrite);
    Ok(connection)
}

/// How often a transaction runs again because another one got in its way. All take their locks in
/// everybody's order, so once is already rare.
const RERUNS_MAX: u32 = 8;

/// Counts the runs of one transaction. It was rolled back each time, so the same work may be done again.
#[derive(Default)]
pub(crate) struct Reruns(u32);

impl Reruns {
    /// Whether another transaction got in the way of this run, and there may be one more.
    pub(crate) fn again<T>(&mut self, outcome: &Result<T, Error>) -> bool {
        self.0 += 1;
        self.0 <= RERUNS_MAX && outcome.as_ref().is_err_and(Error::is_collision)
    }
}

/// A connection in use. Dropping it closes the connection; only [`Session::give_back`] keeps it.
pub(crate) struct Session {
    object: Option<Object>,
    operation: &'static str,
}

impl Session {
    fn client(&self) -> Result<&Object, Error> {
        self.object.as_ref().ok_or_else(|| Error::Connection {
            operation: self.operation,
            cause: Cause::closed(),
        })
    }

    fn failed(&self, error: &tokio_postgres::Error) -> Error {
        Error::Statement {
            operation: self.operation,
            cause: Cause::from(error),
        }
    }

    /// Runs one statement; prepared once a connection.
    pub(crate) async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
        let client = self.client()?;
        let answer = async {
            let statement = client.prepare_cached(sql).await?;
            client.query(&statement, params).await
        };
        answer.await.map_err(|error| self.failed(&error))
    }

    /// Runs one statement and counts the rows it touched.
    pub(crate) async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64, Error> {
        let client = self.client()?;
        let answer = async {
            let statement = client.prepare_cached(sql).await?;
            client.execute(&statement, params).await
        };
        answer.await.map_err(|error| self.failed(&error))
    }

    async fn batch(&self, sql: &str) -> Result<(), Error> {
        let answer = self.client()?.batch_execute(sql).await;
        answer.map_err(|error| self.failed(&error))
    }

    fn give_back(mut self) {
        drop(self.object.take());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(object) = self.object.take() else {
            return;
        };
        let client = Object::take(object);
        let cancel = client.cancel_token();
        // Closing the socket does not end a statement that waits for a lock; its transaction would
        // keep its own locks until then. The cancel request ends it at once. It can hit nobody
        // else, since this connection is gone.
        drop(client);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let request = timeout(CANCEL_LIMIT, cancel.cancel_query(NoTls)).await;
                tracing::debug!(
                    answered = matches!(request, Ok(Ok(()))),
                    "cancelled a statement"
                );
            });
        }
    }
}
