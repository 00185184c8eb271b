//! How many orders a second one hot stock row takes, in batches and one by one. Not a check: run it
//! by hand with `--ignored --nocapture`.

use std::time::Instant;

use seckill_state_machine::OrderRequest;

use crate::fixture::{fresh, sale};

async fn orders_a_second(batch_size: usize, consumers: usize, orders: u64) -> f64 {
    let sale = sale(orders, 1).await;
    let pool: Vec<OrderRequest> = (0..orders).map(|n| sale.request(n)).collect();
    let share = pool.len().div_ceil(consumers);
    let started = Instant::now();
    let mut running = Vec::new();
    for part in pool.chunks(share) {
        let (store, part) = (sale.store.clone(), part.to_vec());
        running.push(tokio::spawn(async move {
            for batch in part.chunks(batch_size) {
                assert!(store.decide(batch).await.unwrap().iter().all(fresh));
            }
        }));
    }
    for consumer in running {
        consumer.await.unwrap();
    }
    let seconds = started.elapsed().as_secs_f64();
    assert_eq!(sale.stock().await, (0, orders));
    f64::from(u32::try_from(orders).unwrap()) / seconds
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of half a minute, to be read by a person"]
async fn orders_a_second_on_one_hot_row() {
    for (batch_size, consumers, orders) in [
        (1, 1, 1_000),
        (1, 4, 2_000),
        (16, 1, 8_000),
        (64, 2, 20_000),
        (128, 1, 20_000),
        (128, 2, 20_000),
        (128, 4, 20_000),
        (256, 2, 20_000),
    ] {
        let rate = orders_a_second(batch_size, consumers, orders).await;
        println!("batches of {batch_size:>3}, {consumers} consumers: {rate:>8.0} orders/s");
    }
}
