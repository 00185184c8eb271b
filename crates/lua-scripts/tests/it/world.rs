//! One bucket on a private server, with calls that need few words.

use std::time::Duration;

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    ClaimSend, ClaimSendReply, Compensate, CompensateReply, Error, PreheatBucket, PreheatReply,
    Redis, RedisConfig, Reserve, ReserveReply, SetActivityState, Transition, TransitionReply,
};
use seckill_state_machine::{
    ActivityId, ActivitySettings, ActivityState, ActivityVersion, BucketCount, BucketId, MessageId,
    Quantity, RequestId, ReservationId, ReservationStatus, Scope, SkuId, TimestampMs, UserId,
};
use seckill_test_support::{Dump, PrivateRedis};

pub const MINUTE_MS: i64 = 60_000;
pub const TTL_MS: i64 = 15 * MINUTE_MS;
pub const GRACE_MS: i64 = 2_000;

/// Instants of the test's sale, all far enough ahead that no key expires for real.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub starts: i64,
    pub ends: i64,
    pub retention: i64,
}

pub struct World {
    pub server: PrivateRedis,
    pub redis: Redis,
    pub keys: BucketKeys,
    pub times: Times,
}

pub fn config(url: &str) -> RedisConfig {
    RedisConfig {
        url: url.to_owned().into(),
        command_timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(5),
        connections: 1,
        buffer_limit: 20_000,
    }
}

pub fn scope() -> Scope {
    Scope {
        activity_id: ActivityId::parse("A1").unwrap(),
        sku_id: SkuId::parse("S1").unwrap(),
        version: ActivityVersion::new(7).unwrap(),
    }
}

pub fn bucket_keys() -> BucketKeys {
    BucketKeys::new(&scope().bucket(BucketId::ZERO))
}

pub fn user(name: &str) -> UserId {
    UserId::parse(name).unwrap()
}

pub fn request(name: &str) -> RequestId {
    RequestId::parse(name).unwrap()
}

/// A reservation id that is easy to read in a failure: the letters of a tag, padded.
pub fn rid(tag: &str) -> ReservationId {
    ReservationId::parse(format!("{tag:a<26}")).unwrap()
}

pub fn quantity(units: u32) -> Quantity {
    Quantity::new(units).unwrap()
}

impl World {
    /// A preheated and opened bucket whose sale is in full swing at the test's clock.
    pub async fn open(stock: u64) -> Self {
        let world = Self::empty().await;
        assert_eq!(
            world.preheat(stock).await,
            PreheatReply::Preheated {
                meta_written: true,
                stock_written: true
            }
        );
        world.set_state(ActivityState::Active).await;
        world
    }

    /// A server without any key.
    pub async fn empty() -> Self {
        let server = PrivateRedis::start().await;
        let redis = Redis::connect(&config(&server.url())).await.unwrap();
        let keys = bucket_keys();
        let now = redis.server_time(&keys).await.unwrap().get();
        let times = Times {
            starts: now - MINUTE_MS,
            ends: now + 60 * MINUTE_MS,
            retention: now + 7 * 24 * 60 * MINUTE_MS,
        };
        Self {
            server,
            redis,
            keys,
            times,
        }
    }

    pub fn settings(&self, stock: u64) -> ActivitySettings {
        ActivitySettings {
            scope: scope(),
            starts_at_ms: TimestampMs::new(self.times.starts),
            ends_at_ms: TimestampMs::new(self.times.ends),
            retention_until_ms: TimestampMs::new(self.times.retention),
            total_stock: stock,
            bucket_count: BucketCount::ONE,
            limit_per_user: 1,
            max_quantity: Quantity::ONE,
            reservation_ttl_ms: TTL_MS,
            patience_ms: 1_000,
            secret_version: 1,
        }
    }

    pub async fn preheat(&self, stock: u64) -> PreheatReply {
        let call = PreheatBucket {
            keys: &self.keys,
            settings: &self.settings(stock),
            now_override: None,
        };
        self.redis.preheat_bucket(&call).await.unwrap()
    }

    pub async fn set_state(&self, state: ActivityState) {
        let call = SetActivityState {
            keys: &self.keys,
            state,
        };
        self.redis.set_activity_state(&call).await.unwrap();
    }

    /// The call of a buyer whose reservation id is derived from their name and request.
    pub async fn try_reserve(&self, buyer: &str, request_id: &str) -> Result<ReserveReply, Error> {
        self.try_reserve_as(buyer, request_id, &derived(buyer, request_id), |_| {})
            .await
    }

    pub async fn reserve(&self, buyer: &str, request_id: &str) -> ReserveReply {
        self.try_reserve(buyer, request_id).await.unwrap()
    }

    pub async fn reserve_at(&self, buyer: &str, request_id: &str, now: i64) -> ReserveReply {
        let id = derived(buyer, request_id);
        self.try_reserve_as(buyer, request_id, &id, |call| {
            call.now_override = Some(TimestampMs::new(now));
        })
        .await
        .unwrap()
    }

    pub async fn try_reserve_as(
        &self,
        buyer: &str,
        request_id: &str,
        reservation_id: &ReservationId,
        change: impl FnOnce(&mut Reserve<'_>),
    ) -> Result<ReserveReply, Error> {
        let (user_id, request_id) = (user(buyer), request(request_id));
        let mut call = Reserve {
            keys: &self.keys,
            request_id: &request_id,
            reservation_id,
            user_id: &user_id,
            quantity: Quantity::ONE,
            max_quantity: Quantity::ONE,
            reservation_ttl_ms: TTL_MS,
            first_send_grace_ms: GRACE_MS,
            negative_cache_max: 4_096,
            traceparent: None,
            repeat: false,
            assume_window: false,
            now_override: None,
        };
        change(&mut call);
        self.redis.reserve(&call).await
    }

    pub async fn step(&self, id: &ReservationId, target: ReservationStatus) -> TransitionReply {
        self.step_with(id, target, |_| {}).await
    }

    /// One step with the reservation's own message id, unless the change sets another.
    pub async fn step_with<'a>(
        &'a self,
        id: &'a ReservationId,
        target: ReservationStatus,
        change: impl FnOnce(&mut Transition<'a>),
    ) -> TransitionReply {
        let mut changed = Transition {
            keys: &self.keys,
            reservation_id: id,
            target,
            next_retry_at_ms: None,
            message_id: None,
            order_id: None,
            error_code: None,
            now_override: None,
        };
        change(&mut changed);
        let own = MessageId::of(id);
        let call = Transition {
            message_id: changed.message_id.or(Some(&own)),
            ..changed
        };
        self.redis.transition(&call).await.unwrap()
    }

    pub async fn try_compensate(
        &self,
        id: &ReservationId,
        buyer: &str,
    ) -> Result<CompensateReply, Error> {
        let call = Compensate {
            keys: &self.keys,
            reservation_id: id,
            user_id: &user(buyer),
            release_reason: "TEST",
            waiting: None,
            now_override: None,
        };
        self.redis.compensate(&call).await
    }

    pub async fn compensate(&self, id: &ReservationId, buyer: &str) -> CompensateReply {
        self.try_compensate(id, buyer).await.unwrap()
    }

    pub async fn claim(&self, id: &ReservationId, score: i64, lease: i64) -> ClaimSendReply {
        let call = ClaimSend {
            keys: &self.keys,
            reservation_id: id,
            expected_score: score,
            lease_until: TimestampMs::new(lease),
        };
        self.redis.claim_send(&call).await.unwrap()
    }

    /// Moves a fresh reservation to `RELEASE_PENDING`.
    pub async fn to_release_pending(&self, id: &ReservationId) {
        self.step(id, ReservationStatus::ReleasePending).await;
    }

    /// Reads everything and checks what must hold whatever happened (I3, I10).
    pub async fn dump(&self) -> Dump {
        let dump = self.server.dump().await;
        assert_eq!(dump.keys_without_expiry(), Vec::<&str>::new());
        for (key, entry) in &dump.0 {
            assert!(
                entry.expires_at_ms.unwrap() <= self.times.retention,
                "{key}"
            );
        }
        dump
    }

    /// The three counters as they are stored.
    pub async fn counters(&self) -> (u64, u64, u64) {
        let counters = self
            .redis
            .stock(&self.keys)
            .await
            .unwrap()
            .unwrap()
            .counters;
        assert!(counters.is_conserved());
        (counters.initial, counters.available, counters.reserved)
    }

    pub async fn cli(&self, command: &[&str]) {
        let reply = self.server.cli(command).await;
        assert_eq!(reply.error(), None, "{command:?}");
    }
}

/// The reservation id of a buyer's request in these tests.
pub fn derived(buyer: &str, request_id: &str) -> ReservationId {
    let letters: String = format!("{buyer}x{request_id}")
        .bytes()
        .map(|byte| match byte {
            b'0'..=b'9' => char::from(byte - b'0' + b'b'),
            letter => char::from(letter.to_ascii_lowercase()),
        })
        .collect();
    rid(&letters)
}
