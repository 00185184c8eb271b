use seckill_state_machine::{
    ActivityId, ActivityVersion, BucketId, DecisionKind, MessageId, OrderId, Quantity, RequestId,
    ReservationStatus as S, Scope, SkuId, TimestampMs, UserId,
};

use super::*;

fn bucket() -> BucketScope {
    let scope = Scope {
        activity_id: ActivityId::parse("a1").unwrap(),
        sku_id: SkuId::parse("s1").unwrap(),
        version: ActivityVersion::new(1).unwrap(),
    };
    scope.bucket(BucketId::ZERO)
}

fn id(letter: &str) -> ReservationId {
    ReservationId::parse(letter.repeat(26)).unwrap()
}

fn order() -> OrderId {
    OrderId::parse("o1").unwrap()
}

pub fn decision(kind: DecisionKind, order_state: Option<OrderState>) -> DecisionRecord {
    DecisionRecord {
        reservation_id: id("a"),
        request_id: RequestId::parse("q1").unwrap(),
        user_id: UserId::parse("u1").unwrap(),
        bucket: bucket(),
        quantity: Quantity::ONE,
        kind,
        reason: None,
        order: order_state.map(|state| (order(), state)),
        reserved_at_ms: TimestampMs::new(1),
        decided_at_ms: TimestampMs::new(1),
        traceparent: None,
    }
}

pub fn held(status: S) -> ReservationRecord {
    let ordered = matches!(status, S::OrderCreated | S::OrderCancelled);
    ReservationRecord {
        reservation_id: id("a"),
        request_id: RequestId::parse("q1").unwrap(),
        message_id: MessageId::of(&id("a")),
        user_id: UserId::parse("u1").unwrap(),
        bucket: bucket(),
        quantity: Quantity::ONE,
        status,
        reserved_at_ms: TimestampMs::new(1),
        expires_at_ms: TimestampMs::new(2),
        updated_at_ms: TimestampMs::new(1),
        order_id: ordered.then(order),
        error_code: None,
        release_reason: None,
        released_at_ms: None,
        send_attempts: 0,
        schema_version: 1,
        traceparent: None,
    }
}

fn class(found: Option<Finding>) -> Option<Class> {
    found.map(|found| found.class)
}

#[test]
fn every_pair_of_a_decision_and_a_record_has_its_class() {
    let active = decision(DecisionKind::Ordered, Some(OrderState::Active));
    let cancelled = decision(DecisionKind::Ordered, Some(OrderState::Cancelled));
    let orphan = decision(DecisionKind::Ordered, None);
    let released = decision(DecisionKind::Released, None);
    let judge = |decision: &DecisionRecord, status: Option<S>| {
        class(decided(decision, status.map(held).as_ref()))
    };
    assert_eq!(judge(&active, None), Some(Class::ReservationMissing));
    assert_eq!(judge(&active, Some(S::Enqueued)), Some(Class::NotSettled));
    assert_eq!(judge(&active, Some(S::OrderCreated)), None);
    for status in [S::Released, S::OrderCancelled] {
        assert_eq!(
            judge(&active, Some(status)),
            Some(Class::ReleasedInRedisOnly)
        );
    }
    assert_eq!(
        judge(&active, Some(S::Rejected)),
        Some(Class::Contradiction)
    );
    assert_eq!(judge(&cancelled, None), Some(Class::TombstoneMissing));
    assert_eq!(
        judge(&cancelled, Some(S::OrderCreated)),
        Some(Class::NotRestocked)
    );
    assert_eq!(judge(&released, None), Some(Class::TombstoneMissing));
    assert_eq!(
        judge(&released, Some(S::ReleasePending)),
        Some(Class::NotReleased)
    );
    assert_eq!(judge(&released, Some(S::Released)), None);
    assert_eq!(
        judge(&orphan, Some(S::OrderCreated)),
        Some(Class::DecisionWithoutOrder)
    );
}

#[test]
fn a_record_of_another_purchase_under_the_same_id_is_named_first() {
    let active = decision(DecisionKind::Ordered, Some(OrderState::Active));
    for spoil in [
        (|record| record.user_id = UserId::parse("u2").unwrap()) as fn(&mut ReservationRecord),
        |record| record.request_id = RequestId::parse("q2").unwrap(),
        |record| record.quantity = Quantity::new(2).unwrap(),
        |record| record.order_id = Some(OrderId::parse("o2").unwrap()),
        |record| record.order_id = None,
    ] {
        let mut record = held(S::OrderCreated);
        spoil(&mut record);
        let found = decided(&active, Some(&record)).unwrap();
        assert_eq!(found.class, Class::IdentityDiffers);
        assert!(
            !found.evidence.redis.contains("u2"),
            "a user id in the evidence"
        );
    }
}

#[test]
fn ends_that_postgresql_never_decided_are_named_and_open_ones_are_not() {
    for status in [S::Reserved, S::SendUnknown, S::Enqueued] {
        assert_eq!(undecided(&held(status)), None);
    }
    let judge = |status| class(undecided(&held(status)));
    assert_eq!(judge(S::OrderCreated), Some(Class::OrderedWithoutOrder));
    assert_eq!(judge(S::Released), Some(Class::ReleasedWithoutDecision));
    assert_eq!(judge(S::ReleasePending), Some(Class::Contradiction));
}

#[test]
fn markers_indexes_and_answers_of_a_healthy_reservation_find_nothing() {
    let ordered = held(S::OrderCreated);
    assert_eq!(marker(&ordered, Some(&id("a"))), None);
    assert_eq!(class(marker(&ordered, None)), Some(Class::MarkerMissing));
    assert_eq!(
        class(marker(&ordered, Some(&id("b")))),
        Some(Class::MarkerElsewhere)
    );

    assert!(indexed(&ordered, false, false).is_empty());
    assert!(indexed(&held(S::Enqueued), true, false).is_empty());
    let classes = |status| {
        let found = indexed(&held(status), false, false);
        found
            .into_iter()
            .map(|found| found.class)
            .collect::<Vec<_>>()
    };
    assert_eq!(classes(S::Enqueued), [Class::NotInExpiry]);
    assert_eq!(
        classes(S::SendUnknown),
        [Class::NotInExpiry, Class::NotInSendPending]
    );

    let answer = |text: String| text.parse::<CachedResult>().unwrap();
    let own = answer(format!("0|{}|0|QUEUED|u1|1", id("a")));
    let other = answer(format!("0|{}|0|QUEUED|u1|1", id("b")));
    let refused = answer("15||0||u1|1".to_owned());
    assert_eq!(cached(&ordered, None), None);
    assert_eq!(cached(&ordered, Some(&own)), None);
    assert_eq!(
        class(cached(&ordered, Some(&other))),
        Some(Class::CachedResultDiffers)
    );
    assert_eq!(
        class(cached(&ordered, Some(&refused))),
        Some(Class::CachedResultDiffers)
    );
    // A tombstone in front of a request that was refused since.
    assert_eq!(cached(&held(S::Released), Some(&refused)), None);
}

#[test]
fn a_record_of_another_bucket_or_under_another_name_is_damage() {
    let own = held(S::OrderCreated);
    assert_eq!(record(&bucket(), &id("a"), &own), None);
    assert_eq!(
        class(record(&bucket(), &id("b"), &own)),
        Some(Class::Unreadable)
    );
    let elsewhere = bucket().scope.bucket(BucketId::new(1).unwrap());
    assert_eq!(
        class(record(&elsewhere, &id("a"), &own)),
        Some(Class::ForeignScope)
    );
}
