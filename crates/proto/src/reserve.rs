//! Calls of the reservation front to domain values, and its answers from them.
//!
//! Every wrong field of a call is reported at once. No value is ever repeated in a report.

use seckill_state_machine::{
    ActivityId, ActivityVersion, Quantity, RequestId, ReservationId, ReservationStatus,
    ReserveCode, Scope, SkuId, UserId,
};

use crate::v1 as pb;
use crate::{Collector, Violations};

/// The longest activity token, in bytes: what the edge signs, base64 and all, with room to grow.
pub const ACTIVITY_TOKEN_BYTES_MAX: usize = 4_096;

/// A checked call for units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReserveCall {
    /// What is asked for.
    pub scope: Scope,
    /// The buyer.
    pub user_id: UserId,
    /// The caller's idempotency key.
    pub request_id: RequestId,
    /// Units wanted.
    pub quantity: Quantity,
    /// Whether the caller says that it may have asked before.
    pub repeat: bool,
}

/// How a query names its reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryKey {
    /// By its own id.
    Reservation(ReservationId),
    /// By the request that made it.
    Request(RequestId),
}

/// A checked query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationQuery {
    /// Where it was reserved.
    pub scope: Scope,
    /// Who asks.
    pub user_id: UserId,
    /// Which reservation.
    pub key: QueryKey,
}

fn scope(
    fields: &mut Collector,
    activity_id: String,
    sku_id: String,
    version: u64,
) -> Option<Scope> {
    let activity_id = fields.keep("activity_id", ActivityId::parse(activity_id));
    let sku_id = fields.keep("sku_id", SkuId::parse(sku_id));
    let version = fields.keep("activity_version", ActivityVersion::new(version));
    Some(Scope {
        activity_id: activity_id?,
        sku_id: sku_id?,
        version: version?,
    })
}

impl TryFrom<pb::ReserveRequest> for ReserveCall {
    type Error = Violations;

    fn try_from(request: pb::ReserveRequest) -> Result<Self, Violations> {
        let mut fields = Collector::default();
        let scope = scope(
            &mut fields,
            request.activity_id,
            request.sku_id,
            request.activity_version,
        );
        let user_id = fields.keep("user_id", UserId::parse(request.user_id));
        let request_id = fields.keep("request_id", RequestId::parse(request.request_id));
        // Most calls want one unit; proto3 cannot tell 0 from "not given".
        let quantity = fields.keep("quantity", Quantity::new(request.quantity.max(1)));
        let token_len = request.activity_token.len();
        if token_len > ACTIVITY_TOKEN_BYTES_MAX {
            let problem =
                format!("must be at most {ACTIVITY_TOKEN_BYTES_MAX} bytes, has {token_len}");
            fields.note("activity_token", problem);
        }
        let call = (|| {
            Some(Self {
                scope: scope?,
                user_id: user_id?,
                request_id: request_id?,
                quantity: quantity?,
                repeat: request.repeat,
            })
        })();
        fields.finish("request", call)
    }
}

impl TryFrom<pb::GetReservationRequest> for ReservationQuery {
    type Error = Violations;

    fn try_from(request: pb::GetReservationRequest) -> Result<Self, Violations> {
        use pb::get_reservation_request::Key;
        let mut fields = Collector::default();
        let scope = scope(
            &mut fields,
            request.activity_id,
            request.sku_id,
            request.activity_version,
        );
        let user_id = fields.keep("user_id", UserId::parse(request.user_id));
        let key = match request.key {
            Some(Key::ReservationId(id)) => fields
                .keep("reservation_id", ReservationId::parse(id))
                .map(QueryKey::Reservation),
            Some(Key::RequestId(id)) => fields
                .keep("request_id", RequestId::parse(id))
                .map(QueryKey::Request),
            None => {
                fields.note("key", "must be reservation_id or request_id");
                None
            }
        };
        let query = (|| {
            Some(Self {
                scope: scope?,
                user_id: user_id?,
                key: key?,
            })
        })();
        fields.finish("request", query)
    }
}

impl pb::ReserveCode {
    /// The code as callers see it; `None` for `OUTCOME_UNKNOWN`, which is a fault and no outcome.
    #[must_use]
    pub const fn of(code: ReserveCode) -> Option<Self> {
        Some(match code {
            ReserveCode::Accepted => Self::Accepted,
            ReserveCode::UserAlreadyReserved => Self::UserAlreadyReserved,
            ReserveCode::ActivityNotStarted => Self::ActivityNotStarted,
            ReserveCode::ActivityEnded => Self::ActivityEnded,
            ReserveCode::ActivityNotActive => Self::ActivityNotActive,
            ReserveCode::VersionMismatch => Self::VersionMismatch,
            ReserveCode::SoldOut => Self::SoldOut,
            ReserveCode::RequestIdConflict => Self::RequestIdConflict,
            ReserveCode::ConfigMissing => Self::ConfigMissing,
            ReserveCode::ReservationIdConflict => Self::ReservationIdConflict,
            ReserveCode::InvariantViolation => Self::InvariantViolation,
            ReserveCode::BadArgument => Self::BadArgument,
            ReserveCode::OutcomeUnknown => return None,
        })
    }
}

impl From<ReservationStatus> for pb::ReservationStatus {
    fn from(status: ReservationStatus) -> Self {
        match status {
            // Callers cannot act on where exactly the order request is.
            ReservationStatus::Reserved
            | ReservationStatus::SendUnknown
            | ReservationStatus::Enqueued => Self::Queued,
            ReservationStatus::OrderCreated => Self::OrderCreated,
            ReservationStatus::Rejected => Self::Rejected,
            ReservationStatus::ReleasePending => Self::ReleasePending,
            ReservationStatus::Released => Self::Released,
            ReservationStatus::OrderCancelled => Self::OrderCancelled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> pb::ReserveRequest {
        pb::ReserveRequest {
            activity_id: "a".to_owned(),
            sku_id: "s".to_owned(),
            user_id: "u".to_owned(),
            request_id: "q".to_owned(),
            activity_version: 1,
            ..pb::ReserveRequest::default()
        }
    }

    fn fields(violations: &Violations) -> Vec<&'static str> {
        violations.as_slice().iter().map(|v| v.field).collect()
    }

    #[test]
    fn a_call_without_a_quantity_wants_one_unit() {
        let call = ReserveCall::try_from(request()).unwrap();
        assert_eq!(call.quantity, Quantity::ONE);
        assert!(!call.repeat);
    }

    #[test]
    fn all_bad_fields_are_named_at_once_and_never_echoed() {
        let request = pb::ReserveRequest {
            activity_id: " ".to_owned(),
            sku_id: "a|hunter2".to_owned(),
            user_id: "{hunter2}".to_owned(),
            request_id: "x".repeat(129),
            activity_version: 0,
            quantity: u32::MAX,
            activity_token: "t".repeat(ACTIVITY_TOKEN_BYTES_MAX + 1),
            repeat: false,
        };
        let violations = ReserveCall::try_from(request).unwrap_err();
        assert_eq!(
            fields(&violations),
            [
                "activity_id",
                "sku_id",
                "activity_version",
                "user_id",
                "request_id",
                "quantity",
                "activity_token"
            ]
        );
        assert!(!violations.to_string().contains("hunter2"));
        let empty = ReserveCall::try_from(pb::ReserveRequest::default()).unwrap_err();
        assert_eq!(empty.as_slice().len(), 5);
    }

    #[test]
    fn a_query_needs_a_key_and_checks_it() {
        use pb::get_reservation_request::Key;
        let query = |key| pb::GetReservationRequest {
            activity_id: "a".to_owned(),
            sku_id: "s".to_owned(),
            user_id: "u".to_owned(),
            activity_version: 1,
            key,
        };
        let wrong = |key| fields(&ReservationQuery::try_from(query(key)).unwrap_err());
        assert_eq!(wrong(None), ["key"]);
        assert_eq!(
            wrong(Some(Key::ReservationId("x".to_owned()))),
            ["reservation_id"]
        );
        assert_eq!(
            wrong(Some(Key::RequestId("a b".to_owned()))),
            ["request_id"]
        );
        let right = ReservationQuery::try_from(query(Some(Key::RequestId("q".to_owned()))));
        assert!(matches!(right.unwrap().key, QueryKey::Request(_)));
    }

    #[test]
    fn codes_keep_their_numbers_except_that_zero_is_never_sent() {
        for code in ReserveCode::ALL {
            let Some(sent) = pb::ReserveCode::of(*code) else {
                assert_eq!(*code, ReserveCode::OutcomeUnknown);
                continue;
            };
            let expected = if *code == ReserveCode::Accepted {
                1
            } else {
                code.code()
            };
            assert_eq!(i64::from(i32::from(sent)), expected, "{code}");
        }
    }

    #[test]
    fn every_state_has_a_word_for_callers() {
        for status in ReservationStatus::ALL {
            let sent = pb::ReservationStatus::from(status);
            assert_ne!(sent, pb::ReservationStatus::Unspecified, "{status}");
        }
    }
}
