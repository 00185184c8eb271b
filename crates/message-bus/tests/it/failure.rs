//! A broker that is away or says half a yes.

use std::time::{Duration, Instant};

use seckill_message_bus::{
    Admin, BusConfig, Consumer, ErrorKind, Group, OutgoingMessage, Producer, SendOutcome, Topic,
};
use seckill_test_support::{Dir, FrameAction, Mode, Sever, eventually};

use crate::harness::{
    Bus, PATIENCE, Recorder, consumer_config, messages, request, send_all, until_lag_is, with_bus,
    with_topics,
};
use crate::proxied::{Proxied, is_send_answer, with_code};

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

/// MQ-03: the broker answers, and the answer is neither an error nor OK.
#[test]
fn a_status_that_is_not_plain_ok_is_not_sent() {
    with_topics(async |bus, _| {
        let proxied = Proxied::start(bus).await;
        let producer = Producer::start(&bus.runtime, &proxied.config)
            .await
            .unwrap();
        let statuses = [
            (10, "FLUSH_DISK_TIMEOUT"),
            (11, "SLAVE_NOT_AVAILABLE"),
            (12, "FLUSH_SLAVE_TIMEOUT"),
        ];
        for (code, name) in statuses {
            proxied.broker.on_frame(move |dir, _, frame| {
                if dir == Dir::ToClient && is_send_answer(frame.bytes()) {
                    FrameAction::Replace(with_code(frame.bytes(), code))
                } else {
                    FrameAction::Forward
                }
            });
            let unknown = SendOutcome::Unknown(name.to_owned());
            let single = producer
                .send(OutgoingMessage::order_request(&request(1)))
                .await;
            assert_eq!(single, unknown);
            let batch = producer.send_batch(messages(2..5)).await;
            assert_eq!(batch, vec![unknown; 3]);
        }
        proxied.broker.clear_hook();
        let again = producer
            .send(OutgoingMessage::order_request(&request(1)))
            .await;
        assert_eq!(again, SendOutcome::Sent);
        producer.shutdown().await;
    });
}

/// A send without an answer may have been stored; its repeat carries the same id.
#[test]
fn a_lost_answer_is_unknown_in_time_and_the_repeat_has_the_same_id() {
    with_topics(async |bus, _| {
        let proxied = Proxied::start(bus).await;
        let config = BusConfig {
            send_timeout: Duration::from_millis(500),
            ..proxied.config.clone()
        };
        let producer = Producer::start(&bus.runtime, &config).await.unwrap();
        let first = producer
            .send(OutgoingMessage::order_request(&request(0)))
            .await;
        assert_eq!(first, SendOutcome::Sent);
        proxied.broker.set_mode(Mode::Swallow(Dir::ToClient));
        let begun = Instant::now();
        let lost = producer
            .send(OutgoingMessage::order_request(&request(1)))
            .await;
        println!(
            "an answer that never comes: {lost:?} after {:?}",
            begun.elapsed()
        );
        assert!(matches!(lost, SendOutcome::Unknown(_)), "{lost:?}");
        assert!(begun.elapsed() < Duration::from_millis(1_500));
        proxied.broker.set_mode(Mode::Forward);
        eventually(PATIENCE, "the repeat", async || {
            match producer
                .send(OutgoingMessage::order_request(&request(1)))
                .await
            {
                SendOutcome::Sent => Ok(()),
                SendOutcome::Unknown(reason) => Err(reason),
            }
        })
        .await;
        let recorder = Recorder::acknowledging();
        let consumer = bus.consumer(consumer_config(), recorder.clone()).await;
        recorder.until(3).await;
        let deliveries = recorder.deliveries();
        assert_eq!(deliveries.len(), 2);
        assert!(
            deliveries[request(1).message_id().as_str()] >= 2,
            "{deliveries:?}"
        );
        consumer.shutdown().await;
        producer.shutdown().await;
    });
}

/// The client alone would go on refusing for 30 s after the broker is back.
#[test]
fn sends_and_deliveries_resume_soon_after_an_outage() {
    with_topics(async |bus, admin| {
        let proxied = Proxied::start(bus).await;
        let producer = Producer::start(&bus.runtime, &proxied.config)
            .await
            .unwrap();
        let recorder = Recorder::acknowledging();
        let consumer = Consumer::start(
            &bus.runtime,
            &proxied.config,
            consumer_config(),
            recorder.clone(),
        )
        .await
        .unwrap();
        let first = producer
            .send(OutgoingMessage::order_request(&request(0)))
            .await;
        assert_eq!(first, SendOutcome::Sent);
        recorder.until(1).await;

        proxied.broker.set_mode(Mode::Refuse);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            let outcome = producer
                .send(OutgoingMessage::order_request(&request(1)))
                .await;
            assert!(matches!(outcome, SendOutcome::Unknown(_)));
            tokio::task::yield_now().await;
        }
        proxied.broker.set_mode(Mode::Forward);
        let back = Instant::now();
        eventually(
            Duration::from_secs(15),
            "a send after the outage",
            async || match producer
                .send(OutgoingMessage::order_request(&request(1)))
                .await
            {
                SendOutcome::Sent => Ok(()),
                SendOutcome::Unknown(reason) => Err(reason),
            },
        )
        .await;
        println!("sent {:?} after the broker was back", back.elapsed());
        recorder.until(2).await;
        println!("delivered {:?} after the broker was back", back.elapsed());
        assert!(
            back.elapsed() < Duration::from_secs(20),
            "{:?}",
            back.elapsed()
        );
        until_lag_is(admin, 0).await;
        consumer.shutdown().await;
        producer.shutdown().await;
    });
}

/// A question for messages that goes down with its connection is asked again long before the client's
/// own 30 s, also when the outage is over before anybody looks.
#[test]
fn messages_are_fetched_soon_after_a_connection_that_broke_with_a_question_under_way() {
    with_topics(async |bus, admin| {
        let proxied = Proxied::start(bus).await;
        let recorder = Recorder::acknowledging();
        let consumer = Consumer::start(
            &bus.runtime,
            &proxied.config,
            consumer_config(),
            recorder.clone(),
        )
        .await
        .unwrap();
        let producer = bus.producer().await;
        send_all(&producer, 0..64).await;
        recorder.until(64).await;

        // The broker takes its answers for delivered, and the connection is new before anybody looks.
        let before = proxied.broker.counters().traffic(Dir::ToClient);
        proxied.broker.set_mode(Mode::Swallow(Dir::ToClient));
        send_all(&producer, 64..128).await;
        // No answer but one with messages is as long.
        proxied
            .broker
            .wait_for(PATIENCE, "messages on the way", |counters| {
                counters.traffic(Dir::ToClient).bytes - before.bytes > 10_000
            })
            .await;
        proxied.broker.set_mode(Mode::Forward);
        proxied.broker.sever_all(Sever::Reset);
        let back = Instant::now();
        recorder.until(128).await;
        println!("fetched {:?} after the connection broke", back.elapsed());
        assert!(
            back.elapsed() < Duration::from_secs(25),
            "{:?}",
            back.elapsed()
        );
        until_lag_is(admin, 0).await;
        consumer.shutdown().await;
        producer.shutdown().await;
    });
}

/// Patience stands still while the broker seems away, so whoever asks must notice that it is back.
#[test]
fn questions_are_answered_soon_after_an_outage() {
    with_topics(async |bus, _| {
        let proxied = Proxied::start(bus).await;
        let admin = Admin::connect(&bus.runtime, &proxied.config).await.unwrap();
        admin.consumers_alive(Group::OrderConsumer).await.unwrap();
        proxied.broker.set_mode(Mode::Refuse);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            let answer = admin.consumers_alive(Group::OrderConsumer).await;
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Retryable);
        }
        proxied.broker.set_mode(Mode::Forward);
        let back = Instant::now();
        eventually(PATIENCE, "an answer after the outage", async || {
            let answer = admin.consumers_alive(Group::OrderConsumer).await;
            answer.map_err(|error| error.to_string())
        })
        .await;
        println!("answered {:?} after the broker was back", back.elapsed());
        assert!(
            back.elapsed() < Duration::from_secs(15),
            "{:?}",
            back.elapsed()
        );
        admin.shutdown().await;
    });
}
