//! A broker that is away or says half a yes.

use std::time::{Duration, Instant};

use seckill_message_bus::{
    BusConfig, Consumer, ErrorKind, OutgoingMessage, Producer, SendOutcome, Topic,
};

use crate::harness::{Bus, Recorder, consumer_config, messages, request, with_bus};

/// A port on which nobody listens.
fn nowhere(bus: &Bus) -> BusConfig {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    BusConfig {
        namesrv: listener.local_addr().unwrap().to_string(),
        send_timeout: Duration::from_millis(500),
        ..bus.config.clone()
    }
}

#[test]
fn without_a_broker_everything_starts_and_every_send_is_unknown_in_time() {
    with_bus(async |bus| {
        let config = nowhere(bus);
        let producer = Producer::start(&bus.runtime, &config).await.unwrap();
        for n in 0..10 {
            let begun = Instant::now();
            let outcome = producer
                .send(OutgoingMessage::order_request(&request(n)))
                .await;
            assert!(matches!(outcome, SendOutcome::Unknown(_)), "{outcome:?}");
            assert!(
                begun.elapsed() < Duration::from_secs(2),
                "{:?}",
                begun.elapsed()
            );
        }
        let outcomes = producer.send_batch(messages(0..100)).await;
        assert_eq!(outcomes.len(), 100);
        assert!(outcomes.iter().all(|outcome| !outcome.is_sent()));
        println!("without a broker: {:?}", outcomes[0]);
        assert!(!producer.is_ready(Topic::OrderRequest).await);

        let consumer = Consumer::start(
            &bus.runtime,
            &config,
            consumer_config(),
            Recorder::acknowledging(),
        )
        .await;
        match consumer {
            Ok(consumer) => consumer.shutdown().await,
            Err(error) => panic!("a consumer must start without a broker: {error}"),
        }
        let admin = seckill_message_bus::Admin::connect(&bus.runtime, &config)
            .await
            .unwrap();
        let error = admin.ensure_topics().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retryable);
        println!("ensure_topics without a broker: {error}");
        admin.shutdown().await;
        producer.shutdown().await;
    });
}
