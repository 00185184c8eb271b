//! One pass over one bucket, a page at a time: PostgreSQL's decisions, then Redis' keys, then both
//! indexes. In that order, so that whoever reads later reads the side that moves later.

mod decisions;
mod indexes;
mod keys;

use std::collections::HashSet;

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    Error as RedisError, ErrorKind, Index, IndexMember, Redis, ReservationRecord, ScanCursor, Stock,
};
use seckill_order_store::{DecisionRecord, DiscrepancyFilter, Error as StoreError, Store};
use seckill_settlement::{Class, Discrepancies, run_kind};
use seckill_state_machine::{BucketScope, ReservationId};

use super::Error;
use super::found::Found;
use crate::finding::Finding;

/// Reads of one page in flight. They share their round trips.
const CALLS_IN_FLIGHT: usize = 16;

/// What can be judged only in a bucket that nobody buys from while its reservations are added up: all
/// else is looked at one by one.
const OF_SUMS: &[Class] = &[Class::HoldersDiffer, Class::SoldOutStale];

/// Both stores.
#[derive(Clone)]
pub struct Sides {
    /// The one that is checked.
    pub redis: Redis,
    /// The one that is right.
    pub store: Store,
    /// What those who settle have reported.
    pub discrepancies: Discrepancies,
}

/// Where a pass stands.
enum Phase {
    Decisions(Option<ReservationId>),
    Keys(ScanCursor),
    Index(Index, Option<IndexMember>),
    Done,
}

/// A pass over one bucket.
pub struct Pass {
    keys: BucketKeys,
    phase: Phase,
    /// The counters before the keys were scanned.
    before: Option<Stock>,
    after: Option<Stock>,
    /// A scan may show a key twice. A million ids are some 80 MB, for as long as the pass takes.
    counted: HashSet<ReservationId>,
    held: u64,
    unreadable: u64,
    soldout: bool,
    found: Found,
    /// Reservations about which those who settle have something on record.
    reported: HashSet<ReservationId>,
}

/// What a pass came to.
pub struct Outcome {
    /// Reservations looked at.
    pub checked: u64,
    /// What is wrong, each seen once.
    pub findings: Vec<Finding>,
    /// Why it proves nothing about what it did not find, if so.
    pub incomplete: Option<String>,
    /// What it could not judge: nothing is proved about these alone.
    pub unjudged: &'static [Class],
}

impl Pass {
    /// A pass that begins. A bucket of which Redis has lost the settings or the counters is told
    /// once, with the totals, and not once a reservation.
    pub async fn begin(bucket: &BucketScope, sides: &Sides) -> Result<Self, Error> {
        let keys = BucketKeys::new(bucket);
        let stock = counters(&sides.redis, &keys).await?;
        let meta = match sides.redis.meta(&keys).await {
            Ok(meta) => meta.is_some(),
            Err(error) if error.kind() == ErrorKind::Broken => true,
            Err(error) => return Err(error.into()),
        };
        let phase = match (stock, meta) {
            (Some(_), true) => Phase::Decisions(None),
            _ => Phase::Keys(ScanCursor::start()),
        };
        Ok(Self {
            keys,
            phase,
            before: stock,
            after: None,
            counted: HashSet::new(),
            held: 0,
            unreadable: 0,
            soldout: false,
            found: Found::default(),
            reported: reported(&sides.store, bucket).await?,
        })
    }

    /// The bucket.
    pub const fn bucket(&self) -> &BucketScope {
        self.keys.scope()
    }

    /// One page. Says whether the pass is done.
    pub async fn step(&mut self, sides: &Sides) -> Result<bool, Error> {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Decisions(after) => match self.decisions_page(sides, after).await? {
                Some(last) => Phase::Decisions(Some(last)),
                None => {
                    self.before = counters(&sides.redis, &self.keys).await?;
                    Phase::Keys(ScanCursor::start())
                }
            },
            Phase::Keys(cursor) => match self.keys_page(sides, cursor).await? {
                Some(next) => Phase::Keys(next),
                None => {
                    self.after = counters(&sides.redis, &self.keys).await?;
                    Phase::Index(Index::ReservationExpiry, None)
                }
            },
            Phase::Index(index, after) => {
                match (self.index_page(sides, index, after).await?, index) {
                    (Some(last), _) => Phase::Index(index, Some(last)),
                    (None, Index::ReservationExpiry) => Phase::Index(Index::SendPending, None),
                    (None, Index::SendPending) => Phase::Done,
                }
            }
            Phase::Done => Phase::Done,
        };
        Ok(matches!(self.phase, Phase::Done))
    }

    /// What the pass came to.
    pub fn into_outcome(mut self) -> Outcome {
        let id = self.bucket().bucket_id;
        let mut unjudged: &[Class] = &[];
        if self.before != self.after {
            unjudged = OF_SUMS;
        } else if let Some(stock) = self.after {
            self.judge_sums(stock);
        }
        let dropped = self.found.dropped();
        let incomplete =
            (dropped > 0).then(|| format!("bucket {id} has {dropped} further differences"));
        Outcome {
            checked: self.counted.len().try_into().unwrap_or(u64::MAX),
            findings: self.found.into_list(),
            incomplete,
            unjudged,
        }
    }

    /// The counters stood still over the scan, so that it was a snapshot of them.
    fn judge_sums(&mut self, stock: Stock) {
        let counters = stock.counters;
        if counters.reserved != self.held || self.unreadable > 0 {
            let redis = format!(
                "reserved {}, held by reservations {}, unreadable reservations {}",
                counters.reserved, self.held, self.unreadable
            );
            self.found
                .push(Finding::of_bucket(Class::HoldersDiffer, redis, ""));
        }
        if self.soldout && counters.available > 0 {
            let redis = format!("marked sold out, {} available", counters.available);
            // Sales go on meanwhile, as far as they can.
            self.found
                .push(Finding::of_bucket(Class::SoldOutStale, redis, "").about("soldout"));
        }
    }
}

/// Reports of one kind of those who settle that are looked at in one pass. More come with the next.
const REPORTED_MAX: i64 = 5_000;

/// What those who settle have on record about a bucket: they close it only when they meet the
/// reservation again, and some never do.
async fn reported(
    store: &Store,
    bucket: &BucketScope,
) -> Result<HashSet<ReservationId>, StoreError> {
    let mut reported = HashSet::new();
    for kind in [run_kind::SETTLEMENT, run_kind::COMPENSATION] {
        let filter = DiscrepancyFilter {
            scope: Some(bucket.scope.clone()),
            run_kind: Some(kind.to_owned()),
            ..DiscrepancyFilter::default()
        };
        let open = store.open_discrepancies(&filter, REPORTED_MAX).await?;
        let here = open.into_iter().map(|open| open.discrepancy);
        let here = here.filter(|found| found.bucket == *bucket);
        reported.extend(here.filter_map(|found| found.reservation_id));
    }
    Ok(reported)
}

/// The counters; damaged ones are told with the totals.
async fn counters(redis: &Redis, keys: &BucketKeys) -> Result<Option<Stock>, RedisError> {
    match redis.stock(keys).await {
        Err(error) if error.kind() == ErrorKind::Broken => Ok(None),
        answer => answer,
    }
}

/// One record; of a damaged one, what is wrong with it.
type Read = Result<Option<ReservationRecord>, String>;

async fn record(redis: &Redis, keys: &BucketKeys, id: &ReservationId) -> Result<Read, RedisError> {
    match redis.reservation(keys, id).await {
        Ok(record) => Ok(Ok(record)),
        Err(error) if error.kind() == ErrorKind::Broken => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

/// The decision that stands about a reservation, if any.
fn of<'a>(decisions: &'a [DecisionRecord], id: &ReservationId) -> Option<&'a DecisionRecord> {
    decisions
        .iter()
        .find(|decision| decision.reservation_id == *id)
}

#[cfg(test)]
mod tests;
