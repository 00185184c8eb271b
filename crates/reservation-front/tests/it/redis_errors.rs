//! Every error by which a Redis server says "not now", made by a real server against the built front.
//!
//! The outcome is always the same: the call fails closed, nothing is half done, no business code is told,
//! and once the fault is over the same request id is accepted, once (S0-023 to S0-028, S0-136 to S0-142).

use std::time::Duration;

use seckill_proto::v1::get_reservation_request::Key;
use seckill_proto::v1::{ReservationStatus, ReserveCode};
use seckill_test_support::{PrivateRedis, RedisPair, ServiceProcess, Value, eventually};

use crate::harness::{
    Client, PATIENCE, Sale, assert_honest, client, find, front, reason, reserve, settings,
};

/// Calls that meet each fault.
const CALLS: usize = 3;

/// Units of the sale.
const STOCK: u64 = 100;

/// A front with one sale.
struct World {
    redis: PrivateRedis,
    sale: Sale,
    _front: ServiceProcess,
    client: Client,
}

impl World {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    async fn start_with(arguments: &[&str]) -> Self {
        let redis = PrivateRedis::start_with(arguments).await;
        let sale = Sale::open(&redis, settings(STOCK)).await;
        let front = front(redis.url())
            // The activity stays known, so that it is the script that meets the fault.
            .env("SECKILL_FRONT_ACTIVITY_CACHE_MS", 3_000)
            .start()
            .await;
        let client = client(&front).await;
        Self {
            redis,
            sale,
            _front: front,
            client,
        }
    }

    /// Lets some calls meet a fault and repeats them when it is over. `word` is the server's own name of
    /// the error, by which it counts what it has answered.
    async fn meets(
        &mut self,
        word: &str,
        begin: impl AsyncFnOnce(&PrivateRedis),
        end: impl AsyncFnOnce(&PrivateRedis),
    ) {
        self.sale.warm_up(&mut self.client).await;
        let before = self.redis.dump().await;
        begin(&self.redis).await;
        for number in 0..CALLS {
            self.is_refused(number).await;
        }
        end(&self.redis).await;
        let seen = self.redis.info(&format!("errorstat_{word}")).await;
        assert!(seen.is_some(), "the server never answered {word}");
        assert_eq!(self.redis.dump().await, before, "{word} left something");
        for number in 0..CALLS {
            self.is_accepted(number).await;
        }
        let taken = u64::try_from(CALLS).unwrap() + 1;
        assert_eq!(self.sale.stock().await, (STOCK - taken, taken));
    }

    async fn is_refused(&mut self, number: usize) {
        let (user, request) = (format!("user-{number}"), format!("request-{number}"));
        let mut call = self.sale.call(&user, &request);
        let fresh = self.client.reserve(call.clone()).await.unwrap_err();
        assert_honest(&fresh, &request);
        assert_eq!(reason(&fresh), "SYSTEM_BUSY", "{fresh:?}");
        // Nobody knows what became of an earlier attempt.
        call.repeat = true;
        let repeated = self.client.reserve(call).await.unwrap_err();
        assert_honest(&repeated, &request);
        assert_eq!(reason(&repeated), "OUTCOME_UNKNOWN", "{repeated:?}");
    }

    async fn is_accepted(&self, number: usize) {
        let (user, request) = (format!("user-{number}"), format!("request-{number}"));
        let call = self.sale.call(&user, &request);
        let what = "the same request is accepted after the fault";
        let answer = eventually(PATIENCE, what, async || {
            let answer = self.client.clone().reserve(call.clone()).await;
            answer.inspect_err(|status| assert_honest(status, &request))
        })
        .await
        .into_inner();
        assert_eq!(
            (answer.code(), answer.replay),
            (ReserveCode::Accepted, false)
        );
    }
}

async fn set(redis: &PrivateRedis, name: &str, value: &str) {
    let reply = redis.cli(&["CONFIG", "SET", name, value]).await;
    assert_eq!(reply.error(), None, "{name}");
}

/// Awaits that the server answers everybody with this error.
async fn answers_with(redis: &PrivateRedis, word: &str) {
    eventually(PATIENCE, word, async || {
        let reply = redis.cli(&["GET", "any"]).await;
        match reply.error() {
            Some(message) if message.starts_with(word) => Ok(()),
            _ => Err(format!("{reply:?}")),
        }
    })
    .await;
}

/// S0-026, S0-140, LUA-06.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_without_memory_sells_nothing_and_still_answers_queries() {
    let mut world = World::start().await;
    let held = reserve(&mut world.client, world.sale.call("held", "held")).await;
    set(&world.redis, "maxmemory", "1").await;
    let query = world
        .sale
        .query("held", Key::ReservationId(held.reservation_id));
    let found = find(&mut world.client, query).await.unwrap();
    assert_eq!(found.status(), ReservationStatus::Queued);
    let repeat = reserve(&mut world.client, world.sale.call("held", "held")).await;
    assert_eq!(
        (repeat.code(), repeat.replay),
        (ReserveCode::Accepted, true)
    );
    world.is_refused(0).await;
    set(&world.redis, "maxmemory", "0").await;
    world.is_accepted(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oom_fails_closed_and_leaves_nothing() {
    let mut world = World::start().await;
    let begin = async |redis: &PrivateRedis| set(redis, "maxmemory", "1").await;
    let end = async |redis: &PrivateRedis| set(redis, "maxmemory", "0").await;
    world.meets("OOM", begin, end).await;
}

/// S0-142, S0-202: no replica is in step.
#[tokio::test(flavor = "multi_thread")]
async fn noreplicas_fails_closed_and_leaves_nothing() {
    let mut world = World::start().await;
    let begin = async |redis: &PrivateRedis| set(redis, "min-replicas-to-write", "1").await;
    let end = async |redis: &PrivateRedis| set(redis, "min-replicas-to-write", "0").await;
    world.meets("NOREPLICAS", begin, end).await;
}

/// The address leads to a replica, and no primary is there yet.
#[tokio::test(flavor = "multi_thread")]
async fn readonly_fails_closed_and_leaves_nothing() {
    let other = PrivateRedis::start().await;
    let mut world = World::start().await;
    let begin = async |redis: &PrivateRedis| {
        other.replica_of(redis).await;
        other.cli(&["REPLICAOF", "NO", "ONE"]).await;
        redis.replica_of(&other).await;
    };
    let end = async |redis: &PrivateRedis| {
        redis.cli(&["REPLICAOF", "NO", "ONE"]).await;
    };
    world.meets("READONLY", begin, end).await;
}

/// S0-028, S0-141: a planned switch ends no connection, and the front finds the primary by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_front_that_is_left_with_a_replica_finds_the_primary() {
    let pair = RedisPair::start().await;
    let sale = Sale::open(pair.primary(), settings(STOCK)).await;
    let front = front(pair.url()).start().await;
    let mut client = client(&front).await;
    reserve(&mut client, sale.call("warm", "warm")).await;
    pair.switch().await;
    let accepted = eventually(
        Duration::from_secs(10),
        "the primary is found",
        async || {
            let answer = client.clone().reserve(sale.call("u", "q")).await;
            answer.inspect_err(|status| assert_honest(status, "q"))
        },
    )
    .await
    .into_inner();
    assert_eq!(accepted.code(), ReserveCode::Accepted);
    let refused = pair.replica().info("errorstat_READONLY").await;
    assert!(refused.is_some(), "the old primary was never asked");
    let key = sale.keys().stock();
    let reserved = pair.primary().cli(&["HGET", &key, "reserved"]).await;
    assert_eq!(reserved.int(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn masterdown_fails_closed_and_leaves_nothing() {
    let mut world = World::start().await;
    let begin = async |redis: &PrivateRedis| {
        set(redis, "replica-serve-stale-data", "no").await;
        redis.cli(&["REPLICAOF", "127.0.0.1", "1"]).await;
        answers_with(redis, "MASTERDOWN").await;
    };
    let end = async |redis: &PrivateRedis| {
        redis.cli(&["REPLICAOF", "NO", "ONE"]).await;
    };
    world.meets("MASTERDOWN", begin, end).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loading_fails_closed_and_leaves_nothing() {
    const KEYS: usize = 400;
    let mut world = World::start_with(&["--loading-process-events-interval-bytes", "1024"]).await;
    let mut connection = world.redis.connection().await.unwrap();
    let padding = "x".repeat(2_000);
    let far = world.sale.settings.retention_until_ms.to_string();
    let fill: Vec<Vec<String>> = (0..KEYS)
        .map(|n| {
            let parts = ["SET", &format!("pad-{n}"), &padding, "PXAT", &far];
            parts.map(str::to_owned).to_vec()
        })
        .collect();
    connection.pipeline(&fill).await.unwrap();
    // 5 ms a key: two seconds in all.
    set(&world.redis, "key-load-delay", "5000").await;
    world.sale.warm_up(&mut world.client).await;
    let reload = async move { connection.call(&["DEBUG", "RELOAD"]).await };
    let reloaded = tokio::spawn(reload);
    answers_with(&world.redis, "LOADING").await;
    for number in 0..CALLS {
        world.is_refused(number).await;
    }
    let reply = reloaded.await.unwrap().unwrap();
    assert_eq!(reply, Value::Status("OK".to_owned()));
    assert!(world.redis.info("errorstat_LOADING").await.is_some());
    for number in 0..CALLS {
        world.is_accepted(number).await;
    }
    assert_eq!(world.sale.stock().await, (STOCK - 4, 4));
}

/// A script that does not end keeps everybody else out.
#[tokio::test(flavor = "multi_thread")]
async fn busy_fails_closed_and_leaves_nothing() {
    let mut world = World::start_with(&["--busy-reply-threshold", "20"]).await;
    let mut connection = world.redis.connection().await.unwrap();
    let begin = async |redis: &PrivateRedis| {
        tokio::spawn(async move {
            connection
                .call(&["EVAL", "while true do end", "0"])
                .await
                .map(drop)
        });
        answers_with(redis, "BUSY").await;
    };
    let end = async |redis: &PrivateRedis| {
        let killed = redis.cli(&["SCRIPT", "KILL"]).await;
        assert_eq!(killed, Value::Status("OK".to_owned()));
        eventually(PATIENCE, "the script ends", async || {
            match redis.cli(&["GET", "any"]).await.error() {
                None => Ok(()),
                Some(message) => Err(message.to_owned()),
            }
        })
        .await;
    };
    world.meets("BUSY", begin, end).await;
}

/// The disk is full or broken, and Redis refuses what it could not keep.
#[tokio::test(flavor = "multi_thread")]
async fn misconf_fails_closed_and_leaves_nothing() {
    let mut world = World::start().await;
    let begin = async |redis: &PrivateRedis| {
        // A folder in the place of the dump makes every save fail.
        std::fs::create_dir(redis.folder().join("dump.rdb")).unwrap();
        set(redis, "save", "3600 1").await;
        redis.cli(&["BGSAVE"]).await;
        eventually(PATIENCE, "the save fails", async || {
            match redis.info("rdb_last_bgsave_status").await.as_deref() {
                Some("err") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    };
    let end = async |redis: &PrivateRedis| {
        set(redis, "save", "").await;
        std::fs::remove_dir(redis.folder().join("dump.rdb")).unwrap();
    };
    world.meets("MISCONF", begin, end).await;
}

/// The front's user may not run scripts any more.
#[tokio::test(flavor = "multi_thread")]
async fn noperm_fails_closed_and_leaves_nothing() {
    let mut world = World::start().await;
    let begin = async |redis: &PrivateRedis| {
        redis.cli(&["ACL", "SETUSER", "default", "-evalsha"]).await;
    };
    let end = async |redis: &PrivateRedis| {
        redis.cli(&["ACL", "SETUSER", "default", "+evalsha"]).await;
    };
    world.meets("NOPERM", begin, end).await;
}

/// S0-139, RC-10: a forgotten script is loaded again within the call; where that is not allowed, the call
/// fails closed.
#[tokio::test(flavor = "multi_thread")]
async fn noscript_is_cured_within_the_call_or_fails_closed() {
    let mut world = World::start().await;
    world.redis.cli(&["SCRIPT", "FLUSH"]).await;
    let at_once = reserve(&mut world.client, world.sale.call("warm", "warm")).await;
    assert_eq!(
        (at_once.code(), at_once.replay),
        (ReserveCode::Accepted, false)
    );
    let begin = async |redis: &PrivateRedis| {
        let user = ["ACL", "SETUSER", "default", "-script|load"];
        assert_eq!(redis.cli(&user).await.error(), None);
        redis.cli(&["SCRIPT", "FLUSH"]).await;
    };
    let end = async |redis: &PrivateRedis| {
        redis
            .cli(&["ACL", "SETUSER", "default", "+script|load"])
            .await;
    };
    world.meets("NOSCRIPT", begin, end).await;
}
