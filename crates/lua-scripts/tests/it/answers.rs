//! Every error word that a server says "not now" or "never" with, as the caller sees it.

use std::time::Duration;

use seckill_lua_scripts::{Error, ErrorKind, Redis, ReserveReply};
use seckill_state_machine::ReserveCode;
use seckill_test_support::{Dir, FaultProxy, FrameAction, Framing, eventually};

use crate::world::{World, config};

const DEADLINE: Duration = Duration::from_secs(20);

/// The call was refused with this word, and left nothing behind.
async fn refused_with(world: &World, word: &str, result: Result<ReserveReply, Error>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{word}: {error}");
    assert!(error.to_string().contains(word), "{word}: {error}");
    let keys: Vec<String> = world.server.dump().await.0.into_keys().collect();
    assert_eq!(keys, [world.keys.meta(), world.keys.stock()], "{word}");
}

/// What a real server answers while it may not write; afterwards the same request is accepted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_may_not_write_refuses_and_has_done_nothing() {
    let world = World::open(5).await;
    world
        .cli(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    refused_with(&world, "NOREPLICAS", world.try_reserve("u1", "q1").await).await;
    world
        .cli(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .await;
    world.cli(&["CONFIG", "SET", "maxmemory", "1"]).await;
    refused_with(&world, "OOM", world.try_reserve("u1", "q1").await).await;
    world.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let reply = world.reserve("u1", "q1").await;
    assert_eq!((reply.code, reply.replay), (ReserveCode::Accepted, false));
    world.sound_dump().await;
}

/// A replica whose primary is gone, once one that still answers reads and once one that does not. The
/// client looks for the primary after its answer, so the calls that follow may meet no connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_refuses_and_has_done_nothing_and_is_left_when_it_is_promoted() {
    for (serve_stale, word) in [("yes", "READONLY"), ("no", "MASTERDOWN")] {
        let world = World::open(5).await;
        world
            .cli(&["CONFIG", "SET", "replica-serve-stale-data", serve_stale])
            .await;
        world.cli(&["REPLICAOF", "127.0.0.1", "1"]).await;
        let error = world.try_reserve("u1", "q1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(word), "{error}");
        world.cli(&["REPLICAOF", "NO", "ONE"]).await;
        let reply = eventually(DEADLINE, "the promoted server serves", async || {
            world.try_reserve("u1", "q1").await
        })
        .await;
        assert_eq!(reply.code, ReserveCode::Accepted);
        world.sound_dump().await;
    }
}

/// A server that a runaway script keeps busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_refuses_and_has_done_nothing() {
    let world = World::open(5).await;
    // The script is known from here on: a busy server would refuse to load it, too.
    world.reserve("warm", "up").await;
    world
        .cli(&["CONFIG", "SET", "busy-reply-threshold", "50"])
        .await;
    let mut other = world.server.connection().await.unwrap();
    let runaway =
        tokio::spawn(async move { other.call(&["EVAL", "while true do end", "0"]).await });
    let error = eventually(DEADLINE, "the busy answer", async || {
        match world.try_reserve("u1", "q1").await {
            Err(error) if error.to_string().contains("BUSY") => Ok(error),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    world.cli(&["SCRIPT", "KILL"]).await;
    assert!(runaway.await.unwrap().unwrap().error().is_some());
    assert_eq!(world.reserve("u1", "q1").await.code, ReserveCode::Accepted);
}

/// What a server says in states that cannot be had at will, put in the place of its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_error_word_of_a_server_has_its_kind() {
    let mut world = World::open(5).await;
    let proxy = FaultProxy::start(world.server.address(), Framing::Resp).await;
    let url = format!("redis://{}", proxy.addr());
    world.redis = Redis::connect(&config(&url)).await.unwrap();
    world.reserve("warm", "up").await;
    let before = world.dump().await;
    for (answer, kind) in [
        (
            "READONLY You can't write against a read only replica.",
            ErrorKind::Refused,
        ),
        ("MOVED 866 127.0.0.1:1", ErrorKind::Refused),
        ("ASK 866 127.0.0.1:1", ErrorKind::Refused),
        (
            "TRYAGAIN Multiple keys request during rehashing of slot",
            ErrorKind::Refused,
        ),
        ("CLUSTERDOWN The cluster is down", ErrorKind::Refused),
        ("CLUSTERDOWN Hash slot not served", ErrorKind::Refused),
        (
            "LOADING Redis is loading the dataset in memory",
            ErrorKind::Refused,
        ),
        ("MASTERDOWN Link with MASTER is down", ErrorKind::Refused),
        (
            "NOREPLICAS Not enough good replicas to write.",
            ErrorKind::Refused,
        ),
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            ErrorKind::Refused,
        ),
        ("BUSY Redis is busy running a script.", ErrorKind::Refused),
        (
            "MISCONF Redis is configured to save RDB snapshots",
            ErrorKind::Refused,
        ),
        ("NOSCRIPT No matching script.", ErrorKind::Refused),
        ("NOPERM this user has no permissions", ErrorKind::Refused),
        ("NOAUTH Authentication required.", ErrorKind::Refused),
        (
            "CROSSSLOT Keys in request don't hash to the same slot",
            ErrorKind::Broken,
        ),
        ("WRONGTYPE Operation against a key", ErrorKind::Broken),
        ("UNKILLABLE Sorry", ErrorKind::Broken),
        ("ERR value is not an integer", ErrorKind::Broken),
    ] {
        let line = format!("-{answer}\r\n");
        proxy.on_frame(move |dir, _, frame| {
            let is_call = dir == Dir::ToServer && frame.bytes().windows(7).any(|w| w == b"EVALSHA");
            if is_call {
                FrameAction::ReplyWith(line.clone().into())
            } else {
                FrameAction::Forward
            }
        });
        let error = world.try_reserve("u1", "q1").await.unwrap_err();
        assert_eq!(error.kind(), kind, "{answer}: {error}");
        proxy.clear_hook();
        eventually(DEADLINE, "the connection", async || {
            world.redis.ping().await
        })
        .await;
        assert_eq!(world.redis.in_flight(), 0);
    }
    assert_eq!(world.dump().await, before);
    assert_eq!(world.reserve("u1", "q1").await.code, ReserveCode::Accepted);
}
