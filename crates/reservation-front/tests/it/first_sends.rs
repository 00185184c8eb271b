//! The first send on a real broker, and without one.

use std::future::Future;
use std::time::Duration;

use seckill_lua_scripts::Index;
use seckill_message_bus::{Admin, BusConfig, BusRuntime};
use seckill_proto::v1::ReserveCode;
use seckill_state_machine::{ReservationId, ReservationStatus};
use seckill_test_support::{
    Dir, Mode, MqNamespace, NamesrvProxy, PrivateRedis, TestStack, eventually,
};

use crate::harness::{PATIENCE, Sale, drive, front, settings};

/// The bus client needs a runtime that is made before any other.
fn with_bus<F: Future<Output = ()>>(test: impl FnOnce(BusRuntime) -> F) {
    let bus = BusRuntime::new().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(test(bus));
}

async fn topics(bus: &BusRuntime, namesrv: &str, namespace: &MqNamespace) {
    let config = BusConfig {
        namesrv: namesrv.to_owned(),
        namespace: namespace.as_str().to_owned(),
        send_timeout: Duration::from_secs(5),
        instance: "front-tests".to_owned(),
    };
    let admin = Admin::connect(bus, &config).await.unwrap();
    admin.ensure_topics().await.unwrap();
    admin.shutdown().await;
}

async fn statuses(sale: &Sale, ids: &[ReservationId]) -> Vec<ReservationStatus> {
    let keys = sale.keys();
    let reads = ids.iter().map(|id| sale.redis.reservation(&keys, id));
    let records = futures::future::join_all(reads).await;
    records
        .into_iter()
        .map(|record| record.unwrap().unwrap().status)
        .collect()
}

async fn accepted_ids(
    sale: &Sale,
    front: &seckill_test_support::ServiceProcess,
    count: usize,
) -> Vec<ReservationId> {
    let calls = (0..count).map(|n| sale.call(&format!("user-{n}"), &format!("request-{n}")));
    let answers = drive(front, calls.collect::<Vec<_>>(), 128, None).await;
    answers.report("accepted");
    let accepted = answers.with_code(ReserveCode::Accepted);
    assert_eq!(accepted.len(), count);
    let ids = accepted.iter().map(|answer| answer.reservation_id.clone());
    ids.map(|id| ReservationId::parse(id).unwrap()).collect()
}

#[test]
fn accepted_reservations_reach_the_broker_without_the_scanner() {
    with_bus(async |bus| {
        let namesrv = TestStack::shared().namesrv();
        let namespace = MqNamespace::unique();
        topics(&bus, namesrv, &namespace).await;
        let redis = PrivateRedis::start().await;
        let sale = Sale::open(&redis, settings(2_000)).await;
        let front = front(redis.url())
            .env("SECKILL_ROCKETMQ_NAMESRV", namesrv)
            .env("SECKILL_ROCKETMQ_NAMESPACE", namespace.as_str())
            .start()
            .await;
        let ids = accepted_ids(&sale, &front, 2_000).await;
        eventually(PATIENCE, "all are enqueued", async || {
            let open = sale
                .redis
                .index_len(&sale.keys(), Index::SendPending)
                .await
                .unwrap();
            if open == 0 {
                Ok(())
            } else {
                Err(format!("{open} pending"))
            }
        })
        .await;
        let states = statuses(&sale, &ids).await;
        assert!(
            states
                .iter()
                .all(|state| *state == ReservationStatus::Enqueued)
        );
        front.stop(Duration::from_secs(20)).await;
    });
}

#[test]
fn without_a_broker_everything_waits_for_the_scanner() {
    with_bus(async |bus| {
        drop(bus);
        let redis = PrivateRedis::start().await;
        let sale = Sale::open(&redis, settings(200)).await;
        let front = front(redis.url())
            .env("SECKILL_ROCKETMQ_SEND_TIMEOUT_MS", 500)
            .start()
            .await;
        let ids = accepted_ids(&sale, &front, 200).await;
        eventually(PATIENCE, "every send is known to be unknown", async || {
            let states = statuses(&sale, &ids).await;
            let unknown = states
                .iter()
                .filter(|s| **s == ReservationStatus::SendUnknown)
                .count();
            if unknown == ids.len() {
                Ok(())
            } else {
                Err(format!("{unknown} unknown"))
            }
        })
        .await;
        let pending = sale
            .redis
            .index_len(&sale.keys(), Index::SendPending)
            .await
            .unwrap();
        assert_eq!(pending, 200);
        front.stop(Duration::from_secs(20)).await;
    });
}

#[test]
fn a_send_whose_answer_is_late_is_unknown_and_never_lost() {
    with_bus(async |bus| {
        let proxy = NamesrvProxy::start().await;
        let namesrv = proxy.addr().to_string();
        let namespace = MqNamespace::unique();
        topics(&bus, TestStack::shared().namesrv(), &namespace).await;
        let redis = PrivateRedis::start().await;
        let sale = Sale::open(&redis, settings(200)).await;
        let front = front(redis.url())
            .env("SECKILL_ROCKETMQ_NAMESRV", &namesrv)
            .env("SECKILL_ROCKETMQ_NAMESPACE", namespace.as_str())
            .env("SECKILL_ROCKETMQ_SEND_TIMEOUT_MS", 500)
            .start()
            .await;
        proxy.broker().set_mode(Mode::Swallow(Dir::ToClient));
        let ids = accepted_ids(&sale, &front, 200).await;
        eventually(PATIENCE, "every send is known to be unknown", async || {
            let states = statuses(&sale, &ids).await;
            let unknown = states
                .iter()
                .filter(|s| **s == ReservationStatus::SendUnknown)
                .count();
            if unknown == ids.len() {
                Ok(())
            } else {
                Err(format!("{unknown} unknown"))
            }
        })
        .await;
        let pending = sale
            .redis
            .index_len(&sale.keys(), Index::SendPending)
            .await
            .unwrap();
        assert_eq!(pending, 200);
    });
}
