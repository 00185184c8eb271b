//! The client's behaviour on a bad network: nothing is sent twice, nothing waits for ever, and every
//! error says whether the call may have run.

use std::time::{Duration, Instant};

use futures::future::join_all;
use seckill_lua_scripts::{Error, ErrorKind, Redis, RedisConfig};
use seckill_state_machine::ReserveCode;
use seckill_test_support::{
    Dir, FaultProxy, FrameAction, Framing, Mode, PrivateRedis, Sever, eventually,
};

use crate::world::{World, config};

const DEADLINE: Duration = Duration::from_secs(20);

/// A world whose client goes through a proxy.
async fn behind_a_proxy(stock: u64, change: impl FnOnce(&mut RedisConfig)) -> (World, FaultProxy) {
    let mut world = World::open(stock).await;
    let proxy = FaultProxy::start(world.server.address(), Framing::Resp).await;
    let mut settings = config(&format!("redis://{}", proxy.addr()));
    settings.command_timeout = Duration::from_millis(500);
    change(&mut settings);
    world.redis = Redis::connect(&settings).await.unwrap();
    // The script is known from here on, so that the faults below hit the call itself.
    world.reserve("warm", "up").await;
    (world, proxy)
}

async fn reconnected(world: &World) {
    eventually(DEADLINE, "the reconnect", async || world.redis.ping().await).await;
}

/// RC-01: the script ran, its answer is cut off. The caller is told that nobody knows, the library
/// does not run it again, and the repeat finds the first reservation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_answer_is_an_unknown_outcome_and_never_sent_again() {
    let (world, proxy) = behind_a_proxy(200, |_| {}).await;
    for buyer in 0..100 {
        let (name, request_id) = (format!("u{buyer}"), format!("q{buyer}"));
        reconnected(&world).await;
        proxy.on_frame(|dir, _, frame| {
            // The answer of a script is the only array of five elements.
            let is_reply = dir == Dir::ToClient && frame.bytes().starts_with(b"*5\r\n");
            if is_reply {
                FrameAction::Cut
            } else {
                FrameAction::Forward
            }
        });
        let error = world.try_reserve(&name, &request_id).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        proxy.clear_hook();
        reconnected(&world).await;
        let calls = world.server.cli(&["INFO", "commandstats"]).await.text();
        let ran = evalsha_calls(&calls);
        let again = world.reserve(&name, &request_id).await;
        assert_eq!((again.code, again.replay), (ReserveCode::Accepted, true));
        let calls = world.server.cli(&["INFO", "commandstats"]).await.text();
        assert_eq!(evalsha_calls(&calls), ran + 1);
    }
    assert_eq!(world.counters().await, (200, 99, 101));
    assert_eq!(world.redis.in_flight(), 0);
}

fn evalsha_calls(stats: &str) -> u64 {
    let line = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"))
        .unwrap();
    let calls = line.split("calls=").nth(1).unwrap();
    calls.split(',').next().unwrap().parse().unwrap()
}

/// RC-04: the time limit reaches scripts, and what waited does not run once the network heals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_ends_every_call_within_the_time_limit() {
    let (world, proxy) = behind_a_proxy(1_000, |_| {}).await;
    proxy.set_mode(Mode::BlackHole);
    let began = Instant::now();
    let names: Vec<String> = (0..200).map(|index| format!("u{index}")).collect();
    let replies = join_all(names.iter().map(|name| world.try_reserve(name, name))).await;
    let took = began.elapsed();
    assert!(took < Duration::from_millis(1_500), "{took:?}");
    for error in replies.into_iter().map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    }
    assert_eq!(world.redis.in_flight(), 0);
    let id = crate::world::derived("warm", "up");
    assert!(world.try_compensate(&id, "warm").await.is_err());
    assert!(world.redis.reservation(&world.keys, &id).await.is_err());
    // The silence is noticed even though nobody closed anything.
    eventually(DEADLINE, "the loss of the connection", async || match world
        .redis
        .connected_since(None)
    {
        None => Ok(()),
        Some(_) => Err("still up"),
    })
    .await;
    let began = Instant::now();
    let error = world.try_reserve("late", "late").await.unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Broken, "{error}");
    assert!(began.elapsed() < Duration::from_secs(1));
    proxy.sever_all(Sever::Reset);
    proxy.set_mode(Mode::Forward);
    reconnected(&world).await;
    assert_eq!(
        world.reserve("fresh", "fresh").await.code,
        ReserveCode::Accepted
    );
    eventually(DEADLINE, "the uptime", async || {
        world
            .redis
            .connected_since(None)
            .map(|_| ())
            .ok_or("still down")
    })
    .await;
}

/// RC-07: while disconnected, calls are turned away at once and do not queue up. A call that meets the
/// very moment of a reconnect that fails may be unknown; none of them runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_shed_while_disconnected_and_nothing_old_runs_afterwards() {
    let (world, proxy) = behind_a_proxy(100_000, |_| {}).await;
    proxy.set_mode(Mode::Refuse);
    eventually(DEADLINE, "the loss of the connection", async || match world
        .try_reserve("probe", "probe")
        .await
    {
        Err(error) if error.kind() == ErrorKind::Unavailable => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let began = Instant::now();
    let mut unknown = 0;
    for attempt in 0..3_000 {
        let name = format!("u{attempt}");
        let error = world.try_reserve(&name, &name).await.unwrap_err();
        match error.kind() {
            ErrorKind::Unavailable => {}
            ErrorKind::OutcomeUnknown => unknown += 1,
            other => panic!("{other:?}: {error}"),
        }
    }
    assert!(unknown <= 10, "{unknown} calls were neither run nor shed");
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(world.redis.in_flight(), 0);
    proxy.set_mode(Mode::Forward);
    reconnected(&world).await;
    assert_eq!(world.counters().await, (100_000, 99_999, 1));
}

/// One more call than the limit is turned away, and the limit is free again afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_calls_in_flight_is_bounded() {
    let limit = 10;
    let (world, proxy) = behind_a_proxy(100, |settings| settings.buffer_limit = limit).await;
    proxy.set_mode(Mode::Hold(Dir::ToServer));
    let names: Vec<String> = (0..25).map(|index| format!("u{index}")).collect();
    let replies = join_all(names.iter().map(|name| world.try_reserve(name, name))).await;
    let shed = replies
        .iter()
        .filter(|reply| matches!(reply, Err(Error::Overloaded { limit: 10 })))
        .count();
    assert_eq!(shed, 15);
    assert_eq!(world.redis.in_flight(), 0);
    proxy.set_mode(Mode::Forward);
    reconnected(&world).await;
    assert_eq!(
        world.reserve("fresh", "fresh").await.code,
        ReserveCode::Accepted
    );
}

/// RC-10: an emptied script cache costs latency alone, and callers do not all load at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_script_cache_is_not_noticed_by_any_caller() {
    const FLUSHES: u64 = 20;
    let world = World::open(100_000).await;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let calls = std::sync::atomic::AtomicU64::new(0);
    let caller = async |name: usize| {
        let mut attempt = 0;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let name = format!("u{name}n{attempt}");
            let reply = world.reserve(&name, &name).await;
            assert_eq!(reply.code, ReserveCode::Accepted);
            let id = crate::world::derived(&name, &name);
            world.to_release_pending(&id).await;
            world.compensate(&id, &name).await;
            calls.fetch_add(3, std::sync::atomic::Ordering::Relaxed);
            attempt += 1;
        }
    };
    let flusher = async {
        let mut pace = tokio::time::interval(Duration::from_millis(100));
        for _ in 0..FLUSHES {
            pace.tick().await;
            world.cli(&["SCRIPT", "FLUSH"]).await;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    futures::join!(flusher, join_all((0..64).map(caller)));
    let stats = world.server.cli(&["INFO", "commandstats"]).await.text();
    let line = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_script|load:"))
        .unwrap();
    let loads: u64 = line
        .split("calls=")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    // Three scripts, once a flush each, and once more where a flush fell between a load and its use.
    let bound = 3 * (FLUSHES + 1) * 2;
    assert!(loads <= bound, "{loads} loads for {FLUSHES} flushes");
    let calls = calls.load(std::sync::atomic::Ordering::Relaxed);
    assert!(calls > 10 * FLUSHES, "only {calls} calls");
    world.dump().await;
}

/// The server is replaced by an empty one: scripts are loaded again by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_is_served_again() {
    let world = World::open(5).await;
    let first = world.redis.connected_since(None);
    world.server.restart().await;
    reconnected(&world).await;
    let reply = world.reserve("u1", "q1").await;
    assert_eq!(reply.code, ReserveCode::ConfigMissing);
    eventually(DEADLINE, "a newer uptime", async || {
        let newer = world
            .redis
            .connected_since(None)
            .is_some_and(|since| Some(since) > first);
        if newer { Ok(()) } else { Err("the old one") }
    })
    .await;
}

/// A server that is not there yet is no reason to fail at start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_does_not_need_a_server() {
    let world = World::open(5).await;
    world.server.stop().await;
    let mut settings = config(&world.server.url());
    settings.connect_timeout = Duration::from_millis(200);
    let redis = Redis::connect(&settings).await.unwrap();
    assert_eq!(redis.connected_since(None), None);
    assert_eq!(
        redis.ping().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    world.server.restart().await;
    eventually(DEADLINE, "the first connection", async || {
        redis.ping().await
    })
    .await;
    redis.quit().await;
    assert_eq!(
        redis.ping().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
}

/// A planned switch ends no connection: the client finds itself with a replica, is refused, and looks for
/// the primary by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_left_with_a_replica_finds_the_primary() {
    let (world, proxy) = behind_a_proxy(10, |_| {}).await;
    let successor = PrivateRedis::start().await;
    successor.replica_of(&world.server).await;
    let before = world.redis.connected_since(None).unwrap();

    successor.cli(&["REPLICAOF", "NO", "ONE"]).await;
    proxy.set_upstream(successor.address());
    world.server.replica_of(&successor).await;
    let refusal = world.try_reserve("u1", "q1").await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Refused, "{refusal}");

    let reply = eventually(DEADLINE, "a purchase from the new primary", async || {
        world.try_reserve("u1", "q1").await
    })
    .await;
    assert_eq!((reply.code, reply.replay), (ReserveCode::Accepted, false));
    // Whoever asks can tell that a failover may have happened.
    eventually(DEADLINE, "the new connection shows", async || {
        let since = world.redis.connected_since(None);
        if since.is_some_and(|since| since > before) {
            Ok(())
        } else {
            Err("still the old one")
        }
    })
    .await;
    assert_eq!(proxy.counters().open, 1);
}
