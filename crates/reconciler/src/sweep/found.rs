//! What a pass over one bucket has found so far, within a limit.

use std::collections::HashSet;

use seckill_state_machine::UserId;

use crate::finding::Finding;

/// Findings of one bucket that a pass remembers: some 5 MB. After a loss there may be a million; the
/// replay that follows a failover mends those, and what is left comes with the next passes.
const FINDINGS_MAX: usize = 10_000;

/// The findings of one pass.
#[derive(Debug, Default)]
pub struct Found {
    list: Vec<Finding>,
    dropped: u64,
    /// Buyers whose marker is named already, with the order that it should name.
    marked: HashSet<UserId>,
}

impl Found {
    /// Notes a finding.
    pub fn push(&mut self, finding: Finding) {
        if self.list.len() < FINDINGS_MAX {
            self.list.push(finding);
        } else {
            self.dropped += 1;
        }
    }

    /// Notes what is wrong with a buyer's marker.
    pub fn push_marker(&mut self, user: &UserId, finding: Finding) {
        if self.marked.len() < FINDINGS_MAX {
            self.marked.insert(user.clone());
        }
        self.push(finding);
    }

    /// Whether a buyer's marker is named already.
    pub fn is_marked(&self, user: &UserId) -> bool {
        self.marked.contains(user)
    }

    /// How many there were no room for.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// All that were noted.
    pub fn into_list(self) -> Vec<Finding> {
        self.list
    }
}
