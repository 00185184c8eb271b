//! A real Redis Cluster whose slots move and whose nodes go, against the built front.

use std::collections::BTreeMap;
use std::time::Duration;

use seckill_key_layout::{BucketKeys, current_version_key};
use seckill_proto::v1::ReserveCode;
use seckill_state_machine::{ActivityId, ActivitySettings, BucketId};
use seckill_test_support::{Content, Loss, PrivateRedis, RedisCluster, ServiceProcess, eventually};
use tonic::Status;

use crate::harness::{
    Client, PATIENCE, Sale, assert_honest, client, front, reason, reserve, settings,
};

const STOCK: u64 = 100;

/// A front whose Redis is a cluster.
struct World {
    cluster: RedisCluster,
    sale: Sale,
    _front: ServiceProcess,
    client: Client,
}

impl World {
    async fn start(cluster: RedisCluster) -> Self {
        let sale = Sale::open_at(cluster.url(), settings(STOCK)).await;
        let front = front(cluster.url())
            .env("SECKILL_FRONT_ACTIVITY_CACHE_MS", 3_000)
            .start()
            .await;
        let mut client = client(&front).await;
        sale.warm_up(&mut client).await;
        Self {
            cluster,
            sale,
            _front: front,
            client,
        }
    }

    /// A key of the sale's only bucket.
    fn key(&self) -> String {
        self.sale.keys().stock()
    }

    async fn refused(&self, request: &str) -> Status {
        let call = self.sale.call(request, request);
        let status = self.client.clone().reserve(call).await.unwrap_err();
        assert_honest(&status, request);
        status
    }

    /// The request is accepted within a time; what comes before is an honest fault.
    async fn accepted(&self, sale: &Sale, request: &str, within: Duration) -> bool {
        let answer = eventually(within, "the request is accepted", async || {
            let call = sale.call(request, request);
            let answer = self.client.clone().reserve(call).await;
            answer.inspect_err(|status| assert_honest(status, request))
        })
        .await
        .into_inner();
        assert_eq!(answer.code(), ReserveCode::Accepted);
        answer.replay
    }
}

/// What all keys hold. A move takes an expiry along as a remaining time, a millisecond more or less.
async fn contents(cluster: &RedisCluster) -> BTreeMap<String, Content> {
    let entries = cluster.dump().await.0.into_iter();
    entries.map(|(key, entry)| (key, entry.content)).collect()
}

/// Whether a node has ever answered with this error.
async fn told(node: &PrivateRedis, word: &str) -> bool {
    node.info(&format!("errorstat_{word}")).await.is_some()
}

/// Another activity whose bucket is on another node than this one's.
async fn elsewhere(cluster: &RedisCluster, sale: &Sale) -> ActivitySettings {
    let here = cluster.node_of(&sale.keys().stock()).await.port();
    for number in 2..100 {
        let mut other = settings(STOCK);
        other.scope.activity_id = ActivityId::parse(format!("act-{number}")).unwrap();
        let bucket = BucketKeys::new(&other.scope.bucket(BucketId::ZERO)).stock();
        let pointer = current_version_key(&other.scope.activity_id);
        let mut away = true;
        for key in [bucket, pointer] {
            away &= cluster.node_of(&key).await.port() != here;
        }
        if away {
            return other;
        }
    }
    panic!("all slots are on one node");
}

/// S0-141: TRYAGAIN and ASK while a slot moves, MOVED when it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_moving_slot_fails_closed_and_a_moved_one_is_found_within_the_call() {
    let world = World::start(PrivateRedis::start_cluster().await).await;
    let cluster = &world.cluster;
    let key = world.key();
    let source = cluster.node_of(&key).await;
    let before = contents(cluster).await;
    let migration = cluster.migrate_slot_of(&key).await;
    migration.move_keys(std::slice::from_ref(&key)).await;
    let split = world.refused("split").await;
    assert_eq!(reason(&split), "SYSTEM_BUSY", "{split:?}");
    assert!(told(source, "TRYAGAIN").await);
    migration.move_all().await;
    let away = world.refused("away").await;
    assert_eq!(reason(&away), "SYSTEM_BUSY", "{away:?}");
    assert!(told(source, "ASK").await);
    migration.finish().await;
    assert_eq!(contents(cluster).await, before, "nothing is half done");

    let call = world.sale.call("moved", "moved");
    let moved = reserve(&mut world.client.clone(), call).await;
    assert_eq!((moved.code(), moved.replay), (ReserveCode::Accepted, false));
    assert!(told(source, "MOVED").await);
    for request in ["split", "away"] {
        assert!(!world.accepted(&world.sale, request, PATIENCE).await);
    }
    assert_eq!(world.sale.stock().await, (STOCK - 4, 4));
}

/// S0-024: a slot that nobody serves stops its own activities alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_nobody_serves_stops_its_own_activities_alone() {
    let world = World::start(PrivateRedis::start_cluster().await).await;
    let other = elsewhere(&world.cluster, &world.sale).await;
    let other = Sale::open_at(world.cluster.url(), other).await;
    world.accepted(&other, "warm", PATIENCE).await;
    let slot = world.sale.keys().slot().to_string();
    let owner = world.cluster.node_of(&world.key()).await;
    let reply = owner.cli(&["CLUSTER", "DELSLOTS", &slot]).await;
    assert_eq!(reply.error(), None);
    for number in 0..3 {
        let request = format!("down-{number}");
        let status = world.refused(&request).await;
        assert!(["SYSTEM_BUSY", "OUTCOME_UNKNOWN"].contains(&&*reason(&status)));
        let request = format!("other-{number}");
        world.accepted(&other, &request, PATIENCE).await;
    }
    let reply = owner.cli(&["CLUSTER", "ADDSLOTS", &slot]).await;
    assert_eq!(reply.error(), None);
    for number in 0..3 {
        let request = format!("down-{number}");
        assert!(!world.accepted(&world.sale, &request, PATIENCE).await);
    }
    assert_eq!(world.sale.stock().await, (STOCK - 4, 4));
    assert!(told(owner, "CLUSTERDOWN").await);
}

/// S0-028, RC-03: a primary of the cluster hangs. Its callers fail closed until its replica is elected,
/// those of the other primaries notice nothing, and nobody restarts a front.
#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_primary_of_a_cluster_stops_its_slots_until_its_replica_serves_them() {
    let world = World::start(PrivateRedis::start_cluster_with_replicas().await).await;
    let other = elsewhere(&world.cluster, &world.sale).await;
    let other = Sale::open_at(world.cluster.url(), other).await;
    world.accepted(&other, "warm", PATIENCE).await;
    let key = world.key();
    world.cluster.caught_up(&key).await;
    let old = world.cluster.node_of(&key).await;
    old.lose(Loss::Hang);
    let election = world.cluster.taken_over(&key, old);
    let calls = async {
        for number in 0..5 {
            let request = format!("hung-{number}");
            let call = world.sale.call(&request, &request);
            if let Err(status) = world.client.clone().reserve(call).await {
                assert_honest(&status, &request);
            }
            let request = format!("other-{number}");
            world.accepted(&other, &request, PATIENCE).await;
        }
    };
    tokio::join!(election, calls);
    for number in 0..5 {
        let request = format!("hung-{number}");
        world
            .accepted(&world.sale, &request, Duration::from_secs(10))
            .await;
    }
    let counters = async || {
        let reserved = ["HGET", &key, "reserved"];
        world.cluster.cli(&key, &reserved).await.int()
    };
    assert_eq!(counters().await, 6);
    // What the old primary still had in its sockets runs now, and is forgotten when it follows.
    old.resume();
    eventually(PATIENCE, "the old primary follows", async || {
        match old.info("master_link_status").await.as_deref() {
            Some("up") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    for number in 0..5 {
        let request = format!("hung-{number}");
        assert!(world.accepted(&world.sale, &request, PATIENCE).await);
    }
    assert_eq!(counters().await, 6);
}
