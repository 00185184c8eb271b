//! What can be wrong with the logging settings.

/// Why logging cannot be set up as asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `RUST_LOG` is no list of filter directives.
    #[error("RUST_LOG is not a list of filter directives: {0}")]
    Filter(String),
}

/// What a caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A setting is wrong: nothing but changing it helps.
    Invalid,
}

impl Error {
    /// What can be done about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Filter(_) => ErrorKind::Invalid,
        }
    }
}
