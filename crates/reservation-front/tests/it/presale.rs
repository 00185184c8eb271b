//! Bots before the sale opens: refusals are remembered only up to a limit (FUZZ-15).

use seckill_proto::v1::ReserveCode;
use seckill_state_machine::ActivityState;
use seckill_test_support::{PrivateRedis, at_length, eventually};

use crate::harness::{PATIENCE, Sale, client, drive_to_the_end, front, reserve, settings};

const REMEMBERED_PER_SHARD: u64 = 8;

async fn remembered(sale: &Sale, redis: &PrivateRedis) -> u64 {
    let mut connection = redis.connection().await.unwrap();
    let mut sum = 0;
    for shard in 0..256 {
        let reply = connection
            .call(&["HLEN", &sale.keys().request_shard(shard)])
            .await;
        sum += u64::try_from(reply.unwrap().int()).unwrap();
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn bots_cannot_fill_the_memory_before_the_sale_opens() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::prepare(&redis, settings(10)).await;
    sale.point_here().await;
    let front = front(redis.url())
        .env("SECKILL_FRONT_NEGATIVE_CACHE_MAX", REMEMBERED_PER_SHARD)
        .start()
        .await;

    let count: usize = at_length(20_000, 500_000);
    let calls = |round: u32| {
        let calls = (0..count).map(move |n| (format!("bot-{}", n % 10), format!("r-{round}-{n}")));
        let calls = calls.map(|(user, request)| sale.call(&user, &request));
        calls.collect::<Vec<_>>()
    };
    let first = drive_to_the_end(&front, calls(1), 256).await;
    first.report("before the opening");
    assert_eq!(first.with_code(ReserveCode::ActivityNotActive).len(), count);
    let limit = 256 * REMEMBERED_PER_SHARD;
    assert_eq!(remembered(&sale, &redis).await, limit);
    let second = drive_to_the_end(&front, calls(2), 256).await;
    assert_eq!(
        second.with_code(ReserveCode::ActivityNotActive).len(),
        count
    );
    assert_eq!(remembered(&sale, &redis).await, limit);

    sale.set_state(ActivityState::Active).await;
    let mut client = client(&front).await;
    let honest = reserve(&mut client, sale.call("honest", "honest")).await;
    assert_eq!(honest.code(), ReserveCode::Accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn invented_activities_cost_neither_memory_nor_keys() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(10)).await;
    let front = front(redis.url()).start().await;
    let before = redis.dump().await;
    let calls = (0..50_000).map(|n| {
        let mut call = sale.call("user", "request");
        call.activity_id = format!("invented-{n}");
        call
    });
    let answers = drive_to_the_end(&front, calls.collect::<Vec<_>>(), 256).await;
    answers.report("invented activities");
    assert_eq!(answers.with_code(ReserveCode::ConfigMissing).len(), 50_000);
    assert_eq!(redis.dump().await, before);
    eventually(PATIENCE, "a real activity is still served", async || {
        let mut client = client(&front).await;
        let answer = reserve(&mut client, sale.call("user", "request")).await;
        match answer.code() {
            ReserveCode::Accepted => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
