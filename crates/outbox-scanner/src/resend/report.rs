//! What a pass did, counted: one log line a bucket instead of one a member.

use std::ops::Add;

use seckill_lua_scripts::Error;
use seckill_state_machine::BucketScope;

/// Counts of one pass over one or more buckets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Sent, and the broker said a plain yes.
    pub sent: u64,
    /// Sent with an unknown outcome; they come again.
    pub unknown: u64,
    /// Members that somebody else claimed, sent or finished first.
    pub taken_by_others: u64,
    /// Members whose reservation is missing or unreadable: postponed, never dropped.
    pub unusable: u64,
    /// The first of those, and what is wrong with it.
    pub unusable_example: Option<String>,
    /// Claims or records that Redis did not answer or refused.
    pub unanswered: u64,
    /// Buckets whose index could not be read.
    pub unreadable: u64,
    /// Whether a bucket had more pages than one pass takes.
    pub more: bool,
}

impl Report {
    /// Whether another pass should follow at once: only after progress, so that members that cannot
    /// be sent do not turn the loop hot.
    #[must_use]
    pub const fn wants_another_pass(&self) -> bool {
        self.more && self.sent > 0
    }

    /// Whether Redis answered no claim and no record, as one that is full: it refuses whatever writes and
    /// goes on telling what is due.
    #[must_use]
    pub const fn got_nowhere(&self) -> bool {
        self.unanswered > 0 && self.sent + self.unknown + self.taken_by_others + self.unusable == 0
    }

    pub(super) fn note_unusable(&mut self, member: &str, reason: impl std::fmt::Display) {
        self.unusable += 1;
        self.unusable_example
            .get_or_insert_with(|| format!("{member}: {reason}"));
    }

    pub(super) fn note_unreadable(&mut self, bucket: &BucketScope, error: &Error) {
        self.unreadable += 1;
        tracing::debug!(%bucket, error = %error, "the bucket's index could not be read");
    }

    pub(super) fn log(&self, bucket: &BucketScope) {
        let scope = &bucket.scope;
        if self.unusable > 0 {
            tracing::error!(
                activity_id = %scope.activity_id,
                sku_id = %scope.sku_id,
                activity_version = %scope.version,
                bucket_id = %bucket.bucket_id,
                unusable = self.unusable,
                example = self.unusable_example,
                "reservations in send_pending cannot be read; they were postponed"
            );
        }
        if self.sent + self.unknown + self.taken_by_others + self.unanswered > 0 {
            tracing::info!(
                activity_id = %scope.activity_id,
                sku_id = %scope.sku_id,
                activity_version = %scope.version,
                bucket_id = %bucket.bucket_id,
                sent = self.sent,
                unknown = self.unknown,
                taken_by_others = self.taken_by_others,
                unanswered = self.unanswered,
                "resent due reservations"
            );
        }
    }
}

impl Add for Report {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            unknown: self.unknown + other.unknown,
            taken_by_others: self.taken_by_others + other.taken_by_others,
            unusable: self.unusable + other.unusable,
            unusable_example: self.unusable_example.or(other.unusable_example),
            unanswered: self.unanswered + other.unanswered,
            unreadable: self.unreadable + other.unreadable,
            more: self.more || other.more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_progress_earns_another_pass_at_once() {
        let stuck = Report {
            more: true,
            unknown: 128,
            ..Report::default()
        };
        let moving = Report {
            sent: 1,
            ..stuck.clone()
        };
        assert!(!stuck.wants_another_pass());
        assert!(moving.wants_another_pass());
        assert!((stuck + moving).wants_another_pass());
    }

    #[test]
    fn only_refusals_without_any_other_answer_got_nowhere() {
        let full = Report {
            unanswered: 64,
            ..Report::default()
        };
        assert!(full.got_nowhere());
        assert!(!Report::default().got_nowhere());
        let shared = Report {
            taken_by_others: 1,
            ..Report::default()
        };
        assert!(!(full + shared).got_nowhere());
    }

    #[test]
    fn the_first_unusable_member_is_the_example() {
        let mut report = Report::default();
        report.note_unusable("a", "missing");
        report.note_unusable("b", "broken");
        assert_eq!(report.unusable, 2);
        assert_eq!(report.unusable_example.as_deref(), Some("a: missing"));
    }
}
