//! Dead letters are kept whole, once, and leave no reservation without somebody who remembers it.

use std::collections::BTreeMap;

use seckill_order_store::{DeadLetter, KeptLetter, LetterFilter, TaskOrigin};
use seckill_state_machine::{OrderRequest, TimestampMs};

use crate::fixture::{Fixture, PATIENCE, fresh, request, sale, scope, task};

pub fn letter(request: Option<&OrderRequest>) -> DeadLetter {
    DeadLetter {
        topic: "seckill-order-request".to_owned(),
        consumer_group: "order-consumer".to_owned(),
        message_key: request.map(|r| r.message_id().to_string()),
        broker_message_id: "7F000001".to_owned(),
        queue_id: 3,
        queue_offset: 77,
        born_at_ms: Some(TimestampMs::new(1_700_000_000_001)),
        body: vec![0, 159, 146, 150],
        properties: BTreeMap::from([("schema".to_owned(), "9".to_owned())]),
        reason: "undecodable".to_owned(),
        error: "field user_id is missing".to_owned(),
        attempts: 2,
        bucket: request.map(|r| r.bucket.clone()),
        request: request.cloned(),
    }
}

/// All letters, whole.
async fn everything(sale: &Fixture) -> Vec<KeptLetter> {
    let mut kept = Vec::new();
    for parked in sale.store.letters(&LetterFilter::default()).await.unwrap() {
        let letter = sale.store.letter(parked.id).await.unwrap().unwrap();
        assert_eq!(letter.parked, parked);
        kept.push(letter);
    }
    kept
}

#[tokio::test]
async fn a_letter_is_kept_whole() {
    let sale = sale(1, 1).await;
    let mut odd = letter(None);
    odd.message_key = Some("k".repeat(10_000));
    odd.properties
        .insert("a\"b\\".to_owned(), "ünïcode\u{1}".to_owned());
    sale.store.park(&odd).await.unwrap();
    let kept = everything(&sale).await;
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].letter, odd);
    assert_eq!(sale.store.dead_letter_count().await.unwrap(), 1);
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 0);
}

#[tokio::test]
async fn text_that_a_database_cannot_hold_does_not_stop_a_letter() {
    let sale = sale(1, 1).await;
    let mut odd = letter(None);
    odd.message_key = Some("a\0b".to_owned());
    odd.properties.insert("p\0".to_owned(), "\0".to_owned());
    odd.error = "nul \0".to_owned();
    odd.born_at_ms = Some(TimestampMs::new(i64::MIN));
    sale.store.park(&odd).await.unwrap();
    let kept = everything(&sale).await;
    assert_eq!(kept[0].letter.message_key.as_deref(), Some("a\u{2400}b"));
    assert_eq!(kept[0].letter.born_at_ms, None);
}

#[tokio::test]
async fn parking_again_only_counts_but_another_body_under_the_same_id_is_kept() {
    let sale = sale(1, 1).await;
    let asked = sale.request(1);
    let mut parked = letter(Some(&asked));
    sale.store.park(&parked).await.unwrap();
    parked.broker_message_id = "7F000002".to_owned();
    parked.attempts = 5;
    sale.store.park(&parked).await.unwrap();
    parked.body = b"forged".to_vec();
    sale.store.park(&parked).await.unwrap();
    let kept = everything(&sale).await;
    assert_eq!(kept.len(), 2);
    assert_eq!(
        (kept[0].parked.times_parked, kept[0].letter.attempts),
        (2, 5)
    );
    assert_eq!(kept[1].parked.times_parked, 1);
    let of_task = sale
        .db
        .texts("SELECT generation, origin FROM compensation_task")
        .await;
    assert_eq!(of_task, [["1", "PARKED"]]);
    let page = LetterFilter {
        topic: Some(parked.topic.clone()),
        after_id: Some(kept[0].parked.id),
        ..LetterFilter::default()
    };
    assert_eq!(sale.store.letters(&page).await.unwrap().len(), 1);
    let other = LetterFilter {
        topic: Some("seckill-order-event".to_owned()),
        ..LetterFilter::default()
    };
    assert!(sale.store.letters(&other).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_undecided_request_is_due_for_release_after_its_activitys_patience() {
    let sale = sale(1, 1).await;
    sale.store
        .park(&letter(Some(&sale.request(1))))
        .await
        .unwrap();
    sale.store
        .park(&letter(Some(&request(&scope(9), 2))))
        .await
        .unwrap();
    assert!(
        sale.store
            .claim_tasks(10, PATIENCE)
            .await
            .unwrap()
            .is_empty()
    );
    let due = sale
        .db
        .texts(
            "SELECT extract(epoch FROM next_attempt_at - opened_at)::bigint
            FROM compensation_task ORDER BY reservation_id",
        )
        .await;
    // The activity's own patience, and the default of 15 minutes where the activity is unknown.
    assert_eq!(due, [["60"], ["900"]]);
}

#[tokio::test]
async fn a_decided_request_needs_no_task_when_it_is_parked() {
    let sale = sale(1, 1).await;
    let asked = sale.request(1);
    assert!(fresh(&sale.decide(&asked).await));
    sale.store.park(&letter(Some(&asked))).await.unwrap();
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 0);
    // Parking writes no inbox row and no decision; a replayed letter is processed.
    let parked = sale.request(2);
    sale.store.park(&letter(Some(&parked))).await.unwrap();
    assert_eq!(sale.db.number("SELECT count(*) FROM inbox").await, 1);
    let decided = sale.decide(&parked).await;
    assert!(!fresh(&decided), "{decided:?}");
    // Its refusal brings the waiting task forward.
    let tasks = sale.store.claim_tasks(10, PATIENCE).await.unwrap();
    assert_eq!(tasks.len(), 1);
    assert_eq!(
        (tasks[0].generation, tasks[0].origin),
        (2, TaskOrigin::Rejected)
    );
}

#[tokio::test]
async fn parking_leaves_an_open_task_alone_and_reopens_a_closed_one() {
    let sale = sale(1, 1).await;
    let asked = sale.request(1);
    sale.store
        .open_task(&task(&asked, TaskOrigin::Overdue))
        .await
        .unwrap();
    sale.store.park(&letter(Some(&asked))).await.unwrap();
    let claimed = sale.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!(
        (claimed.generation, claimed.origin),
        (1, TaskOrigin::Overdue)
    );
    assert!(sale.store.finish_task(&claimed, "released").await.unwrap());
    sale.store.park(&letter(Some(&asked))).await.unwrap();
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 1);
}

/// Goal: what a later delivery tells of a letter's place and reservation is not lost, and what is known
/// is not forgotten.
#[tokio::test]
async fn parking_again_adds_what_was_not_known() {
    let sale = sale(1, 1).await;
    let whole = letter(Some(&sale.request(1)));
    let blind = DeadLetter {
        bucket: None,
        request: None,
        ..whole.clone()
    };
    for (parked, is_known) in [(&blind, false), (&whole, true), (&blind, true)] {
        sale.store.park(parked).await.unwrap();
        let kept = everything(&sale).await.remove(0).parked;
        assert_eq!(kept.bucket, is_known.then(|| whole.bucket.clone().unwrap()));
        let id = is_known.then(|| sale.request(1).reservation_id);
        assert_eq!(kept.reservation_id, id);
    }
}
