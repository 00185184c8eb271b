//! Batches are acknowledged as a whole, come again otherwise, and end as dead letters.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use seckill_message_bus::{
    BatchHandler, BatchVerdict, Consumer, ConsumerConfig, Group, IncomingMessage, Topic,
    decode_order_request,
};
use seckill_test_support::eventually;
use tokio::sync::watch;

use crate::harness::{
    PATIENCE, Recorder, consumer_config, request, send_all, until_lag_is, with_topics,
};

fn redeliver_before(times: u32) -> Arc<Recorder> {
    Recorder::new(move |message| {
        if message.reconsume_times < times {
            BatchVerdict::Redeliver
        } else {
            BatchVerdict::Acknowledge
        }
    })
}

#[test]
fn a_refused_batch_comes_again_under_the_same_ids() {
    with_topics(async |bus, admin| {
        let producer = bus.producer().await;
        send_all(&producer, 0..5).await;
        let recorder = redeliver_before(2);
        let consumer = bus.consumer(consumer_config(), recorder.clone()).await;
        recorder.until(15).await;
        until_lag_is(admin, 0).await;
        consumer.shutdown().await;

        let seen = recorder.seen();
        assert_eq!(
            recorder.deliveries().into_values().collect::<Vec<_>>(),
            [3; 5]
        );
        for n in 0..5 {
            let own = request(n);
            let of_this: Vec<&IncomingMessage> = seen
                .iter()
                .filter(|message| message.message_id.as_deref() == Some(own.message_id().as_str()))
                .collect();
            let times: Vec<u32> = of_this
                .iter()
                .map(|message| message.reconsume_times)
                .collect();
            assert_eq!(times, [0, 1, 2]);
            // The broker's own id is another one on each delivery, and of no use.
            let ids: BTreeSet<&str> = of_this
                .iter()
                .map(|message| message.broker_message_id.as_str())
                .collect();
            assert_eq!(ids.len(), 3);
            for message in of_this {
                assert_eq!(message.origin(), Some(Topic::OrderRequest));
                assert_eq!(decode_order_request(message).unwrap(), own);
            }
        }
        producer.shutdown().await;
    });
}

#[test]
fn what_is_refused_too_often_is_read_by_the_dead_letter_group() {
    with_topics(async |bus, admin| {
        let producer = bus.producer().await;
        let config = ConsumerConfig {
            max_redeliveries: 1,
            threads: 1,
            ..consumer_config()
        };
        let letters = Recorder::acknowledging();
        let dead = Consumer::start_dead_letters(
            &bus.runtime,
            &bus.config,
            config.clone(),
            letters.clone(),
        )
        .await
        .unwrap();
        let poison = request(3).message_id().to_string();
        let refused = poison.clone();
        let recorder = Recorder::new(move |message| {
            if message.message_id.as_deref() == Some(refused.as_str()) {
                BatchVerdict::Redeliver
            } else {
                BatchVerdict::Acknowledge
            }
        });
        let one_by_one = ConsumerConfig {
            batch_max: 1,
            ..config
        };
        let consumer = bus.consumer(one_by_one, recorder.clone()).await;
        send_all(&producer, 0..5).await;
        letters.until(1).await;
        consumer.shutdown().await;

        assert_eq!(recorder.deliveries()[&poison], 2);
        assert_eq!(recorder.seen().len(), 6);
        let letter = letters.seen().remove(0);
        assert_eq!(letter.message_id, Some(poison));
        assert!(letter.topic.starts_with("%DLQ%"), "{}", letter.topic);
        assert_eq!(letter.origin(), Some(Topic::OrderRequest));
        assert_eq!(decode_order_request(&letter).unwrap(), request(3));
        eventually(
            PATIENCE,
            "the dead letter acknowledged",
            async || match admin.dead_letter_lag(Group::OrderConsumer).await {
                Ok(0) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await;
        dead.shutdown().await;
        producer.shutdown().await;
    });
}

/// Panics at first, then hangs beyond the deadline, then works.
struct Faulty {
    calls: AtomicUsize,
    dropped: Arc<AtomicUsize>,
    done: watch::Sender<bool>,
}

struct CountsDrop(Arc<AtomicUsize>);

impl Drop for CountsDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl BatchHandler for Faulty {
    async fn handle(&self, _: Vec<IncomingMessage>) -> BatchVerdict {
        match self.calls.fetch_add(1, Ordering::SeqCst) {
            0 => panic!("a handler's panic, on purpose"),
            1 => {
                let _guard = CountsDrop(Arc::clone(&self.dropped));
                std::future::pending().await
            }
            _ => {
                self.done.send_replace(true);
                BatchVerdict::Acknowledge
            }
        }
    }
}

#[test]
fn a_panic_and_a_passed_deadline_are_redeliveries() {
    with_topics(async |bus, admin| {
        let producer = bus.producer().await;
        send_all(&producer, 0..1).await;
        let dropped = Arc::new(AtomicUsize::new(0));
        let faulty = Arc::new(Faulty {
            calls: AtomicUsize::new(0),
            dropped: Arc::clone(&dropped),
            done: watch::Sender::new(false),
        });
        let config = ConsumerConfig {
            handler_deadline: Duration::from_millis(300),
            ..consumer_config()
        };
        let consumer = Consumer::start(&bus.runtime, &bus.config, config, faulty.clone())
            .await
            .unwrap();
        let mut done = faulty.done.subscribe();
        tokio::time::timeout(PATIENCE, done.wait_for(|done| *done))
            .await
            .expect("handled at last")
            .unwrap();
        until_lag_is(admin, 0).await;
        assert_eq!(faulty.calls.load(Ordering::SeqCst), 3);
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        consumer.shutdown().await;
        producer.shutdown().await;
    });
}
