//! What several tests need: many buyers, what the broker was sent, and messages that no service
//! would send.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use prost::Message;
use seckill_integration_tests::checks::{Bucket, Fields, buckets};
use seckill_integration_tests::{FrontClient, Sale, Sandbox};
use seckill_proto::events::v1::OrderRequest;
use seckill_proto::v1::ReserveCode;
use seckill_test_support::remoting::{RemotingCommand, SEND_MESSAGE, call};
use seckill_test_support::{Dir, FaultProxy, Frame, FrameAction, broker_addr, eventually};

/// A start, an answer of readiness, an end of a process, on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

/// Everything settled: the longest repair of a test's timers takes some ten seconds, and the broker's
/// first redelivery ten more.
pub const SETTLES: Duration = Duration::from_secs(90);

/// Where order requests go.
pub const REQUESTS: &str = "seckill-order-request";

/// Calls of one front in flight at once.
const AT_ONCE: usize = 64;

/// Buys for `<name>-0` and so on, all at once; every call must be accepted. Returns the reservation's
/// id by user.
pub async fn buy_many(
    client: &FrontClient,
    sale: &Sale,
    name: &str,
    count: usize,
) -> BTreeMap<String, String> {
    futures::stream::iter(0..count)
        .map(|number| async move {
            let user = format!("{name}-{number}");
            let reservation = client.buy(sale, &user, &format!("req-{user}")).await;
            (user, reservation)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await
}

/// The id under which a reservation's order request travels, by the contract.
pub fn message_id(reservation_id: &str) -> String {
    format!("reserve-order:{reservation_id}:v1")
}

/// A bucket of a sale as it stands.
pub async fn bucket(sandbox: &Sandbox, sale: &Sale, number: u32) -> Bucket {
    let prefix = sale.key(number, "");
    let found = buckets(&sandbox.dump().await);
    let bucket = found.into_iter().find(|bucket| bucket.prefix() == prefix);
    bucket.unwrap_or_default()
}

/// Every reservation of a sale, by id, over all buckets.
pub async fn reservations(sandbox: &Sandbox, sale: &Sale) -> BTreeMap<String, Fields> {
    let version = sale.version.to_string();
    let of_sale = |bucket: &Bucket| {
        let [activity, sku, found, _] = bucket.scope();
        (activity, sku, found) == (&*sale.activity_id, &*sale.sku_id, &*version)
    };
    let found = buckets(&sandbox.dump().await);
    let ours = found.into_iter().filter(of_sale);
    ours.flat_map(|bucket| bucket.reservations).collect()
}

/// How many reservations of a sale are in each state.
pub async fn tally(sandbox: &Sandbox, sale: &Sale) -> BTreeMap<String, usize> {
    let mut tally = BTreeMap::new();
    for fields in reservations(sandbox, sale).await.into_values() {
        *tally.entry(fields["status"].clone()).or_default() += 1;
    }
    tally
}

/// Awaits that so many reservations of a sale are in a state, and none is in another.
pub async fn all_reach(sandbox: &Sandbox, sale: &Sale, state: &str, count: usize) {
    let expected = BTreeMap::from([(state.to_owned(), count)]);
    let what = format!("{count} reservations in {state}");
    eventually(SETTLES, &what, async || {
        let now = tally(sandbox, sale).await;
        if now == expected {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
}

/// The active orders of a sale.
pub async fn orders(sandbox: &Sandbox, sale: &Sale) -> i64 {
    let query = format!(
        "SELECT count(*) FROM orders WHERE state = 'ACTIVE' AND {}",
        sale.sql()
    );
    sandbox.database().number(&query).await
}

/// Gives PostgreSQL other units than Redis has; what is sold stays.
pub async fn set_postgres_stock(sandbox: &Sandbox, sale: &Sale, total: u64) {
    let change = format!(
        "UPDATE activity_stock SET total = {total}, available = {total} - sold WHERE {}",
        sale.sql()
    );
    sandbox.database().execute(&change).await;
}

/// Every state that a sale's reservations have been seen in, in order; looked at every 20 ms until it
/// is asked for.
pub struct StateWatch {
    task: tokio::task::JoinHandle<()>,
    seen: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
}

impl StateWatch {
    /// Begins to look.
    pub async fn begin(sandbox: &Sandbox, sale: &Sale) -> Self {
        let mut redis = sandbox.redis().connection().await.unwrap();
        let pattern = sale.key(0, "resv:*");
        let seen = Arc::new(Mutex::new(BTreeMap::<String, Vec<String>>::new()));
        let states = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(20));
            loop {
                ticks.tick().await;
                let keys = redis.call(&["KEYS", &pattern]).await.unwrap().texts();
                let reads: Vec<_> = keys.iter().map(|key| vec!["HGET", key, "status"]).collect();
                let now = redis.pipeline(&reads).await.unwrap();
                let mut seen = states.lock().unwrap();
                for (key, status) in keys.iter().zip(now) {
                    let path = seen.entry(key.clone()).or_default();
                    let status = status.text();
                    if path.last() != Some(&status) {
                        path.push(status);
                    }
                }
            }
        });
        Self { task, seen }
    }

    /// The states of each reservation so far.
    pub fn end(self) -> Vec<Vec<String>> {
        self.task.abort();
        self.seen.lock().unwrap().values().cloned().collect()
    }
}

/// Whether an answer is the acceptance.
pub fn is_accepted(code: i32) -> bool {
    code == i32::from(ReserveCode::Accepted)
}

/// Every message that the services have sent through a proxy.
#[derive(Debug, Clone, Default)]
pub struct SendLog {
    sends: Arc<Mutex<Vec<(Instant, RemotingCommand)>>>,
}

impl SendLog {
    /// Records what passes this proxy and passes it on.
    pub fn record(proxy: &FaultProxy) -> Self {
        Self::record_and(proxy, |_, _, _| FrameAction::Forward)
    }

    /// Records what arrives at this proxy and does with it what another hook says.
    pub fn record_and(
        proxy: &FaultProxy,
        mut then: impl FnMut(Dir, u64, &Frame) -> FrameAction + Send + 'static,
    ) -> Self {
        let log = Self::default();
        let sends = Arc::clone(&log.sends);
        proxy.on_frame(move |dir, index, frame| {
            if let Some(command) = frame.remoting().filter(RemotingCommand::is_send) {
                sends.lock().unwrap().push((Instant::now(), command));
            }
            then(dir, index, frame)
        });
        log
    }

    /// When frames that contain a text were sent, in order.
    pub fn times(&self, text: &str) -> Vec<Instant> {
        self.with(text).into_iter().map(|(at, _)| at).collect()
    }

    /// Whether a frame contains both texts: a message and one of its properties.
    pub fn has_both(&self, text: &str, other: &str) -> bool {
        let sends = self.with(text);
        sends.iter().any(|(_, command)| contains(command, other))
    }

    fn with(&self, text: &str) -> Vec<(Instant, RemotingCommand)> {
        let sends = self.sends.lock().unwrap();
        let found = sends.iter().filter(|(_, command)| contains(command, text));
        found.cloned().collect()
    }
}

fn contains(command: &RemotingCommand, text: &str) -> bool {
    let in_fields = command
        .ext_fields
        .values()
        .any(|value| value.contains(text));
    let mut windows = command.body.windows(text.len());
    in_fields || windows.any(|part| part == text.as_bytes())
}

/// Puts a message of any kind onto a topic, past all services and proxies.
pub fn send_raw(sandbox: &Sandbox, topic: &str, properties: &[(&str, &str)], body: &[u8]) {
    let topic = sandbox.namespace().full_name(topic);
    let properties: String = properties
        .iter()
        .map(|(name, value)| format!("{name}\u{1}{value}\u{2}"))
        .collect();
    let fields = [
        ("producerGroup", "end-to-end-tests"),
        ("topic", topic.as_str()),
        ("defaultTopic", "TBW102"),
        ("defaultTopicQueueNums", "4"),
        ("queueId", "0"),
        ("sysFlag", "0"),
        ("bornTimestamp", "1700000000000"),
        ("flag", "0"),
        ("properties", properties.as_str()),
        ("reconsumeTimes", "0"),
        ("unitMode", "false"),
        ("batch", "false"),
    ];
    let mut request = RemotingCommand::request(SEND_MESSAGE, &fields);
    request.body = body.to_vec().into();
    let answer = call(broker_addr().unwrap(), &request).unwrap();
    assert_eq!(answer.code, 0, "{:?}", answer.remark);
}

/// The request that a reservation stands for.
pub fn request_of(held: &Fields) -> OrderRequest {
    let text = |name: &str| held[name].clone();
    OrderRequest {
        schema_version: 1,
        reservation_id: text("reservation_id"),
        message_id: text("message_id"),
        request_id: text("request_id"),
        activity_id: text("activity_id"),
        sku_id: text("sku_id"),
        user_id: text("user_id"),
        activity_version: held["activity_version"].parse().unwrap(),
        bucket_id: held["bucket_id"].parse().unwrap(),
        quantity: held["quantity"].parse().unwrap(),
        reserved_at_ms: held["reserved_at_ms"].parse().unwrap(),
        traceparent: text("traceparent"),
    }
}

/// The properties that its message carries.
pub fn envelope(held: &Fields) -> [(&str, &str); 7] {
    [
        ("KEYS", &held["message_id"]),
        ("message_id", &held["message_id"]),
        ("schema", "1"),
        ("activity_id", &held["activity_id"]),
        ("sku_id", &held["sku_id"]),
        ("activity_version", &held["activity_version"]),
        ("bucket_id", &held["bucket_id"]),
    ]
}

/// Sends a reservation's order request again, past all services, as a broker that delivers late or
/// twice does.
pub fn resend(sandbox: &Sandbox, held: &Fields) {
    let body = request_of(held).encode_to_vec();
    send_raw(sandbox, REQUESTS, &envelope(held), &body);
}

/// Remembers all of Redis, as a replica does that hears of nothing after this.
pub async fn remember(sandbox: &Sandbox) {
    copy_redis(sandbox, "0", "1").await;
}

/// Redis falls back to what was remembered, as after a failover to that replica. The services keep
/// their connections, so that nothing but the data changes under them.
pub async fn fall_back(sandbox: &Sandbox) {
    copy_redis(sandbox, "1", "0").await;
}

/// Makes one database of Redis equal to another, expiries included, in one transaction.
async fn copy_redis(sandbox: &Sandbox, from: &str, to: &str) {
    let mut redis = sandbox.redis().connection().await.unwrap();
    redis.call(&["SELECT", to]).await.unwrap();
    let stale = redis.call(&["KEYS", "*"]).await.unwrap().texts();
    redis.call(&["SELECT", from]).await.unwrap();
    let keys = redis.call(&["KEYS", "*"]).await.unwrap().texts();
    redis.call(&["MULTI"]).await.unwrap();
    redis.call(&["SELECT", to]).await.unwrap();
    for key in &stale {
        redis.call(&["DEL", key]).await.unwrap();
    }
    redis.call(&["SELECT", from]).await.unwrap();
    for key in &keys {
        redis.call(&["COPY", key, key, "DB", to]).await.unwrap();
    }
    let done = redis.call(&["EXEC"]).await.unwrap();
    assert_eq!(done.list().len(), stale.len() + keys.len() + 2);
}

/// Awaits that a reservation is in a state.
pub async fn reaches(sandbox: &Sandbox, sale: &Sale, id: &str, state: &str) {
    let key = sale.key(0, &format!("resv:{id}"));
    eventually(SETTLES, &format!("{id} in {state}"), async || {
        let now = sandbox.redis().cli(&["HGET", &key, "status"]).await.text();
        if now == state { Ok(()) } else { Err(now) }
    })
    .await;
}

/// Opens the task of a reservation that is overdue, as the reconciler does once patience is over.
pub async fn give_up(sandbox: &Sandbox, held: &Fields) {
    let open = format!(
        "INSERT INTO compensation_task (reservation_id, request_id, user_id, activity_id, sku_id,
            version, bucket_id, quantity, reserved_at, origin, next_attempt_at, updated_by)
        VALUES ('{}', '{}', '{}', '{}', '{}', {}, {}, {}, now(), 'OVERDUE', now(), 'test')",
        held["reservation_id"],
        held["request_id"],
        held["user_id"],
        held["activity_id"],
        held["sku_id"],
        held["activity_version"],
        held["bucket_id"],
        held["quantity"]
    );
    sandbox.database().execute(&open).await;
}
