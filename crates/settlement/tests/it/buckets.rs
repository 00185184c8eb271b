//! Replay of whole buckets.

use std::collections::BTreeMap;
use std::time::Instant;

use seckill_settlement::{PAGE_SIZE, Tally};
use seckill_state_machine::{BucketId, OrderRequest};

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

/// The n-th request, in one of some buckets.
fn request_in(n: u64, buckets: u64) -> OrderRequest {
    let mut request = request(n);
    request.bucket = request.bucket.scope.bucket(bucket_id(n % buckets));
    request
}

fn bucket_id(n: u64) -> BucketId {
    BucketId::new(u32::try_from(n).unwrap()).unwrap()
}

/// Orders that PostgreSQL has and Redis has never heard of.
async fn orders_in(world: &World, count: u64, buckets: u64) -> Vec<OrderRequest> {
    let requests: Vec<OrderRequest> = (1..=count).map(|n| request_in(n, buckets)).collect();
    for batch in requests.chunks(256) {
        world.store.decide(batch).await.unwrap();
    }
    requests
}

/// Goal: one walk brings back every bucket that is asked for and touches no other, each decision once,
/// over the boundaries of pages.
#[tokio::test(flavor = "multi_thread")]
async fn one_walk_replays_all_buckets_that_are_asked_for() {
    const BUCKETS: u64 = 3;
    const ORDERS: u64 = PAGE_SIZE as u64 * BUCKETS + 6;
    let world = World::open_split(ORDERS, 3).await;
    let requests = orders_in(&world, ORDERS, BUCKETS).await;
    let mut reported = BTreeMap::<String, u32>::new();
    let asked = [bucket_id(0), bucket_id(2)];
    let scope = &requests[0].bucket.scope;
    let ended = world
        .replayer
        .replay_buckets(scope, &asked, |decision, _| {
            assert!(asked.contains(&decision.bucket.bucket_id));
            let id = decision.reservation_id.to_string();
            *reported.entry(id).or_default() += 1;
        })
        .await
        .unwrap();
    let each = ORDERS / BUCKETS;
    let expected = Tally {
        rebuilt: each,
        ..Tally::default()
    };
    assert_eq!(ended.len(), 2);
    for (id, tally) in ended {
        assert_eq!(tally.unwrap(), expected, "bucket {id}");
    }
    assert_eq!(reported.len() as u64, each * 2);
    assert!(reported.values().all(|times| *times == 1));
}

/// Goal: a bucket that is gone and one whose server answers nothing but errors take nothing from the
/// others. Method: the server takes no more commands for the keys of one.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_fails_keeps_no_other_from_being_replayed() {
    const BUCKETS: u64 = 3;
    let orders = PAGE_SIZE as u64 * BUCKETS + 30;
    let world = World::open_split(orders, 3).await;
    let requests = orders_in(&world, orders, BUCKETS).await;
    let server = &world.server;
    let gone = "*:b:1}:*";
    for key in server.cli(&["KEYS", gone]).await.texts() {
        server.cli(&["DEL", &key]).await;
    }
    let admin = [
        "ACL", "SETUSER", "admin", "on", "nopass", "~*", "&*", "+@all",
    ];
    assert_eq!(server.cli(&admin).await.error(), None);
    let narrow = [
        "ACL",
        "SETUSER",
        "default",
        "resetkeys",
        "~*:b:0}:*",
        "~*:b:1}:*",
    ];
    assert_eq!(server.cli(&narrow).await.error(), None);
    let all: Vec<BucketId> = (0..BUCKETS).map(bucket_id).collect();
    let scope = &requests[0].bucket.scope;
    let mut ended = world
        .replayer
        .replay_buckets(scope, &all, |_, _| {})
        .await
        .unwrap();
    let healthy = ended.remove(&all[0]).unwrap().unwrap();
    assert_eq!(healthy.rebuilt, orders / BUCKETS);
    let gone = ended.remove(&all[1]).unwrap().unwrap();
    assert!(gone.bucket_gone > 0 && gone.checked() == gone.bucket_gone);
    assert!(ended.remove(&all[2]).unwrap().is_err());
}
