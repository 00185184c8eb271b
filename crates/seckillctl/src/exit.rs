//! From a command's end to the exit code.

use std::process::ExitCode;

use seckill_activity_control::{Error as ControlError, ErrorKind as ControlErrorKind};
use seckill_lua_scripts::{Error as RedisError, ErrorKind as RedisErrorKind};
use seckill_message_bus::{Error as BusError, ErrorKind as BusErrorKind};
use seckill_order_store::{Error as StoreError, ErrorKind as StoreErrorKind};
use seckill_service_kit::{
    EXIT_FAILED, EXIT_UNAVAILABLE, EXIT_USAGE, Error as KitError, ErrorKind as KitErrorKind,
};

/// What a command that came to its end found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything is as it must be.
    Fine,
    /// Something differs, or was not found; it has been told.
    Differs,
}

impl Verdict {
    /// Fine unless something differs.
    #[must_use]
    pub const fn of(is_fine: bool) -> Self {
        if is_fine { Self::Fine } else { Self::Differs }
    }

    /// The exit code.
    #[must_use]
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Fine => ExitCode::SUCCESS,
            Self::Differs => ExitCode::from(EXIT_FAILED),
        }
    }
}

/// What kept a command from its end and is no error of a library.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Settings that do not fit together or do not fit what exists.
    #[error("{setting} is wrong: {reason}")]
    Setting {
        /// Which one to change.
        setting: &'static str,
        /// Why.
        reason: String,
    },
    /// A dependency that did not answer in time.
    #[error("{name} could not be reached within {seconds} s, see {setting}: {reason}")]
    Unreachable {
        /// Which one.
        name: &'static str,
        /// The setting that says where it is.
        setting: &'static str,
        /// How long it was tried.
        seconds: u64,
        /// What the last try said.
        reason: String,
    },
}

/// Says what went wrong and gives the exit code.
pub fn report(failure: &anyhow::Error) -> ExitCode {
    eprintln!("error: {}", sentence(failure));
    ExitCode::from(code(failure))
}

/// The chain of causes, without repeating what a message already contains.
#[must_use]
pub fn sentence(failure: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in failure.chain() {
        let part = cause.to_string();
        if !text.contains(&part) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&part);
        }
    }
    text
}

/// Whether somebody has to change a setting, so that nothing else can be said.
#[must_use]
pub fn is_wrong_setting(failure: &anyhow::Error) -> bool {
    code(failure) == EXIT_USAGE
}

fn code(failure: &anyhow::Error) -> u8 {
    failure.chain().find_map(known_code).unwrap_or(EXIT_FAILED)
}

fn known_code(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return Some(match failure {
            Failure::Setting { .. } => EXIT_USAGE,
            Failure::Unreachable { .. } => EXIT_UNAVAILABLE,
        });
    }
    if let Some(error) = cause.downcast_ref::<ControlError>() {
        return Some(match error.kind() {
            ControlErrorKind::Invalid => EXIT_USAGE,
            ControlErrorKind::Unavailable => EXIT_UNAVAILABLE,
            ControlErrorKind::NotFound
            | ControlErrorKind::Conflict
            | ControlErrorKind::Retryable
            | ControlErrorKind::Broken => EXIT_FAILED,
        });
    }
    if let Some(error) = cause.downcast_ref::<RedisError>() {
        let is_away = error.kind() == RedisErrorKind::Unavailable;
        return Some(if is_away {
            EXIT_UNAVAILABLE
        } else {
            EXIT_FAILED
        });
    }
    if let Some(error) = cause.downcast_ref::<StoreError>() {
        return Some(match (error, error.kind()) {
            (StoreError::Connection { .. }, _) => EXIT_UNAVAILABLE,
            (_, StoreErrorKind::Invalid) => EXIT_USAGE,
            _ => EXIT_FAILED,
        });
    }
    if let Some(error) = cause.downcast_ref::<BusError>() {
        let is_away = error.kind() == BusErrorKind::Retryable;
        return Some(if is_away {
            EXIT_UNAVAILABLE
        } else {
            EXIT_USAGE
        });
    }
    cause
        .downcast_ref::<KitError>()
        .map(|error| match error.kind() {
            KitErrorKind::Invalid => EXIT_USAGE,
            KitErrorKind::Fatal => EXIT_FAILED,
        })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::*;

    #[test]
    fn the_code_follows_the_deepest_known_cause() {
        let wrong = Failure::Setting {
            setting: "--x",
            reason: "no".to_owned(),
        };
        assert_eq!(code(&anyhow!(wrong).context("starting")), EXIT_USAGE);
        let away = RedisError::NotConnected("refused".to_owned());
        let chain = Err::<(), _>(ControlError::from(away))
            .context("showing")
            .unwrap_err();
        assert_eq!(code(&chain), EXIT_UNAVAILABLE);
        assert_eq!(code(&anyhow!("anything")), EXIT_FAILED);
    }

    #[test]
    fn a_cause_is_not_told_twice() {
        let inner = RedisError::NotConnected("refused".to_owned());
        let chain = Err::<(), _>(ControlError::from(inner))
            .context("showing")
            .unwrap_err();
        assert_eq!(sentence(&chain), "showing: redis is not connected: refused");
    }
}
