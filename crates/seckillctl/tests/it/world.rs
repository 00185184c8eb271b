//! One Redis, one database, and the built executable in between.

use std::process::Stdio;
use std::time::Duration;

use seckill_key_layout::{BucketKeys, bucket_of_user};
use seckill_lua_scripts::{Redis, RedisConfig, Reserve, ReserveReply, Settle, SettleOutcome};
use seckill_order_store::{Decided, Store, StoreConfig};
use seckill_state_machine::{
    ActivityId, ActivityVersion, BucketCount, BucketId, MessageId, OrderId, OrderRequest, Quantity,
    RequestId, ReservationId, ReserveCode, Scope, SkuId, TimestampMs, UserId,
};
use seckill_test_support::{PrivateRedis, TestDatabase, Value};
use tokio::process::Command;

/// Longer than any command here takes beside a compiler.
const DEADLINE: Duration = Duration::from_secs(60);

const SECRETS: &str = "1:QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=";

pub const ACTIVITY: &str = "act";

/// How a command has ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// It ended with this code, and said all of this on the error output.
    #[track_caller]
    pub fn refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {self:?}");
        }
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }
}

/// The executable, without any setting of this process.
pub fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckillctl"));
    command.env_clear().stdin(Stdio::null()).kill_on_drop(true);
    command
}

pub async fn run(mut command: Command) -> Ended {
    let output = tokio::time::timeout(DEADLINE, command.output())
        .await
        .unwrap()
        .unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

pub struct World {
    pub server: PrivateRedis,
    pub db: TestDatabase,
    pub redis: Redis,
    pub store: Store,
}

impl World {
    pub async fn start() -> Self {
        let template = format!(
            "seckillctl_{:016x}",
            seckill_order_store::schema_fingerprint()
        );
        let db = TestDatabase::from_template(&template, async |url| {
            seckill_order_store::migrate(&url.into()).await?;
            Ok(())
        })
        .await;
        let server = PrivateRedis::start().await;
        let redis = redis_at(&server.url()).await;
        let store = store_at(db.url());
        Self {
            server,
            db,
            redis,
            store,
        }
    }

    /// A world with ten units on sale.
    pub async fn on_sale(buckets: u32) -> Self {
        let world = Self::start().await;
        world.create(10, buckets).await.ok();
        world.activity("preheat").await.ok();
        world.activity("open").await.ok();
        world
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = bare();
        command
            .env("SECKILL_REDIS_URL", self.server.url())
            .env("SECKILL_DATABASE_URL", self.db.url())
            // Only asked by commands that no test here runs with it.
            .env("SECKILL_ROCKETMQ_NAMESRV", "127.0.0.1:1")
            .env("SECKILL_HMAC_SECRETS", SECRETS)
            .args(arguments);
        command
    }

    pub async fn ctl(&self, arguments: &[&str]) -> Ended {
        run(self.command(arguments)).await
    }

    pub async fn create(&self, stock: u64, buckets: u32) -> Ended {
        let (stock, buckets) = (stock.to_string(), buckets.to_string());
        self.ctl(&[
            "activity",
            "create",
            "--activity-id",
            ACTIVITY,
            "--sku-id",
            "sku",
            "--stock",
            &stock,
            "--buckets",
            &buckets,
        ])
        .await
    }

    /// A command about the newest version.
    pub async fn activity(&self, step: &str) -> Ended {
        self.ctl(&["activity", step, "--activity-id", ACTIVITY])
            .await
    }

    pub async fn version(&self, step: &str, version: &str) -> Ended {
        let about = ["--activity-id", ACTIVITY, "--activity-version", version];
        self.ctl(&[&["activity", step], about.as_slice()].concat())
            .await
    }

    pub async fn audit(&self) -> Ended {
        let about = [
            "audit",
            "--activity-id",
            ACTIVITY,
            "--without-broker",
            "--recheck-ms",
            "50",
        ];
        self.ctl(&[about.as_slice(), &["--output", "json"]].concat())
            .await
    }

    pub fn scope(&self) -> Scope {
        scope()
    }

    pub fn keys(&self, bucket: u32) -> BucketKeys {
        BucketKeys::new(&self.scope().bucket(BucketId::new(bucket).unwrap()))
    }

    /// A command to Redis past every script: damage is planted with it.
    pub async fn plant(&self, command: &[&str]) -> Value {
        self.server.cli(command).await
    }

    /// Buyer `n`'s reservation, of the only bucket.
    pub async fn reserve(&self, n: u8) -> OrderRequest {
        let request = request(n);
        let reply = reserve(&self.redis, &request).await;
        assert_eq!(reply.code, ReserveCode::Accepted, "{reply:?}");
        request
    }

    /// What buyer `n` asks for, without asking.
    pub fn request(&self, n: u8) -> OrderRequest {
        request(n)
    }

    /// PostgreSQL's decision, without telling Redis.
    pub async fn order(&self, request: &OrderRequest) -> OrderId {
        let decided = self
            .store
            .decide(std::slice::from_ref(request))
            .await
            .unwrap();
        match decided.as_slice() {
            [Decided::Ordered { order_id, .. }] => order_id.clone(),
            other => panic!("not ordered: {other:?}"),
        }
    }

    /// A whole purchase: reserved, ordered and settled.
    pub async fn buy(&self, n: u8) -> ReservationId {
        let request = self.reserve(n).await;
        let order_id = self.order(&request).await;
        let keys = BucketKeys::new(&request.bucket);
        let settle = Settle {
            keys: &keys,
            reservation_id: &request.reservation_id,
            message_id: &MessageId::of(&request.reservation_id),
            outcome: SettleOutcome::Ordered {
                order_id: &order_id,
            },
        };
        self.redis.settle(&settle).await.unwrap();
        request.reservation_id
    }
}

pub async fn redis_at(url: &str) -> Redis {
    Redis::connect(&RedisConfig {
        url: url.into(),
        command_timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(5),
        connections: 1,
        buffer_limit: 1_000,
    })
    .await
    .unwrap()
}

pub fn store_at(url: &str) -> Store {
    Store::connect(&StoreConfig {
        url: url.to_owned().into(),
        pool_size: 4,
        acquire_timeout: Duration::from_secs(5),
        statement_timeout: Duration::from_secs(10),
        lock_timeout: Duration::from_secs(5),
        idle_in_transaction_timeout: Duration::from_secs(10),
        application_name: "seckillctl-test".to_owned(),
    })
    .unwrap()
}

/// The first version of the activity of all tests.
pub fn scope() -> Scope {
    Scope {
        activity_id: ActivityId::parse(ACTIVITY).unwrap(),
        sku_id: SkuId::parse("sku").unwrap(),
        version: ActivityVersion::new(1).unwrap(),
    }
}

/// What buyer `n` asks for, in the only bucket.
pub fn request(n: u8) -> OrderRequest {
    let user_id = UserId::parse(format!("user-{n}")).unwrap();
    let bucket_id = bucket_of_user(&scope(), &user_id, BucketCount::ONE);
    OrderRequest {
        reservation_id: reservation_id(n),
        request_id: RequestId::parse(format!("request-{n}")).unwrap(),
        bucket: scope().bucket(bucket_id),
        user_id,
        quantity: Quantity::ONE,
        reserved_at_ms: TimestampMs::new(1_700_000_000_000),
        traceparent: None,
    }
}

/// Asks the script for a unit.
pub async fn reserve(redis: &Redis, request: &OrderRequest) -> ReserveReply {
    let call = Reserve {
        keys: &BucketKeys::new(&request.bucket),
        request_id: &request.request_id,
        reservation_id: &request.reservation_id,
        user_id: &request.user_id,
        quantity: Quantity::ONE,
        max_quantity: Quantity::ONE,
        reservation_ttl_ms: 300_000,
        first_send_grace_ms: 2_000,
        negative_cache_max: 100,
        traceparent: None,
        repeat: false,
        assume_window: false,
        now_override: None,
    };
    redis.reserve(&call).await.unwrap()
}

/// A different id for every number below 26.
pub fn reservation_id(n: u8) -> ReservationId {
    let letter = char::from(b'a' + n);
    ReservationId::parse(letter.to_string().repeat(26)).unwrap()
}
