//! One settlement: `ENQUEUED` if needed, then the outcome, in one round trip.
//!
//! A consumed message proves that it was enqueued, so a consumer that is faster than the front's
//! bookkeeping applies that step itself. Every step is a compare and set, so a repeat, a race with
//! the front and a crash half way all end the same; whoever repeats it repairs what a crash left.

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Error, Redis, Settle, SettleOutcome, TransitionReply};
use seckill_state_machine::{
    MessageId, OrderId, RejectReason, ReservationId, ReservationStatus, TransitionCode,
};

/// What Redis made of a settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// The reservation stands where the decision puts it, or where the decision's next steps lead.
    Agreed {
        /// Where it stands now, as far as the answer told.
        status: ReservationStatus,
        /// Whether this call moved it.
        moved: bool,
    },
    /// Redis has the bucket and not the reservation: it was lost.
    Missing,
    /// Redis has nothing of the bucket: its version has expired, or everything was lost, which the
    /// reconciler reports once a bucket instead of once a reservation.
    BucketGone,
    /// Redis holds something that the decision does not allow. No step is safe; a person must look.
    Contradiction {
        /// What the script answered.
        code: TransitionCode,
        /// Where the reservation stands.
        status: Option<ReservationStatus>,
    },
}

/// Settles a reservation that became an order.
///
/// # Errors
/// Whatever the call met. Repeating it is safe.
pub async fn settle_ordered(
    redis: &Redis,
    keys: &BucketKeys,
    reservation_id: &ReservationId,
    order_id: &OrderId,
) -> Result<Settled, Error> {
    let outcome = SettleOutcome::Ordered { order_id };
    settle(
        redis,
        keys,
        reservation_id,
        outcome,
        ReservationStatus::OrderCreated,
    )
    .await
}

/// Settles a reservation that PostgreSQL refused. Its units stay held until its compensation task
/// gives them back.
///
/// # Errors
/// Whatever the call met. Repeating it is safe.
pub async fn settle_rejected(
    redis: &Redis,
    keys: &BucketKeys,
    reservation_id: &ReservationId,
    reason: RejectReason,
) -> Result<Settled, Error> {
    let outcome = SettleOutcome::Rejected { reason };
    settle(
        redis,
        keys,
        reservation_id,
        outcome,
        ReservationStatus::Rejected,
    )
    .await
}

async fn settle(
    redis: &Redis,
    keys: &BucketKeys,
    reservation_id: &ReservationId,
    outcome: SettleOutcome<'_>,
    target: ReservationStatus,
) -> Result<Settled, Error> {
    let message_id = MessageId::of(reservation_id);
    let reply = redis
        .settle(&Settle {
            keys,
            reservation_id,
            message_id: &message_id,
            outcome,
        })
        .await?;
    let settled = read_reply(&reply, target);
    if settled == Settled::Missing && redis.meta(keys).await?.is_none() {
        return Ok(Settled::BucketGone);
    }
    Ok(settled)
}

/// A refusal from a state that lies behind the target is the expected race with a later step.
fn read_reply(reply: &TransitionReply, target: ReservationStatus) -> Settled {
    let contradiction = Settled::Contradiction {
        code: reply.code,
        status: reply.status,
    };
    let agreed = |status, moved| Settled::Agreed { status, moved };
    match reply.code {
        TransitionCode::Updated => agreed(target, true),
        TransitionCode::Idempotent => agreed(target, false),
        TransitionCode::NotFound => Settled::Missing,
        TransitionCode::IllegalTransition => match reply.status {
            Some(status) if status == target || status.is_beyond(target) => agreed(status, false),
            _ => contradiction,
        },
        TransitionCode::IdConflict => contradiction,
    }
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::ReservationStatus as S;

    use super::*;

    fn reply(code: TransitionCode, status: Option<S>) -> TransitionReply {
        TransitionReply { code, status }
    }

    #[test]
    fn a_later_state_is_agreement_and_a_foreign_one_is_not() {
        let illegal = |status| reply(TransitionCode::IllegalTransition, Some(status));
        for (status, target) in [
            (S::OrderCancelled, S::OrderCreated),
            (S::ReleasePending, S::Rejected),
            (S::Released, S::Rejected),
        ] {
            assert_eq!(
                read_reply(&illegal(status), target),
                Settled::Agreed {
                    status,
                    moved: false
                }
            );
        }
        for (status, target) in [
            (S::Released, S::OrderCreated),
            (S::Rejected, S::OrderCreated),
            (S::OrderCreated, S::Rejected),
            (S::OrderCancelled, S::Rejected),
        ] {
            assert!(
                matches!(
                    read_reply(&illegal(status), target),
                    Settled::Contradiction { .. }
                ),
                "{status} when {target} was due"
            );
        }
    }

    #[test]
    fn another_order_on_record_is_a_contradiction_and_nothing_on_record_is_missing() {
        let conflict = reply(TransitionCode::IdConflict, Some(S::OrderCreated));
        assert!(matches!(
            read_reply(&conflict, S::OrderCreated),
            Settled::Contradiction { .. }
        ));
        let missing = reply(TransitionCode::NotFound, None);
        assert_eq!(read_reply(&missing, S::OrderCreated), Settled::Missing);
    }
}
