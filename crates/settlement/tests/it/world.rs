//! One bucket on both sides, and the steps of a purchase with few words.

use std::time::Duration;

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    Compensate, PreheatBucket, Redis, RedisConfig, Reserve, SetActivityState, Transition,
};
use seckill_order_store::{
    CancelOutcome, CompensationTask, Decided, DecisionRecord, NewTask, Store, StoreConfig,
    TaskOrigin,
};
use seckill_settlement::{Replayed, Replayer, settle_ordered};
use seckill_state_machine::{
    ActivityId, ActivitySettings, ActivityState, ActivityVersion, BucketCount, BucketId, OrderId,
    OrderRequest, Quantity, RequestId, ReservationId, ReservationStatus, ReserveCode, Scope, SkuId,
    TimestampMs, UserId,
};
use seckill_test_support::{PrivateRedis, TestDatabase};

const HOUR_MS: i64 = 3_600_000;

/// Longer than any call takes.
const LIMIT: Duration = Duration::from_secs(10);

/// The bucket and both of its stores.
pub struct World {
    pub server: PrivateRedis,
    pub db: TestDatabase,
    pub redis: Redis,
    pub store: Store,
    pub keys: BucketKeys,
    pub replayer: Replayer,
}

fn scope() -> Scope {
    Scope {
        activity_id: ActivityId::parse("a1").unwrap(),
        sku_id: SkuId::parse("s1").unwrap(),
        version: ActivityVersion::new(1).unwrap(),
    }
}

fn settings(stock: u64, buckets: u32, now: i64) -> ActivitySettings {
    ActivitySettings {
        scope: scope(),
        starts_at_ms: TimestampMs::new(now - HOUR_MS),
        ends_at_ms: TimestampMs::new(now + HOUR_MS),
        retention_until_ms: TimestampMs::new(now + 24 * HOUR_MS),
        total_stock: stock,
        bucket_count: BucketCount::new(buckets).unwrap(),
        limit_per_user: 1,
        max_quantity: Quantity::new(5).unwrap(),
        reservation_ttl_ms: HOUR_MS,
        patience_ms: 1_000,
        secret_version: 1,
    }
}

async fn connect(server: &PrivateRedis) -> Redis {
    let config = RedisConfig {
        url: server.url().into(),
        command_timeout: LIMIT,
        connect_timeout: LIMIT,
        connections: 1,
        buffer_limit: 2_000,
    };
    Redis::connect(&config).await.unwrap()
}

async fn database() -> TestDatabase {
    let schema = seckill_order_store::schema_fingerprint();
    let template = format!("settlement_{schema:016x}");
    TestDatabase::from_template(&template, async |url| {
        seckill_order_store::migrate(&url.into()).await?;
        Ok(())
    })
    .await
}

fn store_of(db: &TestDatabase) -> Store {
    Store::connect(&StoreConfig {
        url: db.url().to_owned().into(),
        pool_size: 4,
        acquire_timeout: LIMIT,
        statement_timeout: LIMIT,
        lock_timeout: LIMIT,
        idle_in_transaction_timeout: LIMIT,
        application_name: "settlement-test".to_owned(),
    })
    .unwrap()
}

/// The n-th reservation id: n in base 32.
pub fn reservation_id(mut n: u64) -> ReservationId {
    let digits = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut text = ['a'; 26];
    for place in text.iter_mut().rev() {
        *place = char::from(digits[(n % 32) as usize]);
        n /= 32;
    }
    ReservationId::parse(text.iter().collect::<String>()).unwrap()
}

/// The n-th request, of user n.
pub fn request(n: u64) -> OrderRequest {
    request_of(n, n)
}

/// The n-th request, of any user.
pub fn request_of(n: u64, user: u64) -> OrderRequest {
    OrderRequest {
        reservation_id: reservation_id(n),
        request_id: RequestId::parse(format!("q{n}")).unwrap(),
        user_id: UserId::parse(format!("u{user}")).unwrap(),
        bucket: scope().bucket(BucketId::ZERO),
        quantity: Quantity::ONE,
        reserved_at_ms: TimestampMs::new(1_700_000_000_000),
        traceparent: None,
    }
}

impl World {
    /// An activity on sale.
    pub async fn open(stock: u64) -> Self {
        Self::open_split(stock, 1).await
    }

    /// An activity on sale in several buckets; single steps are those of the first.
    pub async fn open_split(stock: u64, buckets: u32) -> Self {
        let (server, db) = tokio::join!(PrivateRedis::start(), database());
        let (redis, store) = (connect(&server).await, store_of(&db));
        let keys = BucketKeys::new(&scope().bucket(BucketId::ZERO));
        let now = redis.server_time(&keys).await.unwrap().get();
        let settings = settings(stock, buckets, now);
        store.create_activity(&settings).await.unwrap();
        for bucket_id in settings.bucket_count.buckets() {
            let keys = &BucketKeys::new(&scope().bucket(bucket_id));
            let preheat = PreheatBucket {
                keys,
                settings: &settings,
                now_override: None,
            };
            redis.preheat_bucket(&preheat).await.unwrap();
            let state = ActivityState::Active;
            let open = SetActivityState { keys, state };
            redis.set_activity_state(&open).await.unwrap();
        }
        Self {
            replayer: Replayer::new(redis.clone(), store.clone()),
            server,
            db,
            redis,
            store,
            keys,
        }
    }

    /// What the reserve script says to a request.
    pub async fn reserve(&self, request: &OrderRequest) -> ReserveCode {
        let call = Reserve {
            keys: &self.keys,
            request_id: &request.request_id,
            reservation_id: &request.reservation_id,
            user_id: &request.user_id,
            quantity: request.quantity,
            max_quantity: Quantity::new(5).unwrap(),
            reservation_ttl_ms: HOUR_MS,
            first_send_grace_ms: 2_000,
            negative_cache_max: 4_096,
            traceparent: None,
            repeat: false,
            assume_window: false,
            now_override: None,
        };
        self.redis.reserve(&call).await.unwrap().code
    }

    /// Takes a unit.
    pub async fn accepted(&self, request: &OrderRequest) {
        assert_eq!(self.reserve(request).await, ReserveCode::Accepted);
    }

    /// PostgreSQL's answer to an order request.
    pub async fn decide(&self, request: &OrderRequest) -> Decided {
        let decided = self.store.decide(std::slice::from_ref(request)).await;
        decided.unwrap().remove(0)
    }

    /// Makes an order in PostgreSQL.
    pub async fn ordered(&self, request: &OrderRequest) -> OrderId {
        match self.decide(request).await {
            Decided::Ordered { order_id, .. } => order_id,
            other => panic!("{other:?}"),
        }
    }

    /// A purchase to its end on both sides.
    pub async fn bought(&self, request: &OrderRequest) -> OrderId {
        self.accepted(request).await;
        let order_id = self.ordered(request).await;
        let id = &request.reservation_id;
        settle_ordered(&self.redis, &self.keys, id, &order_id)
            .await
            .unwrap();
        assert_eq!(
            self.status(request).await,
            Some(ReservationStatus::OrderCreated)
        );
        order_id
    }

    /// Cancels an order in PostgreSQL.
    pub async fn cancelled(&self, order_id: &OrderId) {
        let done = self.store.cancel_order(order_id, "tester", "a test").await;
        assert!(matches!(done.unwrap(), CancelOutcome::Cancelled(_)));
    }

    /// The task of a reservation, claimed.
    pub async fn claimed(&self, request: &OrderRequest) -> CompensationTask {
        let claimed = self.store.claim_tasks(100, LIMIT).await.unwrap();
        let id = &request.reservation_id;
        let mut claimed = claimed.into_iter();
        claimed
            .find(|task| task.request.reservation_id == *id)
            .unwrap()
    }

    /// Puts up the fence of an undecided reservation.
    pub async fn fenced(&self, request: &OrderRequest) {
        let task = NewTask {
            request: request.clone(),
            origin: TaskOrigin::Overdue,
            due_in: Duration::ZERO,
        };
        self.store.open_task(&task).await.unwrap();
        let task = self.claimed(request).await;
        self.store.fence(&task).await.unwrap();
        assert!(self.store.finish_task(&task, "tested").await.unwrap());
    }

    /// Gives back the units of a reservation that was given up.
    pub async fn released(&self, request: &OrderRequest) {
        self.transition(request, ReservationStatus::ReleasePending)
            .await;
        let call = Compensate {
            keys: &self.keys,
            reservation_id: &request.reservation_id,
            user_id: &request.user_id,
            release_reason: "TEST",
            waiting: None,
            now_override: None,
        };
        self.redis.compensate(&call).await.unwrap();
        assert_eq!(
            self.status(request).await,
            Some(ReservationStatus::Released)
        );
    }

    /// One step of the transition script, whatever it answers.
    pub async fn transition(&self, request: &OrderRequest, target: ReservationStatus) {
        let call = Transition {
            keys: &self.keys,
            reservation_id: &request.reservation_id,
            target,
            next_retry_at_ms: None,
            message_id: None,
            order_id: None,
            error_code: None,
            now_override: None,
        };
        self.redis.transition(&call).await.unwrap();
    }

    /// Where Redis has a reservation.
    pub async fn status(&self, request: &OrderRequest) -> Option<ReservationStatus> {
        let id = &request.reservation_id;
        let record = self.redis.reservation(&self.keys, id).await.unwrap();
        record.map(|record| record.status)
    }

    /// The reservation that a request's user is marked with.
    pub async fn marker(&self, request: &OrderRequest) -> Option<ReservationId> {
        let user = &request.user_id;
        self.redis.marker(&self.keys, user).await.unwrap()
    }

    /// Units available and reserved, which must add up.
    pub async fn units(&self) -> (u64, u64) {
        let stock = self.redis.stock(&self.keys).await.unwrap().unwrap();
        assert!(stock.counters.is_conserved(), "{stock:?}");
        (stock.counters.available, stock.counters.reserved)
    }

    /// PostgreSQL's word on a reservation.
    pub async fn decision(&self, request: &OrderRequest) -> DecisionRecord {
        let id = std::slice::from_ref(&request.reservation_id);
        self.store.decisions(id).await.unwrap().remove(0)
    }

    /// Replays one decision.
    pub async fn replay(&self, request: &OrderRequest) -> Replayed {
        let decision = self.decision(request).await;
        self.replayer.replay(&decision).await.unwrap()
    }

    /// Replays one decision until nothing is left to do.
    pub async fn assert_agreed(&self, request: &OrderRequest) {
        assert_eq!(self.replay(request).await, Replayed::Agreed);
    }

    /// Open tasks, with why they were opened.
    pub async fn open_tasks(&self) -> Vec<Vec<String>> {
        let open = "SELECT reservation_id, origin FROM compensation_task WHERE closed_at IS NULL
            ORDER BY reservation_id";
        self.db.texts(open).await
    }

    /// Remembers every key of the server, as a replica that falls behind does.
    pub async fn remember(&self) {
        let mut redis = self.server.connection().await.unwrap();
        redis.call(&["SELECT", "1"]).await.unwrap();
        redis.call(&["FLUSHDB"]).await.unwrap();
        self.copy("0", "1").await;
    }

    /// Brings back what was remembered, and nothing else, as a failover to that replica does.
    pub async fn fail_over(&self) {
        self.lose_all().await;
        self.copy("1", "0").await;
    }

    /// Loses every key.
    pub async fn lose_all(&self) {
        let gone = self.server.cli(&["FLUSHDB"]).await;
        assert_eq!(gone.error(), None);
    }

    /// Loses a reservation's record alone, which no failover does and an operator may.
    pub async fn lose(&self, request: &OrderRequest) {
        let key = self.keys.reservation(&request.reservation_id);
        assert_eq!(self.server.cli(&["DEL", &key]).await.int(), 1);
    }

    async fn copy(&self, from: &str, to: &str) {
        let mut redis = self.server.connection().await.unwrap();
        redis.call(&["SELECT", from]).await.unwrap();
        for key in redis.call(&["KEYS", "*"]).await.unwrap().texts() {
            let copied = redis.call(&["COPY", &key, &key, "DB", to]).await.unwrap();
            assert_eq!(copied.int(), 1, "{key}");
        }
    }
}
