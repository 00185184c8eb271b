//! Whether a version has nothing open, on either side.

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Index, Redis, Stock};
use seckill_order_store::{
    DiscrepancyFilter, Error as StoreError, LastSight, OpenWork, Store, VersionCounts,
    VersionResult,
};
use seckill_settlement::{Class, Evidence, Replayer, Tally};
use seckill_state_machine::{Activity, ActivityState, BucketId, Scope};

use super::Error;

/// The difference that says that a version has something open.
pub const CLASS: Class = Class::OpenBeforeRetention;

/// A side on which nothing is open.
const NOTHING: &str = "nothing open";

/// What a look came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// Nothing is open; this is what the version came to.
    Done(VersionResult),
    /// What is open on each side, in words.
    Open(Evidence),
}

/// What Redis has of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketEnd {
    /// Which one.
    pub bucket_id: BucketId,
    /// Its counters.
    pub stock: Option<Stock>,
    /// Members of both indexes.
    pub indexed: u64,
    /// What a replay of its decisions came to.
    pub replayed: Tally,
}

/// Of a version that Redis still has.
pub async fn of_both(
    (redis, store): (&Redis, &Store),
    replayer: &Replayer,
    activity: &Activity,
    sight: &LastSight,
    own_kind: &str,
) -> Result<Proof, Error> {
    let scope = &activity.settings.scope;
    let ids: Vec<BucketId> = activity.settings.bucket_count.buckets().collect();
    let mut buckets = Vec::new();
    for (bucket_id, replayed) in replayer.replay_buckets(scope, &ids, |_, _| ()).await? {
        let keys = BucketKeys::new(&scope.bucket(bucket_id));
        let expiry = redis.index_len(&keys, Index::ReservationExpiry).await?;
        let send_pending = redis.index_len(&keys, Index::SendPending).await?;
        buckets.push(BucketEnd {
            bucket_id,
            // Last: as long as there are counters, the indexes were there as well.
            stock: redis.stock(&keys).await?,
            indexed: expiry.saturating_add(send_pending),
            replayed: replayed?,
        });
    }
    // PostgreSQL last: what Redis no longer has open must be decided there by now.
    let work = open_work(store, scope, own_kind).await?;
    let counts = store.version_counts(scope).await?;
    let redis = in_redis(&buckets, counts, sight.was_on_sale);
    let left = left(&buckets);
    Ok(proof(activity.state, &work, redis, result(counts, left)))
}

/// Of a version whose keys have expired. Had it been archived before, it would not be looked at. So
/// they may have gone with something that nobody else knows of, and a person has to say that this is
/// known; only a version that was never on sale cannot have lost anything.
pub async fn of_postgres(
    store: &Store,
    activity: &Activity,
    sight: &LastSight,
    own_kind: &str,
) -> Result<Proof, Error> {
    let scope = &activity.settings.scope;
    let work = open_work(store, scope, own_kind).await?;
    let counts = store.version_counts(scope).await?;
    let result = result(counts, None);
    Ok(match proof(activity.state, &work, expired(sight), result) {
        Proof::Open(Evidence { redis, postgres }) => Proof::Open(Evidence {
            redis,
            postgres: format!("its keys have expired; {postgres}"),
        }),
        done => done,
    })
}

/// What PostgreSQL has open, but for the difference that says just that.
async fn open_work(store: &Store, scope: &Scope, own_kind: &str) -> Result<OpenWork, StoreError> {
    let mut work = store.open_work(scope).await?;
    let filter = DiscrepancyFilter {
        scope: Some(scope.clone()),
        run_kind: Some(own_kind.to_owned()),
        ..DiscrepancyFilter::default()
    };
    let own = store.open_discrepancies(&filter, 1).await?;
    work.discrepancies = work.discrepancies.saturating_sub(own.len() as u64);
    Ok(work)
}

/// The rule: nothing open in Redis, nothing in PostgreSQL, and nobody can buy.
fn proof(
    state: ActivityState,
    work: &OpenWork,
    redis: Option<String>,
    result: VersionResult,
) -> Proof {
    let mut postgres = Vec::new();
    if state != ActivityState::Closed {
        postgres.push(format!("it is {state}, not CLOSED"));
    }
    if !work.is_none() {
        postgres.push(work.to_string());
    }
    if redis.is_none() && postgres.is_empty() {
        return Proof::Done(result);
    }
    let postgres = (!postgres.is_empty()).then(|| postgres.join("; "));
    let or_nothing = |side: Option<String>| side.unwrap_or_else(|| NOTHING.to_owned());
    Proof::Open(Evidence {
        redis: or_nothing(redis),
        postgres: or_nothing(postgres),
    })
}

/// What Redis has open.
fn in_redis(buckets: &[BucketEnd], counts: VersionCounts, was_on_sale: bool) -> Option<String> {
    let mut reasons = Vec::new();
    for bucket in buckets {
        let id = bucket.bucket_id;
        if bucket.stock.is_none() && was_on_sale {
            reasons.push(format!("bucket {id} has no counters"));
        }
        if bucket.indexed > 0 {
            let members = bucket.indexed;
            reasons.push(format!("bucket {id} has {members} open index members"));
        }
        if !bucket.replayed.is_clean() || bucket.replayed.in_progress > 0 {
            let (changed, open) = (bucket.replayed.changed(), bucket.replayed.open());
            reasons.push(format!("bucket {id}: {changed} replayed now, {open} open"));
        }
    }
    let difference = difference(counts, left(buckets));
    if difference != 0 {
        reasons.push(format!("the two sides differ by {difference} units"));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// What Redis may have had open when its keys expired: what was last seen of it, word for word, so that
/// the record goes on saying so.
fn expired(sight: &LastSight) -> Option<String> {
    if !sight.was_on_sale || sight.is_accepted {
        return None;
    }
    let unseen = || "nobody looked before its keys expired".to_owned();
    Some(sight.redis.clone().unwrap_or_else(unseen))
}

fn result(counts: VersionCounts, redis_left: Option<u64>) -> VersionResult {
    VersionResult {
        counts,
        redis_left,
        difference: difference(counts, redis_left),
    }
}

/// Units left over all buckets; `None` unless Redis has counters for each.
fn left(buckets: &[BucketEnd]) -> Option<u64> {
    buckets.iter().try_fold(0_u64, |sum, bucket| {
        Some(sum.saturating_add(bucket.stock?.counters.available))
    })
}

/// Units by which what is left and what is sold miss what there was.
fn difference(counts: VersionCounts, redis_left: Option<u64>) -> i64 {
    let Some(left) = redis_left else { return 0 };
    let signed = |units| i64::try_from(units).unwrap_or(i64::MAX);
    signed(left)
        .saturating_add(signed(counts.order_units))
        .saturating_sub(signed(counts.total_stock))
}

#[cfg(test)]
mod tests;
