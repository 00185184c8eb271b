//! The audit finds what was planted, by its reservation, and nothing else.

use seckill_order_store::{NewTask, TaskOrigin};
use seckill_test_support::Value;

use crate::world::{ACTIVITY, World, reservation_id};

/// What an audit found: kinds with the reservation they name.
async fn found(world: &World) -> Vec<(String, Option<String>)> {
    let ended = world.audit().await;
    let json = ended.json();
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let found: Vec<_> = json[0]["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (text(&one["kind"]).unwrap(), text(&one["reservation_id"])))
        .collect();
    let code = i32::from(!found.is_empty());
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert_eq!(json[0]["ok"], found.is_empty());
    assert!(!ended.stdout.contains("user-"), "a raw user id: {ended:?}");
    found
}

fn named(kind: &str, n: u8) -> (String, Option<String>) {
    (kind.to_owned(), Some(reservation_id(n).to_string()))
}

fn bucket(kind: &str) -> (String, Option<String>) {
    (kind.to_owned(), None)
}

/// Three orders, one reservation still open.
async fn busy() -> World {
    let world = World::on_sale(1).await;
    for n in 0..3 {
        world.buy(n).await;
    }
    world.reserve(3).await;
    world
}

#[tokio::test]
async fn a_sound_sale_has_no_differences_and_its_sums_hold() {
    let world = busy().await;
    assert_eq!(found(&world).await, []);
    let json = world.audit().await.json();
    let sums = &json[0]["buckets"][0];
    assert_eq!(
        sums["redis"],
        serde_json::json!({"initial": 10, "available": 6, "open": 1, "ordered": 3})
    );
    assert_eq!(
        sums["postgres"],
        serde_json::json!({"total": 10, "available": 7, "ordered": 3, "orders": 3})
    );
    assert_eq!(json[0]["settled"], false);
    assert_eq!(json[0]["on_its_way"]["send_pending"], 1);
}

#[tokio::test]
async fn an_order_that_redis_does_not_know_is_named() {
    let world = busy().await;
    let request = world.request(9);
    world.order(&request).await;
    assert_eq!(found(&world).await, [named("ORDER_WITHOUT_RESERVATION", 9)]);
}

#[tokio::test]
async fn an_order_without_a_decision_is_counted() {
    let world = busy().await;
    world
        .db
        .execute(
            "DELETE FROM reservation_decision WHERE reservation_id = 'aaaaaaaaaaaaaaaaaaaaaaaaaa'",
        )
        .await;
    let expected = [
        bucket("ORDER_WITHOUT_DECISION"),
        named("RESERVATION_WITHOUT_ORDER", 0),
    ];
    let mut found = found(&world).await;
    found.sort();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_reservation_whose_order_is_missing_is_named() {
    let world = busy().await;
    let hash = world.keys(0).reservation(&reservation_id(3));
    world
        .plant(&["HSET", &hash, "status", "ORDER_CREATED"])
        .await;
    assert_eq!(found(&world).await, [named("RESERVATION_WITHOUT_ORDER", 3)]);
}

#[tokio::test]
async fn a_double_release_is_found_although_the_sum_holds() {
    let world = busy().await;
    let stock = world.keys(0).stock();
    world.plant(&["HINCRBY", &stock, "available", "1"]).await;
    world.plant(&["HINCRBY", &stock, "reserved", "-1"]).await;
    world
        .plant(&["HINCRBY", &stock, "released_total", "1"])
        .await;
    let expected = [
        bucket("HOLDERS_MISMATCH"),
        bucket("RELEASED_TOTAL_MISMATCH"),
    ];
    assert_eq!(found(&world).await, expected);
}

#[tokio::test]
async fn a_release_that_nobody_decided_is_named() {
    let world = busy().await;
    let (keys, id) = (world.keys(0), reservation_id(3));
    world
        .plant(&["HSET", &keys.reservation(&id), "status", "RELEASED"])
        .await;
    world
        .plant(&["HINCRBY", &keys.stock(), "available", "1"])
        .await;
    world
        .plant(&["HINCRBY", &keys.stock(), "reserved", "-1"])
        .await;
    world
        .plant(&["HINCRBY", &keys.stock(), "released_total", "1"])
        .await;
    world
        .plant(&["DEL", &keys.user(&world.request(3).user_id)])
        .await;
    assert_eq!(found(&world).await, [named("RELEASED_WITHOUT_DECISION", 3)]);
}

#[tokio::test]
async fn markers_are_checked_in_both_directions() {
    let world = busy().await;
    let keys = world.keys(0);
    let ttl = "9999999";
    let nobody = reservation_id(25);
    world
        .plant(&[
            "SET",
            &keys.user(&world.request(20).user_id),
            nobody.as_str(),
            "EX",
            ttl,
        ])
        .await;
    world
        .plant(&["DEL", &keys.user(&world.request(1).user_id)])
        .await;
    let expected = [named("STRAY_MARKER", 25), named("MISSING_MARKER", 1)];
    assert_eq!(found(&world).await, expected);
}

#[tokio::test]
async fn a_key_without_expiry_is_named() {
    let world = busy().await;
    let keys = world.keys(0);
    let hash = keys.reservation(&reservation_id(2));
    assert_eq!(world.plant(&["PERSIST", &hash]).await, Value::Int(1));
    assert_eq!(
        world.plant(&["PERSIST", &keys.stock()]).await,
        Value::Int(1)
    );
    assert_eq!(
        world
            .plant(&["PERSIST", &keys.user(&world.request(0).user_id)])
            .await,
        Value::Int(1)
    );
    let mut found = found(&world).await;
    found.sort();
    assert_eq!(
        found,
        [
            bucket("NO_EXPIRY"),
            bucket("NO_EXPIRY"),
            named("NO_EXPIRY", 2)
        ]
    );
}

#[tokio::test]
async fn a_forgotten_reservation_and_a_stray_member_are_named() {
    let world = busy().await;
    let keys = world.keys(0);
    world
        .plant(&[
            "ZREM",
            &keys.reservation_expiry(),
            reservation_id(3).as_str(),
        ])
        .await;
    world
        .plant(&[
            "ZADD",
            &keys.send_pending(),
            "1",
            reservation_id(24).as_str(),
        ])
        .await;
    let expected = [named("STRAY_MEMBER", 24), named("NOT_INDEXED", 3)];
    assert_eq!(found(&world).await, expected);
}

#[tokio::test]
async fn damage_is_a_finding_and_does_not_end_the_audit() {
    let world = busy().await;
    let keys = world.keys(0);
    let hash = keys.reservation(&reservation_id(0));
    world.plant(&["HSET", &hash, "quantity", "1e3"]).await;
    let stray = format!("{}x", keys.meta());
    let user = format!("{} 1", keys.user(&world.request(1).user_id));
    world.plant(&["SET", &user, "1", "EX", "99999"]).await;
    world.plant(&["SET", &stray, "1", "EX", "99999"]).await;
    let found = found(&world).await;
    let unreadable = found
        .iter()
        .filter(|(kind, _)| kind == "UNREADABLE")
        .count();
    assert_eq!(unreadable, 3, "{found:?}");
    // What cannot be read holds nothing, so that its unit and its order show up as well.
    assert!(
        found.contains(&named("ORDER_WITHOUT_RESERVATION", 0)),
        "{found:?}"
    );
    assert!(found.contains(&bucket("HOLDERS_MISMATCH")), "{found:?}");
}

#[tokio::test]
async fn a_version_that_lost_its_bucket_is_told_apart_from_one_never_preheated() {
    let world = World::start().await;
    world.create(10, 1).await.ok();
    assert_eq!(found(&world).await, []);
    world.activity("preheat").await.ok();
    world.activity("open").await.ok();
    world.plant(&["FLUSHALL"]).await;
    let expected = [bucket("STATE_MISSING"), bucket("POINTER_MISMATCH")];
    assert_eq!(found(&world).await, expected);
}

#[tokio::test]
async fn an_open_task_is_on_its_way_and_no_difference() {
    let world = busy().await;
    let request = world.request(3);
    let due_in = std::time::Duration::from_secs(3_600);
    let task = NewTask {
        request,
        origin: TaskOrigin::Overdue,
        due_in,
    };
    world.store.open_task(&task).await.unwrap();
    let json = world.audit().await.ok().json();
    assert_eq!(json[0]["on_its_way"]["tasks"], 1);
    let strict = [
        "audit",
        "--activity-id",
        crate::world::ACTIVITY,
        "--require-settled",
    ];
    // The broker is away: whether it is settled cannot be said.
    assert_eq!(world.ctl(&strict).await.code, Some(69));
}

#[tokio::test]
async fn a_sale_that_postgresql_has_closed_and_redis_has_not_is_found() {
    let world = busy().await;
    world
        .db
        .execute("UPDATE activity SET state = 'CLOSED'")
        .await;
    assert_eq!(found(&world).await, [bucket("META_MISMATCH")]);
    world.activity("close").await.ok();
    assert_eq!(found(&world).await, []);
}

#[tokio::test]
async fn settings_that_redis_sells_by_must_be_those_of_postgresql() {
    let world = busy().await;
    let meta = world.keys(0).meta();
    world.plant(&["HSET", &meta, "max_quantity", "7"]).await;
    assert_eq!(found(&world).await, [bucket("META_MISMATCH")]);
}

#[tokio::test]
async fn the_pointer_must_name_the_version_on_sale() {
    let world = busy().await;
    let pointer = format!("seckill:activity:{ACTIVITY}:current_version");
    world.plant(&["SET", &pointer, "7", "EX", "99999"]).await;
    assert_eq!(found(&world).await, [bucket("POINTER_MISMATCH")]);
    world.plant(&["DEL", &pointer]).await;
    assert_eq!(found(&world).await, [bucket("POINTER_MISMATCH")]);
    world.activity("open").await.ok();
    assert_eq!(found(&world).await, []);
}
