//! What is wrong with a message, field by field.
//!
//! A conversion into a domain type reports every wrong field at once, so that a caller or an operator
//! does not find the second mistake only after mending the first.

use std::fmt;

/// One wrong field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The field's name as the protocol definition spells it.
    pub field: &'static str,
    /// What is wrong; the value itself is never repeated, it may be huge, hostile or personal.
    pub problem: String,
}

/// Every wrong field of one message, in the order of its fields; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// The wrong fields.
    #[must_use]
    pub fn as_slice(&self) -> &[Violation] {
        &self.0
    }

    /// The wrong fields, owned.
    #[must_use]
    pub fn into_vec(self) -> Vec<Violation> {
        self.0
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, violation) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{} {}", violation.field, violation.problem)?;
        }
        Ok(())
    }
}

impl std::error::Error for Violations {}

/// Collects violations while fields are converted one after the other.
#[derive(Debug, Default)]
pub struct Collector(Vec<Violation>);

impl Collector {
    /// Notes a wrong field.
    pub fn note(&mut self, field: &'static str, problem: impl fmt::Display) {
        self.0.push(Violation {
            field,
            problem: problem.to_string(),
        });
    }

    /// Keeps the value, or notes why there is none.
    pub fn keep<T, E: fmt::Display>(
        &mut self,
        field: &'static str,
        value: Result<T, E>,
    ) -> Option<T> {
        value.map_err(|problem| self.note(field, problem)).ok()
    }

    /// The value if every field was right. A missing value without a violation is the converter's
    /// own mistake; it is reported under `field` instead of panicking on a message's content.
    ///
    /// # Errors
    /// Every violation that was noted.
    pub fn finish<T>(mut self, field: &'static str, value: Option<T>) -> Result<T, Violations> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => {
                if self.0.is_empty() {
                    self.note(field, "could not be converted");
                }
                Err(Violations(self.0))
            }
        }
    }
}
