//! What was handed back is found wherever it waits, until it is acknowledged.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seckill_message_bus::{
    Admin, BatchVerdict, Consumer, ConsumerConfig, Group, Redeliveries, Topic, has_reached,
};
use seckill_state_machine::BucketId;
use seckill_test_support::eventually;
use tokio::time::timeout;

use crate::harness::{PATIENCE, Recorder, consumer_config, request, send_all, with_topics};

/// A handler that hands everything back until it is told otherwise, and what it took after that.
struct Stubborn {
    gives_in: AtomicBool,
    taken: Mutex<BTreeSet<String>>,
}

impl Stubborn {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            gives_in: AtomicBool::new(false),
            taken: Mutex::default(),
        })
    }

    fn recorder(self: &Arc<Self>) -> Arc<Recorder> {
        let stubborn = Arc::clone(self);
        Recorder::new(move |message| {
            if !stubborn.gives_in.load(Ordering::SeqCst) {
                return BatchVerdict::Redeliver;
            }
            let id = message.message_id.clone().unwrap();
            stubborn.taken.lock().unwrap().insert(id);
            BatchVerdict::Acknowledge
        })
    }

    fn give_in(&self) {
        self.gives_in.store(true, Ordering::SeqCst);
    }

    fn taken(&self) -> usize {
        self.taken.lock().unwrap().len()
    }
}

async fn all_was_fetched(admin: &Admin) {
    let ends = admin.queue_ends(Topic::OrderRequest).await.unwrap();
    eventually(PATIENCE, "all of them are fetched", async || {
        match admin
            .consumed(Group::OrderConsumer, Topic::OrderRequest)
            .await
        {
            Ok(consumed) if has_reached(&ends, &consumed) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// MQ-08, M7. Goal: while messages go round between delay and redelivery, no look misses them, and
/// other buckets are not mistaken for theirs. Method: more of them than a page holds; looks one after
/// the other, which hit every place and every move between two.
#[test]
fn what_was_handed_back_is_found_at_every_instant_until_it_is_acknowledged() {
    const MESSAGES: u32 = 300;
    const ROUNDS: usize = 5;
    with_topics(async |bus, _| {
        let admin = Arc::new(bus.admin().await);
        let producer = bus.producer().await;
        send_all(&producer, 0..MESSAGES).await;
        let stubborn = Stubborn::new();
        let recorder = stubborn.recorder();
        let consumer = bus.consumer(consumer_config(), recorder.clone()).await;
        all_was_fetched(&admin).await;

        let mut redeliveries = Redeliveries::new(Arc::clone(&admin), Group::OrderConsumer);
        let own = request(0).bucket;
        let other = own.scope.bucket(BucketId::new(1).unwrap());
        let (mut looks, mut told_apart) = (0, 0);
        let going_round = async {
            loop {
                if recorder.seen().len() >= MESSAGES as usize * ROUNDS {
                    stubborn.give_in();
                }
                let may_come = redeliveries.look().await.unwrap();
                looks += 1;
                if !may_come.of(&own) {
                    break;
                }
                told_apart += u32::from(!may_come.of(&other));
            }
        };
        timeout(PATIENCE, going_round).await.unwrap();
        println!("{looks} looks, {told_apart} of them knew");
        assert_eq!(stubborn.taken(), MESSAGES as usize);
        assert!(told_apart > 0, "no look of {looks} told the buckets apart");
        consumer.shutdown().await;
        producer.shutdown().await;
        admin.shutdown().await;
    });
}

/// Goal: a dead letter counts until its reader has acknowledged it, also while the reader hands it
/// back.
#[test]
fn a_dead_letter_counts_until_its_reader_has_taken_it() {
    with_topics(async |bus, _| {
        let admin = Arc::new(bus.admin().await);
        let producer = bus.producer().await;
        send_all(&producer, 0..1).await;
        let config = ConsumerConfig {
            max_redeliveries: 1,
            ..consumer_config()
        };
        let consumer = bus.consumer(config, Stubborn::new().recorder()).await;
        all_was_fetched(&admin).await;
        let mut redeliveries = Redeliveries::new(Arc::clone(&admin), Group::OrderConsumer);
        let own = request(0).bucket;
        let dead = async || match admin.dead_letter_lag(Group::OrderConsumer).await {
            Ok(1) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        while dead().await.is_err() {
            assert!(redeliveries.look().await.unwrap().of(&own));
        }
        assert!(redeliveries.look().await.unwrap().of(&own));

        let stubborn = Stubborn::new();
        let recorder = stubborn.recorder();
        let reader = Consumer::start_dead_letters(
            &bus.runtime,
            &bus.config,
            consumer_config(),
            recorder.clone(),
        )
        .await
        .unwrap();
        let read = async {
            loop {
                if recorder.seen().len() >= 3 {
                    stubborn.give_in();
                }
                if !redeliveries.look().await.unwrap().of(&own) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, read).await.unwrap();
        assert_eq!(stubborn.taken(), 1);
        reader.shutdown().await;
        consumer.shutdown().await;
        producer.shutdown().await;
        admin.shutdown().await;
    });
}
