//! A migrated database with one activity, and order requests for it.

use std::time::Duration;

use seckill_order_store::{Decided, Error, NewTask, Store, StoreConfig, TaskOrigin};
use seckill_state_machine::{
    ActivityId, ActivitySettings, ActivityVersion, BucketCount, BucketId, OrderRequest, Quantity,
    RequestId, ReservationId, Scope, SkuId, TimestampMs, Traceparent, UserId,
};
use seckill_test_support::TestDatabase;

/// A moment in the past from which the activities run, and one far ahead at which they end.
pub const STARTS: i64 = 1_700_000_000_000;
pub const ENDS: i64 = 4_000_000_000_000;
pub const RETENTION: i64 = ENDS + 7 * 24 * 3_600_000;

/// Far longer than anything takes, far shorter than a test run.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Fixture {
    pub db: TestDatabase,
    pub store: Store,
    pub scope: Scope,
}

pub fn scope(version: u64) -> Scope {
    Scope {
        activity_id: ActivityId::parse("spring").unwrap(),
        sku_id: SkuId::parse("phone").unwrap(),
        version: ActivityVersion::new(version).unwrap(),
    }
}

pub fn settings(scope: &Scope, stock: u64, buckets: u32) -> ActivitySettings {
    ActivitySettings {
        scope: scope.clone(),
        starts_at_ms: TimestampMs::new(STARTS),
        ends_at_ms: TimestampMs::new(ENDS),
        retention_until_ms: TimestampMs::new(RETENTION),
        total_stock: stock,
        bucket_count: BucketCount::new(buckets).unwrap(),
        limit_per_user: 1,
        max_quantity: Quantity::new(5).unwrap(),
        reservation_ttl_ms: 900_000,
        patience_ms: 60_000,
        secret_version: 1,
    }
}

pub fn config(url: &str) -> StoreConfig {
    StoreConfig {
        url: url.to_owned().into(),
        pool_size: 12,
        acquire_timeout: Duration::from_secs(5),
        statement_timeout: Duration::from_secs(10),
        lock_timeout: Duration::from_secs(5),
        idle_in_transaction_timeout: Duration::from_secs(10),
        application_name: "order-store-test".to_owned(),
    }
}

/// A database with the current schema and nothing in it.
pub async fn database() -> TestDatabase {
    let template = format!(
        "order_store_{:016x}",
        seckill_order_store::schema_fingerprint()
    );
    TestDatabase::from_template(&template, async |url| {
        seckill_order_store::migrate(&url.into()).await?;
        Ok(())
    })
    .await
}

/// A database with version 1 of an activity.
pub async fn sale(stock: u64, buckets: u32) -> Fixture {
    let db = database().await;
    let store = Store::connect(&config(db.url())).unwrap();
    let scope = scope(1);
    store
        .create_activity(&settings(&scope, stock, buckets))
        .await
        .unwrap();
    Fixture { db, store, scope }
}

impl Fixture {
    /// Another handle with other limits.
    pub fn store_with(&self, change: impl FnOnce(&mut StoreConfig)) -> Store {
        let mut config = config(self.db.url());
        change(&mut config);
        Store::connect(&config).unwrap()
    }

    /// The n-th reservation of the first bucket, of user n.
    pub fn request(&self, n: u64) -> OrderRequest {
        request(&self.scope, n)
    }

    /// What is left in the first bucket, and what is sold there.
    pub async fn stock(&self) -> (u64, u64) {
        let rows = self.store.stock_rows(&self.scope).await.unwrap();
        (rows[0].available, rows[0].sold)
    }

    /// Every bucket's row agrees with its orders and its journal, and nobody has two orders.
    pub async fn assert_conserved(&self) {
        for totals in self.store.bucket_totals(&self.scope).await.unwrap() {
            assert!(totals.is_conserved(), "{totals:?}");
        }
        assert_eq!(self.store.duplicate_orders(&self.scope).await.unwrap(), 0);
        let strays = self
            .store
            .orders_without_decision(&self.scope)
            .await
            .unwrap();
        assert_eq!(strays, 0);
    }

    /// Decides one request.
    pub async fn decide(&self, request: &OrderRequest) -> Decided {
        one(self.store.decide(std::slice::from_ref(request)).await)
    }
}

/// The single answer of a call.
pub fn one(answers: Result<Vec<Decided>, Error>) -> Decided {
    let mut answers = answers.unwrap();
    assert_eq!(answers.len(), 1);
    answers.remove(0)
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

pub fn request(scope: &Scope, n: u64) -> OrderRequest {
    OrderRequest {
        reservation_id: reservation_id(n),
        request_id: RequestId::parse(format!("q{n}")).unwrap(),
        user_id: UserId::parse(format!("u{n}")).unwrap(),
        bucket: scope.bucket(BucketId::ZERO),
        quantity: Quantity::ONE,
        reserved_at_ms: TimestampMs::new(STARTS + 1),
        traceparent: Some(Traceparent::from_ids(u128::from(n) + 1, n + 1).unwrap()),
    }
}

pub fn user(n: u64) -> UserId {
    UserId::parse(format!("u{n}")).unwrap()
}

pub const fn fresh(decided: &Decided) -> bool {
    matches!(decided, Decided::Ordered { fresh: true, .. })
}

/// A task that is due now.
pub fn task(request: &OrderRequest, origin: TaskOrigin) -> NewTask {
    NewTask {
        request: request.clone(),
        origin,
        due_in: Duration::ZERO,
    }
}

impl Fixture {
    /// Awaits that so many sessions of this database wait for a lock.
    pub async fn await_lock_waits(&self, sessions: i64) {
        let query = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        seckill_test_support::eventually(PATIENCE, "sessions wait for a lock", async || {
            let found = self.db.number(query).await;
            if found == sessions {
                Ok(())
            } else {
                Err(format!("{found} of {sessions}"))
            }
        })
        .await;
    }
}
