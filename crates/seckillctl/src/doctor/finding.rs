//! One line of the doctor's report.

use serde::Serialize;

use super::Profile;

/// Which part of the installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// The gate.
    Redis,
    /// The final word.
    Postgres,
    /// The message bus.
    Broker,
    /// All clocks.
    Clocks,
    /// What is on sale.
    Activities,
    /// What waits for somebody.
    Waiting,
}

impl Area {
    /// Its word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::Broker => "broker",
            Self::Clocks => "clocks",
            Self::Activities => "activities",
            Self::Waiting => "waiting",
        }
    }
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// As it must be.
    Ok,
    /// Somebody should look.
    Warn,
    /// A guarantee does not hold.
    Fail,
}

impl Grade {
    /// Its word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }

    /// What breaks a guarantee in production is only worth a look on a single machine.
    #[must_use]
    pub const fn unless_local(self, profile: Profile) -> Self {
        match (self, profile) {
            (Self::Fail, Profile::Local) => Self::Warn,
            (grade, _) => grade,
        }
    }
}

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Of which part.
    pub area: Area,
    /// What was looked at; a fixed word that scripts can rely on.
    pub check: String,
    /// What there is. Never a secret.
    pub found: String,
    /// What there must be.
    pub wanted: String,
    /// How bad it is.
    pub verdict: Grade,
    /// What to do; empty when all is well.
    pub hint: String,
}

impl Finding {
    /// A finding with a grade; the hint is only kept when there is something to do.
    #[must_use]
    pub fn of(
        verdict: Grade,
        area: Area,
        check: impl Into<String>,
        found: impl ToString,
        wanted: impl ToString,
        hint: impl Into<String>,
    ) -> Self {
        let hint = match verdict {
            Grade::Ok => String::new(),
            Grade::Warn | Grade::Fail => hint.into(),
        };
        Self {
            area,
            check: check.into(),
            found: found.to_string(),
            wanted: wanted.to_string(),
            verdict,
            hint,
        }
    }

    /// Something that breaks a guarantee.
    #[must_use]
    pub fn fail(
        area: Area,
        check: impl Into<String>,
        found: impl ToString,
        wanted: impl ToString,
        hint: impl Into<String>,
    ) -> Self {
        Self::of(Grade::Fail, area, check, found, wanted, hint)
    }
}

/// Names that one line tells; the rest is counted.
const NAMED_MAX: usize = 5;

/// The first of them, and how many more there are.
pub fn some_of(names: &[String]) -> String {
    let named = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>();
    match names.len().saturating_sub(NAMED_MAX) {
        0 => named.join("; "),
        more => format!("{}; and {more} more", named.join("; ")),
    }
}

/// `Ok` when it holds, else the given grade.
#[must_use]
pub const fn unless(holds: bool, grade: Grade) -> Grade {
    if holds { Grade::Ok } else { grade }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut_and_says_so() {
        let names: Vec<String> = (0..7).map(|n| n.to_string()).collect();
        assert_eq!(some_of(&names), "0; 1; 2; 3; 4; and 2 more");
        assert_eq!(some_of(&names[..2]), "0; 1");
    }
}
