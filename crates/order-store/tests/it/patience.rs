//! Patience with undecided reservations: what it counts, who may note it, and that a decision wins.
//!
//! Nobody waits here for time to pass: what is on record is moved into the past instead.

mod still;

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use seckill_order_store::{CompensationTask, Decided, ErrorKind, Fence, Overdue, WatchNote};
use seckill_state_machine::{OrderRequest, TimestampMs};

use crate::fixture::{Fixture, PATIENCE, database, fresh, one, request, sale, scope};

/// How far apart two sightings of health may be in these tests.
const MAX_GAP: Duration = Duration::from_secs(60 * 60);

const HEALTHY: WatchNote<'_> = WatchNote {
    healthy: true,
    cause: "",
    max_gap: MAX_GAP,
};

const fn ill(cause: &str) -> WatchNote<'_> {
    WatchNote {
        healthy: false,
        cause,
        max_gap: MAX_GAP,
    }
}

impl Fixture {
    /// Lets so many minutes go by for the watch: far more than a test takes by itself.
    async fn elapse(&self, minutes: u32) {
        let back = format!(
            "UPDATE patience_watch SET healthy_at = healthy_at - interval '{minutes} min',
                observed_at = observed_at - interval '{minutes} min';
            UPDATE standstill SET began_at = began_at - interval '{minutes} min',
                ended_at = ended_at - interval '{minutes} min'"
        );
        self.db.execute(&back).await;
    }

    async fn note(&self, note: &WatchNote<'_>) {
        self.store.note_watch(note).await.unwrap();
    }

    /// Standstills on record: how long in minutes, and why; without the one before the first look.
    async fn standstills(&self) -> Vec<(i64, String)> {
        let rows = self
            .db
            .texts(
                "SELECT round(extract(epoch FROM ended_at - began_at) / 60)::bigint, cause
                FROM standstill WHERE began_at > '-infinity' ORDER BY began_at",
            )
            .await;
        let parse = |row: &Vec<String>| (row[0].parse().unwrap(), row[1].clone());
        rows.iter().map(parse).collect()
    }

    /// Patience runs, and has done so for ever.
    async fn watched_for_ever(&self) {
        self.note(&HEALTHY).await;
        self.db.execute("DELETE FROM standstill").await;
    }

    async fn now_ms(&self) -> i64 {
        self.db
            .number("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")
            .await
    }

    /// The n-th request, accepted so many milliseconds ago.
    async fn aged(&self, n: u64, age_ms: i64) -> OrderRequest {
        let mut request = self.request(n);
        request.reserved_at_ms = TimestampMs::new(self.now_ms().await - age_ms);
        request
    }

    async fn hand_over(&self, requests: &[OrderRequest]) -> Vec<Overdue> {
        self.store.hand_over_overdue(requests).await.unwrap()
    }

    async fn claimed(&self) -> CompensationTask {
        let mut tasks = self.store.claim_tasks(10, PATIENCE).await.unwrap();
        assert_eq!(tasks.len(), 1);
        tasks.remove(0)
    }
}

/// Time of an interval set within `[from, to]`, the plain way: millisecond marks, sorted.
fn covered(intervals: &[(i64, i64)], from: i64, to: i64) -> i64 {
    let mut cut: Vec<(i64, i64)> = intervals
        .iter()
        .map(|(began, ended)| ((*began).max(from), (*ended).min(to)))
        .filter(|(began, ended)| began < ended)
        .collect();
    cut.sort_unstable();
    let (mut total, mut reached) = (0, from);
    for (began, ended) in cut {
        total += (ended - began.max(reached)).max(0);
        reached = reached.max(ended);
    }
    total
}

/// Goal: the server's arithmetic is that of a plain model, for standstills that overlap, touch, lie
/// around the reservation or reach into the present.
#[tokio::test]
async fn patience_counts_what_a_plain_model_counts() {
    const PATIENCE_MS: i64 = 1_000_000_000;
    let sale = sale(5, 1).await;
    sale.db
        .execute(&format!("UPDATE activity SET patience_ms = {PATIENCE_MS}"))
        .await;
    let mut rng = StdRng::seed_from_u64(7);
    for round in 0..30 {
        sale.watched_for_ever().await;
        let base = sale.now_ms().await;
        let mut intervals = Vec::new();
        for _ in 0..rng.random_range(0..12) {
            let began = base - rng.random_range(1_000..5_000_000);
            let ended = (began + rng.random_range(1..900_000)).min(base);
            intervals.push((began, ended));
            sale.db
                .execute(&format!(
                    "INSERT INTO standstill (began_at, ended_at, cause)
                    VALUES (to_timestamp({began} / 1000.0), to_timestamp({ended} / 1000.0), 'x')"
                ))
                .await;
        }
        if round % 3 == 0 {
            // And one that still lasts: somebody is ill, or nobody has looked for too long.
            let healthy = round % 2 == 0;
            let age = if healthy {
                3_700_000..5_000_000
            } else {
                1_000..300_000
            };
            let since = base - rng.random_range(age);
            intervals.push((since, i64::MAX));
            sale.db
                .execute(&format!(
                    "UPDATE patience_watch SET healthy_at = to_timestamp({since} / 1000.0),
                        healthy = {healthy}, cause = 'x'"
                ))
                .await;
        }
        let asked: Vec<OrderRequest> = (0..40)
            .map(|n| {
                let mut asked = sale.request(n);
                let at = base - rng.random_range(-5_000..6_000_000);
                asked.reserved_at_ms = TimestampMs::new(at);
                asked
            })
            .collect();
        let before = sale.now_ms().await;
        let answers = sale.hand_over(&asked).await;
        let after = sale.now_ms().await + 1;
        for (request, answer) in asked.iter().zip(answers) {
            let reserved = request.reserved_at_ms.get();
            let left = |now: i64| {
                let from = reserved.min(now);
                PATIENCE_MS - (now - from) + covered(&intervals, from, now)
            };
            let Overdue::Patient { for_ms } = answer else {
                panic!("{answer:?}")
            };
            let (least, most) = (left(after) - 1, left(before) + 1);
            assert!(
                (least..=most).contains(&for_ms),
                "{for_ms} is not within {least}..={most}; {reserved} {intervals:?}"
            );
        }
    }
}

#[tokio::test]
async fn what_is_older_than_patience_is_handed_over_once() {
    let sale = sale(5, 1).await;
    sale.watched_for_ever().await;
    let old = sale.aged(1, 61_000).await;
    let young = sale.aged(2, 30_000).await;
    let early = sale.aged(3, -10_000).await;
    let asked = [old.clone(), young, early, old.clone()];
    let answers = sale.hand_over(&asked).await;
    assert_eq!((answers[0], answers[3]), (Overdue::Opened, Overdue::Opened));
    let Overdue::Patient { for_ms } = answers[1] else {
        panic!("{answers:?}")
    };
    assert!((25_000..=30_000).contains(&for_ms), "{for_ms}");
    assert_eq!(answers[2], Overdue::Patient { for_ms: 60_000 });

    let one = std::slice::from_ref(&old);
    assert_eq!(sale.hand_over(one).await, [Overdue::AlreadyOpen]);
    let task = sale.claimed().await;
    assert_eq!((&task.request, task.generation), (&old, 1));
    assert!(sale.store.finish_task(&task, "nothing").await.unwrap());
    // Redis still holds it: it is handed over again.
    assert_eq!(sale.hand_over(one).await, [Overdue::Opened]);
    assert_eq!(sale.claimed().await.generation, 2);
}

#[tokio::test]
async fn a_decision_that_was_made_since_wins() {
    let sale = sale(1, 1).await;
    sale.watched_for_ever().await;
    let ordered = sale.aged(1, 3_600_000).await;
    let rejected = sale.aged(2, 3_600_000).await;
    assert!(fresh(&sale.decide(&ordered).await));
    assert!(matches!(
        sale.decide(&rejected).await,
        Decided::Rejected { .. }
    ));
    let answers = sale.hand_over(&[ordered, rejected]).await;
    assert_eq!(answers, [Overdue::Decided, Overdue::Decided]);
    // The rejected one's own task is the only one.
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 1);
}

/// Goal: a decision that is under way while its reservation is handed over wins at the fence.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_under_way_wins_at_the_fence() {
    let sale = sale(1, 1).await;
    sale.watched_for_ever().await;
    let asked = sale.aged(1, 3_600_000).await;
    let holder = sale.db.client().await;
    holder
        .batch_execute("BEGIN; SELECT FROM activity_stock FOR NO KEY UPDATE")
        .await
        .unwrap();
    let deciding = tokio::spawn({
        let (store, asked) = (sale.store.clone(), asked.clone());
        async move { store.decide(&[asked]).await }
    });
    sale.await_lock_waits(1).await;
    let answers = sale.hand_over(std::slice::from_ref(&asked)).await;
    assert_eq!(answers, [Overdue::Opened]);
    let task = sale.claimed().await;
    let fencing = tokio::spawn({
        let store = sale.store.clone();
        async move { store.fence(&task).await }
    });
    sale.await_lock_waits(2).await;
    holder.batch_execute("COMMIT").await.unwrap();
    assert!(fresh(&one(deciding.await.unwrap())));
    let fence = fencing.await.unwrap().unwrap();
    assert!(matches!(fence, Fence::Ordered { .. }), "{fence:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_hand_over_at_once_one_opens_the_task() {
    let sale = sale(5, 1).await;
    sale.watched_for_ever().await;
    let mut asked = Vec::new();
    for n in 0..100 {
        asked.push(sale.aged(n, 3_600_000).await);
    }
    let mut racing = Vec::new();
    for turn in 0..6 {
        let (store, mut asked) = (sale.store.clone(), asked.clone());
        racing.push(tokio::spawn(async move {
            asked.rotate_left(turn * 16);
            store.hand_over_overdue(&asked).await.unwrap()
        }));
    }
    let mut opened = 0;
    for race in racing {
        let answers = race.await.unwrap();
        opened += answers.iter().filter(|a| **a == Overdue::Opened).count();
        assert!(
            answers
                .iter()
                .all(|a| matches!(a, Overdue::Opened | Overdue::AlreadyOpen))
        );
    }
    assert_eq!(opened, 100);
    let reopened = sale
        .db
        .number("SELECT count(*) FROM compensation_task WHERE generation > 1");
    assert_eq!(reopened.await, 0);
}

#[tokio::test]
async fn without_an_activity_patience_is_fifteen_minutes() {
    let sale = sale(5, 1).await;
    sale.watched_for_ever().await;
    let now = sale.now_ms().await;
    let stray = |n, age_ms| {
        let mut stray = request(&scope(9), n);
        stray.reserved_at_ms = TimestampMs::new(now - age_ms);
        stray
    };
    let answers = sale
        .hand_over(&[stray(1, 14 * 60_000), stray(2, 16 * 60_000)])
        .await;
    assert!(matches!(answers[0], Overdue::Patient { .. }), "{answers:?}");
    assert_eq!(answers[1], Overdue::Opened);

    assert!(sale.hand_over(&[]).await.is_empty());
    let many = vec![stray(1, 0); 1_025];
    let error = sale.store.hand_over_overdue(&many).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// Goal: nothing is overdue before anybody has looked, however old it is.
#[tokio::test]
async fn before_the_first_sighting_of_health_patience_does_not_run() {
    let sale = sale(5, 1).await;
    let ancient = [sale.request(1)];
    let whole = [Overdue::Patient { for_ms: 60_000 }];
    assert_eq!(sale.hand_over(&ancient).await, whole);
    let standing = async || sale.store.standstill_now().await.unwrap();
    assert_eq!(standing().await.as_deref(), Some("unobserved"));
    sale.note(&ill("broker down")).await;
    assert_eq!(sale.hand_over(&ancient).await, whole);
    assert_eq!(standing().await.as_deref(), Some("broker down"));

    sale.note(&HEALTHY).await;
    assert_eq!(standing().await, None);
    let answers = sale.hand_over(&ancient).await;
    assert!(matches!(answers[0], Overdue::Patient { for_ms } if for_ms > 10_000));
    for _ in 0..2 {
        sale.elapse(31).await;
        sale.note(&HEALTHY).await;
    }
    assert_eq!(sale.hand_over(&ancient).await, [Overdue::Opened]);
}

/// Goal: what lies between two sightings of health counts, unless they are too far apart; then the
/// cause that somebody saw in between is on record.
#[tokio::test]
async fn an_outage_and_a_gap_in_watching_are_standstills() {
    let sale = sale(5, 1).await;
    sale.note(&HEALTHY).await;
    for _ in 0..3 {
        sale.elapse(50).await;
        sale.note(&HEALTHY).await;
    }
    assert!(sale.standstills().await.is_empty());

    sale.elapse(20).await;
    sale.note(&ill("no consumer")).await;
    sale.elapse(30).await;
    sale.note(&ill("broker down")).await;
    sale.elapse(40).await;
    sale.note(&HEALTHY).await;
    sale.elapse(100).await;
    let standing = sale.store.standstill_now().await.unwrap();
    assert_eq!(standing.as_deref(), Some("unobserved"));
    sale.note(&HEALTHY).await;
    let expected = [
        (90, "broker down".to_owned()),
        (100, "unobserved".to_owned()),
    ];
    assert_eq!(sale.standstills().await, expected);
}

/// Goal: a watcher that is cut off, or dies while it sees nothing, does not hold up the others.
#[tokio::test]
async fn one_watcher_that_sees_nothing_stops_nobody() {
    let sale = sale(5, 1).await;
    sale.note(&HEALTHY).await;
    for _ in 0..5 {
        sale.elapse(20).await;
        sale.note(&ill("broker down, says the one that is cut off"))
            .await;
        sale.elapse(5).await;
        sale.note(&HEALTHY).await;
    }
    assert!(sale.standstills().await.is_empty());
    // The last note of the one that dies is a bad one; the others are back after the gap.
    sale.note(&ill("broker down")).await;
    sale.elapse(70).await;
    let standing = sale.store.standstill_now().await.unwrap();
    assert_eq!(standing.as_deref(), Some("broker down"));
    sale.note(&HEALTHY).await;
    assert_eq!(sale.store.standstill_now().await.unwrap(), None);
    assert_eq!(sale.standstills().await, [(70, "broker down".to_owned())]);
}

/// Goal: sightings that stay too far apart make one row that grows, not one each.
#[tokio::test]
async fn standstills_that_touch_for_one_cause_are_one_row() {
    let sale = sale(5, 1).await;
    sale.note(&HEALTHY).await;
    for _ in 0..4 {
        sale.elapse(61).await;
        sale.note(&HEALTHY).await;
    }
    // The one before the first look is of the same cause and grew with it.
    assert!(sale.standstills().await.is_empty());
    assert_eq!(sale.db.number("SELECT count(*) FROM standstill").await, 1);
    sale.elapse(61).await;
    sale.note(&ill("broker down")).await;
    sale.note(&HEALTHY).await;
    for _ in 0..3 {
        sale.elapse(30).await;
        sale.note(&ill("broker down")).await;
        sale.elapse(40).await;
        sale.note(&HEALTHY).await;
    }
    assert_eq!(
        sale.standstills().await,
        [(61 + 3 * 70, "broker down".to_owned())]
    );
}

/// Goal: rows that no open reservation can be older than are deleted, others never.
#[tokio::test]
async fn standstills_before_every_open_sale_are_forgotten() {
    let sale = sale(5, 1).await;
    let old = "INSERT INTO standstill (began_at, ended_at, cause) VALUES
        ('2001-01-01', '2001-01-02', 'x'), (now() - interval '1 day', now() - interval '1 h', 'x')";
    let remembered = async || {
        sale.note(&HEALTHY).await;
        sale.elapse(90).await;
        sale.note(&HEALTHY).await;
        sale.db
            .number("SELECT count(*) FROM standstill WHERE cause = 'x'")
            .await
    };
    sale.db.execute(old).await;
    // The sale began in 2023.
    assert_eq!(remembered().await, 1);
    sale.db
        .execute("UPDATE activity SET archived_at = now()")
        .await;
    assert_eq!(remembered().await, 0);
}

/// Goal: replicas that note at once neither fail nor count a standstill twice.
#[tokio::test(flavor = "multi_thread")]
async fn many_watchers_at_once_record_a_standstill_once() {
    let db = database().await;
    let store = seckill_order_store::Store::connect(&crate::fixture::config(db.url())).unwrap();
    let sale = Fixture {
        db,
        store,
        scope: scope(1),
    };
    sale.db
        .execute(
            "INSERT INTO activity (activity_id, sku_id, version, starts_at, ends_at,
                retention_until, total_stock, bucket_count, reservation_ttl_ms, patience_ms,
                secret_version, updated_by)
            VALUES ('a', 's', 1, '2020-01-01', '2090-01-01', '2091-01-01', 1, 1, 1, 1, 1, 'test')",
        )
        .await;
    sale.note(&HEALTHY).await;
    for _ in 0..5 {
        sale.elapse(90).await;
        let mut watchers = Vec::new();
        for watcher in 0..8 {
            let store = sale.store.clone();
            watchers.push(tokio::spawn(async move {
                for turn in 0..6 {
                    let note = if (watcher + turn) % 3 == 0 {
                        ill("broker down")
                    } else {
                        HEALTHY
                    };
                    store.note_watch(&note).await.unwrap();
                }
            }));
        }
        for watcher in watchers {
            watcher.await.unwrap();
        }
        sale.note(&HEALTHY).await;
    }
    // Five gaps, and what lies before the first look: of the last day next to nothing counts.
    let standing = sale
        .db
        .number(
            "SELECT round(extract(epoch FROM sum(
                least(ended_at, now()) - greatest(began_at, now() - interval '1 day')
            )))::bigint
            FROM standstill",
        )
        .await;
    assert!((86_280..=86_400).contains(&standing), "{standing}");
    let overlaps = sale
        .db
        .number(
            "SELECT count(*) FROM standstill AS a, standstill AS b
            WHERE a.standstill_id < b.standstill_id
                AND tstzrange(a.began_at, a.ended_at) && tstzrange(b.began_at, b.ended_at)",
        )
        .await;
    assert_eq!(overlaps, 0);
}
