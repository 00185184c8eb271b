//! Who changes something, and why.

use crate::values::remark;

/// For commands that change nothing unless they are told to.
#[derive(Debug, Clone, clap::Args)]
pub struct ByArgs {
    /// Who does it; kept with the change
    #[arg(long, value_name = "NAME", value_parser = remark)]
    actor: Option<String>,

    /// Why; kept with the change
    #[arg(long, value_name = "TEXT", value_parser = remark)]
    reason: Option<String>,
}

/// For commands that always change something.
#[derive(Debug, Clone, clap::Args)]
pub struct NamedArgs {
    /// Who does it; kept with the change
    #[arg(long, value_name = "NAME", value_parser = remark)]
    pub actor: String,

    /// Why; kept with the change
    #[arg(long, value_name = "TEXT", value_parser = remark)]
    pub reason: String,
}

impl ByArgs {
    /// Who; empty only where nothing is changed.
    #[must_use]
    pub fn actor(&self) -> &str {
        self.actor.as_deref().unwrap_or_default()
    }

    /// Why; empty only where nothing is changed.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or_default()
    }
}
