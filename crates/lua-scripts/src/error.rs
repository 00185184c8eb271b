//! What can go wrong with a call, sorted by the one question that callers ask: may it have run?

use fred::error::{Error as ClientError, ErrorKind as ClientErrorKind};

/// Whether the call may have had an effect, and who must act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// It may have run: no answer in time, or the connection broke while waiting for one.
    OutcomeUnknown,
    /// It surely did not run: not connected, or too many calls are in flight.
    Unavailable,
    /// The server answered that it does not run it now (full, read-only, loading, failing over).
    Refused,
    /// Data or deployment is damaged: wrong type, crossed slots, a malformed record or reply.
    Broken,
}

/// A failed call.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The URL or a limit is unusable. Its text is not repeated: it may hold a password.
    #[error("the redis setting is unusable: {0}")]
    Config(String),
    /// As many calls as allowed are waiting for an answer.
    #[error("{limit} redis calls are in flight already")]
    Overloaded {
        /// The limit that was reached.
        limit: usize,
    },
    /// There is no connection, so nothing was sent.
    #[error("redis is not connected: {0}")]
    NotConnected(String),
    /// No answer came; the call may have run.
    #[error("the outcome of {call} is unknown: {reason}")]
    OutcomeUnknown {
        /// The script or command.
        call: &'static str,
        /// What was seen instead of an answer.
        reason: String,
    },
    /// The server declined to run the call.
    #[error("redis refused {call}: {reason}")]
    Refused {
        /// The script or command.
        call: &'static str,
        /// The server's words.
        reason: String,
    },
    /// The server ran into something that retrying does not cure.
    #[error("redis failed {call}: {reason}")]
    Failed {
        /// The script or command.
        call: &'static str,
        /// The server's words.
        reason: String,
    },
    /// An answer or a stored record does not have the agreed form.
    #[error("malformed {what}: {reason}")]
    Malformed {
        /// The answer or record.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// First words of errors by which a server says "not now" and has done nothing.
const REFUSALS: [&str; 15] = [
    "OOM",
    "READONLY",
    "NOREPLICAS",
    "MASTERDOWN",
    "LOADING",
    "CLUSTERDOWN",
    "BUSY",
    "TRYAGAIN",
    "MISCONF",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "MOVED",
    "ASK",
    "NOSCRIPT",
];

/// What fred says when a command was turned away before it was written.
const NOT_SENT: [&str; 4] = [
    "Connection closed unexpectedly.",
    "Failed to route command.",
    "Client is not initialized.",
    "Failed to send command to router.",
];

/// What a server says when another one owns the slot: the command did not run.
const MOVED: &str = "MOVED ";

/// What a server says when it is cut off from the others, or nobody serves the slot.
const CLUSTER_DOWN: &str = "CLUSTERDOWN";

/// First words by which a server says that it is a replica.
const FROM_REPLICA: [&str; 2] = ["READONLY", "MASTERDOWN"];

/// What a server says when its script cache lacks the script.
const NO_SCRIPT: &str = "NOSCRIPT";

impl Error {
    /// Whether the call may have had an effect.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::OutcomeUnknown { .. } => ErrorKind::OutcomeUnknown,
            Self::Overloaded { .. } | Self::NotConnected(_) => ErrorKind::Unavailable,
            Self::Refused { .. } => ErrorKind::Refused,
            Self::Config(_) | Self::Failed { .. } | Self::Malformed { .. } => ErrorKind::Broken,
        }
    }

    /// Sorts an error of the client library. Whatever is not surely harmless counts as unknown.
    pub(crate) fn from_client(call: &'static str, error: &ClientError) -> Self {
        let reason = error.details().to_owned();
        match error.kind() {
            ClientErrorKind::Backpressure => return Self::NotConnected(reason),
            ClientErrorKind::Timeout | ClientErrorKind::IO => {
                return Self::OutcomeUnknown { call, reason };
            }
            _ => {}
        }
        if NOT_SENT.contains(&reason.as_str()) {
            return Self::NotConnected(reason);
        }
        let first_word = reason.split([' ', ':']).next().unwrap_or_default();
        if REFUSALS.contains(&first_word) || reason.starts_with("ERR max number of clients") {
            return Self::Refused { call, reason };
        }
        if is_server_reply(error.kind(), first_word) {
            return Self::Failed { call, reason };
        }
        Self::OutcomeUnknown { call, reason }
    }

    pub(crate) fn malformed(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Malformed {
            what,
            reason: reason.into(),
        }
    }
}

/// Whether an error is the server's own reply: those start with an upper-case code word. All else
/// comes from the library, after which nobody knows what the server did.
fn is_server_reply(kind: &ClientErrorKind, first_word: &str) -> bool {
    let code_word = first_word.len() >= 3 && first_word.bytes().all(|b| b.is_ascii_uppercase());
    match kind {
        // These arise before anything is sent: an unusable command or key set.
        ClientErrorKind::InvalidArgument
        | ClientErrorKind::InvalidCommand
        | ClientErrorKind::Parse
        | ClientErrorKind::NotFound => true,
        _ => code_word,
    }
}

/// Whether the server answered that it does not know the script.
pub(crate) fn is_no_script(error: &ClientError) -> bool {
    error.details().starts_with(NO_SCRIPT)
}

/// Whether there was no answer in time. A broken connection is no silence: it is opened anew anyway.
pub(crate) fn is_silence(error: &ClientError) -> bool {
    matches!(error.kind(), ClientErrorKind::Timeout)
}

/// Whether the answer shows that the connection is with a replica: since a failover without a broken
/// connection, the primary is elsewhere.
pub(crate) fn is_from_replica(error: &ClientError) -> bool {
    FROM_REPLICA
        .iter()
        .any(|word| error.details().starts_with(word))
}

/// Whether the server answered that another one owns the slot. `ASK` is not meant: a slot that is still
/// moving is refused.
pub(crate) fn is_moved(error: &ClientError) -> bool {
    error.details().starts_with(MOVED)
}

/// Whether the server answered that it does not serve the slot at the moment.
pub(crate) fn is_cluster_down(error: &ClientError) -> bool {
    error.details().starts_with(CLUSTER_DOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(client_kind: ClientErrorKind, details: &'static str) -> ErrorKind {
        Error::from_client("reserve", &ClientError::new(client_kind, details)).kind()
    }

    #[test]
    fn what_may_have_run_is_unknown() {
        for (client_kind, details) in [
            (ClientErrorKind::Timeout, "Request timed out."),
            (ClientErrorKind::IO, "Connection Closed"),
            (ClientErrorKind::Canceled, "Canceled."),
            (ClientErrorKind::Unknown, "channel closed"),
            (ClientErrorKind::Unknown, "Too many failed write attempts."),
            (ClientErrorKind::Protocol, "Could not decode frame."),
        ] {
            assert_eq!(
                kind(client_kind, details),
                ErrorKind::OutcomeUnknown,
                "{details}"
            );
        }
    }

    #[test]
    fn what_was_never_sent_is_unavailable() {
        for details in NOT_SENT {
            assert_eq!(
                kind(ClientErrorKind::Canceled, details),
                ErrorKind::Unavailable
            );
        }
        assert_eq!(
            kind(
                ClientErrorKind::Backpressure,
                "Max in-flight commands reached."
            ),
            ErrorKind::Unavailable
        );
    }

    #[test]
    fn a_servers_not_now_is_a_refusal_and_damage_is_not() {
        for details in [
            "OOM command not allowed when used memory > 'maxmemory'. script: abc, on @user_script:1.",
            "READONLY You can't write against a read only replica.",
            "NOREPLICAS Not enough good replicas to write.",
            "LOADING Redis is loading the dataset in memory",
            "CLUSTERDOWN The cluster is down",
            "BUSY Redis is busy running a script.",
            "MOVED 3999 127.0.0.1:6381",
            "ASK 3999 127.0.0.1:6381",
        ] {
            assert_eq!(
                kind(ClientErrorKind::Unknown, details),
                ErrorKind::Refused,
                "{details}"
            );
        }
        for (client_kind, details) in [
            (
                ClientErrorKind::InvalidArgument,
                "WRONGTYPE Operation against a key",
            ),
            (
                ClientErrorKind::Unknown,
                "CROSSSLOT Keys in request don't hash to the same slot",
            ),
            (ClientErrorKind::Unknown, "ERR value is not an integer"),
        ] {
            assert_eq!(kind(client_kind, details), ErrorKind::Broken, "{details}");
        }
    }
}
