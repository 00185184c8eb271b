//! Repairs a difference that is on record, by its class: what the reconciler does by itself for the
//! classes that are safe by construction, and what an operator applies.
//!
//! Nothing is taken from the record but its class and the reservation that it names. What is to be done
//! is read from both sides now, every step is a guarded script or transaction, and so a repair that is
//! applied late, twice, or by two processes at once does no harm:
//!
//! | crash after | is left | who repairs it |
//! | --- | --- | --- |
//! | both sides were read | nothing | the next round finds the difference again |
//! | the script ran | an agreement that is not on record as an action | nothing is to be repaired; the next round closes the difference |
//! | the task was opened | an open task | the compensation worker |

use seckill_key_layout::{BucketKeys, REQUEST_SHARDS};
use seckill_lua_scripts::{
    EXTEND_KEYS_MAX, ErrorKind as RedisErrorKind, Expiry, ExtendRetention, Index, Redis,
    ReservationRecord, SetActivityState, SetActivityStateReply, Transition,
};
use seckill_order_store::{Overdue, Recorded, Store};
use seckill_state_machine::{ReservationId, ReservationStatus, TransitionCode};

use crate::{Class, Error, Replayed, Replayer, strays};

/// How a repair ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairOutcome {
    /// It was done now; a word for what.
    Repaired(String),
    /// There is nothing to repair any more.
    AlreadyGone,
    /// It cannot be done yet, and will be by itself: for units, for patience, for others at work.
    Waiting(String),
    /// Nothing here may do it; what a person should look at.
    NeedsPerson(String),
}

/// What repairs between these two stores. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Repairer {
    redis: Redis,
    store: Store,
    replayer: Replayer,
}

impl Repairer {
    /// Between these two stores.
    #[must_use]
    pub fn new(redis: Redis, store: Store) -> Self {
        let replayer = Replayer::new(redis.clone(), store.clone());
        Self {
            redis,
            store,
            replayer,
        }
    }

    /// Writes PostgreSQL's state of the activity into a bucket, until it no longer changes under our
    /// hands.
    ///
    /// # Errors
    /// Whatever a store met. Repeating it is safe.
    pub async fn restore_state(&self, keys: &BucketKeys) -> Result<RepairOutcome, Error> {
        /// Operators do not press buttons in turns.
        const ROUNDS_MAX: usize = 3;
        let scope = &keys.scope().scope;
        let mut written = false;
        for _ in 0..ROUNDS_MAX {
            let Some(activity) = self.store.activity(scope).await? else {
                return Ok(RepairOutcome::AlreadyGone);
            };
            let state = activity.state;
            let call = SetActivityState { keys, state };
            match self.redis.set_activity_state(&call).await? {
                SetActivityStateReply::Updated { .. } => written = true,
                SetActivityStateReply::Unchanged if written => {
                    return Ok(RepairOutcome::Repaired(state.to_string()));
                }
                SetActivityStateReply::Unchanged => return Ok(RepairOutcome::AlreadyGone),
                refused @ (SetActivityStateReply::MetaMissing
                | SetActivityStateReply::ScopeMismatch
                | SetActivityStateReply::Refused { .. }) => {
                    return Ok(RepairOutcome::NeedsPerson(format!("{refused:?}")));
                }
            }
        }
        Ok(waiting("the state keeps changing"))
    }

    async fn reservation(&self, on: &On<'_>) -> Result<Option<ReservationRecord>, Error> {
        Ok(self.redis.reservation(&on.keys, on.id).await?)
    }
}

/// The reservation that a difference is about.
struct On<'a> {
    keys: BucketKeys,
    id: &'a ReservationId,
}

/// Repairs a difference, if its class has a repair that needs no person's hands. Whether it may be
/// done without a person's word is the caller's to know ([`Class::is_automatic`]).
///
/// # Errors
/// Whatever a store met. Repeating it is safe.
pub async fn repair(repairer: &Repairer, open: &Recorded) -> Result<RepairOutcome, Error> {
    let found = &open.discrepancy;
    let Some(class) = Class::parse(&found.kind) else {
        return Ok(RepairOutcome::NeedsPerson(format!(
            "this program knows no repair of {}",
            found.kind
        )));
    };
    let keys = BucketKeys::new(&found.bucket);
    match (class, &found.reservation_id) {
        (Class::StateDiffers, _) => return repairer.restore_state(&keys).await,
        (Class::KeyWithoutExpiry, id) => return give_expiry(repairer, &keys, id.as_ref()).await,
        (Class::SoldOutStale, _) => return strays::sold_out(&repairer.redis, &keys).await,
        _ => {}
    }
    let needs_person = || RepairOutcome::NeedsPerson(class.entry().repair.to_owned());
    let Some(id) = &found.reservation_id else {
        // The entry that counts what is not listed one by one has nothing of its own.
        return Ok(if class.is_automatic() {
            RepairOutcome::AlreadyGone
        } else {
            needs_person()
        });
    };
    let on = On { keys, id };
    match class {
        Class::ReservationMissing
        | Class::TombstoneMissing
        | Class::NotSettled
        | Class::NotReleased
        | Class::NotRestocked
        | Class::MarkerMissing
        | Class::MarkerElsewhere => match repairer.replayer.replay_by_id(id).await? {
            Some(replayed) => Ok(outcome(&replayed)),
            None if class == Class::MarkerMissing => Ok(waiting("not decided yet")),
            None => Ok(RepairOutcome::AlreadyGone),
        },
        Class::Overdue | Class::NotInExpiry => hand_over_overdue(repairer, &on).await,
        Class::ReleasedWithoutDecision => fence(repairer, &on).await,
        Class::NotInSendPending => resend(repairer, &on).await,
        Class::IndexLeftOver => unindex(repairer, &on).await,
        Class::IndexStray | Class::MarkerStray => stray(repairer, &on, class).await,
        Class::CachedResultUnreadable | Class::CachedResultDiffers => {
            strays::answer(&repairer.redis, &on.keys, on.id).await
        }
        _ => Ok(needs_person()),
    }
}

fn waiting(why: &str) -> RepairOutcome {
    RepairOutcome::Waiting(why.to_owned())
}

fn outcome(replayed: &Replayed) -> RepairOutcome {
    match replayed {
        Replayed::Agreed => RepairOutcome::AlreadyGone,
        Replayed::Settled
        | Replayed::HandedOver
        | Replayed::Rebuilt
        | Replayed::Tombstoned
        | Replayed::MarkerRepaired
        | Replayed::Cancelled => RepairOutcome::Repaired(replayed.as_str().to_owned()),
        Replayed::Waits => waiting("too few units are available; the next release goes to it"),
        Replayed::Moving => waiting("others are at work on it"),
        Replayed::BucketGone | Replayed::NoCounters => {
            RepairOutcome::NeedsPerson(Class::StockMissing.entry().repair.to_owned())
        }
        Replayed::Contradiction { detail }
        | Replayed::Refused { detail }
        | Replayed::Unreadable { detail } => RepairOutcome::NeedsPerson(detail.clone()),
    }
}

/// Settles it if it is decided, else hands it over once its patience is over.
async fn hand_over_overdue(repairer: &Repairer, on: &On<'_>) -> Result<RepairOutcome, Error> {
    if let Some(replayed) = repairer.replayer.replay_by_id(on.id).await? {
        return Ok(outcome(&replayed));
    }
    let Some(record) = repairer.reservation(on).await? else {
        return Ok(RepairOutcome::AlreadyGone);
    };
    let request = record.order_request();
    let verdicts = repairer.store.hand_over_overdue(&[request]).await?;
    Ok(match verdicts.first() {
        Some(Overdue::Opened) => RepairOutcome::Repaired("handed_over".to_owned()),
        Some(Overdue::AlreadyOpen) => waiting("its task is open"),
        Some(Overdue::Patient { for_ms }) => waiting(&format!("patient for another {for_ms} ms")),
        Some(Overdue::Decided) | None => waiting("it has just been decided"),
    })
}

/// Has the compensation worker record what Redis has done: its fence writes `RELEASED`, or finds that
/// a late message has made an order, which a person must then look at.
async fn fence(repairer: &Repairer, on: &On<'_>) -> Result<RepairOutcome, Error> {
    if let Some(replayed) = repairer.replayer.replay_by_id(on.id).await? {
        return Ok(outcome(&replayed));
    }
    match repairer.reservation(on).await? {
        Some(record) if record.status == ReservationStatus::Released => {
            repairer
                .store
                .hand_over(&record.order_request(), None)
                .await?;
            Ok(RepairOutcome::Repaired("handed_over".to_owned()))
        }
        _ => Ok(RepairOutcome::AlreadyGone),
    }
}

/// Removes what names a reservation that PostgreSQL does not need: one that it knows is brought to
/// agreement first, and what still waits for units keeps its marker.
async fn stray(repairer: &Repairer, on: &On<'_>, class: Class) -> Result<RepairOutcome, Error> {
    match repairer.replayer.replay_by_id(on.id).await? {
        Some(replayed) if replayed != Replayed::Agreed => return Ok(outcome(&replayed)),
        Some(_) | None => {}
    }
    match class {
        Class::IndexStray => strays::members(&repairer.redis, &on.keys, on.id).await,
        _ => strays::markers(&repairer.redis, &on.keys, on.id).await,
    }
}

/// Puts an unsent reservation back where the scanner finds it.
async fn resend(repairer: &Repairer, on: &On<'_>) -> Result<RepairOutcome, Error> {
    let Some(record) = repairer.reservation(on).await? else {
        return Ok(RepairOutcome::AlreadyGone);
    };
    let redis = &repairer.redis;
    let indexed = redis
        .is_indexed(&on.keys, Index::SendPending, on.id)
        .await?;
    if indexed || !record.status.awaits_send() {
        return Ok(RepairOutcome::AlreadyGone);
    }
    let retry_at = redis.server_time(&on.keys).await?;
    let call = Transition {
        next_retry_at_ms: Some(retry_at),
        ..transition(on, ReservationStatus::SendUnknown)
    };
    let reply = redis.transition(&call).await?;
    Ok(match reply.code {
        TransitionCode::Updated | TransitionCode::Idempotent => {
            RepairOutcome::Repaired("resend".to_owned())
        }
        // It went on since it was read.
        _ => RepairOutcome::AlreadyGone,
    })
}

/// Takes a member out of the indexes that its reservation needs no more: the repeated step to where
/// the reservation stands does so.
async fn unindex(repairer: &Repairer, on: &On<'_>) -> Result<RepairOutcome, Error> {
    let Some(record) = repairer.reservation(on).await? else {
        return Ok(RepairOutcome::AlreadyGone);
    };
    let (redis, status) = (&repairer.redis, record.status);
    let mut left_over = false;
    for (index, needed) in [
        (Index::SendPending, status.awaits_send()),
        (Index::ReservationExpiry, !status.is_settled()),
    ] {
        left_over |= !needed && redis.is_indexed(&on.keys, index, on.id).await?;
    }
    if !left_over {
        return Ok(RepairOutcome::AlreadyGone);
    }
    let reply = redis.transition(&transition(on, status)).await?;
    Ok(match reply.code {
        TransitionCode::Idempotent => RepairOutcome::Repaired("unindexed".to_owned()),
        _ => waiting("others are at work on it"),
    })
}

const fn transition<'a>(on: &'a On<'_>, target: ReservationStatus) -> Transition<'a> {
    Transition {
        keys: &on.keys,
        reservation_id: on.id,
        target,
        next_retry_at_ms: None,
        message_id: None,
        order_id: None,
        error_code: None,
        now_override: None,
    }
}

/// Gives the version's expiry to keys that have none: those of one reservation, or all others that a
/// bucket has.
async fn give_expiry(
    repairer: &Repairer,
    keys: &BucketKeys,
    id: Option<&ReservationId>,
) -> Result<RepairOutcome, Error> {
    let names = match id {
        Some(id) => {
            let mut names = vec![keys.reservation(id)];
            match repairer.redis.reservation(keys, id).await {
                Ok(Some(record)) => names.push(keys.user(&record.user_id)),
                Ok(None) => {}
                // A damaged record can have an expiry as well as any other.
                Err(error) if error.kind() == RedisErrorKind::Broken => {}
                Err(error) => return Err(error.into()),
            }
            names
        }
        None => fixed_names(keys),
    };
    let expiries = repairer.redis.expiries(keys, &names).await?;
    let immortal: Vec<String> = names
        .into_iter()
        .zip(expiries)
        .filter(|(_, expiry)| *expiry == Expiry::Never)
        .map(|(name, _)| name)
        .collect();
    if immortal.is_empty() {
        return Ok(RepairOutcome::AlreadyGone);
    }
    let Some(activity) = repairer.store.activity(&keys.scope().scope).await? else {
        return Ok(RepairOutcome::NeedsPerson(
            "the version is unknown".to_owned(),
        ));
    };
    let mut given = 0;
    for names in immortal.chunks(EXTEND_KEYS_MAX) {
        let call = ExtendRetention {
            keys,
            names,
            until: activity.settings.retention_until_ms,
            now_override: None,
        };
        given += repairer.redis.extend_retention(&call).await?;
    }
    Ok(if given == 0 {
        RepairOutcome::NeedsPerson("the version's retention is over: delete the key".to_owned())
    } else {
        RepairOutcome::Repaired(format!("expiry of {given} keys"))
    })
}

/// The names of a bucket's keys that stand for no single reservation: 261, fewer than one question
/// about expiries may have.
fn fixed_names(keys: &BucketKeys) -> Vec<String> {
    let mut names = vec![
        keys.meta(),
        keys.stock(),
        keys.send_pending(),
        keys.reservation_expiry(),
        keys.soldout(),
    ];
    names.extend((0..REQUEST_SHARDS).map(|shard| keys.request_shard(shard)));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_done_is_told_as_done() {
        let detail = String::new;
        for done in [
            Replayed::Settled,
            Replayed::HandedOver,
            Replayed::Rebuilt,
            Replayed::Tombstoned,
            Replayed::MarkerRepaired,
            Replayed::Cancelled,
        ] {
            assert!(
                matches!(outcome(&done), RepairOutcome::Repaired(_)),
                "{done:?}"
            );
        }
        assert_eq!(outcome(&Replayed::Agreed), RepairOutcome::AlreadyGone);
        for later in [Replayed::Waits, Replayed::Moving] {
            assert!(
                matches!(outcome(&later), RepairOutcome::Waiting(_)),
                "{later:?}"
            );
        }
        for person in [
            Replayed::BucketGone,
            Replayed::NoCounters,
            Replayed::Contradiction { detail: detail() },
            Replayed::Refused { detail: detail() },
            Replayed::Unreadable { detail: detail() },
        ] {
            let outcome = outcome(&person);
            assert!(
                matches!(outcome, RepairOutcome::NeedsPerson(_)),
                "{person:?}"
            );
        }
    }
}
