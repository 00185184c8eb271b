//! Why an activity could not be moved or audited.

use std::fmt::Write as _;

use seckill_lua_scripts::{Error as RedisError, ErrorKind as RedisErrorKind};
use seckill_message_bus::Error as BusError;
use seckill_order_store::{Error as StoreError, ErrorKind as StoreErrorKind};
use seckill_settlement::Error as ReplayError;
use seckill_state_machine::{ActivityId, ActivityState, ActivityVersion, BucketScope, Scope};

use crate::{FieldDifference, Violation};

/// What a caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The settings are wrong.
    Invalid,
    /// There is no such activity version.
    NotFound,
    /// The state of the activity forbids the step; nothing was changed by it.
    Conflict,
    /// A store could not be reached; the same step may be taken again.
    Unavailable,
    /// A store gave no answer or refused for now; every step may be taken again.
    Retryable,
    /// Stored data is damaged; a person must look.
    Broken,
}

/// A step that was not taken, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Settings that cannot stand.
    #[error("the settings cannot stand: {}", listed(.0))]
    Settings(Vec<Violation>),
    /// No such activity version.
    #[error("activity {0} does not exist")]
    Unknown(Scope),
    /// The activity is in no state that allows the step.
    #[error("cannot {step} {scope}: it is {state}; {hint}")]
    WrongState {
        /// The step.
        step: &'static str,
        /// Which version.
        scope: Scope,
        /// Where PostgreSQL says it stands.
        state: ActivityState,
        /// What to do instead.
        hint: &'static str,
    },
    /// Another version of the activity is on sale, or was after this one.
    #[error("cannot open {scope}: version {other} is {state}")]
    OtherVersion {
        /// Which version.
        scope: Scope,
        /// The version that stands in its way.
        other: ActivityVersion,
        /// Where that one stands.
        state: ActivityState,
    },
    /// The sale's end, or its keys' expiry, lies in the past.
    #[error("cannot {step} {scope}: its {what} has passed")]
    Over {
        /// The step.
        step: &'static str,
        /// Which version.
        scope: Scope,
        /// Which time.
        what: &'static str,
    },
    /// Redis lost what PostgreSQL has sold from. Writing fresh stock would sell units twice.
    #[error(
        "cannot {step} {scope}: {} in Redis although it was on sale; \
         use `seckillctl activity rebuild`, which counts the orders",
        lost(.missing)
    )]
    NeedsRebuild {
        /// The step.
        step: &'static str,
        /// Which version.
        scope: Scope,
        /// What is missing.
        missing: Vec<String>,
    },
    /// Redis does not hold what PostgreSQL says.
    #[error("{scope} differs between PostgreSQL and Redis: {}", listed(.differences))]
    Differs {
        /// Which version.
        scope: Scope,
        /// Every field.
        differences: Vec<FieldDifference>,
    },
    /// Somebody else moved the activity at the same time; Redis follows PostgreSQL's last word.
    #[error("{scope} was to become {wanted}, but somebody else made it {state} meanwhile")]
    Overtaken {
        /// Which version.
        scope: Scope,
        /// What this step wanted.
        wanted: ActivityState,
        /// What PostgreSQL says now.
        state: ActivityState,
    },
    /// Versions kept being opened and closed while the pointer was written.
    #[error(
        "the versions of {0} keep changing; look which one is to be on sale, and open it again"
    )]
    PointerRace(ActivityId),
    /// A script declined.
    #[error("redis refused to {step} {bucket}: {reason}")]
    Declined {
        /// The step.
        step: &'static str,
        /// Which bucket.
        bucket: BucketScope,
        /// The script's words.
        reason: String,
    },
    /// Redis could not be asked.
    #[error("{0}")]
    Redis(#[from] RedisError),
    /// PostgreSQL could not be asked.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The broker could not be asked.
    #[error("{0}")]
    Bus(#[from] BusError),
}

impl From<ReplayError> for Error {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Redis(error) => Self::Redis(error),
            ReplayError::Store(error) => Self::Store(error),
        }
    }
}

impl Error {
    /// What can be done about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Settings(_) => ErrorKind::Invalid,
            Self::Unknown(_) => ErrorKind::NotFound,
            Self::WrongState { .. }
            | Self::OtherVersion { .. }
            | Self::Over { .. }
            | Self::NeedsRebuild { .. }
            | Self::Differs { .. }
            | Self::Overtaken { .. }
            | Self::PointerRace(_) => ErrorKind::Conflict,
            Self::Declined { .. } => ErrorKind::Broken,
            Self::Redis(error) => match error.kind() {
                RedisErrorKind::Unavailable => ErrorKind::Unavailable,
                RedisErrorKind::OutcomeUnknown | RedisErrorKind::Refused => ErrorKind::Retryable,
                RedisErrorKind::Broken => ErrorKind::Broken,
            },
            Self::Store(error) => of_store(error),
            Self::Bus(_) => ErrorKind::Unavailable,
        }
    }
}

fn of_store(error: &StoreError) -> ErrorKind {
    match (error.kind(), error) {
        (_, StoreError::Connection { .. }) => ErrorKind::Unavailable,
        (StoreErrorKind::Retryable | StoreErrorKind::OutcomeUnknown, _) => ErrorKind::Retryable,
        (StoreErrorKind::Refused | StoreErrorKind::Conflict, _) => ErrorKind::Conflict,
        (StoreErrorKind::NotFound, _) => ErrorKind::NotFound,
        (StoreErrorKind::Invalid, _) => ErrorKind::Invalid,
        (StoreErrorKind::Fatal, _) => ErrorKind::Broken,
    }
}

fn listed<T: std::fmt::Display>(items: &[T]) -> String {
    let mut text = String::new();
    for (index, item) in items.iter().enumerate() {
        let separator = if index == 0 { "" } else { "; " };
        let _ = write!(text, "{separator}{item}");
    }
    text
}

fn lost(missing: &[String]) -> String {
    let verb = if missing.len() == 1 { "is" } else { "are" };
    format!("{} {verb} missing", missing.join(", "))
}
