//! MQ-11: messages that say nothing, among good ones.

use std::time::Duration;

use bytes::Bytes;
use seckill_integration_tests::{Plan, Sale, Sandbox, Service};
use seckill_message_bus::{BusConfig, BusRuntime, OutgoingMessage, Producer, Topic, property};
use seckill_test_support::{OrFail, TestStack, eventually};

use crate::SOON;

/// Bodies that no version of this system has sent.
fn bad_bodies() -> Vec<Bytes> {
    let truncated: &[u8] = &[0x08, 0x01, 0x12, 0x1a, b'a', b'b'];
    let other_schema: &[u8] = &[0x08, 0x63];
    let missing_fields: &[u8] = &[0x08, 0x01];
    let number_for_text: &[u8] = &[0x08, 0x01, 0x10, 0x05];
    let not_utf8: &[u8] = &[0x08, 0x01, 0x12, 0x02, 0xff, 0xfe];
    let json: &[u8] = b"{\"user\":null}";
    let noise: Vec<u8> = (0..300u32).map(|n| (n * 31 % 251) as u8).collect();
    let mut bodies: Vec<Bytes> = [
        truncated,
        other_schema,
        missing_fields,
        number_for_text,
        not_utf8,
        json,
    ]
    .into_iter()
    .map(Bytes::copy_from_slice)
    .collect();
    bodies.push(noise.into());
    bodies.push(vec![0x0a; 1_000_000].into());
    bodies
}

fn poison(message_id: String, body: Bytes, sale: &Sale) -> OutgoingMessage {
    OutgoingMessage {
        topic: Topic::OrderRequest,
        message_id,
        body,
        properties: vec![
            (property::ACTIVITY_ID.into(), sale.activity_id.clone()),
            (property::SKU_ID.into(), sale.sku_id.clone()),
            (property::ACTIVITY_VERSION.into(), sale.version.to_string()),
            (property::BUCKET_ID.into(), "0".to_owned()),
        ],
    }
}

/// The bus wants its runtime to be made outside of any other.
fn with_bus(test: impl AsyncFnOnce(&BusRuntime)) {
    let bus = BusRuntime::new().or_fail("the runtime of the bus");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .or_fail("the runtime of the test");
    runtime.block_on(test(&bus));
    drop(runtime);
    bus.shutdown();
}

async fn producer(bus: &BusRuntime, sandbox: &Sandbox) -> Producer {
    let config = BusConfig {
        namesrv: TestStack::shared().namesrv().to_owned(),
        namespace: sandbox.namespace().as_str().to_owned(),
        send_timeout: Duration::from_secs(10),
        instance: "poisoner".to_owned(),
    };
    Producer::start(bus, &config)
        .await
        .or_fail("a producer of bad messages")
}

/// MQ-11. Goal: each bad message is kept whole with its reason, every good one becomes an order, and
/// the process lives on.
#[test]
fn bad_messages_are_kept_and_the_good_ones_among_them_become_orders() {
    with_bus(async |bus| {
        const BUYERS: usize = 100;
        let sandbox = Sandbox::start().await;
        let sale = sandbox.open(&Plan::new(1_000)).await;
        let services = sandbox.run_all().await;
        services.consumer.allow_errors("parked a message");
        let producer = producer(bus, &sandbox).await;
        let client = sandbox.client(&services.front);
        let bad = bad_bodies();
        let count = bad.len();
        for (number, body) in bad.into_iter().enumerate() {
            let id = format!("poison-{number}");
            assert!(producer.send(poison(id, body, &sale)).await.is_sent());
            for buyer in number * BUYERS / count..(number + 1) * BUYERS / count {
                client
                    .buy(&sale, &format!("u{buyer}"), &format!("q{buyer}"))
                    .await;
            }
        }
        eventually(SOON, "all bad messages kept", async || {
            let kept =
                "SELECT count(*) FROM dead_letter WHERE reason = 'undecodable' AND error <> ''";
            match sandbox.database().number(kept).await {
                kept if kept == count as i64 => Ok(()),
                kept => Err(kept.to_string()),
            }
        })
        .await;
        sandbox.assert_settles_consistent(SOON).await;
        let orders = sandbox
            .database()
            .number("SELECT count(*) FROM orders")
            .await;
        assert_eq!(orders, BUYERS as i64);
        producer.shutdown().await;
        for service in services.all() {
            service.stop(SOON).await;
        }
    });
}

/// Goal: a body that cannot be read, in an envelope that can, leads back to its reservation, whose
/// units come back after patience. Method: the good message is never sent, the bad one has its id.
#[test]
fn a_reservation_behind_an_unreadable_body_comes_back() {
    with_bus(async |bus| {
        let sandbox = Sandbox::start().await;
        let sale = sandbox.open(&Plan::new(5).term("patience-ms", 1_000)).await;
        sandbox.let_patience_count().await;
        let front = sandbox
            .service(Service::Front)
            .env("SECKILL_ROCKETMQ_NAMESRV", "127.0.0.1:9")
            .allow_errors("")
            .start()
            .await;
        let id = sandbox.client(&front).buy(&sale, "u1", "q1").await;
        front.kill();
        let (consumer, compensation) = tokio::join!(
            sandbox.run(Service::Consumer),
            sandbox.run(Service::Compensation)
        );
        consumer.allow_errors("parked a message");
        let producer = producer(bus, &sandbox).await;
        let message_id = format!("reserve-order:{id}:v1");
        let bad = poison(message_id, Bytes::from_static(&[0xff]), &sale);
        assert!(producer.send(bad).await.is_sent());
        sandbox.settle(SOON).await;
        let status = sale.key(0, &format!("resv:{id}"));
        let status = sandbox.redis().cli(&["HGET", &status, "status"]).await;
        assert_eq!(status.text(), "RELEASED");
        sandbox.assert_consistent().await;
        producer.shutdown().await;
        for service in [consumer, compensation] {
            service.stop(SOON).await;
        }
    });
}
