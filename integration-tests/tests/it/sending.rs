//! Sends that get lost, that are answered late or not at all, and who makes up for them.

use std::time::Duration;

use seckill_integration_tests::{Plan, Sandbox, Service};
use seckill_test_support::remoting::{
    FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE, answer_sends_with,
};
use seckill_test_support::{Content, Dir, Mode, TestStack, eventually};

use crate::harness::{
    SETTLES, SOON, SendLog, StateWatch, all_reach, bucket, buy_many, message_id, orders, tally,
};

/// OBX-01, S0-200: the front dies between the script and the broker's answer. The scanner alone sends what
/// was accepted, under the ids that the front had used.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_fronts_reservations_are_sent_by_the_scanner() {
    let sandbox = Sandbox::builder().broker_proxy().start().await;
    let sale = sandbox.open(&Plan::new(100)).await;
    let front = sandbox.run(Service::Front).await;
    front.allow_errors("");
    let sends = SendLog::record(sandbox.broker_proxy());
    sandbox
        .broker_proxy()
        .set_mode(Mode::Swallow(Dir::ToServer));
    let client = sandbox.client(&front);
    let bought = buy_many(&client, &sale, "u", 30).await;
    eventually(SOON, "the front's first sends", async || {
        let tried = |id: &String| !sends.times(&message_id(id)).is_empty();
        let missing = bought.values().filter(|id| !tried(id)).count();
        if missing == 0 {
            Ok(())
        } else {
            Err(format!("{missing} not tried"))
        }
    })
    .await;
    front.kill();
    let states = tally(&sandbox, &sale).await;
    assert!(!states.contains_key("ENQUEUED"), "{states:?}");
    sandbox.broker_proxy().set_mode(Mode::Forward);

    let scanner = sandbox.run(Service::Scanner).await;
    all_reach(&sandbox, &sale, "ENQUEUED", 30).await;
    for id in bought.values() {
        assert!(
            sends.times(&message_id(id)).len() >= 2,
            "{id} was sent again"
        );
    }
    let (consumer, compensation) = tokio::join!(
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation)
    );
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 30);
    let inbox = sandbox
        .database()
        .texts("SELECT message_id FROM inbox")
        .await;
    let mut expected: Vec<_> = bought.values().map(|id| vec![message_id(id)]).collect();
    expected.sort();
    let mut found = inbox;
    found.retain(|row| row[0].starts_with("reserve-order:"));
    found.sort();
    assert_eq!(found, expected);
    for service in [&scanner, &consumer, &compensation] {
        service.stop(SOON).await;
    }
}

/// MQ-03: the broker answers with a status that is neither an error nor OK, and the message is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_is_not_plainly_ok_is_repeated() {
    const STATUSES: [i32; 3] = [FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE];
    let sandbox = Sandbox::builder().broker_proxy().start().await;
    let services = sandbox.run_all().await;
    let client = sandbox.client(&services.front);
    for status in STATUSES {
        let sale = sandbox.open(&Plan::new(10)).await;
        let lost = answer_sends_with(status, false);
        let sends = SendLog::record_and(sandbox.broker_proxy(), lost);
        let bought = buy_many(&client, &sale, &format!("u{status}"), 5).await;
        all_reach(&sandbox, &sale, "SEND_UNKNOWN", 5).await;
        let pending = sandbox
            .dump()
            .await
            .get(&sale.key(0, "send_pending"))
            .cloned();
        let Some(Content::SortedSet(pending)) = pending else {
            panic!("nothing waits to be sent again: {pending:?}");
        };
        assert!(
            bought.values().all(|id| pending.contains_key(id)),
            "{pending:?}"
        );
        for id in bought.values() {
            assert!(!sends.times(&message_id(id)).is_empty());
        }

        let sends = SendLog::record(sandbox.broker_proxy());
        all_reach(&sandbox, &sale, "ORDER_CREATED", 5).await;
        for id in bought.values() {
            assert!(
                !sends.times(&message_id(id)).is_empty(),
                "{id} under the same id"
            );
        }
        assert_eq!(orders(&sandbox, &sale).await, 5);
    }
    sandbox.assert_settles_consistent(SETTLES).await;
}

/// MQ-01. Goal: answers to sends that get lost are neither failures nor a second order. Method: the broker
/// stores every message and no answer comes back, until the scanner has sent each of them again; only then
/// a consumer, which reaches the broker on its own way, begins to read.
#[tokio::test(flavor = "multi_thread")]
async fn messages_whose_answers_are_swallowed_end_in_one_order_each() {
    const USERS: usize = 20;
    let sandbox = Sandbox::builder().broker_proxy().start().await;
    let plan = Plan::new(20).term("patience-ms", 120_000);
    let sale = sandbox.open(&plan).await;
    let (front, scanner, reconciler) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Reconciler),
    );
    for service in [&front, &scanner, &reconciler] {
        service.allow_errors("");
    }
    let client = sandbox.client(&front);
    let sends = SendLog::record(sandbox.broker_proxy());
    sandbox
        .broker_proxy()
        .set_mode(Mode::Swallow(Dir::ToClient));
    let bought = buy_many(&client, &sale, "u", USERS).await;
    eventually(SETTLES, "the scanner's own sends", async || {
        let again = |id: &&String| sends.times(&message_id(id)).len() < 2;
        match bought.values().filter(again).count() {
            0 => Ok(()),
            missing => Err(format!("{missing} were not sent again")),
        }
    })
    .await;
    let stock = bucket(&sandbox, &sale, 0).await.stock;
    assert_eq!(
        (&*stock["available"], &*stock["released_total"]),
        ("0", "0")
    );
    sandbox.broker_proxy().set_mode(Mode::Forward);
    let past_the_proxy = |service| {
        let namesrv = TestStack::shared().namesrv();
        let builder = sandbox.service(service);
        builder.env("SECKILL_ROCKETMQ_NAMESRV", namesrv)
    };
    let direct = [
        past_the_proxy(Service::Consumer),
        past_the_proxy(Service::Compensation),
    ];
    let (consumer, compensation) = tokio::join!(direct[0].start(), direct[1].start());
    all_reach(&sandbox, &sale, "ORDER_CREATED", USERS).await;
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, i64::try_from(USERS).unwrap());
    for service in [&front, &scanner, &consumer, &compensation, &reconciler] {
        service.stop(SOON).await;
    }
}

/// OBX-03. Goal: a broker that answers each send late, and within its time limit, is sent each message no
/// more often than its lease allows, and a late word changes nothing that is further. Method: the front
/// gets no message out; a scanner as it is set by default sends all of them over a slow link.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_broker_gets_no_more_sends_than_leases_allow() {
    const PENDING: usize = 200;
    const LATE: Duration = Duration::from_millis(2_900);
    let sandbox = Sandbox::builder()
        .broker_proxy()
        .env("SECKILL_ROCKETMQ_SEND_TIMEOUT_MS", 5_000)
        .env("SECKILL_OUTBOX_SCANNER_LEASE_MS", 15_000)
        .env("SECKILL_OUTBOX_SCANNER_RELAY_LEASE_MS", 15_000)
        .start()
        .await;
    let plan = Plan::new(1_000).term("patience-ms", 120_000);
    let sale = sandbox.open(&plan).await;
    let deaf = sandbox
        .service(Service::Front)
        .env("SECKILL_ROCKETMQ_NAMESRV", "127.0.0.1:9")
        .env("SECKILL_FRONT_FIRST_SEND_GRACE_MS", 100)
        .allow_errors("")
        .start()
        .await;
    let bought = buy_many(&sandbox.client(&deaf), &sale, "u", PENDING).await;
    deaf.kill();
    let sends = SendLog::record(sandbox.broker_proxy());
    sandbox
        .broker_proxy()
        .set_mode(Mode::Delay(LATE, Dir::ToClient));
    let scanners = [1, 2].map(|number| sandbox.service(Service::Scanner).instance(number));
    let (first, second) = tokio::join!(scanners[0].start(), scanners[1].start());
    all_reach(&sandbox, &sale, "ENQUEUED", PENDING).await;
    for id in bought.values() {
        let times = sends.times(&message_id(id)).len();
        // Once, and once more where a busy machine has let a time limit pass.
        assert!((1..=2).contains(&times), "{id} was sent {times} times");
    }
    sandbox.broker_proxy().set_mode(Mode::Forward);
    let (consumer, compensation) = tokio::join!(
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation),
    );
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(
        orders(&sandbox, &sale).await,
        i64::try_from(PENDING).unwrap()
    );
    for service in [first, second, consumer, compensation] {
        service.stop(SOON).await;
    }
}

/// MQ-10: messages are stored at once, and their answers reach the front late: within the send's
/// time limit, and beyond it. The consumer, which is not slowed down, is always first.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_faster_than_the_fronts_bookkeeping_wins() {
    const USERS: usize = 200;
    let sandbox = Sandbox::builder()
        .broker_proxy()
        .env("SECKILL_ROCKETMQ_SEND_TIMEOUT_MS", 4_000)
        .env("SECKILL_OUTBOX_SCANNER_LEASE_MS", 12_000)
        .env("SECKILL_OUTBOX_SCANNER_RELAY_LEASE_MS", 12_000)
        // The scanner must not take an answer that is only late for one that is lost.
        .env("SECKILL_FRONT_FIRST_SEND_GRACE_MS", 10_000)
        .start()
        .await;
    let past_the_proxy = |service| {
        let namesrv = TestStack::shared().namesrv();
        sandbox
            .service(service)
            .env("SECKILL_ROCKETMQ_NAMESRV", namesrv)
    };
    let (consumer, compensation) = (
        past_the_proxy(Service::Consumer),
        past_the_proxy(Service::Compensation),
    );
    let (front, scanner, consumer, compensation, reconciler) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Scanner),
        consumer.start(),
        compensation.start(),
        sandbox.run(Service::Reconciler),
    );
    let client = sandbox.client(&front);
    // A first message, so that the consumer's queues are shared out.
    let warm = sandbox.open(&Plan::new(1)).await;
    client.buy(&warm, "warm", "warm").await;
    all_reach(&sandbox, &warm, "ORDER_CREATED", 1).await;

    // The limit of a send is four seconds here.
    for (name, late, sends_max) in [("late", 1_000, 1), ("unknown", 5_000, 3)] {
        let sale = sandbox.open(&Plan::new(1_000)).await;
        let sends = SendLog::record(sandbox.broker_proxy());
        let late = Duration::from_millis(late);
        sandbox
            .broker_proxy()
            .set_mode(Mode::Delay(late, Dir::ToClient));
        let watch = StateWatch::begin(&sandbox, &sale).await;
        let bought = buy_many(&client, &sale, name, USERS).await;
        all_reach(&sandbox, &sale, "ORDER_CREATED", USERS).await;
        // The front's record of each send comes only now.
        for id in bought.values() {
            let times = sends.times(&message_id(id)).len();
            assert!((1..=sends_max).contains(&times), "{name}: {times} sends");
        }
        tokio::time::sleep(late).await;
        sandbox.broker_proxy().set_mode(Mode::Forward);
        sandbox.settle(SETTLES).await;
        let paths = watch.end();
        assert_eq!(paths.len(), USERS);
        for path in paths {
            let (last, before) = path.split_last().unwrap();
            assert_eq!(last, "ORDER_CREATED", "{name}: {path:?}");
            let allowed =
                |state: &String| ["RESERVED", "SEND_UNKNOWN", "ENQUEUED"].contains(&state.as_str());
            assert!(before.iter().all(allowed), "{name}: {path:?}");
        }
        assert_eq!(orders(&sandbox, &sale).await, i64::try_from(USERS).unwrap());
    }
    sandbox.assert_settles_consistent(SETTLES).await;
    let inbox = "SELECT count(*) FROM inbox WHERE message_id LIKE 'reserve-order:%'";
    let once = i64::try_from(2 * USERS + 1).unwrap();
    assert_eq!(sandbox.database().number(inbox).await, once);
    for service in [&front, &scanner, &consumer, &compensation, &reconciler] {
        service.stop(SOON).await;
    }
}
