//! Recovery windows: opened once a failover, ended only by whoever means the same one.

use seckill_order_store::{ErrorKind, QueueEnd, RecoveryWindow};
use seckill_state_machine::{BucketId, BucketScope};

use crate::fixture::{Fixture, sale, scope};

impl Fixture {
    fn bucket(&self, n: u32) -> BucketScope {
        self.scope.bucket(BucketId::new(n).unwrap())
    }

    async fn windows(&self) -> Vec<RecoveryWindow> {
        self.store.recovery_windows(&self.scope).await.unwrap()
    }
}

fn ends(offset: i64) -> Vec<QueueEnd> {
    (0..4)
        .map(|n| QueueEnd {
            queue: format!("broker-a/{n}"),
            offset: offset + n,
        })
        .collect()
}

#[tokio::test]
async fn the_first_run_id_is_noted_and_never_replaced_by_a_sighting() {
    let sale = sale(9, 2).await;
    assert!(sale.windows().await.is_empty());
    let bucket = sale.bucket(0);
    assert!(sale.store.saw_run_id(&bucket, "r1").await.unwrap());
    assert!(!sale.store.saw_run_id(&bucket, "r1").await.unwrap());
    assert!(!sale.store.saw_run_id(&bucket, "r2").await.unwrap());
    let windows = sale.windows().await;
    assert_eq!(windows.len(), 1);
    assert_eq!(
        (&windows[0].bucket, windows[0].run_id.as_str()),
        (&bucket, "r1")
    );
    assert_eq!(
        (windows[0].opened_at_ms, windows[0].open_for_ms),
        (None, None)
    );
}

#[tokio::test]
async fn a_window_is_opened_once_and_ends_once() {
    let sale = sale(9, 2).await;
    let bucket = sale.bucket(1);
    sale.store.saw_run_id(&bucket, "r1").await.unwrap();
    let open = async |run_id| sale.store.open_window(&bucket, run_id, "failover").await;
    assert!(open("r2").await.unwrap());
    assert!(!open("r2").await.unwrap());
    let windows = sale.windows().await;
    assert_eq!(windows[0].run_id, "r2");
    assert_eq!(windows[0].reason, "failover");
    assert!(
        windows[0]
            .open_for_ms
            .is_some_and(|ms| (0..30_000).contains(&ms))
    );

    let set = async |windows: &[RecoveryWindow], ends: &[QueueEnd]| {
        sale.store.set_window_ends(windows, ends).await.unwrap()
    };
    assert_eq!(set(&windows, &ends(10)).await, 1);
    // Another replica reads the queues later; the first reading stands.
    assert_eq!(set(&windows, &ends(99)).await, 0);
    assert_eq!(sale.windows().await[0].ends, Some(ends(10)));

    let opened = windows[0].opened_at_ms.unwrap();
    let close = async || sale.store.close_window(&bucket, opened).await.unwrap();
    assert!(close().await);
    assert!(!close().await);
    let closed = &sale.windows().await[0];
    assert_eq!((closed.opened_at_ms, &closed.ends), (None, &None));
    assert_eq!(closed.run_id, "r2");
    // Nothing is open, so there is nothing to set an end to.
    assert_eq!(set(&windows, &ends(10)).await, 0);
}

/// Goal: a reconciler that was held up can neither end a later window nor give it the queue ends
/// from before.
#[tokio::test]
async fn a_second_failover_starts_the_window_afresh() {
    let sale = sale(9, 2).await;
    let bucket = sale.bucket(0);
    sale.store
        .open_window(&bucket, "r2", "failover")
        .await
        .unwrap();
    let first = sale.windows().await;
    // The next instant has another millisecond.
    let passed = "UPDATE recovery_window SET opened_at = opened_at - interval '1 s'";
    sale.db.execute(passed).await;
    let old = sale.windows().await;
    sale.store.set_window_ends(&old, &ends(10)).await.unwrap();
    assert!(
        sale.store
            .open_window(&bucket, "r3", "failover")
            .await
            .unwrap()
    );

    let second = &sale.windows().await[0];
    assert_eq!((second.run_id.as_str(), &second.ends), ("r3", &None));
    assert_eq!(
        sale.store.set_window_ends(&old, &ends(10)).await.unwrap(),
        0
    );
    for stale in [&first[0], &old[0]] {
        let opened = stale.opened_at_ms.unwrap();
        if Some(opened) != second.opened_at_ms {
            assert!(!sale.store.close_window(&bucket, opened).await.unwrap());
        }
    }
    assert!(sale.windows().await[0].opened_at_ms.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_see_a_failover_one_opens_the_window() {
    let sale = sale(9, 1).await;
    let bucket = sale.bucket(0);
    sale.store.saw_run_id(&bucket, "r1").await.unwrap();
    let mut racing = Vec::new();
    for _ in 0..8 {
        let (store, bucket) = (sale.store.clone(), bucket.clone());
        racing.push(tokio::spawn(async move {
            store.open_window(&bucket, "r2", "failover").await.unwrap()
        }));
    }
    let mut opened = 0;
    for race in racing {
        opened += u32::from(race.await.unwrap());
    }
    assert_eq!(opened, 1);
}

#[tokio::test]
async fn the_ends_are_set_for_the_windows_that_are_open_and_no_other() {
    let sale = sale(9, 3).await;
    for n in 0..2 {
        let bucket = sale.bucket(n);
        sale.store
            .open_window(&bucket, "r2", "failover")
            .await
            .unwrap();
    }
    sale.store.saw_run_id(&sale.bucket(2), "r1").await.unwrap();
    let windows = sale.windows().await;
    let set = sale
        .store
        .set_window_ends(&windows, &ends(5))
        .await
        .unwrap();
    assert_eq!(set, 2);
    // A broker that names no queue says nothing about its backlog.
    let bucket = sale.bucket(2);
    sale.store
        .open_window(&bucket, "r2", "failover")
        .await
        .unwrap();
    let windows = sale.windows().await;
    let error = sale.store.set_window_ends(&windows, &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let found: Vec<_> = sale.windows().await.into_iter().map(|w| w.ends).collect();
    assert_eq!(found, [Some(ends(5)), Some(ends(5)), None]);

    let nowhere = scope(9).bucket(BucketId::ZERO);
    let error = sale
        .store
        .open_window(&nowhere, "r2", "failover")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
}
