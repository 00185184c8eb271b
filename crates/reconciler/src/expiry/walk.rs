//! The walk over one bucket's index.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    Error as RedisError, ErrorKind, Index, IndexMember, Redis, ReservationRecord,
};
use seckill_order_store::{
    DecisionRecord, Error as StoreError, ErrorKind as StoreErrorKind, Overdue, Store,
};
use seckill_settlement::{Class, Replayed, Replayer};
use seckill_state_machine::{BucketScope, OrderRequest, ReservationId, TimestampMs, Traceparent};
use tokio::time::Instant;

use super::Error;
use super::judge::{Step, judge};
use crate::finding::{Finding, FindingKey};
use crate::persistence::{Persistence, Seen};
use crate::rounds::{Round, alert};
use crate::sweep::judge::record as damage;
use crate::tally::{Page, Tally};

/// Members of one page: one query to PostgreSQL and as many reads from Redis.
const PAGE_SIZE: usize = 256;

/// Pages of one bucket in one tick: 2,048 members, well under a second.
const PAGES_PER_TICK: usize = 8;

/// Reads and steps of one page in flight.
const CALLS_IN_FLIGHT: usize = 32;

/// How many patiences an undecided reservation may be old before it is told, although its task is
/// open: by then a worker should have fenced it.
const FAR_BEYOND: i64 = 2;

/// Both stores, and what brings them to agreement.
pub struct Tools {
    /// The one that is checked.
    pub redis: Redis,
    /// The one that is right.
    pub store: Store,
    /// What settles.
    pub replayer: Replayer,
}

/// The state of one bucket's walk.
pub struct Walk {
    keys: BucketKeys,
    patience_ms: i64,
    after: Option<IndexMember>,
    rule: Persistence<FindingKey>,
    tally: Tally,
    /// The last walk that got to the end, until the other buckets' walks have as well.
    finished: Option<Round>,
}

/// One member with Redis' word on it.
struct Member {
    id: ReservationId,
    record: Result<Option<ReservationRecord>, RedisError>,
}

/// What a page has to do once all its members are known.
#[derive(Default)]
struct Work {
    page: Page,
    undecided: Vec<OrderRequest>,
}

impl Walk {
    pub fn new(bucket: &BucketScope, patience_ms: i64, grace: Duration) -> Self {
        Self {
            keys: BucketKeys::new(bucket),
            patience_ms,
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
    pub async fn go_on(&mut self, tools: &Tools) -> Result<(), Error> {
        match self.pages(tools).await {
            // An index that cannot be read stays like that until a person has looked at it.
            Err(Error::Redis(error)) if error.kind() == ErrorKind::Broken => {
                let mut page = Page::default();
                let finding = Finding::of_bucket(Class::Unreadable, error.to_string(), "");
                self.report(finding, &mut page);
                self.tally.add_page(page);
                self.tally.give_up(error.to_string());
                self.finish();
                Ok(())
            }
            end => end,
        }
    }

    async fn pages(&mut self, tools: &Tools) -> Result<(), Error> {
        let now = tools.redis.server_time(&self.keys).await?;
        for _ in 0..PAGES_PER_TICK {
            let after = self.after.as_ref();
            let members = tools
                .redis
                .due(&self.keys, Index::ReservationExpiry, now, after, PAGE_SIZE)
                .await?;
            // A page that fails half way is walked again, and counts once.
            let page = self.page(&members, tools, now).await?;
            self.tally.add_page(page);
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
        let mut round = tally.into_round(self.keys.scope());
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
        tools: &Tools,
        now: TimestampMs,
    ) -> Result<Page, Error> {
        let mut work = Work::default();
        let ids = self.parse(members, &mut work.page);
        if ids.is_empty() {
            return Ok(work.page);
        }
        let decisions = decisions(&tools.store, &ids).await?;
        // Redis is read after PostgreSQL: a reservation that is settled in between is seen as such.
        for member in read(&tools.redis, &self.keys, ids).await {
            work.page.checked += 1;
            match decisions.get(&member.id) {
                Some(Err(damage)) => {
                    let finding = Finding::of(Class::Unreadable, &member.id, "", damage);
                    self.report(finding, &mut work.page);
                }
                Some(Ok(decision)) => {
                    self.member(member, Some(decision), tools, &mut work)
                        .await?
                }
                None => self.member(member, None, tools, &mut work).await?,
            }
        }
        self.overdue(&work.undecided, tools, now, &mut work.page)
            .await?;
        Ok(work.page)
    }

    fn parse(&mut self, members: &[IndexMember], page: &mut Page) -> Vec<ReservationId> {
        let mut ids = Vec::with_capacity(members.len());
        for member in members {
            match ReservationId::parse(member.member.as_str()) {
                Ok(id) => ids.push(id),
                Err(_) => {
                    let member = member.member.escape_debug();
                    let redis = format!("reservation_expiry names {member}");
                    self.report(Finding::of_bucket(Class::IndexStray, redis, ""), page);
                }
            }
        }
        ids
    }

    async fn member(
        &mut self,
        member: Member,
        decision: Option<&DecisionRecord>,
        tools: &Tools,
        work: &mut Work,
    ) -> Result<(), Error> {
        let id = member.id;
        let record = match member.record {
            Ok(record) => record,
            // Damage is reported and does not end the walk; silence does.
            Err(error) if error.kind() == ErrorKind::Broken => {
                let finding = Finding::of(Class::Unreadable, &id, error.to_string(), "");
                self.report(finding, &mut work.page);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        // One that names another reservation or bucket must not be handed over under that name.
        let own = self.keys.scope();
        let damage = record.as_ref().and_then(|record| damage(own, &id, record));
        if let Some(damage) = damage {
            self.report(damage, &mut work.page);
            return Ok(());
        }
        match (judge(decision, record.as_ref()), decision, record) {
            (None, _, _) => {
                let redis = "no reservation, member of reservation_expiry";
                let stray = Finding::of(Class::IndexStray, &id, redis, "undecided");
                self.report(stray, &mut work.page);
            }
            (Some(Step::Settle), Some(decision), _) => {
                let replayed = tools.replayer.replay(decision).await?;
                self.replayed(&id, &replayed, &mut work.page);
            }
            (Some(Step::HandOver), _, Some(record)) => {
                self.hand_over(&record, &tools.store, &mut work.page)
                    .await?;
            }
            (Some(Step::Undecided), _, Some(record)) => {
                work.undecided.push(record.order_request());
            }
            (Some(Step::Report(finding)), _, _) => self.report(finding, &mut work.page),
            // Nothing is settled without a decision, and nothing handed over that is not there.
            (Some(Step::Settle | Step::HandOver | Step::Undecided), _, _) => {}
        }
        Ok(())
    }

    fn replayed(&mut self, id: &ReservationId, replayed: &Replayed, page: &mut Page) {
        match replayed.difference() {
            Some((word, detail)) => {
                let class = Class::parse(word).unwrap_or(Class::Contradiction);
                self.report(Finding::of(class, id, detail, ""), page);
            }
            None if replayed.agrees() => page.settled += 1,
            // At work, or gone since it was read; the next walk sees what is left.
            None => {}
        }
    }

    /// Hands over what nobody has decided within its activity's patience. PostgreSQL decides whether
    /// that is over: it knows when patience stood still. Within it, an undecided reservation is none
    /// of anybody's business.
    async fn overdue(
        &mut self,
        undecided: &[OrderRequest],
        tools: &Tools,
        now: TimestampMs,
        page: &mut Page,
    ) -> Result<(), Error> {
        if undecided.is_empty() {
            return Ok(());
        }
        let verdicts = tools.store.hand_over_overdue(undecided).await?;
        for (request, verdict) in undecided.iter().zip(verdicts) {
            let id = &request.reservation_id;
            if verdict == Overdue::Opened {
                page.settled += 1;
                tracing::warn!(
                    reservation_id = %id,
                    bucket = %request.bucket,
                    trace_id = request.traceparent.as_ref().map(Traceparent::trace_id),
                    "undecided beyond its patience: handed over to the compensation worker"
                );
            }
            let age_ms = now.get() - request.reserved_at_ms.get();
            let is_far = age_ms > self.patience_ms.saturating_mul(FAR_BEYOND);
            if verdict == Overdue::AlreadyOpen && is_far {
                let finding =
                    Finding::of(Class::Overdue, id, "open", "undecided, its task is open");
                self.report(finding, page);
            }
        }
        Ok(())
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
        let mut finding = Finding::of(Class::NotReleased, id, record.status.as_str(), "given up");
        let seen = self.rule.see(finding.key(), Instant::now());
        if seen == Seen::Waiting {
            page.waiting.push(finding.in_bucket(self.keys.scope()));
            return Ok(());
        }
        let handed_over = match store.hand_over(&record.order_request(), None).await {
            Ok(()) => true,
            Err(error) if is_refused(&error) => {
                finding.evidence.postgres = format!("given up; its task cannot be opened: {error}");
                false
            }
            Err(error) => return Err(error.into()),
        };
        if seen == Seen::Confirmed && handed_over {
            page.settled += 1;
            let bucket = self.keys.scope();
            tracing::warn!(reservation_id = %id, %bucket, "handed over to the compensation worker");
        }
        page.found
            .push((finding.class, finding.in_bucket(self.keys.scope())));
        Ok(())
    }

    /// Notes a difference, which counts if it stays.
    fn report(&mut self, finding: Finding, page: &mut Page) {
        let class = finding.class;
        let seen = self.rule.see(finding.key(), Instant::now());
        let found = finding.in_bucket(self.keys.scope());
        if seen == Seen::Waiting {
            page.waiting.push(found);
            return;
        }
        if seen == Seen::Confirmed && self.tally.is_listed(class) {
            alert(&found, class);
        }
        page.found.push((class, found));
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
