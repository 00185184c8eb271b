//! S0-185: ten thousand releases of one reservation give one unit back.

use futures::StreamExt;
use seckill_state_machine::CompensateCode;

use crate::world::{World, derived};

const CALLS: usize = 10_000;
const AT_ONCE: usize = 256;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_releases_give_one_unit_back() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    world.reserve("u2", "q2").await;
    let id = derived("u1", "q1");
    world.to_release_pending(&id).await;
    let codes: Vec<CompensateCode> = futures::stream::iter(0..CALLS)
        .map(|_| async { world.compensate(&id, "u1").await.code })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let count = |code| codes.iter().filter(|found| **found == code).count();
    assert_eq!(count(CompensateCode::Released), 1);
    assert_eq!(count(CompensateCode::AlreadyReleased), CALLS - 1);
    let stock = world.redis.stock(&world.keys).await.unwrap().unwrap();
    assert_eq!(stock.released_total, 1);
    assert_eq!(world.counters().await, (3, 2, 1));
}
