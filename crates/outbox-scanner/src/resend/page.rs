//! One page of due members: claim each, send the batch, record each outcome.

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    ClaimSend, ClaimSendReply, Error, IndexMember, ReservationRecord, Transition, TransitionReply,
};
use seckill_message_bus::{OutgoingMessage, SendOutcome};
use seckill_state_machine::{ReservationId, ReservationStatus, TimestampMs, TransitionCode};

use super::{Report, Resender};
use crate::clock::ServerClock;

/// Script calls of one page in flight: enough to fill the pipeline of a connection, and with eight
/// buckets at once 256, far below the client's command buffer.
const CALLS_IN_FLIGHT: usize = 32;

/// A reservation that this replica may send until its lease ends.
struct Claim {
    record: Box<ReservationRecord>,
    lease_until: TimestampMs,
}

impl Resender {
    pub(super) async fn page(
        &self,
        keys: &BucketKeys,
        clock: &ServerClock,
        members: Vec<IndexMember>,
        report: &mut Report,
    ) {
        let claims = self.claim(keys, clock, members, report).await;
        if claims.is_empty() {
            return;
        }
        let messages = claims
            .iter()
            .map(|claim| OutgoingMessage::order_request(&claim.record.order_request()))
            .collect();
        let outcomes = self.producer.send_batch(messages).await;
        self.record(keys, clock, claims, outcomes, report).await;
    }

    async fn claim(
        &self,
        keys: &BucketKeys,
        clock: &ServerClock,
        members: Vec<IndexMember>,
        report: &mut Report,
    ) -> Vec<Claim> {
        let mut replies = futures::stream::iter(members)
            .map(|member| async move {
                let claimed = self.claim_one(keys, clock, &member).await;
                (member, claimed)
            })
            .buffer_unordered(CALLS_IN_FLIGHT);
        let mut claims = Vec::new();
        let mut refused = 0;
        while let Some((member, claimed)) = replies.next().await {
            match claimed {
                Claimed::Mine(claim) => claims.push(claim),
                Claimed::Taken => report.taken_by_others += 1,
                Claimed::Unusable(reason) => report.note_unusable(&member.member, reason),
                Claimed::Unanswered(error) => {
                    report.unanswered += 1;
                    refused += 1;
                    tracing::debug!(member = member.member, %error, "claim without an answer");
                }
            }
            // A Redis that is full or away refuses the rest of the page as well. A claim that is broken
            // off and ran all the same is due again at its lease's end.
            if claims.is_empty() && refused >= CALLS_IN_FLIGHT {
                break;
            }
        }
        claims
    }

    async fn claim_one(
        &self,
        keys: &BucketKeys,
        clock: &ServerClock,
        member: &IndexMember,
    ) -> Claimed {
        let Ok(reservation_id) = ReservationId::parse(member.member.as_str()) else {
            return Claimed::Unusable("not a reservation id".to_owned());
        };
        let lease_until = clock.now() + millis(self.limits.lease);
        let reply = self
            .redis
            .claim_send(&ClaimSend {
                keys,
                reservation_id: &reservation_id,
                expected_score: member.score,
                lease_until,
            })
            .await;
        match reply {
            Ok(ClaimSendReply::Claimed(record)) => Claimed::Mine(Claim {
                record,
                lease_until,
            }),
            Ok(
                ClaimSendReply::Moved { .. }
                | ClaimSendReply::NotDue
                | ClaimSendReply::NotSendable(_),
            ) => Claimed::Taken,
            Ok(ClaimSendReply::Missing) => Claimed::Unusable("its hash is gone".to_owned()),
            Ok(ClaimSendReply::Broken(reason)) => Claimed::Unusable(reason),
            Err(error) => Claimed::Unanswered(error),
        }
    }

    async fn record(
        &self,
        keys: &BucketKeys,
        clock: &ServerClock,
        claims: Vec<Claim>,
        outcomes: Vec<SendOutcome>,
        report: &mut Report,
    ) {
        let mut records = futures::stream::iter(claims.into_iter().zip(outcomes))
            .map(|(claim, outcome)| self.record_one(keys, clock, claim, outcome))
            .buffer_unordered(CALLS_IN_FLIGHT);
        while let Some(recorded) = records.next().await {
            match recorded {
                Recorded::Sent => report.sent += 1,
                Recorded::Unknown => report.unknown += 1,
                Recorded::Unanswered => report.unanswered += 1,
            }
        }
    }

    async fn record_one(
        &self,
        keys: &BucketKeys,
        clock: &ServerClock,
        claim: Claim,
        outcome: SendOutcome,
    ) -> Recorded {
        let id = &claim.record.reservation_id;
        let message_id = &claim.record.message_id;
        let (target, next_retry_at_ms, recorded) = match outcome {
            SendOutcome::Sent => (ReservationStatus::Enqueued, None, Recorded::Sent),
            SendOutcome::Unknown(reason) => {
                tracing::debug!(reservation_id = %id, %message_id, reason, "send outcome unknown");
                if clock.now() >= claim.lease_until {
                    // Another replica may have claimed it since: its retry time is not ours to move.
                    return Recorded::Unknown;
                }
                let attempts = u32::try_from(claim.record.send_attempts).unwrap_or(u32::MAX);
                let wait = self.limits.backoff.draw(attempts);
                let next = clock.now() + millis(wait);
                (
                    ReservationStatus::SendUnknown,
                    Some(next),
                    Recorded::Unknown,
                )
            }
        };
        let reply = self
            .redis
            .transition(&Transition {
                keys,
                reservation_id: id,
                target,
                next_retry_at_ms,
                message_id: Some(message_id),
                order_id: None,
                error_code: None,
                now_override: None,
            })
            .await;
        match reply {
            Ok(reply) => {
                note_odd_reply(id, target, &reply);
                recorded
            }
            Err(error) => {
                // The lease brings it back; the inbox drops the second message.
                tracing::debug!(reservation_id = %id, %error, "record without an answer");
                Recorded::Unanswered
            }
        }
    }
}

/// A step that came after a later state is the expected race with the consumer. Everything else that
/// is not a plain yes needs an operator.
fn note_odd_reply(id: &ReservationId, target: ReservationStatus, reply: &TransitionReply) {
    let expected = match reply.code {
        TransitionCode::Updated | TransitionCode::Idempotent => true,
        TransitionCode::IllegalTransition => {
            reply.status.is_some_and(|status| status.is_beyond(target))
        }
        TransitionCode::NotFound | TransitionCode::IdConflict => false,
    };
    if !expected {
        tracing::error!(
            reservation_id = %id,
            transition = %target,
            code = %reply.code,
            reservation_status = reply.status.map(ReservationStatus::as_str),
            "a send could not be recorded"
        );
    }
}

enum Claimed {
    Mine(Claim),
    Taken,
    Unusable(String),
    Unanswered(Error),
}

enum Recorded {
    Sent,
    Unknown,
    Unanswered,
}

fn millis(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
