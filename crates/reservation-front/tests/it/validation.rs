//! Refused input: every bad field is named, nothing is echoed, and Redis does not change
//! (FUZZ-01, FUZZ-03, FUZZ-04).

use seckill_proto::v1::get_reservation_request::Key;
use seckill_proto::v1::{ReserveCode, ReserveRequest};
use seckill_test_support::PrivateRedis;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::harness::{Sale, client, find, front, reserve, settings};

/// Picks one field of a call.
type Field = fn(&mut ReserveRequest) -> &mut String;

fn bad_fields(status: &Status) -> Vec<String> {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let details = status.get_error_details();
    let bad_request = details.bad_request().expect("field violations");
    let violations = bad_request.field_violations.iter();
    violations
        .map(|violation| violation.field.clone())
        .collect()
}

#[tokio::test]
async fn hostile_ids_are_refused_field_by_field_and_leave_no_trace() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(10)).await;
    let front = front(redis.url()).start().await;
    let mut client = client(&front).await;
    let before = redis.dump().await;

    let hostile = [
        "",
        " ",
        "\t",
        "{}",
        "}",
        "{",
        "x}{y",
        "a}:stock",
        "{a:A:s:S:v:7:b:0}",
        "a|b",
        "0|rid|1|QUEUED|victim",
        "tail|",
        "a:b",
        "a\0b",
        "用户",
    ];
    for text in hostile {
        let fields: [(&str, Field); 4] = [
            ("activity_id", |call| &mut call.activity_id),
            ("sku_id", |call| &mut call.sku_id),
            ("user_id", |call| &mut call.user_id),
            ("request_id", |call| &mut call.request_id),
        ];
        for (name, field) in fields {
            let mut call = sale.call("user-1", "request-1");
            text.clone_into(field(&mut call));
            let status = client.reserve(call).await.unwrap_err();
            assert_eq!(bad_fields(&status), [name], "{text:?}");
        }
        let query = sale.query(text, Key::RequestId(text.to_owned()));
        let status = find(&mut client, query).await.unwrap_err();
        assert_eq!(bad_fields(&status), ["user_id", "request_id"], "{text:?}");
    }
    let status = client.reserve(ReserveRequest::default()).await.unwrap_err();
    assert_eq!(
        bad_fields(&status),
        [
            "activity_id",
            "sku_id",
            "activity_version",
            "user_id",
            "request_id"
        ]
    );

    assert_eq!(redis.dump().await, before);
    let log = front.log_text();
    assert!(!log.contains("victim") && !log.contains("x}{y"), "{log}");
}

#[tokio::test]
async fn a_quantity_outside_the_activitys_range_is_a_bad_argument() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(10)).await;
    let front = front(redis.url()).start().await;
    let mut client = client(&front).await;

    let mut call = sale.call("user-1", "request-1");
    call.quantity = 2;
    let response = reserve(&mut client, call.clone()).await;
    assert_eq!(response.code(), ReserveCode::BadArgument);
    assert_eq!(sale.stock().await, (10, 0));

    call.quantity = u32::MAX;
    let status = client.reserve(call).await.unwrap_err();
    assert_eq!(bad_fields(&status), ["quantity"]);
}
