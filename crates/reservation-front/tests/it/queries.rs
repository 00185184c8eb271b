//! `GetReservation`: for the owner alone, from Redis or, without it, from PostgreSQL.

use seckill_order_store::{Decided, Store, StoreConfig, migrate};
use seckill_proto::v1::get_reservation_request::Key;
use seckill_proto::v1::{AnswerSource, ReservationStatus, ReserveCode};
use seckill_state_machine::{RequestId, ReservationId};
use seckill_test_support::{PrivateRedis, TestDatabase, eventually};
use secrecy::SecretString;
use std::time::Duration;
use tonic::Code;

use crate::harness::{Client, PATIENCE, Sale, client, find, front, reason, reserve, settings};

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_finds_a_reservation_by_either_name_and_a_stranger_finds_nothing() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(5)).await;
    let database = TestDatabase::create().await;
    migrate(&SecretString::from(database.url().to_owned()))
        .await
        .unwrap();
    let front = front(redis.url())
        .env("SECKILL_DATABASE_URL", database.url())
        .env("SECKILL_FRONT_ASSUME_WINDOW_MS", 0)
        .start()
        .await;
    let mut client = client(&front).await;
    let held = reserve(&mut client, sale.call("owner", "request-1")).await;
    assert_eq!(held.code(), ReserveCode::Accepted);

    for key in [
        Key::ReservationId(held.reservation_id.clone()),
        Key::RequestId("request-1".to_owned()),
    ] {
        let found = find(&mut client, sale.query("owner", key.clone()))
            .await
            .unwrap();
        assert_eq!(found.reservation_id, held.reservation_id);
        assert_eq!(found.request_id, "request-1");
        assert_eq!(found.status(), ReservationStatus::Queued);
        assert_eq!(found.quantity, 1);
        assert_eq!(found.source(), AnswerSource::Redis);
        assert!(found.reserved_at_ms > 0 && found.expires_at_ms > found.reserved_at_ms);
        let stranger = find(&mut client, sale.query("stranger", key))
            .await
            .unwrap_err();
        assert_eq!(stranger.code(), Code::NotFound);
    }
    let unknown = sale.query("owner", Key::RequestId("never".to_owned()));
    assert_eq!(
        find(&mut client, unknown).await.unwrap_err().code(),
        Code::NotFound
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_recovery_window_what_is_nowhere_is_unknown() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(5)).await;
    let database = TestDatabase::create().await;
    migrate(&SecretString::from(database.url().to_owned()))
        .await
        .unwrap();
    let front_with = |window_ms: u64| {
        front(redis.url())
            .env("SECKILL_DATABASE_URL", database.url())
            .env("SECKILL_FRONT_ASSUME_WINDOW_MS", window_ms)
    };
    let ask = async |client: &mut Client, user: &str| {
        let query = sale.query(user, Key::RequestId(format!("of-{user}")));
        let status = find(client, query).await.unwrap_err();
        (status.code(), reason(&status))
    };
    let not_found = (Code::NotFound, "RESERVATION_NOT_FOUND".to_owned());
    let unknown = (Code::Unavailable, "OUTCOME_UNKNOWN".to_owned());

    let fresh = front_with(600_000).start().await;
    let mut assuming = client(&fresh).await;
    reserve(&mut assuming, sale.call("owner", "of-stranger")).await;
    assert_eq!(ask(&mut assuming, "nobody").await, unknown);
    assert_eq!(ask(&mut assuming, "stranger").await, not_found);

    let settled = front_with(0).instance(2).start().await;
    let mut client = client(&settled).await;
    assert_eq!(ask(&mut client, "nobody").await, not_found);
    for recovery in ["window", "rebuild"] {
        let meta = sale.keys().meta().to_owned();
        redis.cli(&["HSET", &meta, "recovery", recovery]).await;
        assert_eq!(ask(&mut client, "nobody").await, unknown, "{recovery}");
        assert_eq!(ask(&mut client, "stranger").await, not_found);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_answers_when_redis_has_nothing_or_is_away() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(5)).await;
    let database = TestDatabase::create().await;
    let url = SecretString::from(database.url().to_owned());
    migrate(&url).await.unwrap();
    let front = front(redis.url())
        .env("SECKILL_DATABASE_URL", database.url())
        .env("SECKILL_FRONT_ASSUME_WINDOW_MS", 0)
        .start()
        .await;
    let mut client = client(&front).await;
    let held = reserve(&mut client, sale.call("owner", "request-1")).await;
    let id = ReservationId::parse(held.reservation_id.clone()).unwrap();
    let record = sale
        .redis
        .reservation(&sale.keys(), &id)
        .await
        .unwrap()
        .unwrap();

    let store = Store::connect(&StoreConfig {
        url,
        pool_size: 2,
        acquire_timeout: Duration::from_secs(5),
        statement_timeout: Duration::from_secs(5),
        lock_timeout: Duration::from_secs(5),
        idle_in_transaction_timeout: Duration::from_secs(5),
        application_name: "test".to_owned(),
    })
    .unwrap();
    store.create_activity(&sale.settings).await.unwrap();
    let decided = store.decide(&[record.order_request()]).await.unwrap();
    assert!(matches!(decided[0], Decided::Ordered { .. }), "{decided:?}");

    redis.cli(&["DEL", &sale.keys().reservation(&id)]).await;
    let by_id = || sale.query("owner", Key::ReservationId(held.reservation_id.clone()));
    let by_request = || sale.query("owner", Key::RequestId("request-1".to_owned()));
    for query in [by_id(), by_request()] {
        let found = find(&mut client, query).await.unwrap();
        assert_eq!(found.status(), ReservationStatus::OrderCreated);
        assert_eq!(found.source(), AnswerSource::Postgres);
        assert!(!found.order_id.is_empty());
    }
    let stranger = sale.query("stranger", Key::ReservationId(held.reservation_id.clone()));
    assert_eq!(
        find(&mut client, stranger).await.unwrap_err().code(),
        Code::NotFound
    );

    redis.stop().await;
    let found = eventually(PATIENCE, "postgres answers without redis", async || {
        let mut client = client.clone();
        find(&mut client, by_request())
            .await
            .map_err(|status| status.to_string())
    })
    .await;
    assert_eq!(found.source(), AnswerSource::Postgres);
    // It may be open in Redis, so that nobody knows: not "not found".
    let open = sale.query("owner", Key::RequestId("request-2".to_owned()));
    let status = find(&mut client, open).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status)),
        (Code::Unavailable, "SYSTEM_BUSY".to_owned())
    );
}

/// LUA-10. Goal: a record or a remembered answer that cannot be read is a fault to its owner, never "not
/// found", and nobody else is harmed. Method: one field of each is taken away or made junk.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_is_a_fault_to_its_owner_and_to_nobody_else() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(5)).await;
    let database = TestDatabase::create().await;
    let url = SecretString::from(database.url().to_owned());
    migrate(&url).await.unwrap();
    let front = front(redis.url())
        .env("SECKILL_DATABASE_URL", database.url())
        .env("SECKILL_FRONT_ASSUME_WINDOW_MS", 0)
        .allow_errors("operators must look")
        .start()
        .await;
    let mut client = client(&front).await;
    let held = reserve(&mut client, sale.call("owner", "request-1")).await;
    reserve(&mut client, sale.call("other", "request-2")).await;
    let id = ReservationId::parse(held.reservation_id.clone()).unwrap();
    let record = sale.keys().reservation(&id);
    let shard = sale.keys().request(&RequestId::parse("request-1").unwrap());
    for (key, field) in [
        (&record, "status"),
        (&record, "user_id"),
        (&record, "reservation_id"),
        (&shard, "request-1"),
    ] {
        let sound = redis.cli(&["HGET", key, field]).await.text();
        redis.cli(&["HSET", key, field, "abc|x"]).await;
        let query = sale.query("owner", Key::RequestId("request-1".to_owned()));
        let status = find(&mut client, query.clone()).await.unwrap_err();
        let told = (status.code(), reason(&status));
        assert_eq!(
            told,
            (Code::Unavailable, "SYSTEM_BUSY".to_owned()),
            "{field}"
        );
        let other = sale.query("other", Key::RequestId("request-2".to_owned()));
        let other = find(&mut client, other).await.unwrap();
        assert_eq!(other.status(), ReservationStatus::Queued);
        redis.cli(&["HSET", key, field, &sound]).await;
        let found = find(&mut client, query).await.unwrap();
        assert_eq!(found.reservation_id, held.reservation_id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_both_stores_away_the_answer_is_unavailable() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(5)).await;
    let front = front(redis.url()).start().await;
    let mut client = client(&front).await;
    redis.stop().await;
    let query = sale.query("owner", Key::RequestId("request-1".to_owned()));
    let status = find(&mut client, query).await.unwrap_err();
    assert!(
        matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded),
        "{status:?}"
    );
}
