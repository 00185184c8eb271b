//! The walk over one bucket's index.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    Error as RedisError, ErrorKind, Index, IndexMember, Redis, ReservationRecord,
};
use seckill_order_store::{
    DecisionRecord, Discrepancy, Error as StoreError, ErrorKind as StoreErrorKind, Store,
};
use seckill_settlement::{Settled, settle_ordered, settle_rejected};
use seckill_state_machine::{BucketScope, ReservationId, ReservationStatus};
use tokio::time::Instant;

use super::Error;
use super::judge::{Step, judge};
use super::tally::{LISTED_MAX, Page, Tally};
use crate::findings;
use crate::persistence::{Persistence, Seen};
use crate::rounds::{Round, alert};

/// Members of one page: one query to PostgreSQL and as many reads from Redis.
const PAGE_SIZE: usize = 256;

/// Pages of one bucket in one tick: 2,048 members, well under a second.
const PAGES_PER_TICK: usize = 8;

/// Reads and steps of one page in flight.
const CALLS_IN_FLIGHT: usize = 32;

/// The state of one bucket's walk.
pub struct Walk {
    keys: BucketKeys,
    after: Option<IndexMember>,
    rule: Persistence<(&'static str, String)>,
    tally: Tally,
    /// The last walk that got to the end, until the other buckets' walks have as well.
    finished: Option<Round>,
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
            rule: Persistence::new(grace),
            tally: Tally::begin(),
            finished: None,
        }
    }

    /// Whether every due member had its turn since the last round was taken.
    pub const fn has_finished(&self) -> bool {
        self.finished.is_some()
    }

    /// What the last walk that got to the end came to.
    pub const fn take_finished(&mut self) -> Option<Round> {
        self.finished.take()
    }

    /// Walks on where the last call stopped.
    pub async fn go_on(&mut self, redis: &Redis, store: &Store) -> Result<(), Error> {
        match self.pages(redis, store).await {
            // An index that cannot be read stays like that until a person has looked at it.
            Err(Error::Redis(error)) if error.kind() == ErrorKind::Broken => {
                let mut page = Page::default();
                self.report(None, findings::UNREADABLE, error.to_string(), &mut page);
                self.tally.add(page);
                self.tally.give_up(error.to_string());
                self.finish();
                Ok(())
            }
            end => end,
        }
    }

    async fn pages(&mut self, redis: &Redis, store: &Store) -> Result<(), Error> {
        let now = redis.server_time(&self.keys).await?;
        for _ in 0..PAGES_PER_TICK {
            let after = self.after.as_ref();
            let members = redis
                .due(&self.keys, Index::ReservationExpiry, now, after, PAGE_SIZE)
                .await?;
            // A page that fails half way is walked again, and counts once.
            let page = self.page(&members, redis, store).await?;
            self.tally.add(page);
            if members.len() < PAGE_SIZE {
                self.finish();
                return Ok(());
            }
            self.after = members.last().cloned();
        }
        Ok(())
    }

    /// Goes back to the beginning. Of two walks that finished before the round was taken, the later
    /// one tells what is there, and both tell what was done.
    fn finish(&mut self) {
        self.after = None;
        let tally = std::mem::replace(&mut self.tally, Tally::begin());
        let mut round = tally.into_round(|kind, detail| self.discrepancy(None, kind, detail));
        if round.error.is_none() {
            // Only a walk over all members proves that what it did not see is gone.
            self.rule.end_round();
        }
        if let Some(earlier) = self.finished.take() {
            round.checked += earlier.checked;
            round.settled += earlier.settled;
        }
        self.finished = Some(round);
    }

    async fn page(
        &mut self,
        members: &[IndexMember],
        redis: &Redis,
        store: &Store,
    ) -> Result<Page, Error> {
        let mut page = Page::default();
        let ids = self.parse(members, &mut page);
        if ids.is_empty() {
            return Ok(page);
        }
        let decisions = decisions(store, &ids).await?;
        // Redis is read after PostgreSQL: a reservation that is settled in between is seen as such.
        for member in read(redis, &self.keys, ids).await {
            page.checked += 1;
            match decisions.get(&member.id) {
                Some(Err(damage)) => {
                    let (id, detail) = (Some(member.id), damage.clone());
                    self.report(id, findings::UNREADABLE, detail, &mut page);
                }
                Some(Ok(decision)) => {
                    self.member(member, Some(decision), (redis, store), &mut page)
                        .await?;
                }
                None => {
                    self.member(member, None, (redis, store), &mut page).await?;
                }
            }
        }
        Ok(page)
    }

    fn parse(&mut self, members: &[IndexMember], page: &mut Page) -> Vec<ReservationId> {
        let mut ids = Vec::with_capacity(members.len());
        for member in members {
            match ReservationId::parse(member.member.as_str()) {
                Ok(id) => ids.push(id),
                Err(_) => {
                    let detail = format!("{} is no reservation id", member.member.escape_debug());
                    self.report(None, findings::UNREADABLE, detail, page);
                }
            }
        }
        ids
    }

    async fn member(
        &mut self,
        member: Member,
        decision: Option<&DecisionRecord>,
        (redis, store): (&Redis, &Store),
        page: &mut Page,
    ) -> Result<(), Error> {
        let id = member.id;
        let record = match member.record {
            Ok(record) => record,
            Err(error) => return self.damaged(id, error, page),
        };
        let (decision, settled) = match judge(decision, record.as_ref().map(|r| r.status)) {
            Step::SettleOrdered(order_id) => {
                let settled = settle_ordered(redis, &self.keys, &id, &order_id).await;
                ("ordered", settled)
            }
            Step::SettleRejected(reason) => {
                let settled = settle_rejected(redis, &self.keys, &id, reason).await;
                ("rejected", settled)
            }
            Step::HandOver => {
                if let Some(record) = record {
                    self.hand_over(&record, store, page).await?;
                }
                return Ok(());
            }
            Step::Report { kind, detail } => {
                self.report(Some(id), kind, detail, page);
                return Ok(());
            }
        };
        match settled {
            Ok(settled) => {
                self.settled(id, decision, settled, page);
                Ok(())
            }
            Err(error) => self.damaged(id, error, page),
        }
    }

    /// Damage is reported and does not end the walk; silence does.
    fn damaged(
        &mut self,
        id: ReservationId,
        error: RedisError,
        page: &mut Page,
    ) -> Result<(), Error> {
        if error.kind() != ErrorKind::Broken {
            return Err(error.into());
        }
        self.report(Some(id), findings::UNREADABLE, error.to_string(), page);
        Ok(())
    }

    fn settled(&mut self, id: ReservationId, decision: &str, settled: Settled, page: &mut Page) {
        match settled {
            Settled::Agreed { .. } => page.settled += 1,
            // Gone since it was read; the next walk sees what is left.
            Settled::Missing | Settled::BucketGone => {}
            Settled::Contradiction { code, status } => {
                let found = status.map_or("unknown", ReservationStatus::as_str);
                let detail = format!("postgresql: {decision}; redis: {found} ({code})");
                self.report(Some(id), findings::CONTRADICTION, detail, page);
            }
        }
    }

    /// Opens the compensation task of a reservation that nobody has released for longer than that
    /// takes. Every time it is seen: the task may have been closed since, by a release that a
    /// failover then undid. A task that is open keeps its claim and its backoff.
    async fn hand_over(
        &mut self,
        record: &ReservationRecord,
        store: &Store,
        page: &mut Page,
    ) -> Result<(), Error> {
        let id = &record.reservation_id;
        let key = (findings::NOT_RELEASED, id.to_string());
        let seen = self.rule.see(key, Instant::now());
        if seen == Seen::Waiting {
            return Ok(());
        }
        let mut detail = format!("postgresql: given up; redis: {}", record.status);
        let handed_over = match store.hand_over(&record.order_request()).await {
            Ok(()) => true,
            Err(error) if is_refused(&error) => {
                detail = format!("{detail}; its task cannot be opened: {error}");
                false
            }
            Err(error) => return Err(error.into()),
        };
        if seen == Seen::Confirmed && handed_over {
            page.settled += 1;
            let bucket = self.keys.scope();
            tracing::warn!(reservation_id = %id, %bucket, "handed over to the compensation worker");
        }
        let found = self.discrepancy(Some(id.clone()), findings::NOT_RELEASED, detail);
        page.found.push((findings::NOT_RELEASED, found));
        Ok(())
    }

    /// Notes a difference, which counts if it stays.
    fn report(
        &mut self,
        id: Option<ReservationId>,
        kind: &'static str,
        detail: String,
        page: &mut Page,
    ) {
        let name = id
            .as_ref()
            .map_or_else(|| detail.clone(), ToString::to_string);
        let seen = self.rule.see((kind, name), Instant::now());
        if seen == Seen::Waiting {
            return;
        }
        let found = self.discrepancy(id, kind, detail);
        if seen == Seen::Confirmed && self.tally.count(kind) < LISTED_MAX {
            alert(&found);
        }
        page.found.push((kind, found));
    }

    fn discrepancy(
        &self,
        reservation_id: Option<ReservationId>,
        kind: &'static str,
        detail: String,
    ) -> Discrepancy {
        Discrepancy::new(kind, self.keys.scope().clone(), reservation_id, detail)
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

/// A constraint's no, which will be the same next time.
fn is_refused(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::Refused | StoreErrorKind::Conflict | StoreErrorKind::Invalid
    )
}

/// The decisions about some reservations; of one whose row is damaged, what is wrong with it.
async fn decisions(
    store: &Store,
    ids: &[ReservationId],
) -> Result<HashMap<ReservationId, Result<DecisionRecord, String>>, StoreError> {
    let by_id = |found: Vec<DecisionRecord>| {
        found
            .into_iter()
            .map(|decision| (decision.reservation_id.clone(), Ok(decision)))
    };
    match store.decisions(ids).await {
        Ok(found) => return Ok(by_id(found).collect()),
        Err(StoreError::Stored { .. }) => {}
        Err(error) => return Err(error),
    }
    // One damaged row fails the whole page, so each is read for itself.
    let mut decisions = HashMap::with_capacity(ids.len());
    for id in ids {
        match store.decisions(std::slice::from_ref(id)).await {
            Ok(found) => decisions.extend(by_id(found)),
            Err(StoreError::Stored { column, .. }) => {
                let damage = format!("postgresql: {column} holds an unusable value");
                decisions.insert(id.clone(), Err(damage));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(decisions)
}
