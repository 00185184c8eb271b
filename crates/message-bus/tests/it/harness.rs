//! A bus of one test, its messages, and handlers that remember what they were given.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use seckill_message_bus::{
    Admin, BatchHandler, BatchVerdict, BusConfig, BusRuntime, Consumer, ConsumerConfig, Group,
    IncomingMessage, OutgoingMessage, Producer, SendOutcome, Topic,
};
use seckill_state_machine::{
    ActivityId, ActivityVersion, BucketId, OrderRequest, Quantity, RequestId, ReservationId, Scope,
    SkuId, TimestampMs, Traceparent, UserId,
};
use seckill_test_support::{TestStack, eventually};
use tokio::sync::watch;

/// Starting a consumer, sharing out queues and a handful of redeliveries of the test broker fit in it
/// several times, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What one test needs of the bus.
pub struct Bus {
    pub runtime: BusRuntime,
    pub config: BusConfig,
}

/// Runs a test on a bus of its own, as a service's `main` would: the bus' runtime is made outside.
pub fn with_bus(test: impl AsyncFnOnce(&Bus)) {
    let bus = Bus {
        runtime: BusRuntime::new().unwrap(),
        config: BusConfig {
            namesrv: TestStack::shared().namesrv().to_owned(),
            namespace: unique_namespace(),
            send_timeout: Duration::from_secs(3),
            instance: "same-for-all".to_owned(),
        },
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test(&bus));
    bus.runtime.shutdown();
}

/// As [`with_bus`], with the topics made.
pub fn with_topics(test: impl AsyncFnOnce(&Bus, &Admin)) {
    with_bus(async |bus| {
        let admin = bus.admin().await;
        admin.ensure_topics().await.unwrap();
        test(bus, &admin).await;
        admin.shutdown().await;
    });
}

fn unique_namespace() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("t{}-{:x}", std::process::id(), now.as_nanos())
}

impl Bus {
    pub async fn admin(&self) -> Admin {
        Admin::connect(&self.runtime, &self.config).await.unwrap()
    }

    pub async fn producer(&self) -> Producer {
        Producer::start(&self.runtime, &self.config).await.unwrap()
    }

    pub async fn consumer(&self, config: ConsumerConfig, handler: Arc<Recorder>) -> Consumer {
        Consumer::start(&self.runtime, &self.config, config, handler)
            .await
            .unwrap()
    }
}

pub fn consumer_config() -> ConsumerConfig {
    ConsumerConfig {
        group: Group::OrderConsumer,
        topics: vec![Topic::OrderRequest],
        batch_max: 64,
        threads: 4,
        handler_deadline: Duration::from_secs(20),
        max_redeliveries: 16,
    }
}

/// The n-th order request, told apart from all others by every id.
pub fn request(n: u32) -> OrderRequest {
    let digits: String = (0..26)
        .map(|place| {
            let alphabet = b"abcdefghijklmnopqrstuvwxyz234567";
            let digit = u64::from(n).checked_shr(5 * place).unwrap_or(0) % 32;
            char::from(alphabet[usize::try_from(digit).unwrap()])
        })
        .collect();
    let scope = Scope {
        activity_id: ActivityId::parse("act-1").unwrap(),
        sku_id: SkuId::parse("sku-1").unwrap(),
        version: ActivityVersion::new(1).unwrap(),
    };
    OrderRequest {
        reservation_id: ReservationId::parse(digits).unwrap(),
        request_id: RequestId::parse(format!("request-{n}")).unwrap(),
        user_id: UserId::parse(format!("user-{n}")).unwrap(),
        bucket: scope.bucket(BucketId::ZERO),
        quantity: Quantity::ONE,
        reserved_at_ms: TimestampMs::new(1_700_000_000_000 + i64::from(n)),
        traceparent: Traceparent::from_ids(u128::from(n) + 1, 1).ok(),
    }
}

pub fn messages(range: std::ops::Range<u32>) -> Vec<OutgoingMessage> {
    range
        .map(|n| OutgoingMessage::order_request(&request(n)))
        .collect()
}

pub async fn send_all(producer: &Producer, range: std::ops::Range<u32>) {
    for outcome in producer.send_batch(messages(range)).await {
        assert_eq!(outcome, SendOutcome::Sent);
    }
}

pub async fn until_lag_is(admin: &Admin, expected: u64) {
    eventually(PATIENCE, "the lag", async || {
        match admin.lag(Group::OrderConsumer, Topic::OrderRequest).await {
            Ok(lag) if lag == expected => Ok(()),
            Ok(lag) => Err(format!("is {lag}, not {expected}")),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
}

type Judge = dyn Fn(&IncomingMessage) -> BatchVerdict + Send + Sync;

/// Remembers every delivery, and redelivers a batch if its judge wants that for one of its messages.
pub struct Recorder {
    judge: Box<Judge>,
    seen: Mutex<Vec<IncomingMessage>>,
    batches: AtomicUsize,
    count: watch::Sender<usize>,
}

impl Recorder {
    pub fn new(
        judge: impl Fn(&IncomingMessage) -> BatchVerdict + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            judge: Box::new(judge),
            seen: Mutex::default(),
            batches: AtomicUsize::new(0),
            count: watch::Sender::new(0),
        })
    }

    pub fn acknowledging() -> Arc<Self> {
        Self::new(|_| BatchVerdict::Acknowledge)
    }

    pub fn seen(&self) -> Vec<IncomingMessage> {
        self.seen.lock().unwrap().clone()
    }

    pub fn batches(&self) -> usize {
        self.batches.load(Ordering::Relaxed)
    }

    /// How often each message was delivered.
    pub fn deliveries(&self) -> BTreeMap<String, usize> {
        let mut deliveries = BTreeMap::new();
        for message in self.seen() {
            *deliveries.entry(message.message_id.unwrap()).or_default() += 1;
        }
        deliveries
    }

    /// Awaits so many deliveries.
    pub async fn until(&self, count: usize) {
        let mut seen = self.count.subscribe();
        let reached = tokio::time::timeout(PATIENCE, seen.wait_for(|seen| *seen >= count)).await;
        assert!(
            reached.is_ok(),
            "{} deliveries, not {count}",
            self.seen().len()
        );
    }
}

#[async_trait]
impl BatchHandler for Recorder {
    async fn handle(&self, batch: Vec<IncomingMessage>) -> BatchVerdict {
        let redeliver = batch
            .iter()
            .any(|message| (self.judge)(message) == BatchVerdict::Redeliver);
        self.batches.fetch_add(1, Ordering::Relaxed);
        let mut seen = self.seen.lock().unwrap();
        seen.extend(batch);
        self.count.send_replace(seen.len());
        if redeliver {
            BatchVerdict::Redeliver
        } else {
            BatchVerdict::Acknowledge
        }
    }
}
