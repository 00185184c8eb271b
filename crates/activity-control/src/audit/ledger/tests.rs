//! One sound bucket, and one planted fault at a time: each must be found, and nothing else.

use seckill_state_machine::invariants::StockCounters;
use seckill_state_machine::{ActivityId, ActivityVersion, OrderId, Scope, SkuId, UserId};

use super::*;

fn bucket() -> BucketScope {
    let scope = Scope {
        activity_id: ActivityId::parse("act").unwrap(),
        sku_id: SkuId::parse("sku").unwrap(),
        version: ActivityVersion::new(1).unwrap(),
    };
    scope.bucket(BucketId::ZERO)
}

fn id(letter: char) -> ReservationId {
    ReservationId::parse(letter.to_string().repeat(26)).unwrap()
}

fn user(letter: char) -> UserId {
    UserId::parse(format!("user-{letter}")).unwrap()
}

fn order(letter: char) -> OrderId {
    OrderId::parse(format!("order-{letter}")).unwrap()
}

fn reservation(letter: char, status: ReservationStatus) -> ReservationFacts {
    let ordered = matches!(
        status,
        ReservationStatus::OrderCreated | ReservationStatus::OrderCancelled
    );
    ReservationFacts {
        status,
        quantity: 1,
        user_id: user(letter),
        order_id: ordered.then(|| order(letter)),
    }
}

fn decision(letter: char, kind: DecisionKind, state: Option<OrderState>) -> DecisionFacts {
    DecisionFacts {
        reservation_id: id(letter),
        bucket: bucket(),
        user_id: user(letter),
        quantity: 1,
        kind,
        order: state.map(|state| (order(letter), state)),
    }
}

/// Five units: `a` ordered, `b` still open, `c` rejected and released, `d` cancelled; three left.
fn sound() -> (BucketFacts, Vec<DecisionFacts>) {
    let mut facts = BucketFacts::empty(&bucket());
    facts.has_meta = true;
    facts.stock = Some(StockFacts {
        counters: StockCounters {
            initial: 5,
            available: 3,
            reserved: 2,
        },
        released_total: 2,
    });
    let states = [
        ('a', ReservationStatus::OrderCreated),
        ('b', ReservationStatus::Reserved),
        ('c', ReservationStatus::Released),
        ('d', ReservationStatus::OrderCancelled),
    ];
    for (letter, status) in states {
        facts
            .reservations
            .insert(id(letter), reservation(letter, status));
        if status.holds_units() {
            facts.markers.insert(user(letter), id(letter));
        }
    }
    facts.send_pending.insert(id('b').to_string());
    facts.reservation_expiry.insert(id('b').to_string());
    let decisions = vec![
        decision('a', DecisionKind::Ordered, Some(OrderState::Active)),
        decision('c', DecisionKind::Rejected, None),
        decision('d', DecisionKind::Ordered, Some(OrderState::Cancelled)),
    ];
    (facts, decisions)
}

fn judge(facts: BucketFacts, decisions: &[DecisionFacts]) -> Vec<(Kind, Option<ReservationId>)> {
    let buckets = [facts];
    let mut found = judge_bucket(&buckets[0], true);
    let mut ledger = Ledger::new(&buckets);
    found.extend(
        decisions
            .iter()
            .filter_map(|decision| ledger.enter(decision)),
    );
    found.extend(ledger.finish());
    found
        .into_iter()
        .map(|difference| (difference.kind, difference.reservation_id))
        .collect()
}

fn after(
    plant: impl FnOnce(&mut BucketFacts, &mut Vec<DecisionFacts>),
) -> Vec<(Kind, Option<ReservationId>)> {
    let (mut facts, mut decisions) = sound();
    plant(&mut facts, &mut decisions);
    judge(facts, &decisions)
}

fn counters(facts: &mut BucketFacts) -> &mut StockFacts {
    facts.stock.as_mut().unwrap()
}

#[test]
fn a_sound_bucket_has_no_differences() {
    assert_eq!(after(|_, _| {}), []);
    let (facts, _) = sound();
    assert_eq!(
        (
            facts.open_units(),
            facts.ordered_units(),
            facts.returned_units()
        ),
        (1, 1, 2)
    );
}

#[test]
fn an_order_that_redis_does_not_know_is_named() {
    let found = after(|_, decisions| {
        decisions.push(decision(
            'e',
            DecisionKind::Ordered,
            Some(OrderState::Active),
        ));
    });
    assert_eq!(found, [(Kind::OrderWithoutReservation, Some(id('e')))]);
}

#[test]
fn a_reservation_whose_order_is_missing_is_named() {
    let found = after(|_, decisions| decisions.retain(|d| d.reservation_id != id('a')));
    assert_eq!(found, [(Kind::ReservationWithoutOrder, Some(id('a')))]);
    let found = after(|_, decisions| decisions[0].order = None);
    assert_eq!(found, [(Kind::DecisionWithoutOrder, Some(id('a')))]);
}

#[test]
fn a_double_release_shows_although_the_sum_holds() {
    let found = after(|facts, _| {
        let stock = counters(facts);
        stock.counters.available += 1;
        stock.counters.reserved -= 1;
        stock.released_total += 1;
    });
    assert_eq!(
        found,
        [
            (Kind::HoldersMismatch, None),
            (Kind::ReleasedTotalMismatch, None)
        ]
    );
}

#[test]
fn a_lost_unit_breaks_the_sum() {
    let found = after(|facts, _| counters(facts).counters.available -= 1);
    assert_eq!(found, [(Kind::NotConserved, None)]);
}

#[test]
fn markers_must_point_at_what_their_user_holds() {
    let missing = after(|facts, _| {
        facts.markers.insert(user('x'), id('x'));
    });
    assert_eq!(missing, [(Kind::StrayMarker, Some(id('x')))]);
    let released = after(|facts, _| {
        facts.markers.insert(user('c'), id('c'));
    });
    assert_eq!(released, [(Kind::StrayMarker, Some(id('c')))]);
    let stolen = after(|facts, _| {
        facts.markers.insert(user('x'), id('a'));
    });
    assert_eq!(stolen, [(Kind::StrayMarker, Some(id('a')))]);
    let gone = after(|facts, _| {
        facts.markers.remove(&user('a'));
    });
    assert_eq!(gone, [(Kind::MissingMarker, Some(id('a')))]);
}

#[test]
fn what_is_open_must_be_in_its_indexes() {
    let unsent = after(|facts, _| facts.send_pending.clear());
    assert_eq!(unsent, [(Kind::NotIndexed, Some(id('b')))]);
    let forgotten = after(|facts, _| facts.reservation_expiry.clear());
    assert_eq!(forgotten, [(Kind::NotIndexed, Some(id('b')))]);
    let stray = after(|facts, _| {
        facts.send_pending.insert(id('x').to_string());
        facts.reservation_expiry.insert("no-id".to_owned());
    });
    assert_eq!(
        stray,
        [
            (Kind::StrayMember, Some(id('x'))),
            (Kind::StrayMember, None)
        ]
    );
}

#[test]
fn a_key_without_expiry_is_named_without_its_user() {
    let (mut facts, _) = sound();
    facts.without_expiry = vec![KeyKind::Reservation(id('a')), KeyKind::User(user('a'))];
    let found = judge_bucket(&facts, true);
    assert_eq!(found[0].reservation_id, Some(id('a')));
    assert_eq!(found[1].kind, Kind::NoExpiry);
    assert!(!found[1].detail.contains("user-a"), "{}", found[1].detail);
}

#[test]
fn an_order_that_redis_was_not_told_of_is_not_settled() {
    let found = after(|facts, _| {
        let mut queued = reservation('a', ReservationStatus::Enqueued);
        queued.order_id = None;
        facts.reservations.insert(id('a'), queued);
        facts.reservation_expiry.insert(id('a').to_string());
    });
    assert_eq!(found, [(Kind::NotSettled, Some(id('a')))]);
}

#[test]
fn a_release_that_postgresql_never_allowed_is_named() {
    let found = after(|_, decisions| decisions.retain(|d| d.reservation_id != id('c')));
    assert_eq!(found, [(Kind::ReleasedWithoutDecision, Some(id('c')))]);
    let found = after(|_, decisions| {
        decisions[1] = decision('c', DecisionKind::Ordered, Some(OrderState::Active));
    });
    assert_eq!(found, [(Kind::Contradiction, Some(id('c')))]);
}

#[test]
fn a_rejection_on_its_way_back_is_open_and_not_wrong() {
    let found = after(|facts, decisions| {
        decisions.push(decision('b', DecisionKind::Rejected, None));
        let rejected = reservation('b', ReservationStatus::Rejected);
        facts.reservations.insert(id('b'), rejected);
        facts.send_pending.clear();
    });
    assert_eq!(found, []);
}

#[test]
fn fields_are_compared_where_both_sides_agree_on_the_outcome() {
    let quantity = after(|facts, decisions| {
        decisions[0].quantity = 2;
        assert_eq!(facts.reservations[&id('a')].quantity, 1);
    });
    assert_eq!(quantity, [(Kind::FieldMismatch, Some(id('a')))]);
    let other_order = after(|facts, _| {
        facts.reservations.get_mut(&id('a')).unwrap().order_id = Some(order('x'));
    });
    assert_eq!(other_order, [(Kind::FieldMismatch, Some(id('a')))]);
}

#[test]
fn an_order_of_another_bucket_does_not_count_for_this_one() {
    let found = after(|_, decisions| {
        decisions[0].bucket.bucket_id = BucketId::new(1).unwrap();
    });
    assert_eq!(
        found,
        [
            (Kind::OrderWithoutReservation, Some(id('a'))),
            (Kind::ReservationWithoutOrder, Some(id('a')))
        ]
    );
}

#[test]
fn a_bucket_that_lost_its_counters_is_named_once_it_was_opened() {
    assert_eq!(judge_bucket(&BucketFacts::empty(&bucket()), false), []);
    let kinds: Vec<Kind> = judge_bucket(&BucketFacts::empty(&bucket()), true)
        .iter()
        .map(|d| d.kind)
        .collect();
    assert_eq!(kinds, [Kind::StateMissing]);
    let stockless = after(|facts, _| facts.stock = None);
    assert_eq!(stockless, [(Kind::StateMissing, None)]);
}

#[test]
fn sums_of_a_moving_bucket_are_not_judged() {
    let found = after(|facts, _| {
        facts.steady = false;
        counters(facts).counters.available -= 1;
    });
    assert_eq!(found, [(Kind::InMotion, None)]);
}

#[test]
fn a_sold_out_mark_over_units_is_stale() {
    let found = after(|facts, _| facts.sold_out = true);
    assert_eq!(found, [(Kind::StaleSoldOut, None)]);
}

#[test]
fn the_book_must_add_up_and_match_what_redis_started_with() {
    let book = BookFacts {
        total: 5,
        available: 4,
        ordered_units: 1,
        orders: 1,
    };
    assert_eq!(judge_book(&bucket(), book, Some(5)), []);
    let kinds = |book, initial| -> Vec<Kind> {
        judge_book(&bucket(), book, initial)
            .iter()
            .map(|d| d.kind)
            .collect()
    };
    assert_eq!(
        kinds(
            BookFacts {
                available: 5,
                ..book
            },
            None
        ),
        [Kind::BookNotConserved]
    );
    assert_eq!(kinds(book, Some(6)), [Kind::TotalMismatch]);
    let huge = BookFacts {
        available: u64::MAX,
        ..book
    };
    assert_eq!(kinds(huge, None), [Kind::BookNotConserved]);
}

#[test]
fn a_foreign_key_is_named_by_its_family_and_never_by_its_user() {
    let (mut facts, _) = sound();
    let long = format!(
        "seckill:{{a:act:s:sku:v:1:b:0}}:alice{}",
        "x".repeat(10_000)
    );
    for (name, family) in [
        ("seckill:{a:act:s:sku:v:1:b:0}:user:alice smith", "user:<"),
        (
            "seckill:{a:act:s:sku:v:1:b:0}:user:}:alice",
            "no known family",
        ),
        ("seckill:{a:act:s:sku:v:1:b:0}:alice", "no known family"),
        ("alice", "no known family"),
        (long.as_str(), "no known family"),
    ] {
        facts.unreadable = vec![(Subject::Foreign(name.to_owned()), "foreign".to_owned())];
        let detail = judge_bucket(&facts, true).remove(0).detail;
        assert!(detail.contains(family), "{detail}");
        assert!(!detail.contains("alice"), "{detail}");
        assert!(detail.len() < 80, "{detail}");
    }
}
