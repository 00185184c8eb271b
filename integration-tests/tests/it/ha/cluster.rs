//! A Redis Cluster loses a primary during a sale (S0-024, S0-028, S0-130).

use std::time::Instant;

use seckill_integration_tests::{Plan, Sandbox};
use seckill_proto::v1::ReserveCode;
use seckill_test_support::Loss;

use super::{ask, buy_until_accepted, names};
use crate::harness::{SETTLES, orders};

/// The buckets of the sale are spread over all primaries. Until the replica of the lost one is elected
/// calls fail closed, at least its own; then everybody is served, and every buyer gets an order in the end.
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
    let old = cluster.node_of(&buckets[0]).await;
    let mut elsewhere = 0;
    for key in &buckets {
        elsewhere += usize::from(cluster.node_of(key).await.port() != old.port());
    }
    assert!(elsewhere > 0, "all buckets are on one node");
    let began = Instant::now();
    old.lose(Loss::Kill);
    let during = names("during", BUYERS);
    let mut answered = 0;
    for name in &during {
        if let Ok(answer) = ask(&client, &sale, name).await {
            assert_eq!(answer.code(), ReserveCode::Accepted);
            answered += 1;
        }
    }
    cluster.taken_over(&buckets[0], old).await;
    let elected = began.elapsed();
    for name in &during {
        buy_until_accepted(&client, &sale, name).await;
    }
    let back = began.elapsed();
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 48);
    eprintln!(
        "cluster: {answered} of {BUYERS} accepted without the lost primary, its replica elected after \
         {elected:?}, everybody served after {back:?}"
    );
}
