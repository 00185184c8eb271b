//! The concurrency scenarios at their full size (S0-182 to S0-184), over gRPC.

use std::collections::BTreeSet;

use seckill_proto::v1::{ReservationStatus, ReserveCode};
use seckill_test_support::PrivateRedis;

use crate::harness::{Sale, drive_to_the_end, front, settings};

/// Calls in flight: hundreds over few connections, as a gateway sends them.
const AT_ONCE: usize = 512;

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_buyers_of_one_unit_make_one_reservation() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(1)).await;
    let front = front(redis.url()).start().await;

    let calls = (0..100_000).map(|n| sale.call(&format!("user-{n}"), &format!("request-{n}")));
    let answers = drive_to_the_end(&front, calls, AT_ONCE).await;

    answers.report("stock 1, 100,000 users");
    assert_eq!(answers.with_code(ReserveCode::Accepted).len(), 1);
    assert_eq!(answers.with_code(ReserveCode::SoldOut).len(), 99_999);
    assert_eq!(sale.stock().await, (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_repeats_of_one_request_take_one_unit() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(100)).await;
    let front = front(redis.url()).start().await;

    let calls = (0..100_000).map(|_| sale.call("user-1", "request-1"));
    let answers = drive_to_the_end(&front, calls, AT_ONCE).await;

    answers.report("100,000 times one request");
    let accepted = answers.with_code(ReserveCode::Accepted);
    assert_eq!(accepted.len(), 100_000);
    let ids: BTreeSet<&str> = accepted.iter().map(|r| r.reservation_id.as_str()).collect();
    assert_eq!(ids.len(), 1);
    // None at all when the very first reply was lost and its caller repeated.
    assert!(accepted.iter().filter(|r| !r.replay).count() <= 1);
    assert_eq!(sale.stock().await, (99, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_requests_of_one_user_hold_one_unit() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(100)).await;
    let front = front(redis.url()).start().await;

    let calls = (0..10_000).map(|n| sale.call("user-1", &format!("request-{n}")));
    let answers = drive_to_the_end(&front, calls, AT_ONCE).await;

    answers.report("10,000 requests of one user");
    let accepted = answers.with_code(ReserveCode::Accepted);
    let refused = answers.with_code(ReserveCode::UserAlreadyReserved);
    assert_eq!((accepted.len(), refused.len()), (1, 9_999));
    let held = &accepted[0].reservation_id;
    assert!(refused.iter().all(|r| r.reservation_id == *held));
    assert!(
        refused
            .iter()
            .all(|r| r.status() == ReservationStatus::Queued)
    );
    assert_eq!(sale.stock().await, (99, 1));
}
