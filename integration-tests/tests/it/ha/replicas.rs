//! Replicas that are gone or behind (S0-133, S0-142, S0-202), with the shipped configuration.

use std::time::Duration;

use seckill_integration_tests::{FrontClient, Plan, Sale, Sandbox, Service};
use seckill_test_support::{Dir, Mode, eventually};

use super::{ask, buy_until_accepted};
use crate::harness::bucket;

/// Twice what `min-replicas-max-lag` says here, and a moment.
const NOTICED: Duration = Duration::from_secs(15);

async fn refuses(client: &FrontClient, sale: &Sale, prefix: &str) -> Vec<String> {
    let mut accepted = Vec::new();
    eventually(NOTICED, "the primary refuses", async || {
        let name = format!("{prefix}-{}", accepted.len());
        match ask(client, sale, &name).await {
            Err(_) => Ok(()),
            Ok(_) => {
                accepted.push(name);
                Err("still accepted")
            }
        }
    })
    .await;
    accepted
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_whose_replica_lags_or_is_gone_takes_no_reservation() {
    // The shipped two seconds would strike by chance on a machine that compiles at the same time.
    let sandbox = Sandbox::builder()
        .shipped_redis()
        .redis_arguments(&["--min-replicas-max-lag", "5"])
        .start()
        .await;
    let sale = sandbox.open(&Plan::new(10_000)).await;
    let front = sandbox.run(Service::Front).await;
    let client = sandbox.client(&front);
    let pair = sandbox.redis_pair();
    let held = buy_until_accepted(&client, &sale, "held").await;

    // The replica gets everything, and its acknowledgements do not arrive.
    pair.replication().set_mode(Mode::Hold(Dir::ToServer));
    let mut sold = refuses(&client, &sale, "lag").await;
    let told = sandbox.redis().info("errorstat_NOREPLICAS").await;
    assert!(told.is_some(), "it was not for want of a replica");
    assert!(ask(&client, &sale, "refused").await.is_err());
    let found = client.by_reservation(&sale, "held", &held).await.unwrap();
    assert_eq!(found.reservation_id, held, "queries go on");
    pair.heal_replication();
    buy_until_accepted(&client, &sale, "refused").await;

    pair.cut_replication();
    sold.extend(refuses(&client, &sale, "gone").await);
    assert!(ask(&client, &sale, "refused-too").await.is_err());
    pair.heal_replication();
    buy_until_accepted(&client, &sale, "refused-too").await;

    let taken = sold.len() + 3;
    let stock = bucket(&sandbox, &sale, 0).await.stock;
    assert_eq!(stock["reserved"], taken.to_string());
    sandbox.assert_consistent().await;
}
