//! A Redis Cluster loses a primary during a sale (S0-024, S0-028, S0-130).

use std::time::Instant;

use seckill_integration_tests::{Plan, Sandbox};
use seckill_proto::v1::ReserveCode;
use seckill_test_support::{Loss, PrivateRedis, RedisCluster};

use super::{ask, buy_until_accepted, names};
use crate::harness::{SETTLES, bucket, orders};

/// The buckets of the sale are spread over all primaries. Until the replica of the lost one is elected its
/// own calls fail closed, and no others; then everybody is served, and every buyer gets an order in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_over_a_cluster_outlives_the_loss_of_a_primary() {
    const BUYERS: usize = 24;
    let sandbox = Sandbox::builder().cluster_with_replicas().start().await;
    let sale = sandbox.open(&Plan::new(240).buckets(8)).await;
    let services = sandbox.run_all().await;
    let client = sandbox.client(&services.front);
    for name in names("before", BUYERS) {
        buy_until_accepted(&client, &sale, &name).await;
    }
    let cluster = sandbox.redis_cluster();
    let mut buckets = Vec::new();
    for bucket in 0..8 {
        let key = sale.key(bucket, "stock");
        cluster.caught_up(&key).await;
        buckets.push(key);
    }
    let (old, lost) = victim(cluster, &buckets).await;
    let began = Instant::now();
    old.lose(Loss::Kill);
    let during = names("during", BUYERS);
    let mut refused = Vec::new();
    for name in &during {
        match ask(&client, &sale, name).await {
            Ok(answer) => assert_eq!(answer.code(), ReserveCode::Accepted),
            Err(_) => refused.push(name),
        }
    }
    cluster.taken_over(&buckets[lost[0]], old).await;
    let elected = began.elapsed();
    for name in &during {
        buy_until_accepted(&client, &sale, name).await;
    }
    let back = began.elapsed();
    assert!(!refused.is_empty(), "nothing was lost");
    let mut in_lost = 0;
    for number in &lost {
        let number = u32::try_from(*number).unwrap();
        let markers = bucket(&sandbox, &sale, number).await.markers;
        in_lost += refused
            .iter()
            .filter(|name| markers.contains_key(name.as_str()))
            .count();
    }
    assert_eq!(
        in_lost,
        refused.len(),
        "calls of other primaries failed, too"
    );
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 48);
    eprintln!(
        "cluster: {} of {BUYERS} refused without the lost primary, all in its {} of 8 buckets; its replica \
         elected after {elected:?}, everybody served after {back:?}",
        refused.len(),
        lost.len()
    );
}

/// A primary with some of the buckets, and their numbers. Not that of the first one: an activity's settings
/// are read from there, and without them nothing would be sold.
async fn victim<'c>(
    cluster: &'c RedisCluster,
    buckets: &[String],
) -> (&'c PrivateRedis, Vec<usize>) {
    let settings = cluster.node_of(&buckets[0]).await.port();
    let mut owners = Vec::new();
    for key in buckets {
        owners.push(cluster.node_of(key).await);
    }
    let other = owners.iter().find(|owner| owner.port() != settings);
    let old = *other.unwrap();
    let of_it =
        |(number, owner): (usize, &&PrivateRedis)| (owner.port() == old.port()).then_some(number);
    (old, owners.iter().enumerate().filter_map(of_it).collect())
}
