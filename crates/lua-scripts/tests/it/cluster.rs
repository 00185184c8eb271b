//! The same calls against a real Redis Cluster, chosen by the URL alone.

use std::time::Duration;

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    Compensate, PreheatBucket, Redis, Reserve, SetActivityState, Settle, SettleOutcome, Transition,
};
use seckill_state_machine::{
    ActivitySettings, ActivityState, BucketCount, CompensateCode, MessageId, OrderId, Quantity,
    ReservationStatus as S, ReserveCode, TimestampMs, TransitionCode,
};
use seckill_test_support::{PrivateRedis, RedisCluster, eventually};

use crate::world::{GRACE_MS, TTL_MS, config, derived, request, scope, user};

const BUCKETS: u32 = 8;

/// A purchase, a release and a read in every bucket; the buckets are spread over all nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_script_works_on_a_cluster() {
    let cluster = PrivateRedis::start_cluster().await;
    let redis = Redis::connect(&config(&cluster.url())).await.unwrap();
    let mut nodes = std::collections::BTreeSet::new();
    for bucket in BucketCount::new(BUCKETS).unwrap().buckets() {
        let keys = BucketKeys::new(&scope().bucket(bucket));
        nodes.insert(cluster.node_of(&keys.meta()).await.port());
        one_life(&redis, &keys).await;
    }
    assert!(nodes.len() > 1, "all buckets are on one node");
    let dump = cluster.dump().await;
    assert_eq!(dump.keys_without_expiry(), Vec::<&str>::new());
    moved_slot(&cluster, &redis).await;
    redis.quit().await;
}

/// Preheats and opens a bucket with two units; answers the server's clock.
async fn open(redis: &Redis, keys: &BucketKeys) -> i64 {
    let now = redis.server_time(keys).await.unwrap().get();
    let settings = ActivitySettings {
        scope: scope(),
        starts_at_ms: TimestampMs::new(now - 1_000),
        ends_at_ms: TimestampMs::new(now + 600_000),
        retention_until_ms: TimestampMs::new(now + 7 * 86_400_000),
        total_stock: 2 * u64::from(BUCKETS),
        bucket_count: BucketCount::new(BUCKETS).unwrap(),
        limit_per_user: 1,
        max_quantity: Quantity::ONE,
        reservation_ttl_ms: TTL_MS,
        patience_ms: 1_000,
        secret_version: 1,
    };
    let preheat = PreheatBucket {
        keys,
        settings: &settings,
        now_override: None,
    };
    redis.preheat_bucket(&preheat).await.unwrap();
    let active = SetActivityState {
        keys,
        state: ActivityState::Active,
    };
    redis.set_activity_state(&active).await.unwrap();
    now
}

async fn one_life(redis: &Redis, keys: &BucketKeys) {
    let now = open(redis, keys).await;
    for buyer in ["u1", "u2"] {
        assert_eq!(reserve(redis, keys, buyer).await, ReserveCode::Accepted);
    }
    let (ordered, released) = (derived("u1", "q"), derived("u2", "q"));
    let order_id = OrderId::parse("o1").unwrap();
    let settle = Settle {
        keys,
        reservation_id: &ordered,
        message_id: &MessageId::of(&ordered),
        outcome: SettleOutcome::Ordered {
            order_id: &order_id,
        },
    };
    let settled = redis.settle(&settle).await.unwrap();
    assert_eq!(
        (settled.code, settled.status),
        (TransitionCode::Updated, Some(S::OrderCreated))
    );
    let fence = Transition {
        keys,
        reservation_id: &released,
        target: S::ReleasePending,
        next_retry_at_ms: None,
        message_id: None,
        order_id: None,
        error_code: None,
        now_override: None,
    };
    assert_eq!(
        redis.transition(&fence).await.unwrap().code,
        TransitionCode::Updated
    );
    let release = Compensate {
        keys,
        reservation_id: &released,
        user_id: &user("u2"),
        release_reason: "TEST",
        waiting: None,
        now_override: None,
    };
    assert_eq!(
        redis.compensate(&release).await.unwrap().code,
        CompensateCode::Released
    );
    let counters = redis.stock(keys).await.unwrap().unwrap().counters;
    assert_eq!((counters.available, counters.reserved), (1, 1));
    redis.publish_soldout_cleared(keys).await.unwrap();
    let activity_id = &scope().activity_id;
    let version = scope().version;
    redis
        .set_current_version(activity_id, version, TimestampMs::new(now + 86_400_000))
        .await
        .unwrap();
    assert_eq!(
        redis.current_version(activity_id).await.unwrap(),
        Some(version)
    );
}

async fn reserve(redis: &Redis, keys: &BucketKeys, buyer: &str) -> ReserveCode {
    let call = Reserve {
        keys,
        request_id: &request("q"),
        reservation_id: &derived(buyer, "q"),
        user_id: &user(buyer),
        quantity: Quantity::ONE,
        max_quantity: Quantity::ONE,
        reservation_ttl_ms: TTL_MS,
        first_send_grace_ms: GRACE_MS,
        negative_cache_max: 4_096,
        traceparent: None,
        repeat: false,
        assume_window: false,
        now_override: None,
    };
    let call = Reserve {
        request_id: &request(&format!("{buyer}q")),
        ..call
    };
    redis.reserve(&call).await.unwrap().code
}

/// A slot moves to another node: the redirected call did not run, so it is repeated and succeeds.
async fn moved_slot(cluster: &RedisCluster, redis: &Redis) {
    let bucket = BucketCount::new(BUCKETS).unwrap().buckets().next().unwrap();
    let keys = BucketKeys::new(&scope().bucket(bucket));
    let slot = keys.slot().to_string();
    let source = cluster.node_of(&keys.meta()).await;
    let target = cluster
        .nodes()
        .iter()
        .find(|node| node.port() != source.port())
        .unwrap();
    let id = async |node: &PrivateRedis| node.cli(&["CLUSTER", "MYID"]).await.text();
    let (source_id, target_id) = (id(source).await, id(target).await);
    target
        .cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id])
        .await;
    source
        .cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id])
        .await;
    let names = source
        .cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"])
        .await
        .texts();
    let port = target.port().to_string();
    let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    migrate.extend(names.iter().map(String::as_str));
    assert_eq!(source.cli(&migrate).await.error(), None);
    for node in [target, source] {
        let reply = node
            .cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id])
            .await;
        assert_eq!(reply.error(), None);
    }
    eventually(
        Duration::from_secs(10),
        "a purchase on the new node",
        async || {
            let counters = redis
                .stock(&keys)
                .await
                .map_err(|error| error.to_string())?;
            counters.map(|_| ()).ok_or_else(|| "no stock".to_owned())
        },
    )
    .await;
    assert_eq!(reserve(redis, &keys, "u3").await, ReserveCode::Accepted);
}
