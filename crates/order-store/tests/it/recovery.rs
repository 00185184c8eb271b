//! Recovery windows: opened once a failover, ended only by whoever means the same one.

use std::time::Duration;

use seckill_order_store::{ErrorKind, QueueEnd, RecoveryWindow, ServerNames};
use seckill_state_machine::{BucketId, BucketScope};

use crate::fixture::{Fixture, sale, scope};

impl Fixture {
    fn bucket(&self, n: u32) -> BucketScope {
        self.scope.bucket(BucketId::new(n).unwrap())
    }

    async fn open(&self, bucket: &BucketScope, server: &str) -> bool {
        let opening = self
            .store
            .open_window(bucket, names(server), "failover", LOST_AFTER);
        opening.await.unwrap()
    }

    async fn saw(&self, bucket: &BucketScope, server: &str) -> bool {
        self.store.saw_server(bucket, names(server)).await.unwrap()
    }

    async fn windows(&self) -> Vec<RecoveryWindow> {
        self.store.recovery_windows(&self.scope).await.unwrap()
    }
}

/// Far longer than a test takes between a sighting and the next step.
const LOST_AFTER: Duration = Duration::from_secs(300);

/// A process that never did anything but write one history.
fn names(server: &str) -> ServerNames<'_> {
    ServerNames {
        run_id: server,
        replication_id: server,
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
async fn the_first_server_is_noted_and_never_replaced_by_a_sighting() {
    let sale = sale(9, 2).await;
    assert!(sale.windows().await.is_empty());
    let bucket = sale.bucket(0);
    assert!(sale.saw(&bucket, "r1").await);
    assert!(!sale.saw(&bucket, "r1").await);
    assert!(!sale.saw(&bucket, "r2").await);
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
    sale.saw(&bucket, "r1").await;
    assert!(sale.open(&bucket, "r2").await);
    assert!(!sale.open(&bucket, "r2").await);
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
    sale.open(&bucket, "r2").await;
    let first = sale.windows().await;
    // The next instant has another millisecond.
    let passed = "UPDATE recovery_window SET opened_at = opened_at - interval '1 s'";
    sale.db.execute(passed).await;
    let old = sale.windows().await;
    sale.store.set_window_ends(&old, &ends(10)).await.unwrap();
    assert!(sale.open(&bucket, "r3").await);

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
    sale.saw(&bucket, "r1").await;
    let mut racing = Vec::new();
    for _ in 0..8 {
        let (store, bucket) = (sale.store.clone(), bucket.clone());
        racing.push(tokio::spawn(async move {
            let opening = store.open_window(&bucket, names("r2"), "failover", LOST_AFTER);
            opening.await.unwrap()
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
        sale.open(&bucket, "r2").await;
    }
    sale.saw(&sale.bucket(2), "r1").await;
    let windows = sale.windows().await;
    let set = sale
        .store
        .set_window_ends(&windows, &ends(5))
        .await
        .unwrap();
    assert_eq!(set, 2);
    // A broker that names no queue says nothing about its backlog.
    let bucket = sale.bucket(2);
    sale.open(&bucket, "r2").await;
    let windows = sale.windows().await;
    let error = sale.store.set_window_ends(&windows, &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let found: Vec<_> = sale.windows().await.into_iter().map(|w| w.ends).collect();
    assert_eq!(found, [Some(ends(5)), Some(ends(5)), None]);

    let nowhere = scope(9).bucket(BucketId::ZERO);
    let error = sale
        .store
        .open_window(&nowhere, names("r2"), "failover", LOST_AFTER)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
}

/// Goal: two who see different servers for as long as they like open one window; a server that was
/// replaced counts again once nobody sees the one that replaced it, and both of them may go on.
#[tokio::test]
async fn a_former_server_is_no_news_while_the_one_on_record_is_seen() {
    let sale = sale(9, 2).await;
    let bucket = sale.bucket(0);
    sale.saw(&bucket, "r1").await;
    assert!(sale.open(&bucket, "r2").await);
    let opened = sale.windows().await[0].opened_at_ms.unwrap();
    for _ in 0..3 {
        assert!(!sale.open(&bucket, "r1").await);
        assert!(!sale.open(&bucket, "r2").await);
    }
    assert!(sale.store.close_window(&bucket, opened).await.unwrap());
    // Nor does a window that has ended let the old one in.
    assert!(!sale.open(&bucket, "r1").await);

    let hidden = "UPDATE recovery_window SET sighted_at = sighted_at - interval '301 s'";
    sale.db.execute(hidden).await;
    assert!(sale.windows().await[0].sighted_ms_ago >= 301_000);
    let sighted = async |server: &str| {
        let seen = [(bucket.bucket_id, server.to_owned())];
        sale.store.sighted(&sale.scope, &seen).await.unwrap()
    };
    assert_eq!((sighted("r1").await, sighted("r2").await), (0, 1));
    assert!(!sale.open(&bucket, "r1").await, "it was seen just now");
    sale.db.execute(hidden).await;
    assert!(sale.open(&bucket, "r1").await);
    assert_eq!(sale.windows().await[0].run_id, "r1");
    assert!(
        !sale.open(&bucket, "r2").await,
        "now that is the former one"
    );
    // However many come and go, the row stays small.
    for n in 0..20 {
        assert!(sale.open(&bucket, &format!("s{n}")).await);
    }
    let former = "SELECT cardinality(former) FROM recovery_window";
    assert_eq!(sale.db.number(former).await, 16);
}

/// Goal: a history that only has another name now is no other server; one that was named otherwise
/// meanwhile is left as it is.
#[tokio::test]
async fn a_history_may_change_its_name() {
    let sale = sale(9, 1).await;
    let bucket = sale.bucket(0);
    sale.saw(&bucket, "r1").await;
    let renamed = async |before: &'static str, replication_id| {
        let names = ServerNames {
            run_id: "r1",
            replication_id,
        };
        let naming = sale.store.rename_server(&bucket, before, names);
        naming.await.unwrap()
    };
    assert!(renamed("r1", "h2").await);
    assert!(!renamed("r1", "h3").await);
    let window = &sale.windows().await[0];
    assert_eq!(
        (window.replication_id.as_str(), window.opened_at_ms),
        ("h2", None)
    );
}

/// Goal: after a loss that no restart shows, an open window begins again, and whoever is about to end
/// the one before does not end this one.
#[tokio::test]
async fn a_window_is_started_afresh_whatever_is_on_record() {
    let sale = sale(9, 1).await;
    let bucket = sale.bucket(0);
    assert!(sale.open(&bucket, "r1").await);
    let before = sale.windows().await;
    sale.store
        .set_window_ends(&before, &ends(10))
        .await
        .unwrap();
    let restart = sale.store.restart_window(&bucket, names("r1"), "rebuilt");
    restart.await.unwrap();
    let after = &sale.windows().await[0];
    assert!(after.opened_at_ms > before[0].opened_at_ms);
    assert_eq!((&after.ends, after.reason.as_str()), (&None, "rebuilt"));
    let stale = before[0].opened_at_ms.unwrap();
    assert!(!sale.store.close_window(&bucket, stale).await.unwrap());
}
