//! One server of a Cluster hangs or dies (RC-03): the calls of all other slots go on as if nothing had
//! happened, and those of its own go on at its replica.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{PreheatBucket, Redis, RedisConfig};
use seckill_state_machine::{ActivitySettings, BucketCount, Quantity, TimestampMs};
use seckill_test_support::{Loss, PrivateRedis, RedisCluster, eventually};

use crate::world::{TTL_MS, config, scope};

const BUCKETS: u32 = 8;

/// The time limit of a call. The healthy servers answer in a millisecond; the machine has other work.
const LIMIT: Duration = Duration::from_millis(500);

/// How long the slots of the lost server may go on without an answer once its replica serves them: the
/// map is drawn twice a second, and the first connection takes a moment.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// A cluster with a replica for each primary, a client, and a preheated bucket in many slots.
struct Shards {
    cluster: RedisCluster,
    redis: Redis,
    buckets: Vec<BucketKeys>,
}

/// What the callers of the healthy servers met while one was lost.
#[derive(Debug, Default)]
struct Met {
    calls: usize,
    errors: Vec<String>,
    longest: Duration,
}

impl Shards {
    async fn start() -> Self {
        let cluster = PrivateRedis::start_cluster_with_replicas().await;
        let settings = RedisConfig {
            command_timeout: LIMIT,
            ..config(&cluster.url())
        };
        let redis = Redis::connect(&settings).await.unwrap();
        let mut buckets = Vec::new();
        for bucket in BucketCount::new(BUCKETS).unwrap().buckets() {
            let keys = BucketKeys::new(&scope().bucket(bucket));
            preheat(&redis, &keys).await;
            cluster.caught_up(&keys.stock()).await;
            buckets.push(keys);
        }
        Self {
            cluster,
            redis,
            buckets,
        }
    }

    /// Loses the server of the first bucket and calls all others until its replica serves it. Answers how
    /// long that took, too.
    async fn lose(&self, how: Loss) -> (Met, Duration) {
        let lost = self.cluster.node_of(&self.buckets[0].stock()).await;
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for keys in &self.buckets {
            let owner = self.cluster.node_of(&keys.stock()).await;
            match owner.port() == lost.port() {
                true => own.push(keys),
                false => others.push(keys),
            }
        }
        assert!(others.len() > 1, "all buckets are on one server");
        let is_over = AtomicBool::new(false);
        let election = async {
            lost.lose(how);
            let began = Instant::now();
            self.cluster
                .taken_over(&self.buckets[0].stock(), lost)
                .await;
            let elected = began.elapsed();
            is_over.store(true, Ordering::SeqCst);
            elected
        };
        let healthy = join_all(others.iter().map(|keys| self.call(keys, &is_over)));
        let silent = join_all(own.iter().map(|keys| self.call(keys, &is_over)));
        let (elected, healthy, silent) = tokio::join!(election, healthy, silent);
        let refused: usize = silent.iter().map(|met| met.errors.len()).sum();
        assert!(refused > 0, "nothing was lost");
        let all = healthy.into_iter().fold(Met::default(), |mut all, met| {
            all.calls += met.calls;
            all.errors.extend(met.errors);
            all.longest = all.longest.max(met.longest);
            all
        });
        (all, elected)
    }

    /// Calls a bucket again and again.
    async fn call(&self, keys: &BucketKeys, is_over: &AtomicBool) -> Met {
        let mut met = Met::default();
        while !is_over.load(Ordering::SeqCst) {
            let began = Instant::now();
            if let Err(error) = self.redis.stock(keys).await {
                met.errors.push(format!("{:?}: {error}", began.elapsed()));
            }
            met.longest = met.longest.max(began.elapsed());
            met.calls += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        met
    }

    /// Every bucket is served.
    async fn all_answer(&self) {
        for keys in &self.buckets {
            eventually(BACK_WITHIN, "a lost slot is served", async || {
                let stock = self.redis.stock(keys).await;
                stock
                    .map_err(|error| error.to_string())?
                    .ok_or_else(|| "no stock".to_owned())
            })
            .await;
        }
    }
}

async fn preheat(redis: &Redis, keys: &BucketKeys) {
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
    let call = PreheatBucket {
        keys,
        settings: &settings,
        now_override: None,
    };
    redis.preheat_bucket(&call).await.unwrap();
}

async fn the_others_go_on(how: Loss) -> Shards {
    let shards = Shards::start().await;
    let (met, elected) = shards.lose(how).await;
    let began = Instant::now();
    shards.all_answer().await;
    eprintln!(
        "{how:?}: {} calls of the other servers' slots in {elected:?} until the election, {} failed, the \
         longest took {:?}; all slots served {:?} later",
        met.calls,
        met.errors.len(),
        met.longest,
        began.elapsed()
    );
    assert!(met.calls > 100, "{met:?}");
    // One in a thousand may meet a stall of the machine.
    assert!(met.errors.len() <= met.calls / 1_000, "{:?}", met.errors);
    shards
}

/// Goal: a primary that hangs costs the calls of its own slots their time limit, and no other call
/// anything. Its later awakening, as the replica that it has become, changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_server_of_a_cluster_is_felt_by_its_own_slots_alone() {
    let shards = the_others_go_on(Loss::Hang).await;
    let hung = shards.cluster.nodes().iter().find(|node| node.is_paused());
    hung.unwrap().resume();
    shards.all_answer().await;
    shards.redis.quit().await;
}

/// Goal: the same for one that dies, whose connections end at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_of_a_cluster_is_felt_by_its_own_slots_alone() {
    let shards = the_others_go_on(Loss::Kill).await;
    shards.redis.quit().await;
}
