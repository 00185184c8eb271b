use seckill_integration_tests::Sale;

use super::*;
use crate::oracle::records::{Decision, Order};

fn accepted(at: Moment, reservation: &str, status: ReservationStatus) -> Answer {
    Answer {
        asked: at,
        answered: at + 5,
        said: Said::Accepted {
            reservation: reservation.to_owned(),
            status: status.into(),
            replay: at == 90_000,
        },
    }
}

fn refused(at: Moment, code: i32) -> Answer {
    Answer {
        asked: at,
        answered: at + 5,
        said: Said::Refused {
            code,
            reservation: String::new(),
        },
    }
}

fn purchase(answers: Vec<Answer>) -> Purchase {
    Purchase {
        sale: Sale {
            activity_id: "a".to_owned(),
            sku_id: "s".to_owned(),
            version: 1,
        },
        user: "u".to_owned(),
        request: "q".to_owned(),
        quantity: 1,
        traceparent: String::new(),
        answers,
    }
}

fn records(kind: Option<&str>) -> Records {
    let mut records = Records::default();
    if let Some(kind) = kind {
        let decision = Decision {
            kind: kind.to_owned(),
            user: "u".to_owned(),
            request: "q".to_owned(),
            quantity: 1,
            traceparent: String::new(),
        };
        records.decisions.insert("r".to_owned(), decision);
    }
    if kind == Some("ORDERED") {
        records.orders.push(Order {
            reservation: "r".to_owned(),
            activity: "a".to_owned(),
            version: "1".to_owned(),
            bucket: "0".to_owned(),
            user: "u".to_owned(),
            request: "q".to_owned(),
            quantity: 1,
            state: "ACTIVE".to_owned(),
        });
    }
    records
}

fn wrongs(answers: Vec<Answer>, kind: Option<&str>) -> Vec<Wrong> {
    let failover = Failover {
        cut_off: 50_000,
        died: 51_000,
        lost_bytes: 1,
        run_ids: [String::new(), String::new()],
    };
    let found = judge(&[purchase(answers)], &records(kind), &[failover]);
    found.into_iter().map(|(wrong, _)| wrong).collect()
}

use ReservationStatus::{OrderCreated, Queued, Released};

#[test]
fn what_buyers_were_told_and_what_became_of_it_agree() {
    let done = vec![
        accepted(1, "r", Queued),
        accepted(90_000, "r", OrderCreated),
    ];
    assert_eq!(wrongs(done, Some("ORDERED")), []);
    let back = vec![accepted(1, "r", Queued), accepted(90_000, "r", Released)];
    assert_eq!(wrongs(back, Some("RELEASED")), []);
    assert_eq!(wrongs(vec![refused(1, 15), refused(90_000, 15)], None), []);
}

#[test]
fn a_lost_acceptance_is_seen_unless_a_failover_took_it() {
    let told = |at| vec![accepted(at, "r", Queued), refused(90_000, 15)];
    assert_eq!(wrongs(told(10_000), None), [Wrong::Lost]);
    assert_eq!(wrongs(told(50_500), None), []);
    assert_eq!(wrongs(told(60_000), None), [Wrong::Lost]);
}

#[test]
fn a_no_that_was_none_is_seen() {
    let told = vec![
        accepted(1, "r", Queued),
        refused(52_000, 15),
        accepted(90_000, "r", OrderCreated),
    ];
    assert_eq!(wrongs(told, Some("ORDERED")), [Wrong::Broken]);
    let anew = vec![
        refused(1, 14),
        accepted(2_000, "r", Queued),
        accepted(90_000, "r", OrderCreated),
    ];
    assert_eq!(wrongs(anew, Some("ORDERED")), []);
    let before = vec![refused(1, 15), accepted(90_000, "r", OrderCreated)];
    assert_eq!(wrongs(before, Some("ORDERED")), [Wrong::Broken]);
}

#[test]
fn a_second_reservation_of_one_request_is_seen() {
    let told = vec![
        accepted(1, "r", Queued),
        accepted(90_000, "other", OrderCreated),
    ];
    let found = wrongs(told, Some("ORDERED"));
    assert!(found.contains(&Wrong::Duplicated), "{found:?}");
}

#[test]
fn a_last_answer_that_does_not_fit_is_seen() {
    let late = vec![accepted(1, "r", Queued), accepted(90_000, "r", Queued)];
    assert_eq!(wrongs(late, Some("ORDERED")), [Wrong::Broken]);
    let made_up = vec![
        accepted(1, "r", Queued),
        accepted(90_000, "r", OrderCreated),
    ];
    assert_eq!(wrongs(made_up, Some("RELEASED")), [Wrong::Broken]);
    assert_eq!(wrongs(Vec::new(), None), [Wrong::Stuck]);
    assert_eq!(wrongs(vec![refused(1, 19)], None), [Wrong::Broken]);
}

#[test]
fn a_decision_that_nobody_asked_for_is_seen() {
    let found = judge(&[], &records(Some("RELEASED")), &[]);
    assert_eq!(found.len(), 1, "{found:?}");
}
