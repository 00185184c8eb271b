//! One effect per request id, whoever asks again and through whichever front (FUZZ-12, BIZ-03,
//! BIZ-19).

use futures::future::join;
use seckill_lua_scripts::{Compensate, Transition};
use seckill_proto::v1::get_reservation_request::Key;
use seckill_proto::v1::{AnswerSource, ReservationStatus, ReserveCode};
use seckill_state_machine::{
    ActivityVersion, BucketCount, ReservationId, ReservationStatus as State, UserId,
};
use seckill_test_support::PrivateRedis;
use tonic::Code;

use crate::harness::{Sale, client, drive, find, front, reserve, settings};

#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_of_another_user_tells_nothing() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(1_001)).await;
    let front = front(redis.url()).start().await;
    let mut client = client(&front).await;

    for n in 0..1_000 {
        let request = format!("request-{n}");
        let (one, other) = (format!("one-{n}"), format!("other-{n}"));
        let mut second = client.clone();
        let (first, second) = join(
            reserve(&mut client, sale.call(&one, &request)),
            reserve(&mut second, sale.call(&other, &request)),
        )
        .await;
        let (won, lost) = match first.code() {
            ReserveCode::Accepted => (first, second),
            _ => (second, first),
        };
        assert_eq!(won.code(), ReserveCode::Accepted);
        assert_eq!(lost.code(), ReserveCode::RequestIdConflict);
        assert_eq!(lost.reservation_id, "");
        assert_eq!((lost.remaining, lost.replay), (0, false));
        assert_eq!(lost.status(), ReservationStatus::Unspecified);
    }
    assert_eq!(sale.stock().await, (1, 1_000));

    reserve(&mut client, sale.call("last", "last")).await;
    let refused = reserve(&mut client, sale.call("u1", "q")).await;
    assert_eq!(refused.code(), ReserveCode::SoldOut);
    let stranger = reserve(&mut client, sale.call("u2", "q")).await;
    assert_eq!(stranger.code(), ReserveCode::RequestIdConflict);
}

#[tokio::test]
async fn a_repeat_after_the_sale_sold_out_gets_its_reservation_back() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(1)).await;
    let front = front(redis.url()).start().await;
    let mut client = client(&front).await;

    let first = reserve(&mut client, sale.call("user-1", "request-1")).await;
    assert_eq!((first.code(), first.replay), (ReserveCode::Accepted, false));
    assert_eq!(first.source(), AnswerSource::Redis);
    let late = reserve(&mut client, sale.call("user-2", "request-2")).await;
    assert_eq!(late.code(), ReserveCode::SoldOut);

    let again = reserve(&mut client, sale.call("user-1", "request-1")).await;
    assert_eq!((again.code(), again.replay), (ReserveCode::Accepted, true));
    assert_eq!(again.reservation_id, first.reservation_id);
    assert_eq!(again.status(), ReservationStatus::Queued);
}

#[tokio::test]
async fn a_repeat_shows_that_the_reservation_was_released() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(1)).await;
    let front = front(redis.url()).start().await;
    let mut client = client(&front).await;
    let first = reserve(&mut client, sale.call("user-1", "request-1")).await;
    let id = ReservationId::parse(first.reservation_id.clone()).unwrap();
    let keys = sale.keys();
    for target in [State::Enqueued, State::Rejected, State::ReleasePending] {
        let step = Transition {
            keys: &keys,
            reservation_id: &id,
            target,
            next_retry_at_ms: None,
            message_id: None,
            order_id: None,
            error_code: (target == State::Rejected).then_some("STOCK_EXHAUSTED"),
            now_override: None,
        };
        sale.redis.transition(&step).await.unwrap();
    }
    let user = UserId::parse("user-1").unwrap();
    let release = Compensate {
        keys: &keys,
        reservation_id: &id,
        user_id: &user,
        release_reason: "STOCK_EXHAUSTED",
        waiting: None,
        now_override: None,
    };
    sale.redis.compensate(&release).await.unwrap();

    let again = reserve(&mut client, sale.call("user-1", "request-1")).await;
    assert_eq!(again.code(), ReserveCode::Accepted);
    assert_eq!(again.reservation_id, first.reservation_id);
    assert_eq!(again.status(), ReservationStatus::Released);
    for key in [
        Key::RequestId("request-1".to_owned()),
        Key::ReservationId(first.reservation_id.clone()),
    ] {
        let found = find(&mut client, sale.query("user-1", key)).await.unwrap();
        assert_eq!(found.status(), ReservationStatus::Released);
        assert_eq!(found.reason, "STOCK_EXHAUSTED");
    }
    let fresh = reserve(&mut client, sale.call("user-1", "request-2")).await;
    assert_eq!((fresh.code(), fresh.replay), (ReserveCode::Accepted, false));
}

#[tokio::test]
async fn another_version_is_refused_except_to_those_who_repeat() {
    let redis = PrivateRedis::start().await;
    let old = Sale::open(&redis, settings(5)).await;
    let front = front(redis.url()).start().await;
    let mut client = client(&front).await;
    let first = reserve(&mut client, old.call("user-1", "request-1")).await;
    assert_eq!(first.code(), ReserveCode::Accepted);

    let mut next = settings(5);
    next.scope.version = ActivityVersion::new(2).unwrap();
    let new = Sale::open(&redis, next).await;
    seckill_test_support::eventually(
        crate::harness::PATIENCE,
        "the new version is known",
        async || {
            let mut client = client.clone();
            let answer = reserve(&mut client, new.call("user-9", "request-9")).await;
            match answer.code() {
                ReserveCode::Accepted => Ok(()),
                other => Err(format!("{other:?}")),
            }
        },
    )
    .await;

    let stale = reserve(&mut client, old.call("user-2", "request-2")).await;
    assert_eq!(stale.code(), ReserveCode::VersionMismatch);
    assert_eq!(stale.source(), AnswerSource::Front);
    assert!(!stale.retryable);
    let mut repeat = old.call("user-1", "request-1");
    repeat.repeat = true;
    let again = reserve(&mut client, repeat).await;
    assert_eq!((again.code(), again.replay), (ReserveCode::Accepted, true));
    assert_eq!(again.reservation_id, first.reservation_id);

    let mut unknown = old.call("user-1", "request-1");
    unknown.activity_id = "no-such-activity".to_owned();
    let missing = reserve(&mut client, unknown.clone()).await;
    assert_eq!(missing.code(), ReserveCode::ConfigMissing);
    assert!(missing.retryable, "a lost pointer may come back");
    unknown.repeat = true;
    let missing = reserve(&mut client, unknown).await;
    assert_eq!(missing.code(), ReserveCode::ConfigMissing);
    assert!(missing.retryable);
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_come_from_shared_state_alone_so_that_fronts_agree() {
    let redis = PrivateRedis::start().await;
    let mut shape = settings(800);
    shape.bucket_count = BucketCount::new(8).unwrap();
    let sale = Sale::open(&redis, shape).await;
    let one = front(redis.url()).start().await;
    let two = front(redis.url()).instance(2).start().await;

    let calls = |suffix: &str| {
        let users = (0..200).map(|n| sale.call(&format!("user-{n}"), &format!("r-{n}-{suffix}")));
        users.collect::<Vec<_>>()
    };
    let (first, second) = join(
        drive(&one, calls("one"), 64, None),
        drive(&two, calls("two"), 64, None),
    )
    .await;
    let count = |code| first.with_code(code).len() + second.with_code(code).len();
    assert_eq!(count(ReserveCode::Accepted), 200);
    assert_eq!(count(ReserveCode::UserAlreadyReserved), 200);
    let mut used = 0;
    for keys in sale.buckets() {
        let stock = sale.redis.stock(&keys).await.unwrap().unwrap();
        used += u32::from(stock.counters.reserved > 0);
    }
    assert_eq!(used, 8, "every bucket has some of 200 users");
}

#[tokio::test]
async fn a_secret_that_is_not_configured_closes_the_activity() {
    let redis = PrivateRedis::start().await;
    let mut shape = settings(5);
    shape.secret_version = 7;
    let sale = Sale::open(&redis, shape).await;
    let front = front(redis.url())
        .allow_errors("SECKILL_HMAC_SECRETS")
        .start()
        .await;
    let mut client = client(&front).await;
    let status = client.reserve(sale.call("u", "q")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(crate::harness::reason(&status), "SYSTEM_BUSY");
    let mut repeat = sale.call("u", "q");
    repeat.repeat = true;
    let status = client.reserve(repeat).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(crate::harness::reason(&status), "OUTCOME_UNKNOWN");
    assert!(
        front
            .log_text()
            .contains("no secret of version 7 is configured")
    );
    assert_eq!(sale.stock().await, (5, 0));
}
