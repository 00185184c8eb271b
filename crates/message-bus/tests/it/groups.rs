//! Groups: where a new one starts, how members share, how far behind they are.

use std::collections::BTreeMap;
use std::time::Instant;

use seckill_message_bus::{
    Consumer, ConsumerConfig, ErrorKind, Group, LISTENER_THREADS_MAX, Topic, has_reached,
};
use seckill_test_support::eventually;

use crate::harness::{PATIENCE, Recorder, consumer_config, send_all, until_lag_is, with_topics};

/// Makes one setting wrong.
type Spoil = fn(&mut ConsumerConfig);

/// MQ-07: the client's default would begin at the end of each queue.
#[test]
fn a_new_group_sees_what_was_sent_before_it_existed() {
    with_topics(async |bus, admin| {
        let producer = bus.producer().await;
        send_all(&producer, 0..20).await;
        until_lag_is(admin, 20).await;
        assert_eq!(
            admin.consumer_ids(Group::OrderConsumer).await.unwrap(),
            Vec::<String>::new()
        );
        let recorder = Recorder::acknowledging();
        let begun = Instant::now();
        let consumer = bus.consumer(consumer_config(), recorder.clone()).await;
        let started = begun.elapsed();
        recorder.until(20).await;
        println!(
            "started in {started:?}, 20 messages after {:?}",
            begun.elapsed()
        );
        until_lag_is(admin, 0).await;
        consumer.shutdown().await;
        producer.shutdown().await;
    });
}

/// MQ-15: with equal client ids some queues would belong to nobody.
#[test]
fn three_members_with_identical_settings_share_every_queue() {
    with_topics(async |bus, admin| {
        let producer = bus.producer().await;
        let recorders = [(); 3].map(|()| Recorder::acknowledging());
        let mut consumers = Vec::new();
        for recorder in &recorders {
            consumers.push(bus.consumer(consumer_config(), recorder.clone()).await);
        }
        eventually(PATIENCE, "three distinct members", async || {
            match admin.consumer_ids(Group::OrderConsumer).await {
                Ok(ids) if ids.len() == 3 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        send_all(&producer, 0..1_000).await;
        until_lag_is(admin, 0).await;
        let mut deliveries: BTreeMap<String, usize> = BTreeMap::new();
        for recorder in &recorders {
            for (id, times) in recorder.deliveries() {
                *deliveries.entry(id).or_default() += times;
            }
        }
        assert_eq!(deliveries.len(), 1_000);
        let shares = recorders.each_ref().map(|recorder| recorder.seen().len());
        println!("shares of three members: {shares:?}");
        for consumer in consumers {
            consumer.shutdown().await;
        }
        producer.shutdown().await;
    });
}

#[test]
fn lag_grows_while_a_group_is_paused_or_away() {
    with_topics(async |bus, admin| {
        let producer = bus.producer().await;
        until_lag_is(admin, 0).await;
        let recorder = Recorder::acknowledging();
        let consumer = bus.consumer(consumer_config(), recorder.clone()).await;
        send_all(&producer, 0..10).await;
        recorder.until(10).await;
        until_lag_is(admin, 0).await;

        consumer.pause().await;
        // A fetch that was under way when the pause began may still bring one batch.
        send_all(&producer, 10..200).await;
        send_all(&producer, 200..400).await;
        eventually(PATIENCE, "a growing lag", async || {
            match admin.lag(Group::OrderConsumer, Topic::OrderRequest).await {
                Ok(lag) if lag >= 100 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        consumer.resume().await;
        recorder.until(400).await;
        until_lag_is(admin, 0).await;

        consumer.shutdown().await;
        send_all(&producer, 400..450).await;
        until_lag_is(admin, 50).await;
        let other = admin
            .lag(Group::CompensationWorker, Topic::OrderEvent)
            .await;
        assert_eq!(other.unwrap(), 0);
        producer.shutdown().await;
    });
}

#[test]
fn a_wrong_setting_is_refused_before_anything_starts() {
    with_topics(async |bus, _| {
        let cases: [(&str, Spoil); 7] = [
            ("topics", |c| c.topics.clear()),
            ("batch_max", |c| c.batch_max = 0),
            ("batch_max", |c| c.batch_max = 257),
            ("threads", |c| c.threads = 0),
            ("threads", |c| c.threads = LISTENER_THREADS_MAX + 1),
            ("handler_deadline", |c| {
                c.handler_deadline = std::time::Duration::ZERO
            }),
            ("max_redeliveries", |c| c.max_redeliveries = -1),
        ];
        for (name, spoil) in cases {
            let mut config = consumer_config();
            spoil(&mut config);
            let started =
                Consumer::start(&bus.runtime, &bus.config, config, Recorder::acknowledging()).await;
            let error = started.err().expect("a refusal");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().starts_with(name), "{error}");
        }
    });
}

/// What was sent before an instant is known to be consumed, queue by queue, and not before it is.
#[test]
fn the_ends_of_an_instant_are_reached_when_all_before_it_is_acknowledged() {
    with_topics(async |bus, admin| {
        let producer = bus.producer().await;
        send_all(&producer, 0..30).await;
        until_lag_is(admin, 30).await;
        let ends = admin.queue_ends(Topic::OrderRequest).await.unwrap();
        assert_eq!(ends.len(), 16);
        assert_eq!(ends.iter().map(|(_, end)| end).sum::<i64>(), 30);
        let progress = || admin.consumed(Group::OrderConsumer, Topic::OrderRequest);
        assert!(!has_reached(&ends, &progress().await.unwrap()));
        assert_eq!(
            admin.consumers_alive(Group::OrderConsumer).await.unwrap(),
            0
        );
        let recorder = Recorder::acknowledging();
        let consumer = bus.consumer(consumer_config(), recorder.clone()).await;
        eventually(
            PATIENCE,
            "all of them are consumed",
            async || match progress().await {
                Ok(consumed) if has_reached(&ends, &consumed) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await;
        assert_eq!(recorder.seen().len(), 30);
        assert_eq!(
            admin.consumers_alive(Group::OrderConsumer).await.unwrap(),
            1
        );
        consumer.shutdown().await;
        producer.shutdown().await;
    });
}
