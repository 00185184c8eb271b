//! Takes away what names a reservation that does not need it. Each removal is one script that looks at
//! both again; it moves no unit, and what it removes is made again where it is needed: a marker by the
//! buyer's next reservation, an answer by the repeat of its request.

use futures::{StreamExt, TryStreamExt};
use seckill_key_layout::{BucketKeys, KeyKind};
use seckill_lua_scripts::{
    CachedResult, Error as RedisError, ErrorKind, Index, Redis, RemoveStray, RemoveStrayReply,
    ReservationRecord, SCAN_STEP, ScanCursor, Stray,
};
use seckill_state_machine::{ReservationId, ReserveCode, UserId};

use crate::{Error, RepairOutcome};

/// Markers that are read at once. They share their round trips.
const READS_IN_FLIGHT: usize = 16;

/// What is wrong with the remembered answer to the request that made a reservation, in words that name no
/// user. An ended reservation may well have a refusal in front of it.
#[must_use]
pub fn remembered_wrongly(record: &ReservationRecord, cached: &CachedResult) -> Option<String> {
    if !record.status.holds_units() {
        return None;
    }
    let status = record.status;
    let named = cached.reservation_id.as_ref();
    if cached.code != ReserveCode::Accepted {
        Some(format!("{status}, remembered as refused ({})", cached.code))
    } else if named != Some(&record.reservation_id) {
        let named = named.map_or("nothing", ReservationId::as_str);
        Some(format!("{status}, remembered as {named}"))
    } else if cached.user_id != record.user_id || cached.quantity != record.quantity {
        Some(format!(
            "{status}, remembered for another buyer or quantity"
        ))
    } else {
        None
    }
}

/// Removes a bucket's sold-out mark while units are available, and tells the fronts.
pub async fn sold_out(redis: &Redis, keys: &BucketKeys) -> Result<RepairOutcome, Error> {
    let outcome = remove(redis, keys, &[Stray::SoldOut]).await?;
    if matches!(outcome, RepairOutcome::Repaired(_)) {
        redis.publish_soldout_cleared(keys).await?;
    }
    Ok(outcome)
}

/// Removes a reservation that does not exist from both indexes.
pub async fn members(
    redis: &Redis,
    keys: &BucketKeys,
    reservation_id: &ReservationId,
) -> Result<RepairOutcome, Error> {
    let strays = [Index::SendPending, Index::ReservationExpiry].map(|index| Stray::Member {
        index,
        reservation_id,
    });
    remove(redis, keys, &strays).await
}

/// Removes the markers that name a reservation which is not their buyer's, or has ended. Whose they are
/// is on no record, since none names a buyer; so that the bucket's keys are searched for them.
pub async fn markers(
    redis: &Redis,
    keys: &BucketKeys,
    reservation_id: &ReservationId,
) -> Result<RepairOutcome, Error> {
    let mut named = Vec::new();
    let mut cursor = Some(ScanCursor::start());
    while let Some(at) = cursor {
        let page = redis.scan_bucket(keys, at, SCAN_STEP).await?;
        cursor = page.next;
        let users = users_of(keys, &page.keys);
        let of_page: Vec<Option<UserId>> = futures::stream::iter(users)
            .map(|user| names(redis, keys, user, reservation_id))
            .buffer_unordered(READS_IN_FLIGHT)
            .try_collect()
            .await?;
        named.extend(of_page.into_iter().flatten());
    }
    let strays: Vec<Stray<'_>> = named
        .iter()
        .map(|user_id| Stray::Marker {
            user_id,
            reservation_id,
        })
        .collect();
    remove(redis, keys, &strays).await
}

fn users_of(keys: &BucketKeys, names: &[String]) -> Vec<UserId> {
    let users = names.iter().filter_map(|name| match keys.kind_of(name) {
        Some(KeyKind::User(user)) => Some(user),
        _ => None,
    });
    users.collect()
}

/// The user, if their marker names the reservation. A damaged marker names none.
async fn names(
    redis: &Redis,
    keys: &BucketKeys,
    user: UserId,
    reservation_id: &ReservationId,
) -> Result<Option<UserId>, RedisError> {
    match redis.marker(keys, &user).await {
        Ok(marker) => Ok((marker.as_ref() == Some(reservation_id)).then_some(user)),
        Err(error) if error.kind() == ErrorKind::Broken => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a wrong answer, if a reservation is behind it.
pub async fn answer(
    redis: &Redis,
    keys: &BucketKeys,
    reservation_id: &ReservationId,
) -> Result<RepairOutcome, Error> {
    let Some(record) = redis.reservation(keys, reservation_id).await? else {
        return Ok(RepairOutcome::AlreadyGone);
    };
    let request_id = &record.request_id;
    let is_wrong = match redis.cached_request(keys, request_id).await {
        Ok(cached) => cached.is_some_and(|cached| remembered_wrongly(&record, &cached).is_some()),
        Err(error) if error.kind() == ErrorKind::Broken => true,
        Err(error) => return Err(error.into()),
    };
    if !is_wrong {
        return Ok(RepairOutcome::AlreadyGone);
    }
    let stray = Stray::Answer {
        request_id,
        reservation_id,
    };
    remove(redis, keys, &[stray]).await
}

async fn remove(
    redis: &Redis,
    keys: &BucketKeys,
    strays: &[Stray<'_>],
) -> Result<RepairOutcome, Error> {
    let mut removed = 0;
    for stray in strays {
        let call = RemoveStray {
            keys,
            stray: *stray,
        };
        if redis.remove_stray(&call).await? == RemoveStrayReply::Removed {
            removed += 1;
        }
    }
    Ok(match removed {
        0 => RepairOutcome::AlreadyGone,
        _ => RepairOutcome::Repaired("removed".to_owned()),
    })
}
