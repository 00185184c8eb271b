//! The decision rules, one by one and under random batches.

use proptest::prelude::*;

use super::*;
use crate::{ActivityId, ActivityVersion, BucketId, Quantity, SkuId, TimestampMs};

fn bucket(n: u32) -> BucketScope {
    Scope {
        activity_id: ActivityId::parse("a1").unwrap(),
        sku_id: SkuId::parse("s1").unwrap(),
        version: ActivityVersion::new(1).unwrap(),
    }
    .bucket(BucketId::new(n).unwrap())
}

/// A reservation id whose characters spell the number in base 5 over a small alphabet.
fn reservation(n: u32) -> ReservationId {
    let text: String = (0..26u32)
        .map(|i| char::from(b'a' + u8::try_from((n >> i) & 1).unwrap()))
        .collect();
    ReservationId::parse(text).unwrap()
}

fn request(n: u32, user: u32, quantity: u32) -> OrderRequest {
    OrderRequest {
        reservation_id: reservation(n),
        request_id: RequestId::parse(format!("q{n}")).unwrap(),
        user_id: UserId::parse(format!("u{user}")).unwrap(),
        bucket: bucket(user % 2),
        quantity: Quantity::new(quantity).unwrap(),
        reserved_at_ms: TimestampMs::new(1),
        traceparent: None,
    }
}

fn book(stock: [u64; 2]) -> DecisionBook {
    DecisionBook {
        available: [(bucket(0), stock[0]), (bucket(1), stock[1])].into(),
        ..DecisionBook::default()
    }
}

#[test]
fn an_existing_decision_wins_over_everything() {
    for kind in DecisionKind::ALL {
        let mut book = book([5, 5]);
        book.decided.insert(reservation(1), *kind);
        assert_eq!(rule(&mut book, &request(1, 1, 1)), Ruling::Already(*kind));
        assert_eq!(book.available[&bucket(1)], 5);
    }
}

#[test]
fn the_second_order_of_a_user_is_refused_and_deducts_nothing() {
    let mut book = book([5, 5]);
    assert_eq!(rule(&mut book, &request(1, 1, 1)), Ruling::Create);
    let second = rule(&mut book, &request(2, 1, 1));
    assert_eq!(second, Ruling::Reject(RejectReason::UserHasOrder));
    assert_eq!(book.available[&bucket(1)], 4);
}

#[test]
fn a_request_id_stands_on_one_order_of_a_version_only() {
    let mut book = book([5, 5]);
    rule(&mut book, &request(1, 1, 1));
    let mut other = request(2, 2, 1);
    other.request_id = request(1, 1, 1).request_id;
    assert_eq!(
        rule(&mut book, &other),
        Ruling::Reject(RejectReason::RequestIdUsed)
    );
}

#[test]
fn a_bucket_never_sells_another_buckets_units() {
    let mut book = book([0, 5]);
    assert_eq!(
        rule(&mut book, &request(1, 2, 1)),
        Ruling::Reject(RejectReason::StockExhausted)
    );
}

#[test]
fn a_request_for_more_than_is_left_leaves_the_rest_for_others() {
    let mut book = book([0, 1]);
    let two = rule(&mut book, &request(1, 1, 2));
    assert_eq!(two, Ruling::Reject(RejectReason::StockExhausted));
    assert_eq!(rule(&mut book, &request(2, 3, 1)), Ruling::Create);
}

#[test]
fn a_bucket_without_a_row_decides_nothing() {
    let mut book = DecisionBook::default();
    assert_eq!(rule(&mut book, &request(1, 1, 1)), Ruling::UnknownBucket);
    assert!(book.decided.is_empty());
}

proptest! {
    #[test]
    fn no_batch_oversells_or_gives_a_user_two_orders(
        stock in [0u64..4, 0u64..4],
        batch in proptest::collection::vec((0u32..24, 0u32..6, 1u32..3), 0..40),
    ) {
        let mut book = book(stock);
        let mut sold = BTreeMap::<BucketScope, u64>::new();
        let mut buyers = BTreeMap::<UserId, u32>::new();
        let mut first = BTreeMap::<ReservationId, Ruling>::new();
        for (n, user, quantity) in batch {
            let request = request(n, user, quantity);
            let ruling = rule(&mut book, &request);
            if ruling == Ruling::Create {
                *sold.entry(request.bucket.clone()).or_default() += u64::from(quantity);
                *buyers.entry(request.user_id.clone()).or_default() += 1;
            }
            match first.get(&request.reservation_id) {
                None => { first.insert(request.reservation_id, ruling); }
                Some(before) => {
                    let again = match before {
                        Ruling::Create => DecisionKind::Ordered,
                        _ => DecisionKind::Rejected,
                    };
                    prop_assert_eq!(ruling, Ruling::Already(again));
                }
            }
        }
        for n in 0..2u32 {
            let gone = sold.get(&bucket(n)).copied().unwrap_or_default();
            prop_assert_eq!(gone + book.available[&bucket(n)], stock[n as usize]);
        }
        prop_assert!(buyers.values().all(|orders| *orders == 1));
    }
}
