//! Activities: creation, moves, versions.

use seckill_order_store::{Created, ErrorKind};
use seckill_state_machine::ActivityState::{Active, Closed, Paused, Prepared};
use seckill_state_machine::{ActivityState, Quantity, TimestampMs};

use crate::fixture::{ENDS, Fixture, RETENTION, STARTS, sale, scope, settings};

async fn open(sale: &Fixture, version: u64) -> Result<ActivityState, seckill_order_store::Error> {
    let moved = sale
        .store
        .set_activity_state(
            &scope(version),
            &[Prepared, Paused],
            Active,
            "op",
            "sale starts",
        )
        .await?;
    Ok(moved.state)
}

#[tokio::test]
async fn stock_is_split_over_the_buckets_and_the_journal_says_so() {
    let sale = sale(10, 3).await;
    let rows = sale.store.stock_rows(&sale.scope).await.unwrap();
    let totals: Vec<u64> = rows.iter().map(|row| row.total).collect();
    assert_eq!(totals, [4, 3, 3]);
    assert!(
        rows.iter()
            .all(|row| row.available == row.total && row.sold == 0)
    );
    sale.assert_conserved().await;
    let read = sale.store.activity(&sale.scope).await.unwrap().unwrap();
    assert_eq!(read.settings, settings(&sale.scope, 10, 3));
    assert_eq!(read.state, Prepared);
    assert_eq!(sale.store.activity(&scope(9)).await.unwrap(), None);
    assert!(!sale.store.has_decisions(&sale.scope).await.unwrap());
    sale.decide(&sale.request(1)).await;
    assert!(sale.store.has_decisions(&sale.scope).await.unwrap());
}

#[tokio::test]
async fn creating_the_same_again_is_a_success_and_another_is_a_conflict_that_names_it() {
    let sale = sale(10, 3).await;
    let same = settings(&sale.scope, 10, 3);
    assert_eq!(
        sale.store.create_activity(&same).await.unwrap(),
        Created::Already
    );
    let mut other = same.clone();
    other.total_stock = 11;
    other.max_quantity = Quantity::ONE;
    let error = sale.store.create_activity(&other).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(
        error.to_string(),
        "activity spring/phone/v1 exists with other settings: total_stock is 10, not 11, \
         max_quantity is 5, not 1"
    );
    assert_eq!(sale.store.stock_rows(&sale.scope).await.unwrap().len(), 3);
}

/// Goal: a deployment that creates its activities again and again goes on after an operator gave one
/// more time; a longer retention than the stored one is a contradiction still.
#[tokio::test]
async fn creating_the_same_again_is_a_success_after_its_retention_was_extended() {
    let sale = sale(10, 3).await;
    let until = TimestampMs::new(RETENTION + 1_000);
    let create = async |retention: i64| {
        let mut wanted = settings(&sale.scope, 10, 3);
        wanted.retention_until_ms = TimestampMs::new(retention);
        let created = sale.store.create_activity(&wanted).await;
        created.map_err(|error| error.kind())
    };
    assert_eq!(create(RETENTION - 1).await, Err(ErrorKind::Conflict));
    let extended = sale.store.extend_retention(&sale.scope, until, "ann", "x");
    extended.await.unwrap();
    assert_eq!(create(RETENTION).await, Ok(Created::Already));
    assert_eq!(create(RETENTION + 1_000).await, Ok(Created::Already));
    assert_eq!(create(RETENTION + 1_001).await, Err(ErrorKind::Conflict));
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused_by_name() {
    let sale = sale(1, 1).await;
    let good = settings(&scope(2), 1, 1);
    let refused = async |field: &str, change: fn(&mut seckill_state_machine::ActivitySettings)| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = sale.store.create_activity(&bad).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().starts_with(field), "{error}");
    };
    refused("limit_per_user", |s| s.limit_per_user = 2).await;
    refused("limit_per_user", |s| s.limit_per_user = 0).await;
    refused("ends_at_ms", |s| {
        s.ends_at_ms = TimestampMs::new(STARTS - 1)
    })
    .await;
    refused("retention_until_ms", |s| {
        s.retention_until_ms = TimestampMs::new(ENDS)
    })
    .await;
    refused("reservation_ttl_ms", |s| s.reservation_ttl_ms = 0).await;
    refused("reservation_ttl_ms", |s| s.reservation_ttl_ms = RETENTION).await;
    refused("patience_ms", |s| s.patience_ms = -1).await;
    refused("total_stock", |s| s.total_stock = u64::MAX).await;
    refused("retention_until_ms", |s| {
        s.retention_until_ms = TimestampMs::new(i64::MAX)
    })
    .await;
    assert_eq!(sale.store.activity(&scope(2)).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn creating_the_same_activity_at_once_makes_one() {
    let sale = sale(1, 1).await;
    let mut racing = Vec::new();
    for _ in 0..6 {
        let (store, wanted) = (sale.store.clone(), settings(&scope(5), 64, 16));
        racing.push(tokio::spawn(
            async move { store.create_activity(&wanted).await },
        ));
    }
    let mut new = 0;
    for race in racing {
        new += u32::from(race.await.unwrap().unwrap() == Created::New);
    }
    assert_eq!(new, 1);
    assert_eq!(sale.store.stock_rows(&scope(5)).await.unwrap().len(), 16);
}

#[tokio::test]
async fn moves_follow_the_table_and_are_recorded_with_their_actor() {
    let sale = sale(1, 1).await;
    assert_eq!(open(&sale, 1).await.unwrap(), Active);
    let wrong = open(&sale, 1).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Conflict);
    assert_eq!(
        wrong.to_string(),
        "activity spring/phone/v1 is ACTIVE, not PREPARED or PAUSED"
    );
    let set = async |from: &[ActivityState], to| {
        sale.store
            .set_activity_state(&sale.scope, from, to, "op", "why")
            .await
    };
    set(&[Active], Paused).await.unwrap();
    // Repeating a move whose answer was lost is a success, and no second move.
    set(&[Active, Paused], Paused).await.unwrap();
    set(&[Paused], Closed).await.unwrap();
    let late = set(&[Closed], Active).await.unwrap_err();
    assert_eq!(
        late.to_string(),
        "activity spring/phone/v1 is CLOSED and cannot become ACTIVE"
    );
    let unknown = sale
        .store
        .set_activity_state(&scope(4), &[Active], Paused, "op", "")
        .await;
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::NotFound);
    let nobody = sale
        .store
        .set_activity_state(&sale.scope, &[Closed], Paused, "", "")
        .await;
    assert_eq!(nobody.unwrap_err().kind(), ErrorKind::Invalid);

    let events = sale
        .db
        .texts("SELECT from_state, to_state, actor, reason FROM activity_event ORDER BY event_id")
        .await;
    assert_eq!(
        events,
        [
            ["", "PREPARED", "create_activity", ""],
            ["PREPARED", "ACTIVE", "op", "sale starts"],
            ["ACTIVE", "PAUSED", "op", "why"],
            ["PAUSED", "CLOSED", "op", "why"],
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_opened_one_at_a_time_also_when_two_operators_try_at_once() {
    let sale = sale(1, 1).await;
    for version in 2..8 {
        sale.store
            .create_activity(&settings(&scope(version), 1, 1))
            .await
            .unwrap();
    }
    open(&sale, 7).await.unwrap();
    let error = open(&sale, 6).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(
        error.to_string(),
        "activity spring/phone/v7 is ACTIVE; versions are opened one at a time, so close it \
         before opening spring/phone/v6"
    );
    let id = &sale.scope.activity_id;
    assert_eq!(
        sale.store
            .current(id)
            .await
            .unwrap()
            .unwrap()
            .settings
            .scope,
        scope(7)
    );
    sale.store
        .set_activity_state(&scope(7), &[Active], Closed, "op", "over")
        .await
        .unwrap();

    let mut racing = Vec::new();
    for version in 1..7 {
        let store = sale.store.clone();
        racing.push(tokio::spawn(async move {
            store
                .set_activity_state(&scope(version), &[Prepared], Active, "op", "race")
                .await
        }));
    }
    let mut opened = Vec::new();
    for race in racing {
        match race.await.unwrap() {
            Ok(activity) => opened.push(activity.settings.scope),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
        }
    }
    assert_eq!(opened.len(), 1);
    assert_eq!(
        sale.store
            .current(id)
            .await
            .unwrap()
            .unwrap()
            .settings
            .scope,
        opened[0]
    );
    assert_eq!(
        sale.store.latest(id).await.unwrap().unwrap().settings.scope,
        scope(7)
    );
    assert_eq!(sale.store.activities(Some(id)).await.unwrap().len(), 7);
    assert_eq!(
        sale.store.activities(None).await.unwrap()[0].settings.scope,
        scope(7)
    );
}

#[tokio::test]
async fn open_scopes_are_all_versions_whose_keys_still_live() {
    let sale = sale(1, 4).await;
    for version in 2..5 {
        sale.store
            .create_activity(&settings(&scope(version), 1, 1))
            .await
            .unwrap();
    }
    // OBX-07: a closed version still has work; an archived or expired one has none.
    open(&sale, 1).await.unwrap();
    sale.store
        .set_activity_state(&scope(1), &[Active], Closed, "op", "")
        .await
        .unwrap();
    open(&sale, 2).await.unwrap();
    sale.db
        .execute(
            "UPDATE activity SET archived_at = now() WHERE version = 3;
            UPDATE activity SET starts_at = '2020-01-01', ends_at = '2020-01-02',
                retention_until = '2020-01-03' WHERE version = 4",
        )
        .await;
    let open: Vec<_> = sale.store.open_scopes().await.unwrap();
    let scopes: Vec<_> = open
        .iter()
        .map(|activity| activity.settings.scope.clone())
        .collect();
    assert_eq!(scopes, [scope(1), scope(2)]);
    assert_eq!(open[0].settings.bucket_count.get(), 4);
    assert_eq!((open[0].state, open[1].state), (Closed, Active));
}
