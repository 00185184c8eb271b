//! What operators do about parked messages, and that a failed replay is not hidden by it.

use seckill_order_store::{ErrorKind, LetterFilter, LetterStatus, ParkedLetter};
use seckill_state_machine::TimestampMs;

use crate::fixture::{Fixture, reservation_id, sale, scope};
use crate::parking::letter;

impl Fixture {
    async fn park(&self, n: u64) -> i64 {
        self.store
            .park(&letter(Some(&self.request(n))))
            .await
            .unwrap();
        let filter = LetterFilter {
            reservation: Some(self.request(n).reservation_id),
            ..LetterFilter::default()
        };
        self.store.letters(&filter).await.unwrap()[0].id
    }

    async fn parked(&self, id: i64) -> ParkedLetter {
        self.store.letter(id).await.unwrap().unwrap().parked
    }

    async fn replayed(&self, id: i64, times_parked: u32) -> bool {
        self.store
            .mark_replayed(id, times_parked, "ann", "broker is back", "sent")
            .await
            .unwrap()
    }

    async fn discarded(&self, id: i64) -> bool {
        self.store.discard(id, "bob", "forged").await.unwrap()
    }
}

#[tokio::test]
async fn a_replay_is_on_record_and_a_failed_one_opens_the_letter_again() {
    let sale = sale(5, 1).await;
    let id = sale.park(1).await;
    let parked = sale.parked(id).await;
    assert_eq!((parked.status, parked.action), (LetterStatus::Open, None));
    assert!(sale.replayed(id, 1).await);
    // Marking it twice is the same.
    assert!(sale.replayed(id, 1).await);
    let parked = sale.parked(id).await;
    assert_eq!(parked.status, LetterStatus::Replayed);
    let action = parked.action.unwrap();
    assert_eq!(
        (
            action.actor.as_str(),
            action.reason.as_str(),
            action.outcome.as_str()
        ),
        ("ann", "broker is back", "sent")
    );

    // It fails again: who replayed it, and why, stays on record.
    assert_eq!(sale.park(1).await, id);
    let parked = sale.parked(id).await;
    assert_eq!(
        (parked.status, parked.times_parked),
        (LetterStatus::Open, 2)
    );
    assert_eq!(parked.action.unwrap().actor, "ann");
    assert!(sale.replayed(id, 2).await);
    assert_eq!(sale.parked(id).await.status, LetterStatus::Replayed);
}

/// Goal: a replay that fails faster than its operator can note it is not hidden by the note.
#[tokio::test]
async fn a_letter_that_came_back_before_the_note_stays_open() {
    let sale = sale(5, 1).await;
    let id = sale.park(1).await;
    sale.park(1).await;
    assert!(!sale.replayed(id, 1).await);
    assert_eq!(sale.parked(id).await.status, LetterStatus::Open);
    assert!(!sale.replayed(id + 1, 1).await);
}

#[tokio::test]
async fn a_discarded_letter_stays_discarded_and_its_reservation_keeps_its_task() {
    let sale = sale(5, 1).await;
    let id = sale.park(1).await;
    assert!(sale.discarded(id).await);
    let first = sale.parked(id).await.action.unwrap();
    // Again, since the answer may have been lost; somebody else, or for another reason, did not do it.
    assert!(sale.discarded(id).await);
    for (actor, reason) in [("ann", "forged"), ("bob", "old")] {
        assert!(!sale.store.discard(id, actor, reason).await.unwrap());
    }
    assert_eq!(sale.parked(id).await.action.unwrap(), first);
    assert!(!sale.replayed(id, 1).await);
    sale.park(1).await;
    let parked = sale.parked(id).await;
    assert_eq!(
        (parked.status, parked.times_parked),
        (LetterStatus::Discarded, 2)
    );
    assert_eq!(parked.action.unwrap().actor, "bob");
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 1);
    // Nor is one that was replayed to be given up before it comes back.
    let other = sale.park(2).await;
    assert!(sale.replayed(other, 1).await);
    assert!(!sale.discarded(other).await);
}

/// Three letters: an old open one, a discarded one, and one of another topic, group and reason that
/// names no reservation.
async fn three_letters(sale: &Fixture) -> [i64; 3] {
    let (first, second) = (sale.park(1).await, sale.park(2).await);
    let mut event = letter(None);
    event.topic = "seckill-order-event".to_owned();
    event.consumer_group = "compensation-worker".to_owned();
    event.reason = "attempts_exhausted".to_owned();
    event.message_key = Some("m3".to_owned());
    sale.store.park(&event).await.unwrap();
    sale.discarded(second).await;
    sale.db
        .execute(&format!(
            "UPDATE dead_letter SET last_parked_at = '2020-01-01' WHERE letter_id = {first}"
        ))
        .await;
    [first, second, second + 1]
}

#[tokio::test]
async fn every_part_of_a_filter_narrows_the_list() {
    type Change = Box<dyn Fn(&mut LetterFilter)>;
    let sale = sale(5, 1).await;
    let [first, second, third] = three_letters(&sale).await;
    let at = Some(TimestampMs::new(1_600_000_000_000));
    let word = |text: &str| Some(text.to_owned());
    let (reason, topic) = (word("attempts_exhausted"), word("seckill-order-request"));
    let group = word("compensation-worker");
    let cases: [(Change, Vec<i64>); 13] = [
        (Box::new(|_| {}), vec![first, second, third]),
        (
            Box::new(move |f| f.ids = Some(vec![third, first, 99])),
            vec![first, third],
        ),
        (Box::new(|f| f.ids = Some(Vec::new())), vec![]),
        (Box::new(move |f| f.reason.clone_from(&reason)), vec![third]),
        (
            Box::new(move |f| f.topic.clone_from(&topic)),
            vec![first, second],
        ),
        (Box::new(move |f| f.group.clone_from(&group)), vec![third]),
        (Box::new(|f| f.scope = Some(scope(1))), vec![first, second]),
        (Box::new(|f| f.scope = Some(scope(2))), vec![]),
        (
            Box::new(|f| f.reservation = Some(reservation_id(2))),
            vec![second],
        ),
        (
            Box::new(|f| f.status = Some(LetterStatus::Open)),
            vec![first, third],
        ),
        (Box::new(move |f| f.parked_after = at), vec![second, third]),
        (Box::new(move |f| f.parked_before = at), vec![first]),
        (
            Box::new(move |f| (f.after_id, f.limit) = (Some(first), Some(1))),
            vec![second],
        ),
    ];
    for (change, expected) in cases {
        let mut filter = LetterFilter::default();
        change(&mut filter);
        let found = sale.store.letters(&filter).await.unwrap();
        let ids: Vec<i64> = found.iter().map(|letter| letter.id).collect();
        assert_eq!(ids, expected, "{filter:?}");
    }
    let listed = &sale.store.letters(&LetterFilter::default()).await.unwrap()[0];
    let expected = Some(reservation_id(1));
    assert_eq!((&listed.reservation_id, listed.body_bytes), (&expected, 4));
}

#[tokio::test]
async fn nobody_acts_without_a_name() {
    let sale = sale(5, 1).await;
    let id = sale.park(1).await;
    let error = sale.store.mark_replayed(id, 1, "", "r", "o").await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    let error = sale.store.discard(id, "", "r").await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(sale.store.letter(id + 1).await.unwrap().is_none());
}
