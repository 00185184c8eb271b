//! What can go wrong around a service, as opposed to in it.

/// Why a service does not start or does not end well.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is wrong. Its value is not repeated, since it may be a secret.
    #[error("{setting} is wrong: {reason}")]
    Setting {
        /// The flag and the environment variable.
        setting: String,
        /// What is wrong with the value.
        reason: String,
    },
    /// A loop that must not end did.
    #[error("{name} {how}")]
    LoopDied {
        /// The loop.
        name: &'static str,
        /// How it ended.
        how: String,
    },
    /// Work was still running when the grace period was over.
    #[error("cut off after the grace period: {0}")]
    CutOff(String),
    /// The operating system refused something.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
}

/// What a caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Nothing but changing a setting helps.
    Invalid,
    /// A restart may help.
    Fatal,
}

impl Error {
    /// A wrong setting.
    pub fn setting(setting: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::Setting {
            setting: setting.into(),
            reason: reason.to_string(),
        }
    }

    /// What can be done about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Setting { .. } => ErrorKind::Invalid,
            Self::LoopDied { .. } | Self::CutOff(_) | Self::System { .. } => ErrorKind::Fatal,
        }
    }
}
