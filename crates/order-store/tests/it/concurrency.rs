//! Many consumers at once: overlapping batches, shuffled, over the same rows.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use seckill_order_store::Decided;
use seckill_state_machine::{BucketId, OrderRequest};

use crate::fixture::{Fixture, fresh, request, sale, scope, settings, user};

/// Decides random overlapping batches of a pool of requests from several tasks at once, until each
/// request was decided by every task. No error may escape.
async fn decide_overlapping(sale: &Fixture, pool: &[OrderRequest], tasks: u64, seed: u64) {
    let mut running = Vec::new();
    for task in 0..tasks {
        let store = sale.store.clone();
        let mut shuffled = pool.to_vec();
        let mut rng = StdRng::seed_from_u64(seed + task);
        shuffled.shuffle(&mut rng);
        running.push(tokio::spawn(async move {
            let mut rest = shuffled.as_slice();
            while !rest.is_empty() {
                let (batch, after) = rest.split_at(rng.random_range(1..=48).min(rest.len()));
                let answers = store.decide(batch).await.unwrap();
                assert_eq!(answers.len(), batch.len());
                rest = after;
            }
        }));
    }
    for task in running {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_batches_of_eight_consumers_sell_exactly_the_stock() {
    let sale = sale(150, 1).await;
    let pool: Vec<_> = (0..400).map(|n| sale.request(n)).collect();
    decide_overlapping(&sale, &pool, 8, 1).await;
    assert_eq!(sale.stock().await, (0, 150));
    sale.assert_conserved().await;
    let orders = sale
        .db
        .number("SELECT count(*) FROM orders WHERE state = 'ACTIVE'")
        .await;
    assert_eq!(orders, 150);
    let decisions = sale
        .db
        .number("SELECT count(*) FROM reservation_decision")
        .await;
    assert_eq!(decisions, 400);
    assert_eq!(sale.store.outbox_unpublished().await.unwrap(), 400);
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 250);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_user_in_many_buckets_and_versions_gets_one_order() {
    let sale = sale(400, 4).await;
    let newer = scope(2);
    sale.store
        .create_activity(&settings(&newer, 100, 1))
        .await
        .unwrap();
    let mut pool = Vec::new();
    for n in 0..300 {
        let mut asked = request(if n % 5 == 4 { &newer } else { &sale.scope }, n);
        if n % 5 < 4 {
            let bucket = BucketId::new(u32::try_from(n % 4).unwrap()).unwrap();
            asked.bucket = sale.scope.bucket(bucket);
        }
        asked.user_id = user(n % 60);
        pool.push(asked);
    }
    decide_overlapping(&sale, &pool, 8, 2).await;
    sale.assert_conserved().await;
    let buyers = sale
        .db
        .number("SELECT count(DISTINCT user_id) FROM orders WHERE state = 'ACTIVE'")
        .await;
    assert_eq!(buyers, 60);
    assert_eq!(sale.db.number("SELECT count(*) FROM orders").await, 60);
    let refused = sale.db.number(
        "SELECT count(*) FROM reservation_decision
        WHERE kind = 'REJECTED' AND reason = 'USER_HAS_ORDER'",
    );
    assert_eq!(refused.await, 240);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_decided_by_many_at_once_is_fresh_for_exactly_one() {
    let sale = sale(100, 1).await;
    for n in 0..20 {
        let asked = sale.request(n);
        let mut racing = Vec::new();
        for _ in 0..6 {
            let (store, asked) = (sale.store.clone(), asked.clone());
            racing.push(tokio::spawn(async move { store.decide(&[asked]).await }));
        }
        let mut ids = BTreeSet::new();
        let mut fresh_ones = 0;
        for race in racing {
            let decided = crate::fixture::one(race.await.unwrap());
            fresh_ones += u32::from(fresh(&decided));
            let Decided::Ordered { order_id, .. } = decided else {
                panic!("{decided:?}")
            };
            ids.insert(order_id);
        }
        assert_eq!((ids.len(), fresh_ones), (1, 1));
    }
    assert_eq!(sale.stock().await, (80, 20));
    sale.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_in_between_lose_and_invent_no_unit() {
    let sale = sale(40, 1).await;
    let pool: Vec<_> = (0..200).map(|n| sale.request(n)).collect();
    let cancelling = tokio::spawn({
        let url = sale.db.url().to_owned();
        async move {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
                .await
                .unwrap();
            tokio::spawn(connection);
            for _ in 0..60 {
                client.batch_execute(CANCEL_ONE).await.unwrap();
            }
        }
    });
    decide_overlapping(&sale, &pool, 6, 3).await;
    cancelling.await.unwrap();
    sale.assert_conserved().await;
}

// The lock order of every transaction: stock, then order.
const CANCEL_ONE: &str = "
    DO $$
    DECLARE victim record;
    BEGIN
        PERFORM FROM activity_stock ORDER BY activity_id, sku_id, version, bucket_id
            FOR NO KEY UPDATE;
        SELECT * INTO victim FROM orders WHERE state = 'ACTIVE' ORDER BY created_at LIMIT 1;
        IF NOT FOUND THEN RETURN; END IF;
        UPDATE orders SET state = 'CANCELLED', cancelled_at = now(), cancel_reason = 'test'
            WHERE order_id = victim.order_id;
        UPDATE activity_stock SET available = available + 1, sold = sold - 1
            WHERE version = victim.version AND bucket_id = victim.bucket_id;
        INSERT INTO stock_ledger
            (activity_id, sku_id, version, bucket_id, kind, delta, reservation_id)
            VALUES (victim.activity_id, victim.sku_id, victim.version, victim.bucket_id,
                'CANCELLED', victim.quantity, victim.reservation_id);
    END $$";
