//! Who bought what, over several fronts and buckets.

use std::collections::BTreeSet;

use futures::future::join_all;
use seckill_integration_tests::{Plan, Sandbox, Service};
use seckill_proto::v1::{ReservationStatus, ReserveCode};
use tonic::Code;

use crate::harness::{SETTLES, is_accepted, orders, reservations};

/// BIZ-19: the bucket count is the activity's and no front's; the same users come through both.
/// FUZZ-12: two users with one request id, mostly in different buckets, learn nothing of each other;
/// at most one of them gets the order, and the other's reservation ends.
#[tokio::test(flavor = "multi_thread")]
async fn users_stay_apart_over_fronts_and_buckets() {
    const USERS: usize = 40;
    const PAIRS: usize = 40;
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(400).buckets(4)).await;
    let services = sandbox.run_all().await;
    let second = sandbox.service(Service::Front).instance(2).start().await;
    let (one, other) = (sandbox.client(&services.front), sandbox.client(&second));

    let both = join_all((0..USERS).map(async |number| {
        let user = format!("user-{number}");
        let (left, right) = (format!("left-{number}"), format!("right-{number}"));
        tokio::join!(
            one.reserve(&sale, &user, &left),
            other.reserve(&sale, &user, &right)
        )
    }))
    .await;
    for (left, right) in both {
        let (left, right) = (left.unwrap(), right.unwrap());
        let codes = BTreeSet::from([left.code, right.code]);
        let expected = [ReserveCode::Accepted, ReserveCode::UserAlreadyReserved];
        assert_eq!(codes, expected.map(i32::from).into(), "{left:?} {right:?}");
        assert_eq!(left.reservation_id, right.reservation_id);
    }

    let pairs = join_all((0..PAIRS).map(async |number| {
        let request = format!("shared-{number}");
        let (a, b) = (format!("a-{number}"), format!("b-{number}"));
        tokio::join!(
            one.reserve(&sale, &a, &request),
            other.reserve(&sale, &b, &request)
        )
    }))
    .await;
    sandbox.assert_settles_consistent(SETTLES).await;
    let held = reservations(&sandbox, &sale).await;
    let mut apart = 0;
    for (number, (a, b)) in pairs.into_iter().enumerate() {
        let (a, b) = (a.unwrap(), b.unwrap());
        let request = format!("shared-{number}");
        assert_ne!(a.reservation_id, b.reservation_id, "{a:?} {b:?}");
        if !(is_accepted(a.code) && is_accepted(b.code)) {
            // The same bucket: one of them was told that the id is taken, and nothing else.
            let codes = BTreeSet::from([a.code, b.code]);
            let expected = [ReserveCode::Accepted, ReserveCode::RequestIdConflict];
            assert_eq!(codes, expected.map(i32::from).into(), "{a:?} {b:?}");
            continue;
        }
        apart += 1;
        let ends = [&a, &b].map(|answer| held[&answer.reservation_id]["status"].as_str());
        assert_eq!(
            BTreeSet::from(ends),
            BTreeSet::from(["ORDER_CREATED", "RELEASED"])
        );
        for (user, own, foreign) in [("a", &a, &b), ("b", &b, &a)] {
            let user = format!("{user}-{number}");
            let found = one.by_request(&sale, &user, &request).await.unwrap();
            assert_eq!(found.reservation_id, own.reservation_id);
            let released = found.status() == ReservationStatus::Released;
            assert_eq!(found.reason == "REQUEST_ID_USED", released, "{found:?}");
            let stranger = one
                .by_reservation(&sale, &user, &foreign.reservation_id)
                .await;
            assert_eq!(stranger.unwrap_err().code(), Code::NotFound);
        }
    }
    assert!(apart > PAIRS / 3, "{apart} pairs in different buckets");
    assert_eq!(
        orders(&sandbox, &sale).await,
        i64::try_from(USERS + PAIRS).unwrap()
    );
    let audit = sandbox.audit(&sale, &["--require-settled"]).await;
    assert_eq!(audit.code, Some(0), "{audit:?}");
}
