//! A page of PostgreSQL's decisions, each held against Redis' record and the buyer's marker.

use futures::StreamExt;
use seckill_lua_scripts::{Error as RedisError, ErrorKind, ReservationRecord};
use seckill_order_store::{DecisionRecord, Error as StoreError};
use seckill_settlement::Class;
use seckill_state_machine::{ReservationId, ReservationStatus};

use super::{CALLS_IN_FLIGHT, Pass, Read, Sides, record};
use crate::finding::Finding;
use crate::sweep::{Error, judge};

/// Decisions of one page: 150 KB, and as many records as a step of the scan has keys.
const DECISIONS_PER_PAGE: i64 = 500;

/// One decision with Redis' word on it.
struct Compared {
    decision: DecisionRecord,
    record: Read,
    marker: Option<Finding>,
}

impl Pass {
    /// One page; the last decision of it, unless it was the last page.
    pub(super) async fn decisions_page(
        &mut self,
        sides: &Sides,
        after: Option<ReservationId>,
    ) -> Result<Option<ReservationId>, Error> {
        let bucket = self.keys.scope();
        let page = sides
            .store
            .decisions_of_buckets_page(
                &bucket.scope,
                &[bucket.bucket_id],
                after.as_ref(),
                DECISIONS_PER_PAGE,
            )
            .await;
        let page = match page {
            Ok(page) => page,
            // It stays like that until a person has looked at it; the other checks go on.
            Err(StoreError::Stored { column, .. }) => {
                let what = format!("{column} of a decision holds an unusable value");
                self.found
                    .push(Finding::of_bucket(Class::Unreadable, "", what));
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let next = page.last().map(|last| last.reservation_id.clone());
        let compared: Vec<Result<Compared, RedisError>> = futures::stream::iter(page)
            .map(|decision| self.compare(sides, decision))
            .buffer_unordered(CALLS_IN_FLIGHT)
            .collect()
            .await;
        for compared in compared {
            let agreed = self.judge_decision(compared?);
            if let Some(id) = agreed.filter(|id| self.reported.contains(id)) {
                sides.discrepancies.agreed(self.keys.scope(), &id).await;
            }
        }
        Ok(next)
    }

    async fn compare(
        &self,
        sides: &Sides,
        decision: DecisionRecord,
    ) -> Result<Compared, RedisError> {
        let read = record(&sides.redis, &self.keys, &decision.reservation_id).await?;
        let marker = match &read {
            Ok(Some(record)) if record.status == ReservationStatus::OrderCreated => {
                self.marker(sides, record).await?
            }
            _ => None,
        };
        Ok(Compared {
            decision,
            record: read,
            marker,
        })
    }

    /// What is wrong with the marker of a reservation that holds units. A damaged one is told by
    /// its own key.
    pub(super) async fn marker(
        &self,
        sides: &Sides,
        record: &ReservationRecord,
    ) -> Result<Option<Finding>, RedisError> {
        match sides.redis.marker(&self.keys, &record.user_id).await {
            Ok(marker) => Ok(judge::marker(record, marker.as_ref())),
            Err(error) if error.kind() == ErrorKind::Broken => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes what is wrong; returns the reservation if both sides agree on it.
    fn judge_decision(&mut self, compared: Compared) -> Option<ReservationId> {
        let Compared {
            decision,
            record,
            marker,
        } = compared;
        // A damaged record is told by its own key.
        let record = record.ok()?;
        match (judge::decided(&decision, record.as_ref()), marker) {
            (Some(finding), _) => self.found.push(finding),
            (None, Some(finding)) => self.found.push_marker(&decision.user_id, finding),
            (None, None) => return Some(decision.reservation_id),
        }
        None
    }
}
