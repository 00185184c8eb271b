//! Why the bus could not be set up or asked.
//!
//! Sending has no error: see [`SendOutcome`](crate::SendOutcome).

use std::error::Error as StdError;
use std::fmt::Write as _;

use rocketmq_client_rust::{ClientError, MQClientException};

/// The deepest chain of causes that is spelt out; the client's own chains have three to five links.
const CAUSES_MAX: usize = 8;

/// What a caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The broker or the name server is away or slow; the same call may succeed later.
    Retryable,
    /// A setting or an argument is wrong; repeating changes nothing.
    Invalid,
    /// The bus has been shut down.
    Closed,
}

/// A failed call on the bus.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting that the client cannot work with.
    #[error("{setting} {problem}")]
    Setting {
        /// Which one.
        setting: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The client's own runtime could not be built.
    #[error("the bus runtime could not be built: {0}")]
    Runtime(String),
    /// The client reported a failure. Its text names codes and never a message's content.
    #[error("{operation}: {reason}")]
    Client {
        /// What was being done.
        operation: &'static str,
        /// The client's codes.
        reason: String,
    },
    /// No answer in time; what was asked for may have happened.
    #[error("{operation}: no answer within {after_ms} ms")]
    Timeout {
        /// What was being done.
        operation: &'static str,
        /// The limit.
        after_ms: u128,
    },
    /// The topics did not become routable in time.
    #[error("no route to {topics} after {after_ms} ms")]
    NoRoute {
        /// The topics that are missing.
        topics: String,
        /// How long it was waited for.
        after_ms: u128,
    },
}

impl Error {
    /// What a caller can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Setting { .. } | Self::Runtime(_) => ErrorKind::Invalid,
            Self::Client { .. } | Self::Timeout { .. } | Self::NoRoute { .. } => {
                ErrorKind::Retryable
            }
        }
    }

    pub(crate) fn client(operation: &'static str, error: &ClientError) -> Self {
        Self::Client {
            operation,
            reason: describe(error),
        }
    }
}

/// The code of a broker's answer; some calls leave it in the client's own exception.
pub(crate) fn answer_code(error: &ClientError) -> Option<i32> {
    let own = || error.source_ref::<MQClientException>();
    error
        .broker_response_code()
        .or_else(|| own().map(MQClientException::response_code))
}

/// Whether an error says that there was no way to the server, or back, and nothing of what was asked.
pub(crate) fn is_transport(error: &ClientError) -> bool {
    error.descriptor().code().as_str().starts_with("transport.")
}

/// The codes of a client error along its chain of causes.
///
/// The client's `Display` is generic on purpose ("argument is invalid" also stands for a missing
/// route) and its fields are redacted, so the stable codes are what helps an operator. Only codes and
/// the client's fixed phrases are taken: a broker's free text could repeat what was sent.
pub(crate) fn describe(error: &ClientError) -> String {
    let mut text = error.descriptor().code().to_string();
    if let Some(code) = error.broker_response_code() {
        let _ = write!(text, ", broker code {code}");
    }
    if let Some(cause) = error.source_ref::<MQClientException>() {
        let _ = write!(text, ", client code {}", cause.response_code());
    }
    for cause in causes(error) {
        if let Some(cause) = cause.downcast_ref::<std::io::Error>() {
            let _ = write!(text, ", {}", cause.kind());
        } else if let Some(cause) = cause.downcast_ref::<ClientError>() {
            let _ = write!(text, ", {}", cause.descriptor().code());
        }
    }
    text
}

/// The chain below `error`, bounded.
fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(error.source(), |cause| (**cause).source()).take(CAUSES_MAX)
}
