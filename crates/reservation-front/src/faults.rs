//! Faults as gRPC statuses. Business outcomes are never statuses, and statuses never business
//! outcomes.
//!
//! `CANCELLED`, `UNKNOWN` and `INTERNAL` are never sent: a caller could not tell from them whether
//! units are held.

use std::collections::HashMap;
use std::time::Duration;

use seckill_proto::Violations;
use seckill_state_machine::RequestId;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

/// The domain of this API's reasons.
pub(crate) const ERROR_DOMAIN: &str = "seckill";

/// When a caller may try again after an attempt that decided nothing. Long enough for a failed-over connection
/// to come back, so that a million callers do not return at once to a server that is not there yet.
const RETRY_BUSY: Duration = Duration::from_millis(500);

/// When a caller may ask again after an unknown outcome: the first attempt has run by then, or
/// never will.
const RETRY_UNKNOWN: Duration = Duration::from_millis(200);

/// Why a call got no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This attempt decided nothing: Redis is away, refuses, or too many calls are in hand.
    SystemBusy,
    /// The same for a repeat, whose earlier attempt may have been decided.
    RepeatBusy,
    /// The script may have decided. The same request id tells, sooner or later.
    OutcomeUnknown,
    /// The deadline passed before this attempt sent anything to Redis.
    DeadlineExceeded,
}

impl Fault {
    const fn parts(self) -> (Code, &'static str, &'static str, Duration) {
        match self {
            Self::SystemBusy => (
                Code::Unavailable,
                "SYSTEM_BUSY",
                "this attempt decided nothing; try again with the same request id",
                RETRY_BUSY,
            ),
            Self::RepeatBusy => (
                Code::Unavailable,
                "OUTCOME_UNKNOWN",
                "this repeat decided nothing, and what became of an earlier attempt is unknown; \
                 repeat with the same request id, or query",
                RETRY_BUSY,
            ),
            Self::OutcomeUnknown => (
                Code::Unavailable,
                "OUTCOME_UNKNOWN",
                "the outcome is unknown; repeat with the same request id, or query",
                RETRY_UNKNOWN,
            ),
            Self::DeadlineExceeded => (
                Code::DeadlineExceeded,
                "DEADLINE_EXCEEDED",
                "the deadline passed before this attempt sent anything; try again with the same request id",
                RETRY_BUSY,
            ),
        }
    }

    /// What a call of this kind is told: nobody may tell a caller who repeats that nothing happened,
    /// for an earlier attempt may have run.
    pub(crate) fn for_call(self, repeat: bool) -> Self {
        match self {
            Self::SystemBusy if repeat => Self::RepeatBusy,
            fault => fault,
        }
    }

    /// The status for a call with this request id.
    pub(crate) fn status(self, request_id: Option<&RequestId>) -> Status {
        let (code, reason, message, retry) = self.parts();
        let mut details = ErrorDetails::new();
        details
            .set_error_info(reason, ERROR_DOMAIN, metadata(request_id))
            .set_retry_info(Some(retry));
        Status::with_error_details(code, message, details)
    }
}

fn metadata(request_id: Option<&RequestId>) -> HashMap<String, String> {
    request_id
        .map(|id| ("request_id".to_owned(), id.to_string()))
        .into_iter()
        .collect()
}

/// The status for a call with wrong fields: names each, repeats none.
pub(crate) fn invalid(violations: Violations) -> Status {
    let message = violations.to_string();
    let fields: Vec<FieldViolation> = violations
        .into_vec()
        .into_iter()
        .map(|violation| FieldViolation::new(violation.field, violation.problem))
        .collect();
    let mut details = ErrorDetails::new();
    details.set_bad_request(fields).set_error_info(
        "INVALID_ARGUMENT",
        ERROR_DOMAIN,
        HashMap::new(),
    );
    Status::with_error_details(Code::InvalidArgument, message, details)
}

/// The status for a query that finds nothing, or nothing of this user's.
pub(crate) fn not_found() -> Status {
    let mut details = ErrorDetails::new();
    details.set_error_info("RESERVATION_NOT_FOUND", ERROR_DOMAIN, HashMap::new());
    Status::with_error_details(Code::NotFound, "no such reservation of this user", details)
}

/// The status for a call whose metadata is larger than `limit` bytes.
pub(crate) fn metadata_too_large(limit: usize) -> Status {
    let mut details = ErrorDetails::new();
    details.set_error_info("METADATA_TOO_LARGE", ERROR_DOMAIN, HashMap::new());
    let message = format!("the metadata may have at most {limit} bytes");
    Status::with_error_details(Code::ResourceExhausted, message, details)
}

#[cfg(test)]
mod tests {
    use seckill_proto::{ReserveCall, v1};

    use super::*;

    #[test]
    fn every_fault_names_reason_request_and_retry() {
        let request_id = RequestId::parse("q-1").unwrap();
        for fault in [
            Fault::SystemBusy,
            Fault::RepeatBusy,
            Fault::OutcomeUnknown,
            Fault::DeadlineExceeded,
        ] {
            let status = fault.status(Some(&request_id));
            assert!(matches!(
                status.code(),
                Code::Unavailable | Code::DeadlineExceeded
            ));
            let details = status.get_error_details();
            let info = details.error_info().unwrap();
            assert_eq!(info.domain, "seckill");
            assert_eq!(info.metadata["request_id"], "q-1");
            assert!(details.retry_info().unwrap().retry_delay.is_some());
        }
    }

    #[test]
    fn a_repeat_is_never_told_that_nothing_was_decided() {
        let reason = |fault: Fault, repeat| {
            let details = fault.for_call(repeat).status(None).get_error_details();
            details.error_info().unwrap().reason.clone()
        };
        assert_eq!(reason(Fault::SystemBusy, false), "SYSTEM_BUSY");
        assert_eq!(reason(Fault::SystemBusy, true), "OUTCOME_UNKNOWN");
        assert_eq!(reason(Fault::OutcomeUnknown, true), "OUTCOME_UNKNOWN");
        assert_eq!(reason(Fault::DeadlineExceeded, true), "DEADLINE_EXCEEDED");
    }

    #[test]
    fn all_wrong_fields_are_in_the_details() {
        let violations = ReserveCall::try_from(v1::ReserveRequest::default()).unwrap_err();
        let status = invalid(violations);
        assert_eq!(status.code(), Code::InvalidArgument);
        let details = status.get_error_details();
        let fields: Vec<&str> = details
            .bad_request()
            .unwrap()
            .field_violations
            .iter()
            .map(|violation| violation.field.as_str())
            .collect();
        assert_eq!(
            fields,
            [
                "activity_id",
                "sku_id",
                "activity_version",
                "user_id",
                "request_id"
            ]
        );
    }
}
