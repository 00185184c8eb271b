//! The life of an activity, its refusals, and what a crash between two stores leaves.

use seckill_activity_control::Control;
use seckill_state_machine::ActivityVersion;
use serde_json::json;

use crate::world::{ACTIVITY, World, bare, run};

#[tokio::test]
async fn preheating_twice_writes_once_and_every_key_expires() {
    let world = World::start().await;
    world.create(10, 3).await.ok();
    let first = world.activity("preheat").await.ok();
    assert!(
        first.stdout.contains("3 metas and 3 stocks written"),
        "{first:?}"
    );
    let dump = world.server.dump().await;
    let second = world.activity("preheat").await.ok();
    assert!(
        second.stdout.contains("0 metas and 0 stocks written"),
        "{second:?}"
    );
    assert_eq!(world.server.dump().await, dump);
    assert_eq!(dump.keys_without_expiry(), [""; 0]);
    assert_eq!(dump.hash(&world.keys(0).stock())["initial"], "4");
    assert_eq!(dump.hash(&world.keys(2).stock())["initial"], "3");
}

#[tokio::test]
async fn preheat_reports_every_field_that_differs_and_writes_none_of_them() {
    let world = World::start().await;
    world.create(10, 2).await.ok();
    world.activity("preheat").await.ok();
    world
        .plant(&[
            "HSET",
            &world.keys(1).meta(),
            "max_quantity",
            "7",
            "ends_at_ms",
            "1",
        ])
        .await;
    world
        .plant(&["HSET", &world.keys(0).stock(), "available", "4"])
        .await;
    let dump = world.server.dump().await;
    let ended = world.activity("preheat").await;
    ended.refused(
        1,
        &[
            "bucket 0 available: PostgreSQL 5, Redis 4",
            "bucket 1 max_quantity: PostgreSQL 1, Redis 7",
            "bucket 1 ends_at_ms",
        ],
    );
    assert_eq!(world.server.dump().await, dump);
    world
        .activity("open")
        .await
        .refused(1, &["bucket 0 available"]);
}

#[tokio::test]
async fn a_crash_in_the_middle_of_preheating_is_finished_by_running_it_again() {
    let world = World::start().await;
    world.create(10, 2).await.ok();
    world.activity("preheat").await.ok();
    world
        .plant(&["DEL", &world.keys(1).stock(), &world.keys(1).meta()])
        .await;
    world
        .activity("open")
        .await
        .refused(1, &["preheat it first"]);
    world.activity("preheat").await.ok();
    world.activity("open").await.ok();
}

/// BIZ-12: sixty percent sold, preheat from two hosts at once, open again, then the stock key gone.
#[tokio::test]
async fn preheat_during_a_sale_changes_nothing_and_vanished_stock_names_the_rebuild() {
    let world = World::on_sale(1).await;
    for n in 0..6 {
        world.buy(n).await;
    }
    let dump = world.server.dump().await;
    let (one, other) = tokio::join!(world.activity("preheat"), world.activity("preheat"));
    one.refused(1, &["it is ACTIVE", "its stock is live"]);
    other.refused(1, &["its stock is live"]);
    world.activity("open").await.ok();
    assert_eq!(world.server.dump().await, dump);

    world.plant(&["DEL", &world.keys(0).stock()]).await;
    for step in ["preheat", "open", "resume"] {
        world.activity(step).await.refused(
            1,
            &[
                "stock of bucket 0 is missing",
                "seckillctl activity rebuild",
            ],
        );
    }
    assert!(
        world
            .server
            .dump()
            .await
            .get(&world.keys(0).stock())
            .is_none()
    );
    let orders = world
        .db
        .number("SELECT count(*) FROM orders WHERE state = 'ACTIVE'")
        .await;
    assert_eq!(orders, 6);
}

#[tokio::test]
async fn an_activity_opens_pauses_resumes_and_closes_on_both_sides() {
    let world = World::on_sale(2).await;
    for (step, state) in [
        ("pause", "PAUSED"),
        ("resume", "ACTIVE"),
        ("close", "CLOSED"),
    ] {
        let about = [
            "--activity-id",
            ACTIVITY,
            "--actor",
            "ann",
            "--reason",
            "a test",
        ];
        world
            .ctl(&[&["activity", step], about.as_slice()].concat())
            .await
            .ok();
        for bucket in 0..2 {
            let dump = world.server.dump().await;
            assert_eq!(dump.hash(&world.keys(bucket).meta())["state"], state);
        }
        assert_eq!(
            world.db.texts("SELECT state FROM activity").await,
            [[state]]
        );
    }
    let by = world
        .db
        .texts(
            "SELECT to_state, actor, reason FROM activity_event WHERE actor = 'ann' ORDER BY event_id",
        )
        .await;
    assert_eq!(
        by,
        [
            ["PAUSED", "ann", "a test"],
            ["ACTIVE", "ann", "a test"],
            ["CLOSED", "ann", "a test"]
        ]
    );
    for step in ["open", "resume", "pause"] {
        world.activity(step).await.refused(1, &["it is CLOSED"]);
    }
    world.activity("close").await.ok();
}

#[tokio::test]
async fn an_opening_that_a_crash_cut_short_is_finished_by_opening_again() {
    let world = World::on_sale(2).await;
    // As if the process had died after PostgreSQL and the first bucket.
    let pointer = format!("seckill:activity:{ACTIVITY}:current_version");
    world
        .plant(&["HSET", &world.keys(1).meta(), "state", "PREPARED"])
        .await;
    world.plant(&["DEL", &pointer]).await;
    let again = world.activity("open").await.ok();
    assert!(
        again.stdout.contains("1 buckets written, 1 had it"),
        "{again:?}"
    );
    let dump = world.server.dump().await;
    assert_eq!(dump.hash(&world.keys(1).meta())["state"], "ACTIVE");
    assert!(dump.get(&pointer).is_some());
    assert_eq!(dump.keys_without_expiry(), [""; 0]);
}

#[tokio::test]
async fn versions_are_opened_one_at_a_time_and_in_order() {
    let world = World::on_sale(1).await;
    world.create(5, 1).await.ok();
    world.version("preheat", "2").await.ok();
    world
        .version("open", "2")
        .await
        .refused(1, &["cannot open act/sku/v2: version 1 is ACTIVE"]);
    world.version("close", "1").await.ok();
    world.version("open", "2").await.ok();
    world.version("close", "2").await.ok();
    world.create(5, 1).await.ok();
    let shown = world
        .ctl(&[
            "activity",
            "show",
            "--activity-id",
            ACTIVITY,
            "--output",
            "json",
        ])
        .await;
    let shown = shown.ok().json();
    let states: Vec<_> = shown
        .as_array()
        .unwrap()
        .iter()
        .map(|view| {
            (
                view["activity"]["version"].clone(),
                view["activity"]["state"].clone(),
            )
        })
        .collect();
    let expected = [
        (json!(3), json!("PREPARED")),
        (json!(2), json!("CLOSED")),
        (json!(1), json!("CLOSED")),
    ];
    assert_eq!(states, expected);
    assert_eq!(shown[0]["current_version"], 2);
}

#[tokio::test]
async fn creating_checks_every_setting_at_once() {
    let world = World::start().await;
    let ended = world
        .ctl(&[
            "activity",
            "create",
            "--activity-id",
            "a",
            "--sku-id",
            "s",
            "--stock",
            "1",
            "--buckets",
            "2",
            "--limit-per-user",
            "3",
            "--patience-ms",
            "0",
        ])
        .await;
    ended.refused(
        64,
        &[
            "bucket_count",
            "limit_per_user must be 1",
            "patience_ms must be 1",
        ],
    );
    assert_eq!(world.db.number("SELECT count(*) FROM activity").await, 0);
}

/// FUZZ-03. Goal: an id that would move keys to another slot, or into another activity, is refused by every
/// command, by the name of its flag, before any store is asked. Method: no store's address leads anywhere.
#[tokio::test]
async fn hostile_ids_are_refused_by_every_command() {
    let nowhere = [
        ("SECKILL_REDIS_URL", "redis://127.0.0.1:1"),
        ("SECKILL_DATABASE_URL", "postgres://u:p@127.0.0.1:1/d"),
        ("SECKILL_ROCKETMQ_NAMESRV", "127.0.0.1:1"),
        (
            "SECKILL_HMAC_SECRETS",
            "1:QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=",
        ),
    ];
    let who = ["--actor", "tester", "--reason", "hostile"];
    for id in [
        "{}",
        "}",
        "x}{y",
        "a}:stock",
        "{a:A:s:S:v:7:b:0}",
        "a|b",
        "a:b",
        "",
    ] {
        let flag = format!("--activity-id={id}");
        let sku = format!("--sku-id={id}");
        for arguments in [
            vec!["activity", "create", "--stock=1", "--activity-id=a", &sku],
            vec!["activity", "create", "--stock=1", "--sku-id=s", &flag],
            vec!["activity", "preheat", &flag],
            vec!["activity", "open", &flag],
            vec!["activity", "rebuild", &flag, who[0], who[1], who[2], who[3]],
            vec!["audit", &flag],
        ] {
            let mut command = bare();
            command.envs(nowhere).args(&arguments);
            let ended = run(command).await;
            let named = if arguments.contains(&sku.as_str()) {
                "--sku-id"
            } else {
                "--activity-id"
            };
            ended.refused(64, &[named]);
        }
    }
}

#[tokio::test]
async fn a_reservation_is_shown_on_both_sides_without_its_user() {
    let world = World::on_sale(1).await;
    let id = world.buy(1).await;
    for name in [
        vec!["--reservation-id", id.as_str()],
        vec!["--user-id", "user-1"],
        vec!["--user-id", "user-1", "--request-id", "request-1"],
    ] {
        let about = [
            "reservation",
            "show",
            "--activity-id",
            ACTIVITY,
            "--output",
            "json",
        ];
        let shown = world.ctl(&[about.as_slice(), &name].concat()).await.ok();
        assert!(!shown.stdout.contains("user-1"), "{shown:?}");
        let json = shown.json();
        assert_eq!(json["redis"]["status"], "ORDER_CREATED");
        assert_eq!(json["postgres"]["order_id"], json["redis"]["order_id"]);
    }
    let nobody = [
        "reservation",
        "show",
        "--activity-id",
        ACTIVITY,
        "--user-id",
        "nobody",
    ];
    assert_eq!(world.ctl(&nobody).await.code, Some(1));
}

#[tokio::test]
async fn a_pointer_that_is_written_late_does_not_stay_behind_a_newer_version() {
    let world = World::on_sale(1).await;
    world.create(5, 1).await.ok();
    world.version("preheat", "2").await.ok();
    world.version("close", "1").await.ok();
    world.version("open", "2").await.ok();
    // What a process leaves that stood still between its last look and its write of version 1.
    let pointer = format!("seckill:activity:{ACTIVITY}:current_version");
    world.plant(&["SET", &pointer, "1", "EX", "99999"]).await;
    let control = Control::new(world.store.clone(), world.redis.clone());
    let scope = world.scope();
    let pointed = control.point(&scope.activity_id).await.unwrap();
    assert_eq!(pointed.map(ActivityVersion::get), Some(2));
    let now = world.redis.current_version(&scope.activity_id).await;
    assert_eq!(now.unwrap(), pointed);
    world.version("close", "2").await.ok();
    assert_eq!(control.point(&scope.activity_id).await.unwrap(), None);
}

#[tokio::test]
async fn without_a_version_named_the_one_on_sale_is_taken_off() {
    let world = World::on_sale(1).await;
    world.create(5, 1).await.ok();
    for (step, state) in [
        ("pause", "PAUSED"),
        ("resume", "ACTIVE"),
        ("close", "CLOSED"),
    ] {
        world.activity(step).await.ok();
        let states = world
            .db
            .texts("SELECT state FROM activity ORDER BY version")
            .await;
        assert_eq!(states, [[state], ["PREPARED"]]);
    }
    world.create(5, 1).await.ok();
    world
        .activity("close")
        .await
        .refused(64, &["--activity-version", "2, 3"]);
}

#[tokio::test]
async fn several_skus_are_sold_under_one_version() {
    let world = World::start().await;
    world.create(10, 1).await.ok();
    let about = ["--activity-id", ACTIVITY, "--sku-id", "other"];
    let stock = ["--stock", "5"];
    world
        .ctl(&[&["activity", "create"], about.as_slice(), &stock].concat())
        .await
        .ok();
    for sku in ["sku", "other"] {
        let about = ["--activity-id", ACTIVITY, "--sku-id", sku];
        for step in ["preheat", "open"] {
            world
                .ctl(&[&["activity", step], about.as_slice()].concat())
                .await
                .ok();
        }
    }
    world.activity("close").await.refused(64, &["--sku-id"]);
}
