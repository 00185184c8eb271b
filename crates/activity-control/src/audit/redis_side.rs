//! Reads a bucket from Redis as a whole, slowly enough that buyers do not notice.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use seckill_key_layout::{BucketKeys, KeyKind};
use seckill_lua_scripts::{
    Error as RedisError, ErrorKind as RedisErrorKind, Index, Redis, ReservationRecord, SCAN_STEP,
    ScanCursor, Stock,
};
use seckill_state_machine::{ReservationId, TimestampMs};
use tokio::time::{MissedTickBehavior, interval};

use super::facts::{BucketFacts, ReservationFacts, StockFacts, Subject};
use crate::Error;

/// Between two steps of the scan: at most 200 steps of 500 keys a second, some 0.2 ms of the
/// server's time each, leave 96 % of it to buyers.
const STEP_EVERY: Duration = Duration::from_millis(5);

/// Keys of a page that are read at once: far below the handle's limit of commands in flight.
const KEYS_AT_ONCE: usize = 128;

/// Members of an index read in one page, about 40 KB.
const MEMBERS_PER_PAGE: usize = 1_000;

/// Later than any time an index can hold.
const END_OF_TIME: TimestampMs = TimestampMs::new(1 << 52);

/// Tries to see the counters stand still over a scan. A bucket on sale moves hundreds of times a
/// second and will not; one that is settling usually does by the third time.
const STEADY_TRIES: u32 = 3;

/// What one key holds.
enum Content {
    Reservation(ReservationId, ReservationFacts),
    Marker(seckill_state_machine::UserId, ReservationId),
    SoldOut,
    Other,
    Gone,
    Unreadable(Subject, String),
}

/// Reads everything that a bucket has.
pub(super) async fn read(redis: &Redis, keys: &BucketKeys) -> Result<BucketFacts, Error> {
    let mut facts = read_once(redis, keys).await?;
    for _ in 1..STEADY_TRIES {
        if facts.steady {
            break;
        }
        facts = read_once(redis, keys).await?;
    }
    Ok(facts)
}

async fn read_once(redis: &Redis, keys: &BucketKeys) -> Result<BucketFacts, Error> {
    let mut facts = BucketFacts::empty(keys.scope());
    read_meta(redis, keys, &mut facts).await?;
    let before = read_stock(redis, keys, &mut facts).await?;
    scan(redis, keys, &mut facts).await?;
    facts.send_pending = members(redis, keys, Index::SendPending).await?;
    facts.reservation_expiry = members(redis, keys, Index::ReservationExpiry).await?;
    let mut ignored = BucketFacts::empty(keys.scope());
    let after = read_stock(redis, keys, &mut ignored).await?;
    facts.steady = before == after;
    facts.stock = after.map(|stock| StockFacts {
        counters: stock.counters,
        released_total: stock.released_total,
    });
    Ok(facts)
}

async fn read_meta(redis: &Redis, keys: &BucketKeys, facts: &mut BucketFacts) -> Result<(), Error> {
    match redis.meta(keys).await {
        Ok(meta) => {
            facts.has_meta = meta.is_some();
            facts.meta = meta;
        }
        Err(error) => {
            facts.has_meta = true;
            facts.unreadable.push(damaged(KeyKind::Meta, error)?);
        }
    }
    Ok(())
}

async fn read_stock(
    redis: &Redis,
    keys: &BucketKeys,
    facts: &mut BucketFacts,
) -> Result<Option<Stock>, Error> {
    match redis.stock(keys).await {
        Ok(stock) => Ok(stock),
        Err(error) => {
            facts.unreadable.push(damaged(KeyKind::Stock, error)?);
            Ok(None)
        }
    }
}

async fn scan(redis: &Redis, keys: &BucketKeys, facts: &mut BucketFacts) -> Result<(), Error> {
    let mut pace = interval(STEP_EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut cursor = Some(ScanCursor::start());
    while let Some(at) = cursor {
        pace.tick().await;
        let page = redis.scan_bucket(keys, at, SCAN_STEP).await?;
        cursor = page.next;
        // A key may come twice, also on one page.
        let names: BTreeSet<String> = page.keys.into_iter().collect();
        let names: Vec<String> = names.into_iter().collect();
        let lives = names.iter().map(async |name| {
            let immortal = redis.is_immortal(keys, name).await?;
            Ok::<_, Error>(immortal.then(|| keys.kind_of(name)))
        });
        let immortal: Vec<Option<Option<KeyKind>>> = futures::stream::iter(lives)
            .buffer_unordered(KEYS_AT_ONCE)
            .try_collect()
            .await?;
        for kind in immortal.into_iter().flatten() {
            facts.note_immortal(kind);
        }
        let contents = names.into_iter().map(|name| read_key(redis, keys, name));
        let contents: Vec<Content> = futures::stream::iter(contents)
            .buffer_unordered(KEYS_AT_ONCE)
            .try_collect()
            .await?;
        for content in contents {
            facts.add(content);
        }
    }
    Ok(())
}

impl BucketFacts {
    /// A key of no known kind is a finding of its own, with or without an expiry.
    fn note_immortal(&mut self, kind: Option<KeyKind>) {
        if let Some(kind) = kind.filter(|kind| !self.without_expiry.contains(kind)) {
            self.without_expiry.push(kind);
        }
    }

    fn add(&mut self, content: Content) {
        match content {
            Content::Reservation(id, reservation) => {
                self.reservations.insert(id, reservation);
            }
            Content::Marker(user_id, id) => {
                self.markers.insert(user_id, id);
            }
            Content::SoldOut => self.sold_out = true,
            Content::Unreadable(subject, reason) => {
                if self.unreadable.iter().all(|(known, _)| *known != subject) {
                    self.unreadable.push((subject, reason));
                }
            }
            Content::Other | Content::Gone => {}
        }
    }
}

async fn read_key(redis: &Redis, keys: &BucketKeys, name: String) -> Result<Content, Error> {
    match keys.kind_of(&name) {
        Some(kind) => read_content(redis, keys, &kind).await,
        None => {
            let reason = "no version of this program writes such a key".to_owned();
            Ok(Content::Unreadable(Subject::Foreign(name), reason))
        }
    }
}

async fn read_content(redis: &Redis, keys: &BucketKeys, kind: &KeyKind) -> Result<Content, Error> {
    let read = match kind {
        KeyKind::Reservation(id) => redis
            .reservation(keys, id)
            .await
            .map(|record| record.map_or(Content::Gone, |record| reservation(id, &record))),
        KeyKind::User(user_id) => redis
            .marker(keys, user_id)
            .await
            .map(|named| named.map_or(Content::Gone, |id| Content::Marker(user_id.clone(), id))),
        KeyKind::SoldOut => Ok(Content::SoldOut),
        // Read on their own, or, like cached results, of no weight in the ledger.
        KeyKind::Meta
        | KeyKind::Stock
        | KeyKind::Request(_)
        | KeyKind::SendPending
        | KeyKind::ReservationExpiry => Ok(Content::Other),
    };
    match read {
        Ok(content) => Ok(content),
        Err(error) => {
            let (subject, reason) = damaged(kind.clone(), error)?;
            Ok(Content::Unreadable(subject, reason))
        }
    }
}

/// A record under another's name is damage: it must not count for either.
fn reservation(id: &ReservationId, record: &ReservationRecord) -> Content {
    if record.reservation_id != *id {
        let subject = Subject::Key(KeyKind::Reservation(id.clone()));
        let reason = format!("it names reservation {}", record.reservation_id);
        return Content::Unreadable(subject, reason);
    }
    Content::Reservation(
        id.clone(),
        ReservationFacts {
            status: record.status,
            quantity: u64::from(record.quantity.get()),
            user_id: record.user_id.clone(),
            order_id: record.order_id.clone(),
        },
    )
}

/// Damage is a finding; anything else means that the audit could not read.
fn damaged(kind: KeyKind, error: RedisError) -> Result<(Subject, String), Error> {
    match error.kind() {
        RedisErrorKind::Broken => Ok((Subject::Key(kind), error.to_string())),
        RedisErrorKind::OutcomeUnknown | RedisErrorKind::Unavailable | RedisErrorKind::Refused => {
            Err(error.into())
        }
    }
}

async fn members(
    redis: &Redis,
    keys: &BucketKeys,
    index: Index,
) -> Result<BTreeSet<String>, Error> {
    let mut found = BTreeSet::new();
    let mut after = None;
    loop {
        let page = redis
            .due(keys, index, END_OF_TIME, after.as_ref(), MEMBERS_PER_PAGE)
            .await?;
        let Some(last) = page.last() else {
            return Ok(found);
        };
        after = Some(last.clone());
        found.extend(page.into_iter().map(|member| member.member));
    }
}
