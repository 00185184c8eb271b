//! Everything down at boot (OPS-01), and what readiness says.

use std::time::Duration;

use seckill_proto::v1::ReserveCode;
use seckill_test_support::PrivateRedis;
use serde_json::Value;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::harness::{PATIENCE, Sale, client, endpoint, front, reason, reserve, settings};

#[tokio::test(flavor = "multi_thread")]
async fn a_front_whose_redis_is_away_waits_and_then_serves() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(5)).await;
    let url = redis.url();
    // Saved first, so that the sale is there when it returns.
    redis.cli(&["SAVE"]).await;
    redis.stop().await;

    let front = front(url).spawn();
    front.wait_until_open().await;
    let reply = front.readyz().await.unwrap();
    assert_eq!(reply.status, 503);
    let report: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(report["dependencies"]["redis"]["up"], false);
    assert_eq!(report["dependencies"]["redis"]["required"], true);
    let mut client = client(&front).await;
    let status = client.reserve(sale.call("u", "q")).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status)),
        (Code::Unavailable, "SYSTEM_BUSY".to_owned())
    );

    redis.restart().await;
    front.wait_until_ready(Duration::from_secs(30)).await;
    let accepted = reserve(&mut client, sale.call("u", "q")).await;
    assert_eq!(accepted.code(), ReserveCode::Accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_for_each_dependency_and_over_all() {
    let redis = PrivateRedis::start().await;
    let front = front(redis.url()).start().await;
    let channel = endpoint(&front).connect().await.unwrap();
    let health = HealthClient::new(channel);
    let status = async |service: &str| {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let reply = health.clone().check(request).await;
        reply.map(|reply| reply.into_inner().status())
    };
    let serving = [
        ("", ServingStatus::Serving),
        ("seckill.v1.ReservationService", ServingStatus::Serving),
        ("redis", ServingStatus::Serving),
        ("postgres", ServingStatus::NotServing),
        ("broker", ServingStatus::NotServing),
    ];
    for (service, expected) in serving {
        assert_eq!(status(service).await.unwrap(), expected, "{service}");
    }
    assert_eq!(status("nothing").await.unwrap_err().code(), Code::NotFound);

    redis.stop().await;
    front.wait_until_unready(PATIENCE).await;
    for service in ["", "seckill.v1.ReservationService", "redis"] {
        assert_eq!(
            status(service).await.unwrap(),
            ServingStatus::NotServing,
            "{service}"
        );
    }
}
