//! Parked messages: listed, shown, sent again and given up, against a real broker.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use seckill_integration_tests::{CtlOutput, Sandbox, Service};
use seckill_message_bus::OutgoingMessage;
use seckill_order_store::{DeadLetter, Store};
use seckill_state_machine::{OrderRequest, ReserveCode};
use seckill_test_support::eventually;
use serde_json::Value;

use crate::world::{ACTIVITY, redis_at, request, reserve, store_at};

const SOON: Duration = Duration::from_secs(60);

const BY: [&str; 5] = [
    "--apply",
    "--actor",
    "op",
    "--reason",
    "the consumer is mended",
];

/// A sandbox with ten units on sale and no service yet.
async fn on_sale() -> (Sandbox, Store) {
    let sandbox = Sandbox::start().await;
    let about = ["--activity-id", ACTIVITY];
    let create = ["activity", "create", "--sku-id", "sku", "--stock", "10"];
    sandbox.ctl_ok(&[&create[..], &about].concat()).await;
    for step in ["preheat", "open"] {
        sandbox
            .ctl_ok(&[&["activity", step], &about[..]].concat())
            .await;
    }
    let store = store_at(sandbox.database().url());
    (sandbox, store)
}

/// A letter as a consumer leaves it behind.
fn letter(sandbox: &Sandbox, request: &OrderRequest) -> DeadLetter {
    let message = OutgoingMessage::order_request(request);
    let own = message.properties.into_iter();
    let own = own.map(|(name, value)| (name.into_owned(), value));
    let brokers = [("UNIQ_KEY".to_owned(), message.message_id.clone())];
    DeadLetter {
        topic: sandbox.namespace().full_name("seckill-order-request"),
        consumer_group: "order-consumer".to_owned(),
        message_key: Some(message.message_id),
        broker_message_id: "7F000001".to_owned(),
        queue_id: 0,
        queue_offset: 0,
        born_at_ms: None,
        body: message.body.to_vec(),
        properties: own.chain(brokers).collect(),
        reason: "attempts_exhausted".to_owned(),
        error: "the connection was lost".to_owned(),
        attempts: 16,
        bucket: Some(request.bucket.clone()),
        request: None,
    }
}

async fn dlq(sandbox: &Sandbox, command: &[&str], more: &[&str]) -> CtlOutput {
    sandbox.ctl(&[&["dlq"], command, more].concat()).await
}

fn outcomes(output: &CtlOutput) -> BTreeMap<String, u64> {
    serde_json::from_value(output.json()["outcomes"].clone()).unwrap()
}

fn counts(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs
        .iter()
        .map(|(word, count)| ((*word).to_owned(), *count))
        .collect()
}

async fn statuses(sandbox: &Sandbox) -> Vec<String> {
    let rows = "SELECT status FROM dead_letter ORDER BY letter_id";
    sandbox.database().texts(rows).await.concat()
}

#[tokio::test]
async fn messages_are_replayed_once_and_become_the_orders_that_they_asked_for() {
    let (sandbox, store) = on_sale().await;
    let redis = redis_at(&sandbox.redis().url()).await;
    for n in 0..3 {
        let request = request(n);
        assert_eq!(reserve(&redis, &request).await.code, ReserveCode::Accepted);
        store.park(&letter(&sandbox, &request)).await.unwrap();
    }
    let dry = dlq(&sandbox, &["replay"], &["--all"]).await;
    assert_eq!(
        (dry.code, outcomes(&dry)),
        (Some(0), counts(&[("would_replay", 3)]))
    );
    assert_eq!(statuses(&sandbox).await, ["OPEN"; 3]);

    let started = Instant::now();
    let slow = [&["--all", "--per-second", "2"], &BY[..]].concat();
    let sent = dlq(&sandbox, &["replay"], &slow).await;
    assert_eq!(
        (sent.code, outcomes(&sent)),
        (Some(0), counts(&[("replayed", 3)]))
    );
    assert!(
        started.elapsed() >= Duration::from_secs(1),
        "faster than two a second"
    );
    assert_eq!(statuses(&sandbox).await, ["REPLAYED"; 3]);
    let by = "SELECT DISTINCT acted_by, acted_reason, outcome FROM dead_letter";
    let by = sandbox.database().texts(by).await;
    assert_eq!(
        by,
        [["op", "the consumer is mended", "replayed"].map(ToOwned::to_owned)]
    );

    let ids = [&["--id", "1,2,3"], &BY[..]].concat();
    let twice = dlq(&sandbox, &["replay"], &ids).await;
    assert_eq!(
        (twice.code, outcomes(&twice)),
        (Some(0), counts(&[("already_replayed", 3)]))
    );
    let again = [&["--again"], &ids[..]].concat();
    let again = dlq(&sandbox, &["replay"], &again).await;
    assert_eq!(outcomes(&again), counts(&[("replayed", 3)]));

    // Six messages are on the way now, for three orders.
    let consumer = sandbox.run(Service::Consumer).await;
    let settled = "SELECT count(*) FROM orders";
    eventually(SOON, "three orders", async || {
        match sandbox.database().number(settled).await {
            3 => Ok(()),
            found => Err(found),
        }
    })
    .await;
    eventually(SOON, "every message is read", async || {
        let audit = ["audit", "--activity-id", ACTIVITY, "--recheck-ms", "50"];
        let audit = sandbox.ctl(&audit).await.json();
        let lag = audit[0]["on_its_way"]["lag"][0]["messages"].clone();
        if lag == 0 && audit[0]["ok"] == true {
            Ok(())
        } else {
            Err(audit)
        }
    })
    .await;
    assert_eq!(sandbox.database().number(settled).await, 3);
    assert_eq!(statuses(&sandbox).await, ["REPLAYED"; 3]);
    consumer.stop(SOON).await;
}

#[tokio::test]
async fn a_message_that_fails_again_is_open_again() {
    let (sandbox, store) = on_sale().await;
    let mut garbage = letter(&sandbox, &request(0));
    garbage.body = b"user-0 wrote this".to_vec();
    garbage.reason = "undecodable".to_owned();
    store.park(&garbage).await.unwrap();
    let consumer = sandbox.run(Service::Consumer).await;
    consumer.allow_errors("parked a message");
    let pick = [&["--parked-reason", "undecodable"], &BY[..]].concat();
    let sent = dlq(&sandbox, &["replay"], &pick).await;
    let sent = outcomes(&sent);
    let is_known = sent == counts(&[("replayed", 1)]) || sent == counts(&[("parked_again", 1)]);
    assert!(is_known, "{sent:?}");
    eventually(SOON, "it is open again", async || {
        let rows = "SELECT status || ' ' || times_parked FROM dead_letter";
        let rows = sandbox.database().texts(rows).await.concat();
        if rows == ["OPEN 2"] {
            Ok(())
        } else {
            Err(rows.join(", "))
        }
    })
    .await;
    consumer.stop(SOON).await;
}

#[tokio::test]
async fn a_send_without_an_answer_leaves_the_letter_open() {
    let (sandbox, store) = on_sale().await;
    store.park(&letter(&sandbox, &request(0))).await.unwrap();
    let away = [
        "--all",
        "--rocketmq-namesrv",
        "127.0.0.1:1",
        "--rocketmq-send-timeout-ms",
        "300",
    ];
    let sent = dlq(&sandbox, &["replay"], &[&away, &BY[..]].concat()).await;
    assert_eq!(
        (sent.code, outcomes(&sent)),
        (Some(1), counts(&[("unknown", 1)]))
    );
    assert_eq!(statuses(&sandbox).await, ["OPEN"]);
    let sent = dlq(&sandbox, &["replay"], &[&["--all"], &BY[..]].concat()).await;
    assert_eq!(outcomes(&sent), counts(&[("replayed", 1)]));
}

#[tokio::test]
async fn messages_are_shown_without_their_buyers_and_given_up_once() {
    let (sandbox, store) = on_sale().await;
    store.park(&letter(&sandbox, &request(0))).await.unwrap();
    let mut garbage = letter(&sandbox, &request(1));
    garbage.body = b"user-1 wrote this".to_vec();
    store.park(&garbage).await.unwrap();
    let mut foreign = letter(&sandbox, &request(2));
    foreign.topic = "somebody-elses".to_owned();
    store.park(&foreign).await.unwrap();

    let shown = dlq(&sandbox, &["show"], &["--id", "1"]).await;
    let body = &shown.json()["body"]["order_request"];
    assert_eq!(body["reservation_id"], request(0).reservation_id.as_str());
    let hash = seckill_telemetry::user_id_hash(&request(0).user_id);
    assert_eq!(body["user_id_hash"], hash);
    let raw = dlq(&sandbox, &["show"], &["--id", "2"]).await;
    let dump = raw.json()["body"]["undecodable"]["first"].clone();
    assert!(
        dump[0].as_str().unwrap().starts_with("0000  75 73 65 72"),
        "{dump}"
    );
    for output in [&shown, &raw] {
        assert!(!output.stdout.contains("user-"), "{output:?}");
    }
    let listed = dlq(&sandbox, &["list"], &["--topic", "somebody-elses"]).await;
    let listed: Value = listed.json();
    assert_eq!(listed["letters"][0]["id"], 3);
    assert_eq!(listed["letters"].as_array().unwrap().len(), 1);
    let young = dlq(&sandbox, &["list"], &["--older-than-s", "3600"]).await;
    assert_eq!(young.json()["letters"], Value::Array(Vec::new()));
    let cut = dlq(&sandbox, &["list"], &["--limit", "2"]).await;
    assert_eq!(
        (
            &cut.json()["more"],
            cut.json()["letters"].as_array().unwrap().len()
        ),
        (&true.into(), 2)
    );

    let foreign = dlq(&sandbox, &["replay"], &[&["--id", "3"], &BY[..]].concat()).await;
    assert_eq!(
        (foreign.code, outcomes(&foreign)),
        (Some(1), counts(&[("refused", 1)]))
    );
    let dry = dlq(&sandbox, &["discard"], &["--id", "3"]).await;
    assert_eq!(outcomes(&dry), counts(&[("would_discard", 1)]));
    for outcome in ["discarded", "already_discarded"] {
        let ended = dlq(&sandbox, &["discard"], &[&["--id", "3"], &BY[..]].concat()).await;
        assert_eq!(
            (ended.code, outcomes(&ended)),
            (Some(0), counts(&[(outcome, 1)]))
        );
    }
    assert_eq!(statuses(&sandbox).await, ["OPEN", "OPEN", "DISCARDED"]);

    for (arguments, named) in [
        (&["replay"][..], "--id is wrong"),
        (&["replay", "--all", "--apply"], "--actor"),
        (
            &["discard", "--all", "--apply", "--actor", "op"],
            "--reason",
        ),
        (&["list", "--activity-id", "act"], "--sku-id"),
        (&["list", "--limit", "-1"], "--limit is wrong"),
    ] {
        let ended = dlq(&sandbox, arguments, &[]).await;
        assert_eq!(ended.code, Some(64), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(named), "{arguments:?}: {ended:?}");
    }
}
