//! How many orders a second one hot stock row takes, in batches and one by one, on the PostgreSQL
//! that the tests use. The figures show what batching is worth; they are no promise for a server.

#![expect(
    clippy::unwrap_used,
    reason = "a measurement ends with the first thing that is not as expected"
)]

use std::time::{Duration, Instant};

use seckill_order_store::{Decided, Store, StoreConfig, migrate, schema_fingerprint};
use seckill_state_machine::{
    ActivityId, ActivitySettings, ActivityVersion, BucketCount, BucketId, OrderRequest, Quantity,
    RequestId, ReservationId, Scope, SkuId, TimestampMs, UserId,
};
use seckill_test_support::TestDatabase;

/// Batch size, consumers at once, orders in all. Small batches get fewer orders, so that no line takes
/// longer than some seconds.
const RUNS: [(usize, usize, u32); 8] = [
    (1, 1, 1_000),
    (1, 4, 2_000),
    (16, 1, 8_000),
    (64, 2, 20_000),
    (128, 1, 20_000),
    (128, 2, 20_000),
    (128, 4, 20_000),
    (256, 2, 20_000),
];

/// A moment in the past from which the activity runs, and one far ahead at which it ends.
const STARTS: i64 = 1_700_000_000_000;
const ENDS: i64 = 4_000_000_000_000;

fn scope() -> Scope {
    Scope {
        activity_id: ActivityId::parse("bench").unwrap(),
        sku_id: SkuId::parse("hot").unwrap(),
        version: ActivityVersion::new(1).unwrap(),
    }
}

fn settings(stock: u32) -> ActivitySettings {
    ActivitySettings {
        scope: scope(),
        starts_at_ms: TimestampMs::new(STARTS),
        ends_at_ms: TimestampMs::new(ENDS),
        retention_until_ms: TimestampMs::new(ENDS + 1),
        total_stock: u64::from(stock),
        bucket_count: BucketCount::new(1).unwrap(),
        limit_per_user: 1,
        max_quantity: Quantity::ONE,
        reservation_ttl_ms: 900_000,
        patience_ms: 60_000,
        secret_version: 1,
    }
}

/// The n-th buyer's request; its reservation id is n in base 32.
fn request(n: u32) -> OrderRequest {
    let digits = b"abcdefghijklmnopqrstuvwxyz234567";
    let id = (0..26u32).rev().map(|place| {
        let digit = n.checked_shr(5 * place).unwrap_or(0) % 32;
        char::from(digits[digit as usize])
    });
    OrderRequest {
        reservation_id: ReservationId::parse(id.collect::<String>()).unwrap(),
        request_id: RequestId::parse(format!("q{n}")).unwrap(),
        user_id: UserId::parse(format!("u{n}")).unwrap(),
        bucket: scope().bucket(BucketId::ZERO),
        quantity: Quantity::ONE,
        reserved_at_ms: TimestampMs::new(STARTS + 1),
        traceparent: None,
    }
}

fn store(db: &TestDatabase) -> Store {
    let config = StoreConfig {
        url: db.url().to_owned().into(),
        pool_size: 12,
        acquire_timeout: Duration::from_secs(5),
        statement_timeout: Duration::from_secs(10),
        lock_timeout: Duration::from_secs(5),
        idle_in_transaction_timeout: Duration::from_secs(10),
        application_name: "order-store-bench".to_owned(),
    };
    Store::connect(&config).unwrap()
}

async fn orders_a_second(batch_size: usize, consumers: usize, orders: u32) -> f64 {
    let template = format!("order_store_{:016x}", schema_fingerprint());
    let db = TestDatabase::from_template(&template, async |url| {
        migrate(&url.into()).await?;
        Ok(())
    })
    .await;
    let store = store(&db);
    store.create_activity(&settings(orders)).await.unwrap();
    let requests: Vec<OrderRequest> = (0..orders).map(request).collect();
    let share = requests.len().div_ceil(consumers);
    let started = Instant::now();
    let mut running = Vec::new();
    for part in requests.chunks(share) {
        let (store, part) = (store.clone(), part.to_vec());
        running.push(tokio::spawn(async move {
            for batch in part.chunks(batch_size) {
                let decided = store.decide(batch).await.unwrap();
                let fresh = |one: &Decided| matches!(one, Decided::Ordered { fresh: true, .. });
                assert!(decided.iter().all(fresh));
            }
        }));
    }
    for consumer in running {
        consumer.await.unwrap();
    }
    let seconds = started.elapsed().as_secs_f64();
    let row = store.stock_rows(&scope()).await.unwrap();
    assert_eq!((row[0].available, row[0].sold), (0, u64::from(orders)));
    f64::from(orders) / seconds
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for (batch_size, consumers, orders) in RUNS {
            let rate = orders_a_second(batch_size, consumers, orders).await;
            println!("batches of {batch_size:>3}, {consumers} consumers: {rate:>8.0} orders/s");
        }
    });
}
