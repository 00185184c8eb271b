//! Good bodies survive the round trip; every kind of bad body is refused by name, never by panic.

use std::collections::BTreeMap;

use proptest::prelude::*;
use seckill_state_machine::{
    OrderEventKind, OrderId, Quantity, RejectReason, RequestId, TimestampMs, Traceparent, UserId,
};

use super::*;
use crate::{OutgoingMessage, Topic};

const RESERVATION: &str = "abcdefghijklmnopqrstuvwx27";
const OTHER_RESERVATION: &str = "zzcdefghijklmnopqrstuvwx27";

fn arrived(sent: OutgoingMessage) -> IncomingMessage {
    IncomingMessage {
        message_id: Some(sent.message_id),
        topic: sent.topic.name().to_owned(),
        queue_id: 3,
        queue_offset: 7,
        broker_message_id: "7F000001".to_owned(),
        body: sent.body,
        properties: sent
            .properties
            .into_iter()
            .map(|(name, value)| (name.into_owned(), value))
            .collect(),
        reconsume_times: 0,
        born_at_ms: 1,
    }
}

fn with_body(body: impl Into<Bytes>) -> IncomingMessage {
    IncomingMessage {
        body: body.into(),
        ..arrived(OutgoingMessage::order_request(&request()))
    }
}

fn bucket() -> BucketScope {
    BucketScope {
        scope: Scope {
            activity_id: ActivityId::parse("act-1").unwrap(),
            sku_id: SkuId::parse("sku_1").unwrap(),
            version: ActivityVersion::new(3).unwrap(),
        },
        bucket_id: BucketId::new(5).unwrap(),
    }
}

fn request() -> OrderRequest {
    OrderRequest {
        reservation_id: ReservationId::parse(RESERVATION).unwrap(),
        request_id: RequestId::parse("req-1").unwrap(),
        user_id: UserId::parse("user-1").unwrap(),
        bucket: bucket(),
        quantity: Quantity::ONE,
        reserved_at_ms: TimestampMs::new(1_700_000_000_000),
        traceparent: Traceparent::from_ids(7, 9).ok(),
    }
}

fn fields_of(error: DecodeError) -> Vec<&'static str> {
    match error {
        DecodeError::Invalid(violations) => violations.into_iter().map(|v| v.field).collect(),
        other => panic!("not a list of fields: {other}"),
    }
}

prop_compose! {
    fn any_request()(
        reservation in "[a-z2-7]{26}",
        request_id in "[A-Za-z0-9_-]{1,128}",
        user in "[A-Za-z0-9_-]{1,128}",
        activity in "[A-Za-z0-9_-]{1,128}",
        sku in "[A-Za-z0-9_-]{1,128}",
        version in 1u64..(1 << 53),
        bucket_id in 0u32..4_096,
        quantity in 1u32..=1_000_000,
        reserved_at_ms in 1i64..i64::MAX,
        trace in proptest::option::of((1u128.., 1u64..)),
    ) -> OrderRequest {
        OrderRequest {
            reservation_id: ReservationId::parse(reservation).unwrap(),
            request_id: RequestId::parse(request_id).unwrap(),
            user_id: UserId::parse(user).unwrap(),
            bucket: BucketScope {
                scope: Scope {
                    activity_id: ActivityId::parse(activity).unwrap(),
                    sku_id: SkuId::parse(sku).unwrap(),
                    version: ActivityVersion::new(version).unwrap(),
                },
                bucket_id: BucketId::new(bucket_id).unwrap(),
            },
            quantity: Quantity::new(quantity).unwrap(),
            reserved_at_ms: TimestampMs::new(reserved_at_ms),
            traceparent: trace.map(|(trace, span)| Traceparent::from_ids(trace, span).unwrap()),
        }
    }
}

fn any_kind() -> impl Strategy<Value = OrderEventKind> {
    prop_oneof![
        "[A-Za-z0-9_-]{1,128}".prop_map(|id| OrderEventKind::OrderCreated {
            order_id: OrderId::parse(id).unwrap(),
        }),
        prop::sample::select(RejectReason::ALL)
            .prop_map(|reason| OrderEventKind::Rejected { reason }),
        "[A-Za-z0-9_-]{1,128}".prop_map(|id| OrderEventKind::OrderCancelled {
            order_id: OrderId::parse(id).unwrap(),
        }),
    ]
}

proptest! {
    #[test]
    fn an_order_request_survives_the_round_trip(request in any_request()) {
        let message = arrived(OutgoingMessage::order_request(&request));
        prop_assert!(message.body.len() < 1_024);
        prop_assert_eq!(placed_scope(&message), Some(request.bucket.clone()));
        prop_assert_eq!(placed_reservation(&message), Some(request.reservation_id.clone()));
        prop_assert_eq!(&message.traceparent(), &request.traceparent);
        prop_assert_eq!(decode_order_request(&message), Ok(request));
    }

    #[test]
    fn an_order_event_survives_the_round_trip(request in any_request(), kind in any_kind()) {
        let event = OrderEvent {
            reservation_id: request.reservation_id,
            request_id: request.request_id,
            user_id: request.user_id,
            bucket: request.bucket,
            quantity: request.quantity,
            kind,
            occurred_at_ms: request.reserved_at_ms,
            traceparent: request.traceparent,
        };
        let message = arrived(OutgoingMessage::order_event("event-1", &event));
        prop_assert_eq!(message.message_id.as_deref(), Some("event-1"));
        prop_assert_eq!(placed_scope(&message), Some(event.bucket.clone()));
        prop_assert_eq!(decode_order_event(&message), Ok(event));
    }

    #[test]
    fn random_bytes_end_as_an_error(body in proptest::collection::vec(any::<u8>(), 0..512)) {
        prop_assert!(decode_order_request(&with_body(body.clone())).is_err());
        prop_assert!(decode_order_event(&with_body(body)).is_err());
    }

    #[test]
    fn a_truncated_body_is_an_error(request in any_request(), cut in 0.0f64..1.0) {
        let body = OutgoingMessage::order_request(&request).body;
        // The last field is the trace, whose loss is no loss; the one before it is the time.
        let last = pb::OrderRequest {
            traceparent: request.traceparent.map(|t| t.to_string()).unwrap_or_default(),
            ..Default::default()
        };
        let whole = body.len() - last.encoded_len();
        let cut = ((whole as f64) * cut) as usize;
        prop_assert!(decode_order_request(&with_body(body.slice(..cut))).is_err());
    }

    #[test]
    fn a_flipped_byte_never_panics(request in any_request(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut body = OutgoingMessage::order_request(&request).body.to_vec();
        let at = at.index(body.len());
        body[at] ^= 1 << bit;
        let message = arrived(OutgoingMessage::order_request(&request));
        let flipped = IncomingMessage { body: body.into(), ..message };
        if let Ok(decoded) = decode_order_request(&flipped) {
            // Whatever still decodes names the reservation that the envelope names.
            prop_assert_eq!(decoded.reservation_id, request.reservation_id);
        }
    }
}

#[test]
fn poison_bodies_are_refused_with_their_reason() {
    let good = OutgoingMessage::order_request(&request()).body;
    let mut invalid_utf8 = good.to_vec();
    let at = good.windows(6).position(|w| w == b"user-1").unwrap();
    invalid_utf8[at] = 0xff;
    // Field 3 (message_id) as a varint instead of text.
    let wrong_type = [0x08, 0x01, 0x18, 0x2a];
    // 150 groups of field 15 in one another: deeper than any message here.
    let nested = [&[0x7b; 150][..], &[0x7c; 150][..]].concat();
    let cases: [(&str, Bytes, &str); 9] = [
        ("empty", Bytes::new(), "EMPTY_BODY"),
        ("truncated", good.slice(..40), "MALFORMED_BODY"),
        ("wrong type", wrong_type.to_vec().into(), "MALFORMED_BODY"),
        ("invalid UTF-8", invalid_utf8.into(), "MALFORMED_BODY"),
        ("JSON null", Bytes::from_static(b"null"), "MALFORMED_BODY"),
        ("JSON array", Bytes::from_static(b"[1,2]"), "MALFORMED_BODY"),
        ("nested", nested.into(), "MALFORMED_BODY"),
        ("3.9 MB", vec![0x0a; 3_900_000].into(), "BODY_TOO_LARGE"),
        ("only a schema", vec![0x08, 0x01].into(), "INVALID_FIELDS"),
    ];
    for (name, body, reason) in cases {
        let error = decode_order_request(&with_body(body)).unwrap_err();
        assert_eq!(error.reason(), reason, "{name}: {error}");
        assert!(error.to_string().len() < 2_000, "{name}");
    }
}

#[test]
fn an_unknown_schema_is_told_from_a_broken_body() {
    let body = pb::OrderRequest {
        schema_version: 2,
        ..pb::OrderRequest::from(&request())
    };
    let error = decode_order_request(&with_body(body.encode_to_vec())).unwrap_err();
    assert_eq!(error, DecodeError::UnknownSchema { found: 2 });
    let event = pb::OrderEvent {
        schema_version: 9,
        ..Default::default()
    };
    let error = decode_order_event(&with_body(event.encode_to_vec())).unwrap_err();
    assert_eq!(error, DecodeError::UnknownSchema { found: 9 });
}

#[test]
fn unknown_extra_fields_are_tolerated() {
    let mut body = OutgoingMessage::order_request(&request()).body.to_vec();
    // Field 99, text, and field 100, a varint.
    body.extend_from_slice(&[0x9a, 0x06, 0x03, b'n', b'e', b'w', 0xa0, 0x06, 0x07]);
    assert_eq!(decode_order_request(&with_body(body)), Ok(request()));
}

#[test]
fn every_wrong_field_is_named_at_once() {
    let body = pb::OrderRequest {
        schema_version: 1,
        reservation_id: "short".to_owned(),
        message_id: "x".to_owned(),
        request_id: "a b".to_owned(),
        activity_id: String::new(),
        sku_id: "{sku}".to_owned(),
        user_id: "u".repeat(129),
        activity_version: 0,
        bucket_id: 4_096,
        quantity: 0,
        reserved_at_ms: -1,
        traceparent: "nonsense".to_owned(),
    };
    let message = IncomingMessage {
        properties: BTreeMap::new(),
        ..with_body(body.encode_to_vec())
    };
    let error = decode_order_request(&message).unwrap_err();
    assert!(!error.to_string().contains("{sku}"), "{error}");
    assert_eq!(
        fields_of(error),
        [
            "reservation_id",
            "message_id",
            "request_id",
            "activity_id",
            "sku_id",
            "user_id",
            "activity_version",
            "bucket_id",
            "quantity",
            "reserved_at_ms",
        ]
    );
}

#[test]
fn the_body_must_belong_to_its_envelope() {
    let foreign = pb::OrderRequest {
        reservation_id: OTHER_RESERVATION.to_owned(),
        ..pb::OrderRequest::from(&request())
    };
    let error = decode_order_request(&with_body(foreign.encode_to_vec())).unwrap_err();
    assert_eq!(fields_of(error), ["message_id"]);

    let mut message = arrived(OutgoingMessage::order_request(&request()));
    message.properties.insert(
        property::MESSAGE_ID.to_owned(),
        format!("reserve-order:{OTHER_RESERVATION}:v1"),
    );
    assert_eq!(
        fields_of(decode_order_request(&message).unwrap_err()),
        ["message_id"]
    );

    message.properties.remove(property::MESSAGE_ID);
    assert_eq!(decode_order_request(&message), Ok(request()));
}

#[test]
fn a_broken_trace_costs_no_order() {
    let body = pb::OrderRequest {
        traceparent: "00-0-0-0".to_owned(),
        ..pb::OrderRequest::from(&request())
    };
    let decoded = decode_order_request(&with_body(body.encode_to_vec())).unwrap();
    assert_eq!(
        decoded,
        OrderRequest {
            traceparent: None,
            ..request()
        }
    );
}

#[test]
fn an_event_without_an_outcome_or_with_an_unknown_reason_is_refused() {
    let event = OrderEvent {
        reservation_id: request().reservation_id,
        request_id: request().request_id,
        user_id: request().user_id,
        bucket: bucket(),
        quantity: Quantity::ONE,
        kind: OrderEventKind::Rejected {
            reason: RejectReason::UserHasOrder,
        },
        occurred_at_ms: TimestampMs::new(1),
        traceparent: None,
    };
    let without = pb::OrderEvent {
        outcome: None,
        ..pb::OrderEvent::from(&event)
    };
    let error = decode_order_event(&with_body(without.encode_to_vec())).unwrap_err();
    assert_eq!(fields_of(error), ["outcome"]);
    let strange = pb::OrderEvent {
        outcome: Some(pb::order_event::Outcome::OrderRejected(pb::OrderRejected {
            reason: "BECAUSE".to_owned(),
        })),
        ..pb::OrderEvent::from(&event)
    };
    let error = decode_order_event(&with_body(strange.encode_to_vec())).unwrap_err();
    assert_eq!(fields_of(error), ["order_rejected.reason"]);
}

#[test]
fn a_message_is_placed_by_its_properties_only_when_they_are_whole() {
    let mut message = with_body(Bytes::new());
    assert_eq!(placed_scope(&message), Some(bucket()));
    assert!(placed_reservation(&message).is_some());
    message
        .properties
        .insert(property::BUCKET_ID.to_owned(), "5x".to_owned());
    assert_eq!(placed_scope(&message), None);
    message.message_id = Some("event-1".to_owned());
    assert_eq!(placed_reservation(&message), None);
}

#[test]
fn a_message_that_was_kept_travels_again_under_its_id_and_without_what_the_broker_added() {
    let first = arrived(OutgoingMessage::order_request(&request()));
    let mut kept = first.clone();
    for (name, value) in [
        ("UNIQ_KEY", "reserve-order:x:v1"),
        ("RETRY_TOPIC", "seckill-order-request"),
        ("__BORNHOST", "127.0.0.1"),
        ("1ST_POP_TIME", "1"),
    ] {
        kept.properties.insert(name.to_owned(), value.to_owned());
    }
    let id = kept.message_id.clone().unwrap();
    let again = OutgoingMessage::again(Topic::OrderRequest, id, kept.body, &kept.properties);
    assert_eq!(arrived(again), first);
}
