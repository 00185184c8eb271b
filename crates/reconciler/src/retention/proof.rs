//! Whether a version has nothing open, on either side.

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Index, Redis, Stock};
use seckill_order_store::{
    DiscrepancyFilter, Error as StoreError, OpenWork, Store, VersionCounts, VersionResult,
};
use seckill_settlement::{Replayer, Tally};
use seckill_state_machine::{Activity, ActivityState, BucketId, Scope};

use super::Error;

/// What a look came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// Nothing is open; this is what the version came to.
    Done(VersionResult),
    /// What is open, in words.
    Open(Vec<String>),
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
    own_kind: &str,
) -> Result<Proof, Error> {
    let scope = &activity.settings.scope;
    let mut buckets = Vec::new();
    for bucket_id in activity.settings.bucket_count.buckets() {
        let bucket = scope.bucket(bucket_id);
        let keys = BucketKeys::new(&bucket);
        let replayed = replayer.replay_bucket(&bucket, |_, _| ()).await?;
        let expiry = redis.index_len(&keys, Index::ReservationExpiry).await?;
        let send_pending = redis.index_len(&keys, Index::SendPending).await?;
        buckets.push(BucketEnd {
            bucket_id,
            stock: redis.stock(&keys).await?,
            indexed: expiry.saturating_add(send_pending),
            replayed,
        });
    }
    // PostgreSQL last: what Redis no longer has open must be decided there by now.
    let work = open_work(store, scope, own_kind).await?;
    let counts = store.version_counts(scope).await?;
    Ok(judge(activity.state, &work, counts, Some(&buckets)))
}

/// Of a version whose keys have expired.
pub async fn of_postgres(
    store: &Store,
    activity: &Activity,
    own_kind: &str,
) -> Result<Proof, Error> {
    let scope = &activity.settings.scope;
    let work = open_work(store, scope, own_kind).await?;
    let counts = store.version_counts(scope).await?;
    Ok(judge(activity.state, &work, counts, None))
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

/// The rule.
fn judge(
    state: ActivityState,
    work: &OpenWork,
    counts: VersionCounts,
    buckets: Option<&[BucketEnd]>,
) -> Proof {
    let mut reasons = Vec::new();
    if state != ActivityState::Closed {
        reasons.push(format!("it is {state}, not CLOSED"));
    }
    if !work.is_none() {
        reasons.push(work.to_string());
    }
    for bucket in buckets.unwrap_or_default() {
        let id = bucket.bucket_id;
        if bucket.indexed > 0 {
            let members = bucket.indexed;
            reasons.push(format!("bucket {id} has {members} open index members"));
        }
        if !bucket.replayed.is_clean() || bucket.replayed.in_progress > 0 {
            let (changed, open) = (bucket.replayed.changed(), bucket.replayed.open());
            reasons.push(format!("bucket {id}: {changed} replayed now, {open} open"));
        }
    }
    let redis_left = buckets.and_then(left);
    let difference = difference(counts, redis_left);
    if difference != 0 {
        reasons.push(format!("the two sides differ by {difference} units"));
    }
    if reasons.is_empty() {
        Proof::Done(VersionResult {
            counts,
            redis_left,
            difference,
        })
    } else {
        Proof::Open(reasons)
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
mod tests {
    use seckill_state_machine::invariants::StockCounters;

    use super::*;

    const COUNTS: VersionCounts = VersionCounts {
        total_stock: 10,
        orders: 4,
        order_units: 4,
        cancelled: 0,
        released: 1,
        rejected: 1,
    };

    fn bucket(available: u64) -> BucketEnd {
        BucketEnd {
            bucket_id: BucketId::ZERO,
            stock: Some(Stock {
                counters: StockCounters {
                    initial: 10,
                    available,
                    reserved: 10 - available,
                },
                released_total: 2,
            }),
            indexed: 0,
            replayed: Tally::default(),
        }
    }

    fn reasons(state: ActivityState, work: &OpenWork, bucket: BucketEnd) -> usize {
        match judge(state, work, COUNTS, Some(&[bucket])) {
            Proof::Done(_) => 0,
            Proof::Open(reasons) => reasons.len(),
        }
    }

    #[test]
    fn a_version_ends_only_when_nothing_is_open_anywhere_and_every_unit_is_accounted_for() {
        let none = OpenWork::default();
        let done = judge(ActivityState::Closed, &none, COUNTS, Some(&[bucket(6)]));
        let result = VersionResult {
            counts: COUNTS,
            redis_left: Some(6),
            difference: 0,
        };
        assert_eq!(done, Proof::Done(result));
        assert_eq!(reasons(ActivityState::Paused, &none, bucket(6)), 1);
        let task = OpenWork { tasks: 1, ..none };
        assert_eq!(reasons(ActivityState::Closed, &task, bucket(6)), 1);
        let member = BucketEnd {
            indexed: 1,
            ..bucket(6)
        };
        assert_eq!(reasons(ActivityState::Closed, &none, member), 1);
        assert_eq!(reasons(ActivityState::Closed, &none, bucket(5)), 1);
        let waits = BucketEnd {
            replayed: Tally {
                waits: 1,
                ..Tally::default()
            },
            ..bucket(6)
        };
        assert_eq!(reasons(ActivityState::Closed, &none, waits), 1);
    }

    #[test]
    fn what_redis_can_no_longer_tell_is_no_difference() {
        let none = OpenWork::default();
        let Proof::Done(result) = judge(ActivityState::Closed, &none, COUNTS, None) else {
            panic!("nothing is open");
        };
        assert_eq!((result.redis_left, result.difference), (None, 0));
    }
}
