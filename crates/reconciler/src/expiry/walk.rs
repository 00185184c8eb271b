//! The walk over one bucket's index.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    Error as RedisError, ErrorKind, Index, IndexMember, Redis, ReservationRecord,
};
use seckill_order_store::{DecisionRecord, Discrepancy, NewTask, Store, TaskOrigin};
use seckill_settlement::{Settled, settle_ordered, settle_rejected};
use seckill_state_machine::{BucketScope, ReservationId, ReservationStatus};
use tokio::time::Instant;

use super::Error;
use super::judge::{Step, judge};
use crate::findings;
use crate::persistence::{Persistence, Seen};
use crate::rounds::{Round, alert};

/// Members of one page: one query to PostgreSQL and as many reads from Redis.
const PAGE_SIZE: usize = 256;

/// Pages of one bucket in one tick: 2,048 members, well under a second.
const PAGES_PER_TICK: usize = 8;

/// Reads and steps of one page in flight.
const CALLS_IN_FLIGHT: usize = 32;

/// Undecided reservations that are listed one by one, per bucket and round. After an outage there may
/// be a million of them; the bucket's own entry always tells how many there are.
const UNDECIDED_LISTED_MAX: u64 = 100;

/// The state of one bucket's walk.
pub struct Walk {
    keys: BucketKeys,
    after: Option<IndexMember>,
    ended: bool,
    rule: Persistence<(&'static str, String)>,
    round: Round,
    undecided: u64,
}

/// One member with Redis' word on it.
struct Member {
    id: ReservationId,
    record: Result<Option<ReservationRecord>, RedisError>,
}

impl Walk {
    pub fn new(bucket: BucketScope, grace: Duration) -> Self {
        Self {
            keys: BucketKeys::new(&bucket),
            after: None,
            ended: false,
            rule: Persistence::new(grace),
            round: Round::default(),
            undecided: 0,
        }
    }

    /// Whether every due member had its turn.
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Walks on where the last call stopped.
    pub async fn go_on(&mut self, redis: &Redis, store: &Store) -> Result<(), Error> {
        let now = redis.server_time(&self.keys).await?;
        for _ in 0..PAGES_PER_TICK {
            let after = self.after.as_ref();
            let members = redis
                .due(&self.keys, Index::ReservationExpiry, now, after, PAGE_SIZE)
                .await?;
            self.page(&members, redis, store).await?;
            if members.len() < PAGE_SIZE {
                self.ended = true;
                return Ok(());
            }
            self.after = members.last().cloned();
        }
        Ok(())
    }

    /// Ends the round, hands out what it came to, and goes back to the beginning.
    pub fn begin_again(&mut self) -> Round {
        self.ended = false;
        self.after = None;
        self.rule.end_round();
        let mut round = std::mem::take(&mut self.round);
        let undecided = std::mem::take(&mut self.undecided);
        if undecided > 0 {
            let detail = format!("{undecided} reservations are due and undecided");
            round
                .found
                .push(self.discrepancy(None, findings::UNDECIDED, detail));
        }
        round
    }

    async fn page(
        &mut self,
        members: &[IndexMember],
        redis: &Redis,
        store: &Store,
    ) -> Result<(), Error> {
        let ids = self.parse(members);
        if ids.is_empty() {
            return Ok(());
        }
        let found = store.decisions(&ids).await?;
        let decisions: HashMap<ReservationId, DecisionRecord> = found
            .into_iter()
            .map(|decision| (decision.reservation_id.clone(), decision))
            .collect();
        // Redis is read after PostgreSQL: a reservation that is settled in between is seen as such.
        let members = read(redis, &self.keys, ids).await;
        for member in members {
            let decision = decisions.get(&member.id);
            self.member(member, decision, redis, store).await?;
        }
        Ok(())
    }

    fn parse(&mut self, members: &[IndexMember]) -> Vec<ReservationId> {
        let mut ids = Vec::with_capacity(members.len());
        for member in members {
            match ReservationId::parse(member.member.as_str()) {
                Ok(id) => ids.push(id),
                Err(_) => {
                    let detail = format!("{} is no reservation id", member.member.escape_debug());
                    self.report(None, findings::UNREADABLE, detail);
                }
            }
        }
        ids
    }

    async fn member(
        &mut self,
        member: Member,
        decision: Option<&DecisionRecord>,
        redis: &Redis,
        store: &Store,
    ) -> Result<(), Error> {
        self.round.checked += 1;
        let record = match member.record {
            Ok(record) => record,
            // Damage is reported and does not end the walk; silence does.
            Err(error) if error.kind() == ErrorKind::Broken => {
                let detail = error.to_string();
                self.report(Some(member.id), findings::UNREADABLE, detail);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let id = &member.id;
        match judge(decision, record.as_ref().map(|record| record.status)) {
            Step::SettleOrdered(order_id) => {
                let settled = settle_ordered(redis, &self.keys, id, &order_id).await?;
                self.settled(member.id, "ordered", settled);
            }
            Step::SettleRejected(reason) => {
                let settled = settle_rejected(redis, &self.keys, id, reason).await?;
                self.settled(member.id, "rejected", settled);
            }
            Step::HandOver => {
                if let Some(record) = record {
                    self.hand_over(&record, store).await?;
                }
            }
            Step::Report { kind, detail } => {
                self.report(Some(member.id), kind, detail);
            }
        }
        Ok(())
    }

    fn settled(&mut self, id: ReservationId, decision: &str, settled: Settled) {
        match settled {
            Settled::Agreed { .. } => self.round.settled += 1,
            // Gone since it was read; the next walk sees what is left.
            Settled::Missing | Settled::BucketGone => {}
            Settled::Contradiction { code, status } => {
                let found = status.map_or("unknown", ReservationStatus::as_str);
                let detail = format!("postgresql: {decision}; redis: {found} ({code})");
                self.report(Some(id), findings::CONTRADICTION, detail);
            }
        }
    }

    /// Reopens the compensation task of a reservation that nobody has released for longer than that
    /// takes. Once: reopening it again and again would only get in the way of the worker's backoff.
    async fn hand_over(&mut self, record: &ReservationRecord, store: &Store) -> Result<(), Error> {
        let id = &record.reservation_id;
        let key = (findings::NOT_RELEASED, id.to_string());
        let seen = self.rule.see(key, Instant::now());
        if seen == Seen::Waiting {
            return Ok(());
        }
        if seen == Seen::Confirmed {
            store
                .open_task(&NewTask {
                    request: record.order_request(),
                    origin: TaskOrigin::HeldAgain,
                    due_in: Duration::ZERO,
                })
                .await?;
            self.round.settled += 1;
            let bucket = self.keys.scope();
            tracing::warn!(reservation_id = %id, %bucket, "reopened a compensation task");
        }
        let detail = format!("postgresql: given up; redis: {}", record.status);
        let found = self.discrepancy(Some(id.clone()), findings::NOT_RELEASED, detail);
        self.round.found.push(found);
        Ok(())
    }

    /// Notes a difference, which counts if it stays.
    fn report(&mut self, id: Option<ReservationId>, kind: &'static str, detail: String) {
        let name = id
            .as_ref()
            .map_or_else(|| detail.clone(), ToString::to_string);
        let seen = self.rule.see((kind, name), Instant::now());
        if seen == Seen::Waiting {
            return;
        }
        if kind == findings::UNDECIDED {
            self.undecided += 1;
            if self.undecided > UNDECIDED_LISTED_MAX {
                return;
            }
        }
        let found = self.discrepancy(id, kind, detail);
        if seen == Seen::Confirmed {
            alert(&found);
        }
        self.round.found.push(found);
    }

    fn discrepancy(
        &self,
        reservation_id: Option<ReservationId>,
        kind: &'static str,
        detail: String,
    ) -> Discrepancy {
        Discrepancy {
            kind: kind.to_owned(),
            bucket: self.keys.scope().clone(),
            reservation_id,
            detail,
        }
    }
}

async fn read(redis: &Redis, keys: &BucketKeys, ids: Vec<ReservationId>) -> Vec<Member> {
    futures::stream::iter(ids)
        .map(|id| async move {
            let record = redis.reservation(keys, &id).await;
            Member { id, record }
        })
        .buffered(CALLS_IN_FLIGHT)
        .collect()
        .await
}
