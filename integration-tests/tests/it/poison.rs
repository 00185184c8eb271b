//! Messages that nobody can read, among good ones.

use std::time::{Duration, Instant};

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use seckill_integration_tests::{Plan, Sale, Sandbox, Service};
use seckill_proto::events::v1::OrderRequest;
use seckill_proto::v1::ReservationStatus;
use seckill_test_support::{Dir, Mode, eventually};

use crate::harness::{
    REQUESTS, SETTLES, SOON, all_reach, buy_many, envelope, message_id, orders, request_of,
    reservations, send_raw, tally,
};

/// A request as a front would send it, for a reservation that does not exist.
fn request(sale: &Sale, number: u32) -> OrderRequest {
    let reservation_id = format!("{}{}", "a".repeat(25), char::from(b'a' + number as u8));
    OrderRequest {
        schema_version: 1,
        message_id: message_id(&reservation_id),
        reservation_id,
        request_id: format!("poison-{number}"),
        activity_id: sale.activity_id.clone(),
        sku_id: sale.sku_id.clone(),
        user_id: format!("poison-{number}"),
        activity_version: sale.version,
        bucket_id: 0,
        quantity: 1,
        reserved_at_ms: 1_700_000_000_000,
        traceparent: String::new(),
    }
}

/// Bodies that must be parked whole, each under the key of its message. An empty one never gets so
/// far: the broker refuses it.
fn bodies(sale: &Sale) -> Vec<(&'static str, Vec<u8>)> {
    let good = request(sale, 0).encode_to_vec();
    let mut truncated = good.clone();
    truncated.truncate(good.len() / 2);
    // Field 2, the reservation's id, as a number.
    let mut wrong_type = Vec::new();
    encode_key(2, WireType::Varint, &mut wrong_type);
    encode_varint(77, &mut wrong_type);
    // A text of bytes that are no UTF-8.
    let mut not_utf8 = good;
    let at = not_utf8
        .windows(4)
        .position(|part| part == b"aaaa")
        .unwrap();
    not_utf8[at] = 0xff;
    let missing = OrderRequest {
        user_id: String::new(),
        request_id: String::new(),
        ..request(sale, 1)
    };
    let unknown = OrderRequest {
        schema_version: 99,
        ..request(sale, 2)
    };
    vec![
        ("truncated", truncated),
        (
            "random",
            (0..400_u32).map(|n| (n * 167 % 251) as u8).collect(),
        ),
        ("wrong type", wrong_type),
        ("missing fields", missing.encode_to_vec()),
        ("unknown schema", unknown.encode_to_vec()),
        ("3.9 MB", vec![b'x'; 3_900_000]),
        ("not UTF-8", not_utf8),
        ("JSON null", b"null".to_vec()),
        ("JSON array", b"[1,2,3]".to_vec()),
        // A hundred groups, each inside the one before.
        ("nested", vec![0x7b; 100]),
    ]
}

/// MQ-11: bad messages among a hundred good ones are kept whole with their reason, the good ones are
/// decided promptly by the same process.
#[tokio::test(flavor = "multi_thread")]
async fn poison_is_parked_and_holds_back_nothing() {
    const GOOD: usize = 100;
    let sandbox = Sandbox::builder().broker_proxy().start().await;
    let sale = sandbox.open(&Plan::new(200)).await;
    let (front, consumer, compensation) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation),
    );
    consumer.allow_errors("parked a message");
    let client = sandbox.client(&front);
    client.buy(&sale, "warm", "warm").await;
    all_reach(&sandbox, &sale, "ORDER_CREATED", 1).await;
    let pid = consumer.pid();

    let bad = bodies(&sale);
    let began = Instant::now();
    let (half, rest) = bad.split_at(bad.len() / 2);
    for (name, body) in half {
        send_bad(&sandbox, name, body);
    }
    buy_many(&client, &sale, "u", GOOD).await;
    for (name, body) in rest {
        send_bad(&sandbox, name, body);
    }
    all_reach(&sandbox, &sale, "ORDER_CREATED", GOOD + 1).await;
    let took = began.elapsed();
    assert!(
        took < Duration::from_secs(15),
        "the good ones took {took:?}"
    );
    eventually(SOON, "every bad message is parked", async || {
        let parked = sandbox
            .database()
            .number("SELECT count(*) FROM dead_letter")
            .await;
        if usize::try_from(parked).unwrap() == bad.len() {
            Ok(())
        } else {
            Err(parked.to_string())
        }
    })
    .await;
    for (name, body) in &bad {
        assert_parked_whole(&sandbox, &name.replace(' ', "-"), body).await;
    }
    assert!(consumer.is_running() && consumer.pid() == pid);

    let scanner = sandbox.run(Service::Scanner).await;
    sandbox.assert_settles_consistent(SETTLES).await;
    let sold = i64::try_from(GOOD + 1).unwrap();
    assert_eq!(orders(&sandbox, &sale).await, sold);
    for service in [&front, &scanner, &consumer, &compensation] {
        service.stop(SOON).await;
    }
}

/// MQ-11: the broker gets something else for two purchases than what the front sends. The one whose
/// body says nothing is released after its patience, which stands still while nobody looks; one with a
/// field from the future is sold.
#[tokio::test(flavor = "multi_thread")]
async fn the_reservation_behind_a_bad_body_is_released() {
    let sandbox = Sandbox::builder().broker_proxy().start().await;
    let sale = sandbox.open(&Plan::new(10)).await;
    let (front, consumer, compensation) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation),
    );
    consumer.allow_errors("parked a message");
    let client = sandbox.client(&front);
    sandbox
        .broker_proxy()
        .set_mode(Mode::Swallow(Dir::ToServer));
    front.allow_errors("");
    let hostage = client.buy(&sale, "hostage", "hostage").await;
    let newer = client.buy(&sale, "newer", "newer").await;
    eventually(SOON, "the lost sends", async || {
        let now = tally(&sandbox, &sale).await;
        let lost = now.get("SEND_UNKNOWN").copied();
        if lost == Some(2) {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
    sandbox.broker_proxy().set_mode(Mode::Forward);
    let held = reservations(&sandbox, &sale).await;
    send_raw(&sandbox, REQUESTS, &envelope(&held[&hostage]), b"\xff\xff");
    // A field that this version does not know is no reason to refuse a purchase.
    let mut body = request_of(&held[&newer]).encode_to_vec();
    encode_key(999, WireType::Varint, &mut body);
    encode_varint(1, &mut body);
    send_raw(&sandbox, REQUESTS, &envelope(&held[&newer]), &body);
    eventually(SETTLES, "the task is given back", async || {
        let given_back = "SELECT count(*) FROM compensation_task
            WHERE closed_at IS NULL AND last_error = 'patience is not over'";
        match sandbox.database().number(given_back).await {
            1 => Ok(()),
            count => Err(count.to_string()),
        }
    })
    .await;
    let status = reservations(&sandbox, &sale).await[&hostage]["status"].clone();
    assert_eq!(status, "SEND_UNKNOWN");
    sandbox.let_patience_count().await;
    eventually(
        SETTLES,
        "the release of the reservation behind it",
        async || {
            let now = reservations(&sandbox, &sale).await[&hostage]["status"].clone();
            if now == "RELEASED" { Ok(()) } else { Err(now) }
        },
    )
    .await;
    let scanner = sandbox.run(Service::Scanner).await;
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 1);
    let found = client.by_reservation(&sale, "hostage", &hostage).await;
    assert_eq!(found.unwrap().status(), ReservationStatus::Released);
    let sold = &reservations(&sandbox, &sale).await[&newer];
    assert_eq!(sold["status"], "ORDER_CREATED");
    let parked = "SELECT reservation_id FROM dead_letter";
    assert_eq!(sandbox.database().texts(parked).await, [[hostage]]);
    for service in [&front, &scanner, &consumer, &compensation] {
        service.stop(SOON).await;
    }
}

/// Nothing in its envelope tells where it belongs.
fn send_bad(sandbox: &Sandbox, name: &str, body: &[u8]) {
    let key = name.replace(' ', "-");
    send_raw(
        sandbox,
        REQUESTS,
        &[("KEYS", &key), ("message_id", &key)],
        body,
    );
}

async fn assert_parked_whole(sandbox: &Sandbox, key: &str, body: &[u8]) {
    let query = "SELECT body, reason, error, consumer_group, topic FROM dead_letter
                  WHERE message_key = $1";
    let client = sandbox.database().client().await;
    let rows = client.query(query, &[&key]).await.unwrap();
    let [row] = rows.as_slice() else {
        let keys = "SELECT message_key, error FROM dead_letter";
        panic!(
            "{key}: {rows:?} of {:?}",
            sandbox.database().texts(keys).await
        );
    };
    assert!(
        row.get::<_, Vec<u8>>(0) == body,
        "{key}: the body is kept whole"
    );
    let texts: Vec<String> = (1..5).map(|column| row.get(column)).collect();
    assert_eq!(texts[0], "undecodable", "{key}");
    assert!(!texts[1].is_empty(), "{key}: it says what is wrong");
    let topic = sandbox.namespace().full_name(REQUESTS);
    assert_eq!(texts[2..], ["order-consumer", topic.as_str()], "{key}");
}
