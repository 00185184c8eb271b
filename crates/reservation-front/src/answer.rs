//! From the script's reply to the caller's answer.

use seckill_lua_scripts::{ReplyStatus, ReserveReply};
use seckill_proto::v1;
use seckill_state_machine::{RequestId, ReservationStatus, ReserveCode};

use crate::faults::Fault;

/// What Redis was asked in vain, or said, about one call.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A business outcome.
    Outcome(v1::ReserveResponse),
    /// No outcome.
    Fault(Fault),
}

/// What the script says beside `CONFIG_MISSING` while the version's keys are being rebuilt.
const REBUILDING: &str = "REBUILDING";

/// What the caller is told about a reply. `after_unknown`: an earlier attempt of the same call may
/// have run, so that only an answer about that very request may be given.
pub(crate) fn answer(reply: &ReserveReply, request_id: &RequestId, after_unknown: bool) -> Answer {
    if reply.code == ReserveCode::ConfigMissing {
        if after_unknown {
            return Answer::Fault(Fault::OutcomeUnknown);
        }
        // A passing state of ours, and none of the activity's.
        if matches!(&reply.status, ReplyStatus::Detail(detail) if detail == REBUILDING) {
            return Answer::Fault(Fault::SystemBusy);
        }
    }
    let Some(code) = v1::ReserveCode::of(reply.code) else {
        return Answer::Fault(Fault::OutcomeUnknown);
    };
    Answer::Outcome(v1::ReserveResponse {
        code: code.into(),
        reservation_id: reply
            .reservation_id
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        remaining: reply.remaining,
        status: status(&reply.status).into(),
        replay: reply.replay,
        retryable: reply.code.is_retryable(),
        request_id: request_id.to_string(),
        source: v1::AnswerSource::Redis.into(),
    })
}

/// An answer that the front gives from what it has cached.
pub(crate) fn from_cache(code: ReserveCode, request_id: &RequestId) -> v1::ReserveResponse {
    v1::ReserveResponse {
        code: v1::ReserveCode::of(code).unwrap_or_default().into(),
        retryable: code.is_retryable(),
        request_id: request_id.to_string(),
        source: v1::AnswerSource::Front.into(),
        ..v1::ReserveResponse::default()
    }
}

fn status(status: &ReplyStatus) -> v1::ReservationStatus {
    match status {
        ReplyStatus::Queued => v1::ReservationStatus::Queued,
        ReplyStatus::Status(status) => (*status).into(),
        ReplyStatus::None | ReplyStatus::Detail(_) => v1::ReservationStatus::Unspecified,
    }
}

/// Whether this reply is about an acceptance that nobody has taken care of sending yet: a fresh one,
/// or one that an attempt of this very call made whose reply was lost. The acceptance of an earlier
/// call is the scanner's.
pub(crate) fn wants_first_send(reply: &ReserveReply, after_unknown: bool) -> bool {
    let open = match &reply.status {
        ReplyStatus::Queued => true,
        ReplyStatus::Status(status) => *status == ReservationStatus::Reserved,
        ReplyStatus::None | ReplyStatus::Detail(_) => false,
    };
    reply.code == ReserveCode::Accepted && open && (!reply.replay || after_unknown)
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::ReservationId;

    use super::*;

    fn reply(code: ReserveCode, status: ReplyStatus, replay: bool) -> ReserveReply {
        let held = matches!(
            code,
            ReserveCode::Accepted | ReserveCode::UserAlreadyReserved
        );
        ReserveReply {
            code,
            reservation_id: held.then(|| ReservationId::parse("a".repeat(26)).unwrap()),
            remaining: 3,
            status,
            replay,
        }
    }

    fn told(reply: &ReserveReply, after_unknown: bool) -> Answer {
        let request_id = RequestId::parse("q").unwrap();
        answer(reply, &request_id, after_unknown)
    }

    #[test]
    fn every_code_but_the_unknown_outcome_is_a_body() {
        for code in ReserveCode::ALL {
            let reply = reply(*code, ReplyStatus::None, false);
            match told(&reply, false) {
                Answer::Outcome(body) => {
                    assert_eq!(body.request_id, "q");
                    assert_eq!(body.retryable, *code == ReserveCode::ConfigMissing);
                    assert_eq!(body.source, i32::from(v1::AnswerSource::Redis));
                }
                Answer::Fault(fault) => {
                    assert_eq!(*code, ReserveCode::OutcomeUnknown);
                    assert_eq!(fault, Fault::OutcomeUnknown);
                }
            }
        }
    }

    #[test]
    fn a_rebuild_is_busy_and_a_lost_configuration_after_an_unknown_attempt_is_unknown() {
        let missing = |detail: &str| {
            let detail = ReplyStatus::Detail(detail.to_owned());
            reply(ReserveCode::ConfigMissing, detail, false)
        };
        let fault = |answer| match answer {
            Answer::Fault(fault) => Some(fault),
            Answer::Outcome(_) => None,
        };
        let (rebuilding, gone) = (missing("REBUILDING"), missing("CONFIG_MISSING"));
        assert_eq!(fault(told(&rebuilding, false)), Some(Fault::SystemBusy));
        assert_eq!(fault(told(&rebuilding, true)), Some(Fault::OutcomeUnknown));
        assert_eq!(fault(told(&gone, false)), None);
        assert_eq!(fault(told(&gone, true)), Some(Fault::OutcomeUnknown));
    }

    #[test]
    fn a_replay_shows_the_live_state() {
        let released = ReplyStatus::Status(ReservationStatus::Released);
        let Answer::Outcome(body) = told(&reply(ReserveCode::Accepted, released, true), false)
        else {
            panic!("an outcome");
        };
        assert_eq!(body.code(), v1::ReserveCode::Accepted);
        assert_eq!(body.status(), v1::ReservationStatus::Released);
        assert!(body.replay);
    }

    #[test]
    fn only_own_acceptances_are_sent_first_by_the_front() {
        let queued = || ReplyStatus::Queued;
        let live = |status| ReplyStatus::Status(status);
        let accepted = ReserveCode::Accepted;
        assert!(wants_first_send(&reply(accepted, queued(), false), false));
        let replayed = reply(accepted, live(ReservationStatus::Reserved), true);
        assert!(!wants_first_send(&replayed, false));
        assert!(wants_first_send(&replayed, true));
        let further = reply(accepted, live(ReservationStatus::Enqueued), true);
        assert!(!wants_first_send(&further, true));
        let sold_out = reply(ReserveCode::SoldOut, ReplyStatus::None, false);
        assert!(!wants_first_send(&sold_out, false));
    }
}
