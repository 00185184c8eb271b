//! An activity's settings and life, as PostgreSQL holds them and preheat copies them to Redis.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{BucketCount, Quantity, Scope, TimestampMs};

/// Where an activity version stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ActivityState {
    /// Created, perhaps preheated, never opened.
    Prepared,
    /// On sale between its start and its end.
    Active,
    /// Stopped by an operator; can resume.
    Paused,
    /// Over for good; its keys wait for their expiry.
    Closed,
}

/// A word that names no activity state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown activity state")]
pub struct UnknownActivityState;

impl ActivityState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Prepared, Self::Active, Self::Paused, Self::Closed];

    /// The word that both stores keep.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prepared => "PREPARED",
            Self::Active => "ACTIVE",
            Self::Paused => "PAUSED",
            Self::Closed => "CLOSED",
        }
    }

    /// Whether an operator may move an activity from this state to `next`.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        match self {
            Self::Prepared => matches!(next, Self::Active | Self::Closed),
            Self::Active => matches!(next, Self::Paused | Self::Closed),
            Self::Paused => matches!(next, Self::Active | Self::Closed),
            Self::Closed => false,
        }
    }
}

impl fmt::Display for ActivityState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ActivityState {
    type Err = UnknownActivityState;
    fn from_str(text: &str) -> Result<Self, UnknownActivityState> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or(UnknownActivityState)
    }
}

/// What an operator sets once, when the version is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivitySettings {
    /// What this describes.
    #[serde(flatten)]
    pub scope: Scope,
    /// First instant of the sale, inclusive.
    pub starts_at_ms: TimestampMs,
    /// Last instant of the sale, inclusive.
    pub ends_at_ms: TimestampMs,
    /// When every Redis key of the version expires.
    pub retention_until_ms: TimestampMs,
    /// Units on sale, over all buckets.
    pub total_stock: u64,
    /// Buckets the stock is split into; fixed for the version.
    pub bucket_count: BucketCount,
    /// Units a user may hold. Only 1 is supported.
    pub limit_per_user: u32,
    /// Most units one call may ask for.
    pub max_quantity: Quantity,
    /// From acceptance to the check of a reservation that is still open, in milliseconds.
    pub reservation_ttl_ms: i64,
    /// How long an undecided reservation is left alone, in milliseconds.
    pub patience_ms: i64,
    /// Which HMAC secret derives this version's reservation ids.
    pub secret_version: u32,
}

/// An activity version and where it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// The settings, which never change.
    #[serde(flatten)]
    pub settings: ActivitySettings,
    /// The state, which operators move.
    pub state: ActivityState,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_is_final_and_prepared_is_never_entered_again() {
        for state in ActivityState::ALL {
            assert!(!ActivityState::Closed.may_become(state));
            assert!(!state.may_become(ActivityState::Prepared));
            assert_eq!(state.as_str().parse(), Ok(state));
        }
    }
}
