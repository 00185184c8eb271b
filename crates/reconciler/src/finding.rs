//! One difference as a check sees it, before it is known whether it stays.

use seckill_order_store::Discrepancy;
use seckill_settlement::{Class, Evidence, discrepancy};
use seckill_state_machine::{BucketScope, ReservationId};

/// A difference of one bucket, seen once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is.
    pub class: Class,
    /// Which reservation, unless the bucket as a whole or another key of it.
    pub reservation_id: Option<ReservationId>,
    /// What must stay the same for it to count, next to class and reservation. Never leaves the
    /// process, so it may name a user.
    pub subject: String,
    /// What each side holds.
    pub evidence: Evidence,
}

/// What must stay the same for a finding to count.
pub type FindingKey = (Class, Option<ReservationId>, String);

impl Finding {
    /// A difference about one reservation, whatever the two sides hold from round to round.
    #[must_use]
    pub fn of(
        class: Class,
        id: &ReservationId,
        redis: impl Into<String>,
        postgres: impl Into<String>,
    ) -> Self {
        Self {
            class,
            reservation_id: Some(id.clone()),
            subject: String::new(),
            evidence: Evidence {
                redis: redis.into(),
                postgres: postgres.into(),
            },
        }
    }

    /// A difference about a bucket, or about one of its keys. It counts only while `redis` and
    /// `postgres` stay the same.
    #[must_use]
    pub fn of_bucket(class: Class, redis: impl Into<String>, postgres: impl Into<String>) -> Self {
        let evidence = Evidence {
            redis: redis.into(),
            postgres: postgres.into(),
        };
        Self {
            class,
            reservation_id: None,
            subject: format!("{}\0{}", evidence.redis, evidence.postgres),
            evidence,
        }
    }

    /// The same with another subject.
    #[must_use]
    pub fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = subject.into();
        self
    }

    /// What must stay the same for it to count.
    #[must_use]
    pub fn key(&self) -> FindingKey {
        (
            self.class,
            self.reservation_id.clone(),
            self.subject.clone(),
        )
    }

    /// The difference, to be put on record.
    #[must_use]
    pub fn in_bucket(self, bucket: &BucketScope) -> Discrepancy {
        discrepancy(self.class, bucket, self.reservation_id, self.evidence)
    }
}
