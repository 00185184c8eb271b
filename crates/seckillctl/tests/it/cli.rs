//! Settings, exit codes and help.

use crate::world::{World, bare, run};

async fn help(command: &[&str]) -> String {
    let mut process = bare();
    process.args(command).arg("--help");
    run(process).await.ok().stdout
}

#[tokio::test]
async fn help_of_every_command_is_known() {
    let commands: [&[&str]; 27] = [
        &[],
        &["migrate"],
        &["activity"],
        &["activity", "create"],
        &["activity", "preheat"],
        &["activity", "open"],
        &["activity", "pause"],
        &["activity", "resume"],
        &["activity", "close"],
        &["activity", "show"],
        &["activity", "rebuild"],
        &["reservation", "show"],
        &["order", "cancel"],
        &["audit"],
        &["doctor"],
        &["reconcile"],
        &["reconcile", "plan"],
        &["reconcile", "apply"],
        &["reconcile", "resolve"],
        &["reconcile", "report"],
        &["dlq"],
        &["dlq", "list"],
        &["dlq", "show"],
        &["dlq", "replay"],
        &["dlq", "discard"],
        &["sale"],
        &["sale", "run"],
    ];
    for command in commands {
        let name = std::iter::once(&"help")
            .chain(command)
            .copied()
            .collect::<Vec<_>>()
            .join("-");
        insta::assert_snapshot!(name, help(command).await);
    }
}

#[tokio::test]
async fn a_wrong_or_missing_setting_is_named_and_ends_with_64() {
    let mut missing = bare();
    missing.args(["activity", "show", "--activity-id", "a"]);
    run(missing).await.refused(
        64,
        &["--redis-url (SECKILL_REDIS_URL)", "SECKILL_DATABASE_URL"],
    );

    let mut wrong = bare();
    wrong
        .env("SECKILL_REDIS_URL", "hunter2@somewhere")
        .env("SECKILL_DATABASE_URL", "postgres://h/d")
        .args(["activity", "show", "--activity-id", "a"]);
    let ended = run(wrong).await;
    ended.refused(64, &["--redis-url (SECKILL_REDIS_URL) is wrong"]);
    assert!(!ended.stderr.contains("hunter2"), "{ended:?}");

    let mut unknown = bare();
    unknown.args(["activity", "explode"]);
    run(unknown).await.refused(64, &["explode"]);

    let mut id = bare();
    id.args(["activity", "show", "--activity-id", "a}b"]);
    run(id).await.refused(64, &["--activity-id is wrong"]);
}

#[tokio::test]
async fn a_sale_with_settings_that_do_not_fit_ends_with_64() {
    let world = World::start().await;
    let base = ["sale", "run", "--front-addr", "127.0.0.1:1", "--stock", "5"];
    let too_late = [
        &base[..],
        &["--kill-front-after", "5", "--run-dir", "/nowhere"],
    ]
    .concat();
    world
        .ctl(&too_late)
        .await
        .refused(64, &["--kill-front-after is wrong: must be 1 to 4"]);
    let nowhere = [&base[..], &["--kill-front-after", "2"]].concat();
    world
        .ctl(&nowhere)
        .await
        .refused(64, &["--run-dir (SECKILL_RUN_DIR)"]);
}

#[tokio::test]
async fn a_dependency_that_stays_away_ends_with_69_in_time() {
    let world = World::start().await;
    let show = [
        "activity",
        "show",
        "--activity-id",
        "a",
        "--connect-limit-ms",
        "600",
    ];
    let mut without_redis = world.command(&show);
    without_redis.env("SECKILL_REDIS_URL", "redis://127.0.0.1:1");
    run(without_redis)
        .await
        .refused(69, &["Redis could not be reached", "SECKILL_REDIS_URL"]);

    let mut without_postgres = world.command(&show);
    without_postgres.env("SECKILL_DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/d");
    let ended = run(without_postgres).await;
    ended.refused(
        69,
        &["PostgreSQL could not be reached", "SECKILL_DATABASE_URL"],
    );
    assert!(!ended.stderr.contains("hunter2"), "{ended:?}");

    let migrate = ["migrate", "--connect-limit-ms", "600"];
    world
        .ctl(&migrate)
        .await
        .refused(69, &["RocketMQ could not be reached"]);

    let sale = [
        "sale",
        "run",
        "--front-addr",
        "127.0.0.1:1",
        "--connect-limit-ms",
        "600",
    ];
    world.ctl(&sale).await.refused(
        69,
        &["the front could not be reached", "SECKILL_FRONT_ADDR"],
    );
}

#[tokio::test]
async fn a_schema_that_is_not_there_is_told_and_not_waited_for() {
    let world = World::start().await;
    world.db.execute("DROP TABLE refinery_schema_history").await;
    let started = std::time::Instant::now();
    world
        .ctl(&["activity", "show", "--activity-id", "a"])
        .await
        .refused(1, &["schema"]);
    assert!(started.elapsed() < std::time::Duration::from_secs(8));
}

#[tokio::test]
async fn an_unknown_activity_ends_with_1() {
    let world = World::start().await;
    world
        .activity("show")
        .await
        .refused(1, &["there is no such activity: act"]);
    world
        .audit()
        .await
        .refused(1, &["there is no such activity"]);
}
