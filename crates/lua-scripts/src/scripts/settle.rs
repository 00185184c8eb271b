//! Settling: `ENQUEUED` if needed, then the outcome, in one round trip.
//!
//! A consumed message proves that it was enqueued, and the consumer may be faster than the front's
//! bookkeeping. Both steps are written to the same connection one behind the other.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{
    MessageId, OrderId, RejectReason, ReservationId, ReservationStatus, TransitionCode,
};

use super::{Script, Transition, TransitionReply};
use crate::{Error, Redis};

/// PostgreSQL's decision, to be told to Redis.
#[derive(Debug, Clone, Copy)]
pub struct Settle<'a> {
    /// The bucket that holds the reservation.
    pub keys: &'a BucketKeys,
    /// What was decided on.
    pub reservation_id: &'a ReservationId,
    /// The message that asked for it.
    pub message_id: &'a MessageId,
    /// The decision.
    pub outcome: SettleOutcome<'a>,
}

/// What PostgreSQL decided.
#[derive(Debug, Clone, Copy)]
pub enum SettleOutcome<'a> {
    /// An order exists.
    Ordered {
        /// Its id.
        order_id: &'a OrderId,
    },
    /// There will be no order.
    Rejected {
        /// Why.
        reason: RejectReason,
    },
}

impl<'a> Settle<'a> {
    fn step(&self, target: ReservationStatus) -> Transition<'a> {
        Transition {
            keys: self.keys,
            reservation_id: self.reservation_id,
            target,
            next_retry_at_ms: None,
            message_id: Some(self.message_id),
            order_id: None,
            error_code: None,
            now_override: None,
        }
    }

    fn outcome(&self) -> Transition<'a> {
        match self.outcome {
            SettleOutcome::Ordered { order_id } => Transition {
                order_id: Some(order_id),
                ..self.step(ReservationStatus::OrderCreated)
            },
            SettleOutcome::Rejected { reason } => Transition {
                error_code: Some(reason.as_str()),
                ..self.step(ReservationStatus::Rejected)
            },
        }
    }
}

impl Redis {
    /// Tells Redis what PostgreSQL decided; repeating it changes nothing.
    ///
    /// # Errors
    /// When there is no answer to the outcome's step; see [`crate::ErrorKind`].
    pub async fn settle(&self, call: &Settle<'_>) -> Result<TransitionReply, Error> {
        let _permit = self.permit()?;
        // Both of one turn, so that they share a connection.
        let turn = self.turn();
        let (_, reply) = self.both_steps(turn, call).await?;
        if !came_first(&reply) {
            return Ok(reply);
        }
        // A redirection or a script reload let the second step pass the first: once more.
        let (enqueued, reply) = self.both_steps(turn, call).await?;
        match enqueued {
            // The server did not take the first step (full memory, no replica, read-only). The second
            // one refuses before it would write, so its answer says nothing against the decision.
            Err(error) if came_first(&reply) => Err(error),
            _ => Ok(reply),
        }
    }

    async fn both_steps(
        &self,
        turn: usize,
        call: &Settle<'_>,
    ) -> Result<(Result<Value, Error>, TransitionReply), Error> {
        let first = self.encode(&call.step(ReservationStatus::Enqueued), call.keys);
        let second = self.encode(&call.outcome(), call.keys);
        // The first poll of each future writes its command, so the order is kept. The second one's
        // answer tells where the reservation stands; the first one's matters only when that is before
        // `ENQUEUED`.
        let (enqueued, outcome) =
            futures::join!(self.evaluate(turn, &first), self.evaluate(turn, &second));
        Ok((enqueued, Transition::parse(outcome?)?))
    }
}

/// Whether the outcome's step met a reservation that is not even enqueued.
fn came_first(reply: &TransitionReply) -> bool {
    reply.code == TransitionCode::IllegalTransition
        && reply.status.is_some_and(ReservationStatus::awaits_send)
}
