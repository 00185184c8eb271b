//! Patience after the clock was set back, and with parked messages.

use seckill_order_store::TaskOrigin;

use super::*;
use crate::parking::letter;

impl Fixture {
    /// The last sighting of health comes to lie a day ahead: the clock was set back, or the server
    /// that was promoted is behind.
    async fn set_clock_back(&self) {
        self.db
            .execute(
                "UPDATE patience_watch SET healthy_at = healthy_at + interval '1 d',
                    observed_at = observed_at + interval '1 d'",
            )
            .await;
    }
}

/// Goal: an outage after the clock was set back is an outage, and nothing is overdue before somebody
/// has looked again.
#[tokio::test]
async fn an_outage_after_the_clock_was_set_back_is_a_standstill() {
    let sale = sale(5, 1).await;
    sale.watched_for_ever().await;
    sale.set_clock_back().await;
    let standing = async || sale.store.standstill_now().await.unwrap();
    assert_eq!(standing().await.as_deref(), Some("unobserved"));
    let ancient = [sale.request(1)];
    let whole = [Overdue::Patient { for_ms: 60_000 }];
    assert_eq!(sale.hand_over(&ancient).await, whole);
    sale.note(&ill("broker down")).await;
    sale.elapse(90).await;
    assert_eq!(standing().await.as_deref(), Some("broker down"));
    sale.note(&HEALTHY).await;
    let outage = (90, "broker down".to_owned());
    assert_eq!(sale.standstills().await, std::slice::from_ref(&outage));

    // A sighting of health takes it back as well.
    sale.set_clock_back().await;
    sale.note(&HEALTHY).await;
    assert_eq!(standing().await, None);
    sale.elapse(80).await;
    assert_eq!(standing().await.as_deref(), Some("unobserved"));
    sale.note(&HEALTHY).await;
    let unobserved = (80, "unobserved".to_owned());
    assert_eq!(sale.standstills().await, [outage, unobserved]);
}

/// Goal: an outage after a message was parked does not use up the time to replay it.
#[tokio::test]
async fn patience_with_a_parked_message_stands_still_in_an_outage() {
    let sale = sale(5, 1).await;
    sale.watched_for_ever().await;
    let asked = sale.request(1);
    sale.store.park(&letter(Some(&asked))).await.unwrap();
    sale.db
        .execute(
            "UPDATE compensation_task
            SET opened_at = now() - interval '90 min', next_attempt_at = now()",
        )
        .await;
    let task = sale.claimed().await;
    let left = async |task: &CompensationTask| sale.store.patience_left(task).await.unwrap();
    assert_eq!(left(&task).await, None);
    sale.db
        .execute(
            "INSERT INTO standstill (began_at, ended_at, cause)
            VALUES (now() - interval '2 h', now() - interval '30 s', 'broker down')",
        )
        .await;
    let found = left(&task).await.unwrap().as_secs();
    assert!((15..=30).contains(&found), "{found}");
    // It is the parking from which it counts, and nothing else is parked.
    let other = CompensationTask {
        origin: TaskOrigin::Overdue,
        ..task.clone()
    };
    assert_eq!(left(&other).await, None);
    assert!(fresh(&sale.decide(&asked).await));
    assert_eq!(left(&task).await, None);
}
