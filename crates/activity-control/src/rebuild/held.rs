//! Adds up what the reservations of a bucket hold, for counters that were lost while they were not.
//!
//! The sum stands as long as the bucket has no counters; see the caller. A reservation that cannot be
//! read may hold units, so it ends the rebuild: a person restores or deletes it, and runs it again.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use seckill_key_layout::{BucketKeys, KeyKind};
use seckill_lua_scripts::{Redis, SCAN_STEP, ScanCursor};
use seckill_state_machine::ReservationId;
use tokio::time::{MissedTickBehavior, interval};

use crate::Error;

/// Between two steps of the scan. Other activities sell on the same server: 200 steps of 0.2 ms a second
/// leave them 96 % of its time.
const STEP_EVERY: Duration = Duration::from_millis(5);

/// Reservations of a page that are read at once. Sixteen buckets of them are half of the handle's limit
/// of 2,000 commands in flight.
const READ_AT_ONCE: usize = 64;

/// The units that the reservations of a bucket hold.
pub(super) async fn units(redis: &Redis, keys: &BucketKeys) -> Result<u64, Error> {
    let mut pace = interval(STEP_EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // By id: a scan may find a key twice.
    let mut held = BTreeMap::<ReservationId, u64>::new();
    let mut cursor = Some(ScanCursor::start());
    while let Some(at) = cursor {
        pace.tick().await;
        let page = redis.scan_bucket(keys, at, SCAN_STEP).await?;
        cursor = page.next;
        let ids = page
            .keys
            .iter()
            .filter_map(|name| match keys.kind_of(name) {
                Some(KeyKind::Reservation(id)) => Some(id),
                _ => None,
            });
        let reads = ids.map(|id| units_of(redis, keys, id));
        let read: Vec<(ReservationId, u64)> = futures::stream::iter(reads)
            .buffer_unordered(READ_AT_ONCE)
            .try_collect()
            .await?;
        held.extend(read);
    }
    Ok(held.values().sum())
}

async fn units_of(
    redis: &Redis,
    keys: &BucketKeys,
    id: ReservationId,
) -> Result<(ReservationId, u64), Error> {
    let record = redis.reservation(keys, &id).await?;
    let units = record
        .filter(|record| record.status.holds_units())
        .map_or(0, |record| u64::from(record.quantity.get()));
    Ok((id, units))
}
