//! What can go wrong, sorted by what a caller may do about it.
//!
//! A refusal by a rule, a fault that a retry may cure, and an outcome that nobody knows are three
//! different things here; mixing any two of them sells a unit twice or loses it.

use std::fmt;
use std::time::Duration;

use deadpool_postgres::PoolError;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// What a caller may do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Nothing was written; the same call may succeed later.
    Retryable,
    /// The commit got no answer: it may have been carried out. Read before deciding; repeating the
    /// same call is safe.
    OutcomeUnknown,
    /// A constraint said no; the same call will be refused again.
    Refused,
    /// What the call names does not exist.
    NotFound,
    /// What the call wants contradicts what is stored.
    Conflict,
    /// The arguments or the settings are wrong.
    Invalid,
    /// The schema or a stored value does not suit this program; a person must act.
    Fatal,
}

impl ErrorKind {
    /// A stable word for logs and metric labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Refused => "refused",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Invalid => "invalid",
            Self::Fatal => "fatal",
        }
    }
}

/// What the server or the connection said, without the row values.
///
/// PostgreSQL's `DETAIL` quotes the offending key, and a key may hold a user id, which must never
/// reach a log (I12). So only the SQLSTATE, the primary message and the constraint's name are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    sqlstate: Option<String>,
    message: String,
    constraint: Option<String>,
    session_ended: bool,
}

impl Cause {
    /// The SQLSTATE, when the server answered at all.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.sqlstate.as_deref()
    }

    /// The constraint that said no.
    #[must_use]
    pub fn constraint(&self) -> Option<&str> {
        self.constraint.as_deref()
    }

    /// Whether the connection is of no more use: it broke, or the server ended the session, or it
    /// leads to a server that takes no writes, or a statement that it has prepared no longer suits
    /// the schema ("cached plan must not change result type"), which no repeat on it would cure.
    #[must_use]
    pub fn ends_connection(&self) -> bool {
        self.session_ended
            || self.is(&SqlState::READ_ONLY_SQL_TRANSACTION)
            || self.is(&SqlState::FEATURE_NOT_SUPPORTED)
    }

    /// Whether another transaction got in the way and the same work may simply run again.
    #[must_use]
    pub fn is_collision(&self) -> bool {
        self.is(&SqlState::T_R_DEADLOCK_DETECTED) || self.is(&SqlState::T_R_SERIALIZATION_FAILURE)
    }

    /// Whether the server ended the session with this answer, or the connection broke.
    pub(crate) const fn session_ended(&self) -> bool {
        self.session_ended
    }

    pub(crate) fn closed() -> Self {
        Self {
            sqlstate: None,
            message: "the connection is closed".to_owned(),
            constraint: None,
            session_ended: true,
        }
    }

    pub(crate) fn is(&self, state: &SqlState) -> bool {
        self.sqlstate.as_deref() == Some(state.code())
    }

    /// The SQLSTATEs by which a constraint says no. Of an order only those that `decide` knows by name
    /// ever reject it.
    fn is_rule(&self) -> bool {
        self.constraint.is_some()
            && (self.is(&SqlState::UNIQUE_VIOLATION)
                || self.is(&SqlState::CHECK_VIOLATION)
                || self.is(&SqlState::FOREIGN_KEY_VIOLATION))
    }

    /// Class 22: a value that the server cannot take, such as text with a NUL character. It will not
    /// take it the next time either.
    fn is_bad_value(&self) -> bool {
        self.sqlstate
            .as_deref()
            .is_some_and(|sqlstate| sqlstate.starts_with("22"))
    }

    fn of_server(error: &DbError) -> Self {
        // FATAL and PANIC end the session. They say nothing about a commit that was under way.
        let error_only = matches!(error.parsed_severity(), Some(Severity::Error));
        Self {
            sqlstate: Some(error.code().code().to_owned()),
            message: error.message().to_owned(),
            constraint: error.constraint().map(ToOwned::to_owned),
            session_ended: !error_only,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sqlstate {
            Some(sqlstate) => write!(f, "{} (SQLSTATE {sqlstate})", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Cause {}

impl From<&tokio_postgres::Error> for Cause {
    fn from(error: &tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(answer) => Self::of_server(answer),
            None => Self {
                sqlstate: None,
                message: with_sources(error),
                constraint: None,
                session_ended: error.is_closed() || is_io(error),
            },
        }
    }
}

impl From<&PoolError> for Cause {
    fn from(error: &PoolError) -> Self {
        match error {
            PoolError::Backend(inner) => Self::from(inner),
            other => Self {
                sqlstate: None,
                message: with_sources(other),
                constraint: None,
                session_ended: false,
            },
        }
    }
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let part = source.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = source.source();
    }
    text
}

/// A failed call to the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database URL cannot be used.
    #[error("the database url is not usable: {0}")]
    Url(String),
    /// No connection could be had.
    #[error("no database connection for {operation}")]
    Connection {
        /// The transaction's name.
        operation: &'static str,
        /// What went wrong.
        #[source]
        cause: Cause,
    },
    /// A statement failed; the transaction is rolled back.
    #[error("{operation} was rolled back")]
    Statement {
        /// The transaction's name.
        operation: &'static str,
        /// What the server said.
        #[source]
        cause: Cause,
    },
    /// The transaction took too long before its commit; it is rolled back.
    #[error("{operation} took longer than {limit:?} and was abandoned before its commit")]
    TimedOut {
        /// The transaction's name.
        operation: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The commit was sent and not answered.
    #[error("the commit of {operation} got no answer")]
    CommitUnknown {
        /// The transaction's name.
        operation: &'static str,
        /// What broke, unless it was silence.
        #[source]
        cause: Option<Cause>,
    },
    /// Another transaction changed what this one had read; it is rolled back and may run again.
    #[error("another transaction got in the way of {operation}")]
    Interfered {
        /// The transaction's name.
        operation: &'static str,
    },
    /// A named thing does not exist.
    #[error("{what} does not exist")]
    NotFound {
        /// What was looked for.
        what: String,
    },
    /// A stored fact stands against the call.
    #[error("{0}")]
    Conflict(String),
    /// An argument is wrong.
    #[error("{field}: {problem}")]
    Invalid {
        /// Which argument.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A stored value cannot be read.
    #[error("{column} holds an unusable value: {problem}")]
    Stored {
        /// Where it stands.
        column: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The schema is older than this program needs, or newer than this migrator knows.
    #[error("the schema is at version {found}, this program needs {wanted}")]
    Schema {
        /// The newest version that the database has; 0 when it has none.
        found: u32,
        /// The newest version that this program knows.
        wanted: u32,
    },
    /// A migration that this program knows is not on record, or with other contents.
    #[error("migration {version} of the schema is not the one that this program knows")]
    SchemaDiffers {
        /// The migration's number.
        version: u32,
    },
    /// A migration failed.
    #[error("migrating the schema failed: {0}")]
    Migration(String),
}

impl Error {
    /// What the caller may do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Statement { cause, .. } if cause.is_rule() => ErrorKind::Refused,
            Self::Statement { cause, .. } if cause.is_bad_value() => ErrorKind::Invalid,
            Self::Connection { .. }
            | Self::Statement { .. }
            | Self::TimedOut { .. }
            | Self::Interfered { .. } => ErrorKind::Retryable,
            Self::CommitUnknown { .. } => ErrorKind::OutcomeUnknown,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Conflict(_) => ErrorKind::Conflict,
            Self::Url(_) | Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Stored { .. }
            | Self::Schema { .. }
            | Self::SchemaDiffers { .. }
            | Self::Migration(_) => ErrorKind::Fatal,
        }
    }

    /// What the server or the connection said, where that is the reason.
    #[must_use]
    pub const fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Connection { cause, .. } | Self::Statement { cause, .. } => Some(cause),
            Self::CommitUnknown { cause, .. } => cause.as_ref(),
            _ => None,
        }
    }

    pub(crate) fn is_collision(&self) -> bool {
        matches!(self, Self::Interfered { .. }) || self.cause().is_some_and(Cause::is_collision)
    }

    pub(crate) fn stored(column: &'static str, problem: impl fmt::Display) -> Self {
        Self::Stored {
            column,
            problem: problem.to_string(),
        }
    }

    pub(crate) fn invalid(field: &'static str, problem: impl fmt::Display) -> Self {
        Self::Invalid {
            field,
            problem: problem.to_string(),
        }
    }
}
