//! The one way in which this crate gives up.
//!
//! A test cannot go on without its servers, and every test would only unwrap their errors. So the
//! constructors panic themselves, at the caller's line and with the whole chain of causes.

/// Ends the test when a value that it cannot do without is an error.
pub trait OrFail<T> {
    /// The value, or a panic that says what was being done and why it failed.
    fn or_fail(self, doing: &str) -> T;
}

impl<T, E> OrFail<T> for Result<T, E>
where
    E: Into<anyhow::Error>,
{
    #[track_caller]
    fn or_fail(self, doing: &str) -> T {
        match self {
            Ok(value) => value,
            Err(error) => panic!("{doing}: {:#}", error.into()),
        }
    }
}
