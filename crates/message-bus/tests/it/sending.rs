//! What is sent arrives as it was sent.

use std::collections::BTreeSet;
use std::time::Instant;

use seckill_message_bus::{
    OutgoingMessage, SendOutcome, Topic, decode_order_request, placed_scope,
};

use crate::harness::{
    Recorder, consumer_config, messages, request, send_all, with_bus, with_topics,
};

#[test]
fn single_and_batched_messages_arrive_whole_and_in_batches() {
    with_topics(async |bus, _| {
        let producer = bus.producer().await;
        for n in 0..20 {
            let outcome = producer
                .send(OutgoingMessage::order_request(&request(n)))
                .await;
            assert_eq!(outcome, SendOutcome::Sent);
        }
        send_all(&producer, 20..1_000).await;
        let recorder = Recorder::acknowledging();
        let consumer = bus.consumer(consumer_config(), recorder.clone()).await;
        recorder.until(1_000).await;
        consumer.shutdown().await;

        for message in recorder.seen() {
            let decoded = decode_order_request(&message).unwrap();
            assert_eq!(
                message.message_id.as_deref(),
                Some(decoded.message_id().as_str())
            );
            assert_eq!(message.property("UNIQ_KEY"), message.message_id.as_deref());
            assert_eq!(message.property("KEYS"), message.message_id.as_deref());
            assert_eq!(message.property("schema"), Some("1"));
            assert_eq!(message.traceparent(), decoded.traceparent);
            assert_eq!(placed_scope(&message), Some(decoded.bucket.clone()));
            assert_eq!(message.origin(), Some(Topic::OrderRequest));
            assert_eq!(message.reconsume_times, 0);
            let n: u32 = decoded.request_id.as_str()["request-".len()..]
                .parse()
                .unwrap();
            assert_eq!(decoded, request(n));
        }
        let deliveries = recorder.deliveries();
        assert_eq!(deliveries.len(), 1_000);
        assert!(deliveries.values().all(|times| *times == 1));
        assert!(recorder.batches() < 200, "{} batches", recorder.batches());
        producer.shutdown().await;
    });
}

#[test]
fn closing_waits_for_what_is_in_flight() {
    with_topics(async |bus, _| {
        let producer = bus.producer().await;
        let sends: Vec<_> = messages(0..200)
            .into_iter()
            .map(|message| {
                let producer = producer.clone();
                tokio::spawn(async move { producer.send(message).await })
            })
            .collect();
        tokio::task::yield_now().await;
        producer.shutdown().await;
        let mut sent = BTreeSet::new();
        for (n, send) in sends.into_iter().enumerate() {
            match send.await.unwrap() {
                SendOutcome::Sent => drop(sent.insert(n)),
                SendOutcome::Unknown(reason) => assert_eq!(reason, "the producer is closed"),
            }
        }
        // Whoever was let in has been sent; whoever came later was turned away, none was cut off.
        let late = producer
            .send(OutgoingMessage::order_request(&request(999)))
            .await;
        assert_eq!(
            late,
            SendOutcome::Unknown("the producer is closed".to_owned())
        );

        let recorder = Recorder::acknowledging();
        let consumer = bus.consumer(consumer_config(), recorder.clone()).await;
        recorder.until(sent.len()).await;
        assert_eq!(recorder.deliveries().len(), sent.len());
        consumer.shutdown().await;
    });
}

#[test]
fn topics_are_made_once_and_making_them_again_changes_nothing() {
    with_bus(async |bus| {
        let admin = bus.admin().await;
        let producer = bus.producer().await;
        assert!(!producer.is_ready(Topic::OrderRequest).await);
        let other = bus.admin().await;
        let (first, second) = tokio::join!(admin.ensure_topics(), other.ensure_topics());
        first.unwrap();
        second.unwrap();
        for topic in Topic::ALL {
            assert!(producer.is_ready(topic).await);
        }
        send_all(&producer, 0..10).await;
        let begun = Instant::now();
        admin.ensure_topics().await.unwrap();
        println!("topics ensured again in {:?}", begun.elapsed());
        send_all(&producer, 10..20).await;
        producer.shutdown().await;
        admin.shutdown().await;
        other.shutdown().await;
    });
}
