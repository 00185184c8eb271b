//! What the reserve script refuses because something is damaged, missing, too long or in recovery.

use seckill_lua_scripts::{ReplyStatus, ReserveReply};
use seckill_state_machine::{CompensateCode, ReservationStatus as S, ReserveCode};
use seckill_test_support::Value;

use crate::world::{TTL_MS, World, derived, request, user};

fn detail(code: ReserveCode, detail: &str) -> ReserveReply {
    ReserveReply {
        code,
        reservation_id: None,
        remaining: 0,
        status: ReplyStatus::Detail(detail.to_owned()),
        replay: false,
    }
}

/// Asks a new buyer and checks that nothing at all was written.
async fn expect_untouched(world: &World, request_id: &str, expected: &ReserveReply) {
    let before = world.server.dump().await;
    assert_eq!(&world.reserve("u1", request_id).await, expected);
    assert_eq!(world.server.dump().await, before);
}

#[tokio::test]
async fn missing_or_foreign_meta_is_an_operators_matter() {
    let world = World::empty().await;
    let missing = detail(ReserveCode::ConfigMissing, "CONFIG_MISSING");
    expect_untouched(&world, "q1", &missing).await;
    world.preheat(5).await;
    for field in ["activity_id", "sku_id", "bucket_id"] {
        let key = world.keys.meta();
        let original = world.dump().await.hash(&key)[field].clone();
        world.cli(&["HSET", &key, field, "other"]).await;
        let mismatch = detail(ReserveCode::InvariantViolation, "META_SCOPE_MISMATCH");
        expect_untouched(&world, "q1", &mismatch).await;
        world.cli(&["HDEL", &key, field]).await;
        expect_untouched(&world, "q1", &mismatch).await;
        world.cli(&["HSET", &key, field, &original]).await;
    }
}

/// LUA-04 a, c and d.
#[tokio::test]
async fn unusable_times_stop_the_sale_before_anything_is_written() {
    for stock in [5, 0] {
        let world = World::open(stock).await;
        let key = world.keys.meta();
        let original = world.dump().await.hash(&key);
        let now = world.redis.server_time(&world.keys).await.unwrap().get();
        let past = (now - 1).to_string();
        let bad = [
            "nan",
            "inf",
            "9e18",
            "1e19",
            "1700000000000.5",
            "",
            "-1",
            "0x10",
            "007",
            " 1",
        ];
        let invalid = detail(ReserveCode::InvariantViolation, "INVALID_META_TIME");
        for value in bad
            .into_iter()
            .chain(["1000000000000000", past.as_str(), "0"])
        {
            world
                .cli(&["HSET", &key, "retention_until_ms", value])
                .await;
            expect_untouched(&world, "q1", &invalid).await;
        }
        world
            .cli(&[
                "HSET",
                &key,
                "retention_until_ms",
                &original["retention_until_ms"],
            ])
            .await;
        for field in ["starts_at_ms", "ends_at_ms"] {
            for value in bad {
                world.cli(&["HSET", &key, field, value]).await;
                expect_untouched(&world, "q1", &invalid).await;
            }
            world.cli(&["HDEL", &key, field]).await;
            expect_untouched(&world, "q1", &invalid).await;
            world.cli(&["HSET", &key, field, &original[field]]).await;
        }
        world.cli(&["HSET", &key, "ends_at_ms", "1"]).await;
        expect_untouched(&world, "q1", &invalid).await;
    }
}

/// LUA-04 b: the retention passes while buyers ask. Whoever is accepted has a live reservation.
#[tokio::test]
async fn nobody_is_accepted_into_keys_that_vanish() {
    /// More than the fastest machine can make before the retention passes.
    const ATTEMPTS_MAX: u64 = 100_000;
    let world = World::open(ATTEMPTS_MAX).await;
    let now = world.redis.server_time(&world.keys).await.unwrap().get();
    let retention = (now + 200).to_string();
    world
        .cli(&["HSET", &world.keys.meta(), "retention_until_ms", &retention])
        .await;
    for attempt in 0..ATTEMPTS_MAX {
        let (buyer, request_id) = (format!("u{attempt}"), format!("q{attempt}"));
        let id = derived(&buyer, &request_id);
        let reply = world
            .try_reserve_as(&buyer, &request_id, &id, |call| {
                call.reservation_ttl_ms = 30
            })
            .await
            .unwrap();
        match reply.code {
            ReserveCode::Accepted => {
                assert!(
                    world
                        .redis
                        .reservation(&world.keys, &id)
                        .await
                        .unwrap()
                        .is_some()
                );
            }
            ReserveCode::BadArgument => {
                assert_eq!(
                    reply,
                    detail(ReserveCode::BadArgument, "RESERVATION_TTL_TOO_LONG")
                );
            }
            ReserveCode::InvariantViolation => {
                assert_eq!(
                    reply,
                    detail(ReserveCode::InvariantViolation, "INVALID_META_TIME")
                );
                return;
            }
            other => panic!("{other}"),
        }
    }
    panic!("the retention never passed");
}

#[tokio::test]
async fn a_reservation_never_outlives_the_retention() {
    let world = World::open(5).await;
    world
        .cli(&[
            "HSET",
            &world.keys.meta(),
            "ends_at_ms",
            &world.times.retention.to_string(),
        ])
        .await;
    let last = world.times.retention - TTL_MS;
    let before = world.dump().await;
    let reply = world.reserve_at("u1", "q1", last).await;
    assert_eq!(
        reply,
        detail(ReserveCode::BadArgument, "RESERVATION_TTL_TOO_LONG")
    );
    assert_eq!(world.dump().await, before);
    assert_eq!(
        world.reserve_at("u1", "q1", last - 1).await.code,
        ReserveCode::Accepted
    );
}

#[tokio::test]
async fn missing_or_broken_stock_is_never_remembered() {
    let world = World::open(5).await;
    let key = world.keys.stock();
    let original = world.dump().await.hash(&key);
    for field in ["initial", "available", "reserved"] {
        world.cli(&["HDEL", &key, field]).await;
        let missing = detail(ReserveCode::ConfigMissing, "STOCK_CONFIG_MISSING");
        expect_untouched(&world, "q1", &missing).await;
        for value in ["", "-1", "1.5", "1e3", "x", "05", "1000000000000000", "99"] {
            world.cli(&["HSET", &key, field, value]).await;
            let broken = detail(ReserveCode::InvariantViolation, "STOCK_INVARIANT_VIOLATION");
            expect_untouched(&world, "q1", &broken).await;
        }
        world.cli(&["HSET", &key, field, &original[field]]).await;
    }
    assert_eq!(world.reserve("u1", "q1").await.code, ReserveCode::Accepted);
}

/// LUA-10, the request cache.
#[tokio::test]
async fn a_damaged_remembered_answer_is_never_an_acceptance() {
    let world = World::open(5).await;
    let huge = "x".repeat(1 << 20);
    let shard = world.keys.request(&request("q1"));
    for junk in [
        "abc|x|y|z|u1|1",
        "",
        "0|x|9|QUEUED",
        "0|x|9|QUEUED|u1|1|7",
        "0|x|1e3|QUEUED|u1|1",
        "0||9|QUEUED|u1|1",
        "0|x|9||u1|1",
        "0|x|09|QUEUED|u1|1",
        "0|x|9|QUEUED||1",
        "0|x|9|QUEUED|u1|0",
        "10||9||u1|1",
        "15|x|9||u1|1",
        "16||9||u1|1",
        "99||9||u1|1",
        huge.as_str(),
    ] {
        world.cli(&["HSET", &shard, "q1", junk]).await;
        let corrupt = detail(ReserveCode::InvariantViolation, "CORRUPTED_REQUEST_RESULT");
        expect_untouched(&world, "q1", &corrupt).await;
        assert!(
            world
                .redis
                .cached_request(&world.keys, &request("q1"))
                .await
                .is_err()
        );
    }
    assert_eq!(world.reserve("u2", "q2").await.code, ReserveCode::Accepted);
}

/// LUA-10, the reservation.
#[tokio::test]
async fn a_damaged_reservation_is_never_an_acceptance() {
    let world = World::open(5).await;
    world.reserve("u1", "q1").await;
    let key = world.keys.reservation(&derived("u1", "q1"));
    let original = world.dump().await.hash(&key);
    let corrupt = detail(ReserveCode::InvariantViolation, "CORRUPTED_RESERVATION");
    for remembered in [true, false] {
        if !remembered {
            world
                .cli(&["HDEL", &world.keys.request(&request("q1")), "q1"])
                .await;
        }
        for field in [
            "reservation_id",
            "request_id",
            "user_id",
            "quantity",
            "status",
        ] {
            world.cli(&["HDEL", &key, field]).await;
            expect_untouched(&world, "q1", &corrupt).await;
            world.cli(&["HSET", &key, field, &original[field]]).await;
        }
        world.cli(&["HSET", &key, "status", "PAID"]).await;
        expect_untouched(&world, "q1", &corrupt).await;
        world.cli(&["HSET", &key, "status", "RESERVED"]).await;
    }
    assert!(world.reserve("u1", "q1").await.replay);
    world.cli(&["DEL", &key]).await;
    let missing = detail(ReserveCode::InvariantViolation, "RESERVATION_MISSING");
    expect_untouched(&world, "q1", &missing).await;
}

#[tokio::test]
async fn a_damaged_marker_is_not_repeated_to_anybody() {
    let world = World::open(5).await;
    let marker = world.keys.user(&user("u1"));
    let retention = world.times.retention.to_string();
    for junk in ["", "a|b", "{x}", &"x".repeat(129)] {
        world.cli(&["SET", &marker, junk, "PXAT", &retention]).await;
        let corrupt = detail(ReserveCode::InvariantViolation, "CORRUPTED_USER_MARKER");
        expect_untouched(&world, "q1", &corrupt).await;
    }
}

/// BIZ-03: the repeat of a reservation that died shows where it ended; a new request can buy.
#[tokio::test]
async fn a_repeat_shows_the_live_state_and_not_the_first_one() {
    let world = World::open(1).await;
    world.reserve("u1", "q1").await;
    let id = derived("u1", "q1");
    for step in [S::Enqueued, S::Rejected, S::ReleasePending] {
        world.step(&id, step).await;
        assert_eq!(
            world.reserve("u1", "q1").await.status,
            ReplyStatus::Status(step)
        );
    }
    assert_eq!(
        world.compensate(&id, "u1").await.code,
        CompensateCode::Released
    );
    let again = world.reserve("u1", "q1").await;
    assert_eq!((again.code, again.replay), (ReserveCode::Accepted, true));
    assert_eq!(again.status, ReplyStatus::Status(S::Released));
    assert_eq!(world.counters().await, (1, 1, 0));
    assert_eq!(world.reserve("u1", "q2").await.code, ReserveCode::Accepted);
}

/// FUZZ-15: refused calls cannot fill the memory, and buyers are still served afterwards.
#[tokio::test]
async fn refusals_are_remembered_only_while_their_shard_has_room() {
    let world = World::open(5).await;
    let room = 3;
    for attempt in 0..2_000 {
        let request_id = format!("q{attempt}");
        let reply = world
            .try_reserve_as("bot", &request_id, &derived("bot", &request_id), |call| {
                call.now_override = Some(seckill_state_machine::TimestampMs::new(
                    world.times.starts - 1,
                ));
                call.negative_cache_max = room;
            })
            .await
            .unwrap();
        assert_eq!(reply.code, ReserveCode::ActivityNotStarted);
    }
    let dump = world.dump().await;
    for shard in 0..256 {
        let fields = dump.hash(&world.keys.request_shard(shard)).len();
        assert!(fields <= room as usize, "shard {shard} has {fields}");
    }
    for attempt in 0..5 {
        let (buyer, request_id) = (format!("u{attempt}"), format!("q{attempt}"));
        let accepted = world
            .try_reserve_as(
                &buyer,
                &format!("h{request_id}"),
                &derived(&buyer, &request_id),
                |call| {
                    call.negative_cache_max = room;
                },
            )
            .await
            .unwrap();
        assert_eq!(accepted.code, ReserveCode::Accepted);
    }
}

/// Design §8: in a window only what cannot change is answered to a repeat.
#[tokio::test]
async fn in_a_recovery_window_a_repeat_is_not_freshly_refused() {
    let world = World::open(1).await;
    world.reserve("u1", "q1").await;
    world.reserve("u2", "q2").await;
    let meta = world.keys.meta();
    let unknown = detail(ReserveCode::OutcomeUnknown, "RECOVERY_WINDOW");
    for in_meta in [true, false] {
        let word = if in_meta { "window" } else { "" };
        world.cli(&["HSET", &meta, "recovery", word]).await;
        let ask = async |buyer: &str, request_id: &str, repeat: bool| {
            world
                .try_reserve_as(buyer, request_id, &derived(buyer, request_id), |call| {
                    call.repeat = repeat;
                    call.assume_window = !in_meta;
                })
                .await
                .unwrap()
        };
        let before = world.dump().await;
        assert_eq!(ask("u3", "q3", true).await, unknown);
        assert_eq!(ask("u1", "q9", true).await, unknown);
        assert_eq!(world.dump().await, before);
        let accepted = ask("u1", "q1", true).await;
        assert_eq!(
            (accepted.code, accepted.replay),
            (ReserveCode::Accepted, true)
        );
        let refused = ask("u2", "q2", true).await;
        assert_eq!((refused.code, refused.replay), (ReserveCode::SoldOut, true));
        let name = format!("new{in_meta}");
        assert_eq!(ask(&name, &name, false).await.code, ReserveCode::SoldOut);
    }
    world.cli(&["HSET", &meta, "recovery", "rebuild"]).await;
    let rebuilding = detail(ReserveCode::ConfigMissing, "REBUILDING");
    expect_untouched(&world, "q8", &rebuilding).await;
    world.cli(&["HSET", &meta, "recovery", "maybe"]).await;
    let invalid = detail(ReserveCode::InvariantViolation, "INVALID_META_RECOVERY");
    expect_untouched(&world, "q8", &invalid).await;
}

#[tokio::test]
async fn arguments_out_of_range_are_refused_first() {
    let world = World::open(5).await;
    world.reserve("u1", "q1").await;
    let before = world.dump().await;
    let changes: [fn(&mut seckill_lua_scripts::Reserve<'_>); 4] = [
        |call| call.quantity = crate::world::quantity(2),
        |call| call.reservation_ttl_ms = 0,
        |call| call.reservation_ttl_ms = -1,
        |call| call.first_send_grace_ms = -1,
    ];
    for change in changes {
        let reply = world
            .try_reserve_as("u1", "q1", &derived("u1", "q1"), change)
            .await
            .unwrap();
        assert_eq!(reply.code, ReserveCode::BadArgument);
    }
    assert_eq!(world.dump().await, before);
}

/// FUZZ-01, 03, 04, the script's own defence: types keep such ids from ever getting here.
#[tokio::test]
async fn reserved_characters_are_refused_by_the_script_itself() {
    let world = World::open(5).await;
    let before = world.dump().await;
    let source = include_str!("../../../../lua/reserve.lua");
    let keys = &world.keys;
    let names = [
        keys.meta(),
        keys.stock(),
        keys.request(&request("q1")),
        keys.user(&user("u1")),
        keys.reservation(&derived("u1", "q1")),
        keys.send_pending(),
        keys.reservation_expiry(),
        keys.soldout(),
    ];
    let good = [
        "q1", "r1", "A1", "S1", "u1", "7", "900000", "1", "0", "m1", "0",
    ];
    for position in 0..10 {
        let bad: &[&str] = match position {
            5..=8 => &["", "-1", "x", "1.5", "1e3", "1 "],
            9 => &[""],
            _ => &[
                "",
                " ",
                "{}",
                "}",
                "x}{y",
                "a}:stock",
                "a|b",
                "0|rid|1|QUEUED|victim",
                "a|",
            ],
        };
        for value in bad {
            let mut arguments = good;
            arguments[position] = value;
            let mut command = vec!["EVAL", source, "8"];
            command.extend(names.iter().map(String::as_str));
            command.extend(arguments);
            let reply = world.server.cli(&command).await;
            assert_eq!(
                reply.list()[0],
                Value::Int(20),
                "{position} {value:?}: {reply:?}"
            );
        }
    }
    assert_eq!(world.dump().await, before);
    let mut command = vec!["EVAL", source, "8"];
    command.extend(names.iter().map(String::as_str));
    command.extend(good);
    let reply = world.server.cli(&command).await;
    assert_eq!(
        reply.list()[0],
        Value::Int(0),
        "the 11 arguments alone do: {reply:?}"
    );
}
