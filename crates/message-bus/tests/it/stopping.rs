//! A consumer that stops loses nothing and repeats nothing that it finished.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use seckill_message_bus::{BatchHandler, BatchVerdict, Consumer, ConsumerConfig, IncomingMessage};
use tokio::sync::watch;

use crate::harness::{Recorder, consumer_config, send_all, until_lag_is, with_topics};

/// Holds every batch until the gate opens.
struct Gated {
    recorder: Arc<Recorder>,
    waiting: watch::Sender<usize>,
    gate: watch::Receiver<bool>,
}

#[async_trait]
impl BatchHandler for Gated {
    async fn handle(&self, batch: Vec<IncomingMessage>) -> BatchVerdict {
        self.waiting.send_modify(|waiting| *waiting += 1);
        let mut gate = self.gate.clone();
        gate.wait_for(|open| *open).await.unwrap();
        self.recorder.handle(batch).await
    }
}

#[test]
fn stopping_finishes_running_batches_and_leaves_the_rest_to_others() {
    with_topics(async |bus, admin| {
        let producer = bus.producer().await;
        send_all(&producer, 0..400).await;
        let (open, gate) = watch::channel(false);
        let first = Recorder::acknowledging();
        let gated = Arc::new(Gated {
            recorder: first.clone(),
            waiting: watch::Sender::new(0),
            gate,
        });
        let config = ConsumerConfig {
            batch_max: 8,
            ..consumer_config()
        };
        let consumer = Consumer::start(&bus.runtime, &bus.config, config, gated.clone())
            .await
            .unwrap();
        let mut waiting = gated.waiting.subscribe();
        waiting.wait_for(|waiting| *waiting == 4).await.unwrap();

        let begun = Instant::now();
        let stopping = tokio::spawn(consumer.shutdown());
        tokio::task::yield_now().await;
        open.send_replace(true);
        stopping.await.unwrap();
        println!("stopped in {:?} with four batches running", begun.elapsed());
        let finished = first.deliveries();
        assert!((4..=400).contains(&finished.len()));

        let second = Recorder::acknowledging();
        let consumer = bus.consumer(consumer_config(), second.clone()).await;
        second.until(400 - finished.len()).await;
        until_lag_is(admin, 0).await;
        consumer.shutdown().await;
        let rest = second.deliveries();
        let repeated = rest.keys().filter(|id| finished.contains_key(*id)).count();
        println!(
            "finished {}, left {}, repeated {repeated}",
            finished.len(),
            rest.len()
        );
        assert_eq!(
            finished.len() + rest.len() - repeated,
            400,
            "a message was lost"
        );
        producer.shutdown().await;
    });
}
