//! What no run sees gone is closed by a person, and text that a database cannot hold stops nobody.

use seckill_order_store::WatchNote;

use super::*;

/// Goal: an operator can close what no run sees gone, once and on record, also when the answer to the
/// first call was lost.
#[tokio::test]
async fn a_difference_is_closed_by_an_operators_word_once() {
    let sale = sale(9, 1).await;
    let found = [total_differs(&sale)];
    run(&sale, &found).await;
    let filter = DiscrepancyFilter::default();
    let id = sale.store.open_discrepancies(&filter, 1).await.unwrap()[0].id;
    let close = async |id, actor, reason| {
        let closed = sale.store.resolve_discrepancy(id, actor, reason).await;
        closed.map_err(|error| error.kind())
    };
    assert_eq!(close(id, "", "counted").await, Err(ErrorKind::Invalid));
    assert_eq!(close(id, "ann", "").await, Err(ErrorKind::Invalid));
    assert_eq!(
        close(id + 1, "ann", "counted").await,
        Err(ErrorKind::NotFound)
    );
    assert_eq!(
        sale.store
            .open_work(&sale.scope)
            .await
            .unwrap()
            .discrepancies,
        1
    );

    assert_eq!(close(id, "ann", "counted").await, Ok(true));
    assert_eq!(close(id, "ann", "counted").await, Ok(true));
    assert_eq!(close(id, "bob", "counted").await, Ok(false));
    assert!(sale.store.open_work(&sale.scope).await.unwrap().is_none());
    let actions = sale.store.actions(&ActionFilter::default(), 10).await;
    let records: Vec<_> = actions.unwrap().into_iter().map(|a| a.record).collect();
    let expected = ActionRecord {
        discrepancy_id: id,
        actor: "ann".to_owned(),
        reason: "counted".to_owned(),
        action: "resolve".to_owned(),
        outcome: "resolved".to_owned(),
    };
    assert_eq!(records, [expected]);
    // Still there, it is a new one; one that a run saw gone was not closed by anybody.
    assert_eq!(run(&sale, &found).await, (1, 0));
    let id = sale.store.open_discrepancies(&filter, 1).await.unwrap()[0].id;
    run(&sale, &[]).await;
    assert_eq!(close(id, "ann", "counted").await, Ok(false));
}

/// Goal: text from outside that a database cannot hold stops nobody's work; where an operator gives it,
/// it is the operator's mistake and no reason to try again.
#[tokio::test]
async fn text_that_a_database_cannot_hold_stops_no_check() {
    let sale = sale(9, 1).await;
    let odd = Discrepancy {
        detail: "a\0b".to_owned(),
        ..total_differs(&sale).with_evidence("c\0".to_owned(), "\0d".to_owned())
    };
    run(&sale, std::slice::from_ref(&odd)).await;
    let again = sale.store.see_again("totals", std::slice::from_ref(&odd));
    assert!(again.await.unwrap().is_empty());
    let kept = open(&sale, DiscrepancyFilter::default()).await.remove(0);
    assert_eq!(
        [kept.detail, kept.evidence_redis, kept.evidence_postgres],
        ["a\u{2400}b", "c\u{2400}", "\u{2400}d"]
    );

    let new = NewRun {
        kind: "totals".to_owned(),
        instance: "reconciler-0".to_owned(),
        scope: None,
    };
    let broken = sale.store.start_run(&new).await.unwrap();
    let outcome = RunOutcome {
        error: Some("\0".to_owned()),
        ..RunOutcome::default()
    };
    sale.store.finish_run(broken, &outcome).await.unwrap();
    let note = WatchNote {
        healthy: false,
        cause: "broker\0down",
        max_gap: Duration::from_secs(1),
    };
    sale.store.note_watch(&note).await.unwrap();
    let asked = sale.request(1);
    sale.store.hand_over(&asked, None).await.unwrap();
    let lease = Duration::from_secs(60);
    let task = sale.store.claim_tasks(1, lease).await.unwrap().remove(0);
    let retried = sale.store.retry_task(&task, "e\0", lease).await;
    assert!(retried.unwrap());

    let error = sale.store.resolve_discrepancy(1, "a\0", "x").await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
}
