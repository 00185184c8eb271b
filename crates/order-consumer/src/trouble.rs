//! What a failed transaction says about the messages in it.
//!
//! Only PostgreSQL's own constraints ever refuse an order, and they do so inside the transaction.
//! What arrives here is a fault; the question is whose: everybody's, one stock row's, or one
//! message's.

use seckill_order_store::{Error, ErrorKind};

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The database is away, full, read-only or forbids the work: every message would meet the same.
    /// It is waited for, since a redelivery costs minutes and counts against the message.
    Everyone,
    /// A lock or a statement took too long: somebody holds a stock row. The others need not wait.
    StockRow,
    /// The data of some message does not go in, however often it is tried.
    Message,
}

/// A lock was not granted in time.
const LOCK_NOT_AVAILABLE: &str = "55P03";
/// A statement was cancelled, which a wait for a lock may end in, too.
const QUERY_CANCELED: &str = "57014";
/// Classes of SQLSTATEs that speak of collisions between transactions.
const COLLISION_CLASSES: [&str; 1] = ["40"];
/// Classes that speak of the data: data exception, integrity violation, a raised exception.
const DATA_CLASSES: [&str; 3] = ["22", "23", "P0"];

impl Trouble {
    /// Sorts an error.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        let sqlstate = error.cause().and_then(|cause| cause.sqlstate());
        match error.kind() {
            ErrorKind::Retryable => Self::of_sqlstate(sqlstate.unwrap_or_default(), error),
            // Running the batch again reads what the unanswered commit has done.
            ErrorKind::OutcomeUnknown => Self::Everyone,
            ErrorKind::Refused | ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Invalid => {
                Self::Message
            }
            ErrorKind::Fatal => match error {
                Error::Stored { .. } => Self::Message,
                _ => Self::Everyone,
            },
        }
    }

    fn of_sqlstate(sqlstate: &str, error: &Error) -> Self {
        let class = sqlstate.get(..2).unwrap_or_default();
        if sqlstate == LOCK_NOT_AVAILABLE
            || sqlstate == QUERY_CANCELED
            || COLLISION_CLASSES.contains(&class)
            || matches!(error, Error::TimedOut { .. } | Error::Interfered { .. })
        {
            return Self::StockRow;
        }
        if DATA_CLASSES.contains(&class) {
            return Self::Message;
        }
        Self::Everyone
    }
}

/// An error with what the server said about it.
#[must_use]
pub fn describe(error: &Error) -> String {
    match error.cause() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn with_sqlstate(sqlstate: &str) -> Trouble {
        let error = Error::TimedOut {
            operation: "decide",
            limit: Duration::from_secs(1),
        };
        assert_eq!(Trouble::of(&error), Trouble::StockRow);
        Trouble::of_sqlstate(
            sqlstate,
            &Error::CommitUnknown {
                operation: "decide",
                cause: None,
            },
        )
    }

    #[test]
    fn a_locked_row_is_not_everyones_trouble() {
        for sqlstate in ["55P03", "57014", "40P01", "40001"] {
            assert_eq!(with_sqlstate(sqlstate), Trouble::StockRow, "{sqlstate}");
        }
    }

    #[test]
    fn what_an_operator_must_cure_is_never_held_against_a_message() {
        for sqlstate in [
            "", "42501", "42P01", "53100", "53200", "53300", "57P01", "25006", "08006",
        ] {
            assert_eq!(with_sqlstate(sqlstate), Trouble::Everyone, "{sqlstate}");
        }
    }

    #[test]
    fn data_that_does_not_go_in_is_its_messages_trouble() {
        for sqlstate in ["22003", "22021", "23502", "23503", "P0001"] {
            assert_eq!(with_sqlstate(sqlstate), Trouble::Message, "{sqlstate}");
        }
        let invalid = Error::Invalid {
            field: "quantity",
            problem: "too many".to_owned(),
        };
        assert_eq!(Trouble::of(&invalid), Trouble::Message);
    }

    #[test]
    fn an_unanswered_commit_is_run_again() {
        let unknown = Error::CommitUnknown {
            operation: "decide",
            cause: None,
        };
        assert_eq!(Trouble::of(&unknown), Trouble::Everyone);
    }
}
