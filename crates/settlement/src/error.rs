//! What keeps a replay from its end.

use seckill_lua_scripts::{Error as RedisError, ErrorKind as RedisErrorKind};
use seckill_order_store::{Error as StoreError, ErrorKind as StoreErrorKind};

/// Whether the same replay may get through later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A store did not answer, or not now. What was asked of it may have been done; every step may be
    /// repeated.
    Retryable,
    /// A store's data, schema or deployment does not suit this program; a person must act.
    Fatal,
}

/// A replay that did not get to its end. Repeating it is safe, whatever it had done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis did not answer a step, which may have been taken.
    #[error("redis did not take a step of a replay")]
    Redis(#[from] RedisError),
    /// PostgreSQL did not answer.
    #[error("postgresql did not take a step of a replay")]
    Store(#[from] StoreError),
}

impl Error {
    /// Whether it may get through later.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        let fatal = match self {
            Self::Redis(error) => matches!(error.kind(), RedisErrorKind::Broken),
            Self::Store(error) => !matches!(
                error.kind(),
                StoreErrorKind::Retryable | StoreErrorKind::OutcomeUnknown
            ),
        };
        if fatal {
            ErrorKind::Fatal
        } else {
            ErrorKind::Retryable
        }
    }
}
