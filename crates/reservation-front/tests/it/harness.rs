//! A sale in a private Redis, a front in front of it, and callers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use hdrhistogram::Histogram;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{PreheatBucket, PreheatReply, Redis, RedisConfig, SetActivityState};
use seckill_proto::v1::reservation_service_client::ReservationServiceClient;
use seckill_proto::v1::{
    GetReservationRequest, GetReservationResponse, ReserveCode, ReserveRequest, ReserveResponse,
    get_reservation_request,
};
use seckill_state_machine::{
    ActivityId, ActivitySettings, ActivityState, ActivityVersion, BucketCount, BucketId, Quantity,
    ReservationId, ReservationStatus, Scope, SkuId, TimestampMs,
};
use seckill_test_support::{PrivateRedis, ServiceBuilder, ServiceProcess, eventually};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt;

/// A secret of 32 bytes, in Base64.
pub(crate) const SECRET: &str = "c2VjcmV0LW9mLXRoZS10ZXN0cy0zMi1ieXRlcy1sb24=";

/// Nothing listens there.
pub(crate) const NOWHERE: &str = "127.0.0.1:1";

/// Long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) type Client = ReservationServiceClient<Channel>;

/// One activity version in Redis, as the control plane would have made it.
pub(crate) struct Sale {
    pub(crate) redis: Redis,
    pub(crate) settings: ActivitySettings,
}

pub(crate) fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

/// A sale that began a minute ago and lasts an hour.
pub(crate) fn settings(stock: u64) -> ActivitySettings {
    let now = now_ms();
    ActivitySettings {
        scope: Scope {
            activity_id: ActivityId::parse("act-1").unwrap(),
            sku_id: SkuId::parse("sku-1").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        },
        starts_at_ms: TimestampMs::new(now - 60_000),
        ends_at_ms: TimestampMs::new(now + 3_600_000),
        retention_until_ms: TimestampMs::new(now + 86_400_000),
        total_stock: stock,
        bucket_count: BucketCount::ONE,
        limit_per_user: 1,
        max_quantity: Quantity::ONE,
        reservation_ttl_ms: 900_000,
        patience_ms: 600_000,
        secret_version: 1,
    }
}

impl Sale {
    /// Preheats, but does not open.
    pub(crate) async fn prepare(server: &PrivateRedis, settings: ActivitySettings) -> Self {
        Self::prepare_at(server.url(), settings).await
    }

    /// The same, wherever it is.
    pub(crate) async fn prepare_at(url: String, settings: ActivitySettings) -> Self {
        let redis = Redis::connect(&RedisConfig {
            url: url.into(),
            command_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            connections: 1,
            buffer_limit: 10_000,
        })
        .await
        .unwrap();
        let sale = Self { redis, settings };
        for keys in sale.buckets() {
            let call = PreheatBucket {
                keys: &keys,
                settings: &sale.settings,
                now_override: None,
            };
            let reply = sale.redis.preheat_bucket(&call).await.unwrap();
            assert!(matches!(reply, PreheatReply::Preheated { .. }), "{reply:?}");
        }
        sale
    }

    /// Preheats and opens.
    pub(crate) async fn open(server: &PrivateRedis, settings: ActivitySettings) -> Self {
        Self::open_at(server.url(), settings).await
    }

    /// The same, wherever it is.
    pub(crate) async fn open_at(url: String, settings: ActivitySettings) -> Self {
        let sale = Self::prepare_at(url, settings).await;
        sale.point_here().await;
        sale.set_state(ActivityState::Active).await;
        sale
    }

    /// Makes this version the current one.
    pub(crate) async fn point_here(&self) {
        let scope = &self.settings.scope;
        self.redis
            .set_current_version(
                &scope.activity_id,
                scope.version,
                self.settings.retention_until_ms,
            )
            .await
            .unwrap();
    }

    pub(crate) async fn set_state(&self, state: ActivityState) {
        for keys in self.buckets() {
            let call = SetActivityState { keys: &keys, state };
            self.redis.set_activity_state(&call).await.unwrap();
        }
    }

    pub(crate) fn buckets(&self) -> Vec<BucketKeys> {
        let scope = &self.settings.scope;
        let buckets = self.settings.bucket_count.buckets();
        buckets
            .map(|bucket| BucketKeys::new(&scope.bucket(bucket)))
            .collect()
    }

    /// The first bucket, which is the only one in most tests.
    pub(crate) fn keys(&self) -> BucketKeys {
        BucketKeys::new(&self.settings.scope.bucket(BucketId::ZERO))
    }

    /// Buys a first unit and waits until the front has tried to send it, which leaves its state as it is
    /// from then on: there is no broker.
    pub(crate) async fn warm_up(&self, client: &mut Client) {
        let warm = reserve(client, self.call("warm", "warm")).await;
        let id = ReservationId::parse(warm.reservation_id).unwrap();
        eventually(PATIENCE, "the first send is noted", async || {
            let found = self.redis.reservation(&self.keys(), &id).await;
            match found.map(|record| record.map(|record| record.status)) {
                Ok(Some(ReservationStatus::SendUnknown)) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// What is available and reserved in the first bucket.
    pub(crate) async fn stock(&self) -> (u64, u64) {
        let stock = self.redis.stock(&self.keys()).await.unwrap().unwrap();
        (stock.counters.available, stock.counters.reserved)
    }

    pub(crate) fn call(&self, user: &str, request: &str) -> ReserveRequest {
        let scope = &self.settings.scope;
        ReserveRequest {
            activity_id: scope.activity_id.to_string(),
            sku_id: scope.sku_id.to_string(),
            user_id: user.to_owned(),
            request_id: request.to_owned(),
            activity_version: scope.version.get(),
            ..ReserveRequest::default()
        }
    }

    pub(crate) fn query(
        &self,
        user: &str,
        key: get_reservation_request::Key,
    ) -> GetReservationRequest {
        let scope = &self.settings.scope;
        GetReservationRequest {
            activity_id: scope.activity_id.to_string(),
            sku_id: scope.sku_id.to_string(),
            user_id: user.to_owned(),
            activity_version: scope.version.get(),
            key: Some(key),
        }
    }
}

/// A front that knows Redis alone.
pub(crate) fn front(redis_url: impl ToString) -> ServiceBuilder {
    ServiceProcess::builder("reservation-front")
        .env("SECKILL_REDIS_URL", redis_url)
        .env("SECKILL_REDIS_COMMAND_TIMEOUT_MS", 1_000)
        .env(
            "SECKILL_DATABASE_URL",
            format!("postgres://nobody:nothing@{NOWHERE}/none"),
        )
        .env("SECKILL_ROCKETMQ_NAMESRV", NOWHERE)
        .env("SECKILL_HMAC_SECRETS", format!("1:{SECRET}"))
        .env("SECKILL_FRONT_LISTEN", "127.0.0.1:0")
        .env("SECKILL_DRAIN_DELAY_MS", 100)
}

pub(crate) fn endpoint(front: &ServiceProcess) -> Endpoint {
    Endpoint::from_shared(format!("http://{}", front.grpc_addr()))
        .unwrap()
        .tcp_nodelay(true)
}

pub(crate) async fn client(front: &ServiceProcess) -> Client {
    ReservationServiceClient::new(endpoint(front).connect().await.unwrap())
}

/// The reason of a fault.
pub(crate) fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details
        .error_info()
        .map(|info| info.reason.clone())
        .unwrap_or_default()
}

/// Asserts that a fault says nothing wrong, names the request, and says when to come back.
pub(crate) fn assert_honest(status: &Status, request_id: &str) {
    let details = status.get_error_details();
    let info = details
        .error_info()
        .unwrap_or_else(|| panic!("no reason: {status:?}"));
    assert_eq!(info.domain, "seckill");
    assert_eq!(
        info.metadata.get("request_id").map(String::as_str),
        Some(request_id)
    );
    assert!(details.retry_info().is_some(), "{status:?}");
    assert!(
        matches!(
            status.code(),
            tonic::Code::Unavailable | tonic::Code::DeadlineExceeded
        ),
        "{status:?}"
    );
}

/// How often a caller repeats a call that got no outcome. A machine that compiles at the same time
/// loses a script call to its time limit now and then, hardly ever twice in a row.
const ATTEMPTS_MAX: usize = 20;

/// What many calls were answered.
pub(crate) struct Answers {
    pub(crate) replies: Vec<Result<ReserveResponse, Status>>,
    repeats: usize,
    latencies: Histogram<u64>,
    took: Duration,
}

impl Answers {
    /// How many answers of each kind there were.
    pub(crate) fn tally(&self) -> BTreeMap<String, usize> {
        let mut tally = BTreeMap::new();
        for reply in &self.replies {
            let word = match reply {
                Ok(response) => response.code().as_str_name().replace("RESERVE_CODE_", ""),
                Err(status) => format!("{:?} {}", status.code(), reason(status)),
            };
            *tally.entry(word).or_insert(0) += 1;
        }
        tally
    }

    pub(crate) fn with_code(&self, code: ReserveCode) -> Vec<&ReserveResponse> {
        let replies = self.replies.iter().filter_map(|reply| reply.as_ref().ok());
        replies.filter(|response| response.code() == code).collect()
    }

    /// One line for a person.
    pub(crate) fn report(&self, what: &str) {
        let at = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1_000.0;
        eprintln!(
            "{what}: {} calls, {} repeats in {:.1} s ({:.0}/s), p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms; {:?}",
            self.replies.len(),
            self.repeats,
            self.took.as_secs_f64(),
            self.replies.len() as f64 / self.took.as_secs_f64(),
            at(0.5),
            at(0.99),
            self.latencies.max() as f64 / 1_000.0,
            self.tally()
        );
    }

    pub(crate) fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.latencies.value_at_quantile(quantile))
    }
}

/// Sends calls over four connections, so many at a time, each once.
pub(crate) async fn drive(
    front: &ServiceProcess,
    calls: impl IntoIterator<Item = ReserveRequest> + Send,
    at_once: usize,
    deadline: Option<Duration>,
) -> Answers {
    send(front, calls, at_once, deadline, 1).await
}

/// The same as an honest caller does it: a call that got no outcome is repeated under its request id
/// after the pause that the answer asks for.
pub(crate) async fn drive_to_the_end(
    front: &ServiceProcess,
    calls: impl IntoIterator<Item = ReserveRequest> + Send,
    at_once: usize,
) -> Answers {
    send(front, calls, at_once, None, ATTEMPTS_MAX).await
}

async fn send(
    front: &ServiceProcess,
    calls: impl IntoIterator<Item = ReserveRequest> + Send,
    at_once: usize,
    deadline: Option<Duration>,
    attempts_max: usize,
) -> Answers {
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(client(front).await);
    }
    let began = Instant::now();
    let calls: Vec<ReserveRequest> = calls.into_iter().collect();
    let sent = calls.into_iter().enumerate().map(|(at, call)| {
        let client = clients[at % clients.len()].clone();
        async move {
            let began = Instant::now();
            let (reply, attempts) = ask(client, &call, deadline, attempts_max).await;
            (reply, attempts, began.elapsed())
        }
    });
    let answered: Vec<_> = futures::stream::iter(sent)
        .buffer_unordered(at_once)
        .collect()
        .await;
    let mut latencies = Histogram::new(3).unwrap();
    let mut replies = Vec::with_capacity(answered.len());
    let mut repeats = 0;
    for (reply, attempts, latency) in answered {
        latencies
            .record(u64::try_from(latency.as_micros()).unwrap())
            .unwrap();
        replies.push(reply);
        repeats += attempts - 1;
    }
    Answers {
        replies,
        repeats,
        latencies,
        took: began.elapsed(),
    }
}

async fn ask(
    mut client: Client,
    call: &ReserveRequest,
    deadline: Option<Duration>,
    attempts_max: usize,
) -> (Result<ReserveResponse, Status>, usize) {
    let mut attempt = 1;
    loop {
        let mut request = tonic::Request::new(call.clone());
        if let Some(deadline) = deadline {
            request.set_timeout(deadline);
        }
        let reply = client.reserve(request).await;
        let reply = reply.map(tonic::Response::into_inner);
        let pause = match &reply {
            Err(status) if attempt < attempts_max => retry_pause(status),
            Ok(_) | Err(_) => None,
        };
        let Some(pause) = pause else {
            return (reply, attempt);
        };
        tokio::time::sleep(pause).await;
        attempt += 1;
    }
}

fn retry_pause(status: &Status) -> Option<Duration> {
    status.get_error_details().retry_info()?.retry_delay
}

/// One call, answered.
pub(crate) async fn reserve(client: &mut Client, call: ReserveRequest) -> ReserveResponse {
    client.reserve(call).await.unwrap().into_inner()
}

/// One query, answered.
pub(crate) async fn find(
    client: &mut Client,
    query: GetReservationRequest,
) -> Result<GetReservationResponse, Status> {
    let answer = client.get_reservation(query).await;
    answer.map(tonic::Response::into_inner)
}

/// Memory of a process that is in use, in KiB.
pub(crate) fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let words = line.unwrap().split_whitespace().nth(1);
    words.unwrap().parse().unwrap()
}
