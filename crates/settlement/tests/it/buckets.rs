//! Replay of whole buckets.

use std::collections::BTreeMap;
use std::time::Instant;

use seckill_settlement::{PAGE_SIZE, Tally};
use seckill_state_machine::OrderRequest;

use crate::world::{World, request};

/// Goal: a page boundary loses and repeats nothing, every decision is reported once, and a second pass
/// finds nothing to do. Also prints the pace, which must leave room for 10,000 units in ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_is_rebuilt_page_by_page_and_its_second_pass_is_clean() {
    const ORDERS: u64 = PAGE_SIZE as u64 * 2 + 1;
    let world = World::open(ORDERS + 5).await;
    let requests: Vec<OrderRequest> = (1..=ORDERS).map(request).collect();
    for batch in requests.chunks(256) {
        world.store.decide(batch).await.unwrap();
    }
    let mut reported = BTreeMap::<String, u32>::new();
    let began = Instant::now();
    let bucket = &requests[0].bucket;
    let tally = world
        .replayer
        .replay_bucket(bucket, |decision, _| {
            *reported
                .entry(decision.reservation_id.to_string())
                .or_default() += 1;
        })
        .await
        .unwrap();
    let per_second = ORDERS as f64 / began.elapsed().as_secs_f64();
    println!("{per_second:.0} rebuilds a second");
    assert_eq!(
        tally,
        Tally {
            rebuilt: ORDERS,
            ..Tally::default()
        }
    );
    assert_eq!(reported.len() as u64, ORDERS);
    assert!(reported.values().all(|times| *times == 1));
    assert_eq!(world.units().await, (5, ORDERS));

    let again = world
        .replayer
        .replay_bucket(bucket, |_, _| {})
        .await
        .unwrap();
    assert!(again.is_clean());
    assert_eq!(again.checked(), ORDERS);
}

/// Goal: a round is clean while a sale goes on, although some decision is always on its way to Redis; one
/// that has not arrived after long is work that was left.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_just_decided_leaves_a_round_clean() {
    let world = World::open(5).await;
    let (bought, just_decided) = (request(1), request(2));
    world.bought(&bought).await;
    world.accepted(&just_decided).await;
    world.ordered(&just_decided).await;
    let bucket = &bought.bucket;
    let round = async || {
        let tally = world.replayer.replay_bucket(bucket, |_, _| {}).await;
        tally.unwrap()
    };
    let during_the_sale = round().await;
    let expected = Tally {
        agreed: 1,
        in_progress: 1,
        ..Tally::default()
    };
    assert_eq!(during_the_sale, expected);
    assert!(during_the_sale.is_clean());
    assert_eq!(during_the_sale.checked(), 2);

    let long_ago =
        "UPDATE reservation_decision SET decided_at = decided_at - interval '31 seconds'";
    world.db.execute(long_ago).await;
    let record = world.keys.reservation(&just_decided.reservation_id);
    let set_back = ["HSET", &record, "status", "ENQUEUED"];
    assert_eq!(world.server.cli(&set_back).await.error(), None);
    let left_over = round().await;
    assert_eq!((left_over.settled, left_over.in_progress), (1, 0));
    assert!(!left_over.is_clean());
}

/// Goal: a bucket that is gone ends the walk with its first page.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_gone_ends_the_walk() {
    let orders = PAGE_SIZE as u64 + 10;
    let world = World::open(orders).await;
    let requests: Vec<OrderRequest> = (1..=orders).map(request).collect();
    for batch in requests.chunks(256) {
        world.store.decide(batch).await.unwrap();
    }
    world.lose_all().await;
    let bucket = &requests[0].bucket;
    let tally = world
        .replayer
        .replay_bucket(bucket, |_, _| {})
        .await
        .unwrap();
    assert_eq!(tally.bucket_gone, PAGE_SIZE as u64);
    assert_eq!(tally.checked(), tally.bucket_gone);
}
