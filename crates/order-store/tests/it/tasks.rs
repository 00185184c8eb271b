//! Compensation tasks: leases, generations, reopening.

use std::time::Duration;

use seckill_order_store::{NewTask, TaskOrigin};

use crate::fixture::{PATIENCE, sale, scope, task};

#[tokio::test]
async fn a_claimed_task_is_nobody_elses_until_its_lease_is_over() {
    let sale = sale(5, 1).await;
    for n in 0..5 {
        sale.store
            .open_task(&task(&sale.request(n), TaskOrigin::Overdue))
            .await
            .unwrap();
    }
    let first = sale.store.claim_tasks(3, PATIENCE).await.unwrap();
    let rest = sale.store.claim_tasks(10, Duration::ZERO).await.unwrap();
    assert_eq!((first.len(), rest.len()), (3, 2));
    // The second claim's lease was over at once.
    let again = sale.store.claim_tasks(10, PATIENCE).await.unwrap();
    assert_eq!(again.len(), 2);
    assert!(again.iter().all(|task| task.attempts == 2));
    // Whoever lost the lease can no longer close the task.
    assert!(!sale.store.finish_task(&rest[0], "late").await.unwrap());
    assert!(
        !sale
            .store
            .retry_task(&rest[0], "late", Duration::ZERO)
            .await
            .unwrap()
    );
    for task in first.iter().chain(&again) {
        assert!(sale.store.finish_task(task, "released").await.unwrap());
    }
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_claim_at_once_share_the_tasks_without_overlap() {
    let sale = sale(1, 1).await;
    for n in 0..60 {
        sale.store
            .open_task(&task(&sale.request(n), TaskOrigin::Parked))
            .await
            .unwrap();
    }
    let mut workers = Vec::new();
    for _ in 0..6 {
        let store = sale.store.clone();
        workers.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let tasks = store.claim_tasks(4, PATIENCE).await.unwrap();
                if tasks.is_empty() {
                    return mine;
                }
                mine.extend(tasks.into_iter().map(|task| task.request.reservation_id));
            }
        }));
    }
    let mut all = Vec::new();
    for worker in workers {
        all.extend(worker.await.unwrap());
    }
    // SKIP LOCKED lets a worker come home empty-handed while others hold the rest for a moment.
    let left = sale.store.claim_tasks(60, PATIENCE).await.unwrap();
    all.extend(left.into_iter().map(|task| task.request.reservation_id));
    all.sort();
    let claimed = all.len();
    all.dedup();
    assert_eq!((claimed, all.len()), (60, 60));
}

#[tokio::test]
async fn reopening_while_a_worker_is_busy_voids_its_result_and_hands_the_task_over() {
    let sale = sale(5, 1).await;
    let asked = sale.request(1);
    sale.store
        .open_task(&task(&asked, TaskOrigin::Overdue))
        .await
        .unwrap();
    let worked_on = sale.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!(worked_on.generation, 1);

    // A failover undid the release: the reconciler hands the reservation over again.
    sale.store
        .open_task(&task(&asked, TaskOrigin::HeldAgain))
        .await
        .unwrap();
    assert!(
        sale.store
            .claim_tasks(1, PATIENCE)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        !sale
            .store
            .finish_task(&worked_on, "released")
            .await
            .unwrap()
    );

    let handed_over = sale.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!(
        (handed_over.generation, handed_over.origin),
        (2, TaskOrigin::HeldAgain)
    );
    assert_eq!(handed_over.request, asked);
    assert!(
        sale.store
            .finish_task(&handed_over, "released")
            .await
            .unwrap()
    );

    // A closed task is reopened as well, with the next generation.
    sale.store
        .open_task(&task(&asked, TaskOrigin::HeldAgain))
        .await
        .unwrap();
    let third = sale.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!((third.generation, third.attempts), (3, 1));
    assert!(!sale.store.finish_task(&handed_over, "late").await.unwrap());
    assert_eq!(sale.store.open_tasks(Some(&sale.scope)).await.unwrap(), 1);
    assert_eq!(sale.store.open_tasks(Some(&scope(8))).await.unwrap(), 0);
}

#[tokio::test]
async fn a_retried_task_is_due_after_its_delay_unless_it_was_reopened() {
    let sale = sale(5, 1).await;
    let asked = sale.request(1);
    sale.store
        .open_task(&task(&asked, TaskOrigin::Overdue))
        .await
        .unwrap();
    let first = sale.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
    assert!(
        sale.store
            .retry_task(&first, "redis is away", PATIENCE)
            .await
            .unwrap()
    );
    assert!(
        sale.store
            .claim_tasks(1, PATIENCE)
            .await
            .unwrap()
            .is_empty()
    );
    let kept = sale
        .db
        .texts("SELECT last_error, attempts FROM compensation_task")
        .await;
    assert_eq!(kept, [["redis is away", "1"]]);

    sale.store
        .open_task(&task(&asked, TaskOrigin::HeldAgain))
        .await
        .unwrap();
    let second = sale.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!((second.generation, second.attempts), (2, 2));
    sale.store
        .open_task(&task(&asked, TaskOrigin::HeldAgain))
        .await
        .unwrap();
    assert!(
        !sale
            .store
            .retry_task(&second, "redis is away", PATIENCE)
            .await
            .unwrap()
    );
    let third = sale.store.claim_tasks(1, PATIENCE).await.unwrap();
    assert_eq!(third.len(), 1);
}

#[tokio::test]
async fn a_task_is_not_claimed_before_it_is_due() {
    let sale = sale(5, 1).await;
    let later = NewTask {
        due_in: PATIENCE,
        ..task(&sale.request(1), TaskOrigin::Overdue)
    };
    sale.store.open_task(&later).await.unwrap();
    assert!(
        sale.store
            .claim_tasks(5, PATIENCE)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 1);
    // Handing it over again for now brings it forward.
    sale.store
        .open_task(&task(&sale.request(1), TaskOrigin::HeldAgain))
        .await
        .unwrap();
    assert_eq!(sale.store.claim_tasks(5, PATIENCE).await.unwrap().len(), 1);
}

/// Goal: whoever finds units held again while a worker is busy voids that worker's result, and a worker
/// that finds the same about its own task does not void its own.
#[tokio::test]
async fn a_hand_over_voids_the_result_of_every_worker_but_the_caller() {
    let sale = sale(5, 1).await;
    let asked = sale.request(1);
    sale.store
        .open_task(&task(&asked, TaskOrigin::Overdue))
        .await
        .unwrap();
    // Nobody is busy: nothing is voided, whatever is found.
    sale.store.hand_over(&asked, None).await.unwrap();
    let first = sale.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
    assert_eq!((first.generation, first.origin), (1, TaskOrigin::Overdue));
    // Its own look.
    let own = Some(first.claim());
    sale.store.hand_over(&asked, own).await.unwrap();
    let wait = Duration::from_secs(3_600);
    assert!(sale.store.retry_task(&first, "waits", wait).await.unwrap());
    assert_eq!(sale.store.claim_tasks(1, PATIENCE).await.unwrap(), []);

    let due = "UPDATE compensation_task SET next_attempt_at = now() - interval '1 minute'";
    sale.db.execute(due).await;
    // A lease that is over is no end of the work under it.
    for lease in [PATIENCE, Duration::ZERO] {
        let busy = sale.store.claim_tasks(1, lease).await.unwrap().remove(0);
        sale.store.hand_over(&asked, own).await.unwrap();
        assert!(!sale.store.finish_task(&busy, "released").await.unwrap());
        let again = sale.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
        assert_eq!(again.generation, busy.generation + 1);
        assert_eq!(again.origin, TaskOrigin::Overdue);
        let now = Duration::ZERO;
        assert!(sale.store.retry_task(&again, "again", now).await.unwrap());
    }
}

/// Goal: however a hand-over and the end of the work meet, the task is open afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_that_races_the_end_of_the_work_leaves_the_task_open() {
    let sale = sale(5, 1).await;
    for n in 0..40 {
        let asked = sale.request(n);
        sale.store
            .open_task(&task(&asked, TaskOrigin::Rejected))
            .await
            .unwrap();
        let busy = sale.store.claim_tasks(1, PATIENCE).await.unwrap().remove(0);
        let (finished, handed_over) = tokio::join!(
            sale.store.finish_task(&busy, "released"),
            sale.store.hand_over(&asked, None),
        );
        finished.unwrap();
        handed_over.unwrap();
        let open = sale
            .store
            .claim_tasks(10, PATIENCE)
            .await
            .unwrap()
            .remove(0);
        assert_eq!(open.generation, 2, "round {n}");
        assert!(sale.store.finish_task(&open, "released").await.unwrap());
    }
}
