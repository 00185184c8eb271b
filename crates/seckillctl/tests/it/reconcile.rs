//! Differences: planned, mended once, reported with the sum of the version.

use std::collections::BTreeMap;

use seckill_order_store::{Discrepancy, NewRun, RunOutcome};
use seckill_settlement::{Class, Evidence, discrepancy};
use seckill_state_machine::ReserveCode;

use crate::world::{ACTIVITY, Ended, World, request, reserve};

async fn reconcile(world: &World, arguments: &[&str]) -> Ended {
    let json = ["--output", "json"];
    world
        .ctl(&[&["reconcile"], arguments, &json].concat())
        .await
}

fn outcomes(ended: &Ended) -> BTreeMap<String, u64> {
    serde_json::from_value(ended.json()["outcomes"].clone()).unwrap()
}

fn one(word: &str) -> BTreeMap<String, u64> {
    BTreeMap::from([(word.to_owned(), 1)])
}

async fn report(world: &World) -> (Option<i32>, serde_json::Value) {
    let about = ["report", "--activity-id", ACTIVITY, "--recheck-ms", "50"];
    let ended = reconcile(world, &about).await;
    (ended.code, ended.json()[0].clone())
}

/// Puts a difference on record, as a round of the reconciler does.
async fn record(world: &World, found: Discrepancy) {
    let new = NewRun {
        kind: "planted".to_owned(),
        instance: "test".to_owned(),
        scope: Some(world.scope()),
    };
    let run = world.store.start_run(&new).await.unwrap();
    world
        .store
        .record_discrepancies(run, &[found])
        .await
        .unwrap();
    let outcome = RunOutcome {
        checked: 1,
        discrepancies: 1,
        ..RunOutcome::default()
    };
    world.store.finish_run(run, &outcome).await.unwrap();
}

const BY: [&str; 4] = ["--actor", "op", "--reason", "after the failover"];

/// What a failover leaves that lost the whole purchase of buyer 0, and the difference that it makes.
async fn lose_the_purchase(world: &World) {
    let (keys, lost) = (world.keys(0), request(0));
    let reservation = keys.reservation(&lost.reservation_id);
    let marker = keys.user(&lost.user_id);
    let answer = keys.request(&lost.request_id);
    world.plant(&["DEL", &reservation, &marker, &answer]).await;
    world
        .plant(&["HSET", &keys.stock(), "available", "10", "reserved", "0"])
        .await;
    let evidence = Evidence {
        redis: "nothing".to_owned(),
        postgres: "ORDERED".to_owned(),
    };
    let id = Some(lost.reservation_id.clone());
    let found = discrepancy(Class::ReservationMissing, &lost.bucket, id, evidence);
    record(world, found).await;
}

#[tokio::test]
async fn a_lost_reservation_is_planned_mended_once_and_reported() {
    let world = World::on_sale(1).await;
    world.buy(0).await;
    assert_eq!(report(&world).await.0, Some(0));
    let empty = reconcile(&world, &["plan"]).await;
    assert_eq!(
        (empty.code, &empty.json()["differences"]),
        (Some(0), &serde_json::json!([]))
    );

    let (keys, lost) = (world.keys(0), request(0));
    let reservation = keys.reservation(&lost.reservation_id);
    lose_the_purchase(&world).await;
    let (code, broken) = report(&world).await;
    assert_eq!(code, Some(1));
    assert_eq!(broken["equation"]["holds"], false, "{broken}");
    assert_eq!(broken["equation"]["buckets"][0]["difference"], -1);
    let named = broken["equation"]["differences"].to_string();
    assert!(named.contains(lost.reservation_id.as_str()), "{named}");
    assert_eq!(broken["open_differences"]["reservation_missing"], 1);

    let plan = reconcile(&world, &["plan"]).await;
    assert_eq!(plan.code, Some(1));
    let planned = &plan.json()["differences"][0];
    assert_eq!(planned["class"], "reservation_missing");
    assert_eq!(
        (&planned["redis"], &planned["postgres"]),
        (&"nothing".into(), &"ORDERED".into())
    );
    assert!(
        planned["repair"]
            .as_str()
            .unwrap()
            .contains("rebuild_reservation")
    );

    let dump = world.server.dump().await;
    let dry = reconcile(
        &world,
        &[&["apply", "--all", "--dry-run"], &BY[..]].concat(),
    )
    .await;
    assert_eq!(outcomes(&dry), one("would_repair"));
    assert_eq!(world.server.dump().await, dump);
    let apply = [&["apply", "--class", "reservation_missing"], &BY[..]].concat();
    let applied = reconcile(&world, &apply).await;
    assert_eq!(
        (applied.code, outcomes(&applied)),
        (Some(0), one("repaired"))
    );
    let mended = world.server.dump().await;
    assert_eq!(mended.hash(&reservation)["status"], "ORDER_CREATED");
    let twice = reconcile(&world, &apply).await;
    assert_eq!(
        (twice.code, outcomes(&twice)),
        (Some(0), one("already_gone"))
    );
    assert_eq!(world.server.dump().await, mended);

    let (_, whole) = report(&world).await;
    assert_eq!(whole["equation"]["holds"], true, "{whole}");
    let actions = whole["actions"].as_array().unwrap();
    assert_eq!(actions.len(), 1, "{whole}");
    assert_eq!(actions[0]["actor"], "op");
    assert_eq!(actions[0]["outcome"], "repaired");
    assert_eq!(whole["last_runs"][0]["kind"], "planted");
}

#[tokio::test]
async fn what_needs_a_person_says_so_and_is_not_touched() {
    let world = World::on_sale(1).await;
    let open = world.reserve(0).await;
    let evidence = Evidence {
        redis: "ORDER_CREATED".to_owned(),
        postgres: "nothing".to_owned(),
    };
    let id = Some(open.reservation_id.clone());
    record(
        &world,
        discrepancy(Class::OrderedWithoutOrder, &open.bucket, id, evidence),
    )
    .await;
    let dump = world.server.dump().await;
    for extra in [&["--dry-run"][..], &[]] {
        let command = [&["apply", "--id", "1"], &BY[..], extra].concat();
        let ended = reconcile(&world, &command).await;
        assert_eq!(
            (ended.code, outcomes(&ended)),
            (Some(1), one("needs_person"))
        );
    }
    assert_eq!(world.server.dump().await, dump);
    assert_eq!(
        reserve(&world.redis, &open).await.code,
        ReserveCode::Accepted
    );

    // Whoever has set it right by hand says so, once.
    let close = [&["resolve", "--id", "1"], &BY[..]].concat();
    for _ in 0..2 {
        let closed = reconcile(&world, &close).await;
        assert_eq!(
            (closed.code, &closed.json()[0]["outcome"]),
            (Some(0), &"resolved".into())
        );
    }
    assert_eq!(reconcile(&world, &["plan"]).await.code, Some(0));
    let (_, told) = report(&world).await;
    assert_eq!(told["actions"].as_array().unwrap().len(), 1, "{told}");

    for (arguments, named) in [
        (&["apply", "--all"][..], "--actor"),
        (
            &["apply", "--actor", "op", "--reason", "x"],
            "--id is wrong",
        ),
        (&["plan", "--class", "nonsense"], "must be one of"),
    ] {
        let ended = reconcile(&world, arguments).await;
        ended.refused(64, &[named]);
    }
}
