//! What the listener itself refuses, and what it tells about itself (GRPC-07, OTEL-06).

use std::time::Duration;

use futures::future::join_all;
use seckill_proto::v1::ReserveCode;
use seckill_state_machine::ReservationId;
use seckill_test_support::PrivateRedis;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::{Code, Request};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::harness::{Sale, client, endpoint, front, reason, reserve, resident_kib, settings};

#[tokio::test(flavor = "multi_thread")]
async fn oversized_messages_are_refused_and_other_streams_go_on() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(1_000)).await;
    let front = front(redis.url()).start().await;
    let client = client(&front).await;
    reserve(&mut client.clone(), sale.call("warm", "warm")).await;
    let memory = resident_kib(front.pid());

    let attempts = (0..200).map(|n| {
        let mut client = client.clone();
        let mut huge = sale.call("user", &format!("huge-{n}"));
        huge.user_id = "x".repeat(5_000_000);
        let small = sale.call(&format!("user-{n}"), &format!("request-{n}"));
        async move {
            let mut other = client.clone();
            futures::future::join(client.reserve(huge), reserve(&mut other, small)).await
        }
    });
    for (huge, small) in join_all(attempts).await {
        let code = huge.unwrap_err().code();
        assert!(
            matches!(code, Code::OutOfRange | Code::ResourceExhausted),
            "{code:?}"
        );
        assert_eq!(small.code(), ReserveCode::Accepted);
    }
    let grown = resident_kib(front.pid());
    eprintln!("resident memory {memory} KiB before, {grown} KiB after");
    assert!(grown < memory + 64 * 1024, "{memory} KiB to {grown} KiB");
    assert!(front.log_text().len() < 1_000_000);
    assert!(!front.log_text().contains("xxxxxxxxxx"));
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_metadata_is_refused_and_the_connection_lives() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(10)).await;
    let front = front(redis.url()).start().await;
    let mut client = client(&front).await;

    let mut long = Request::new(sale.call("u1", "q1"));
    long.metadata_mut()
        .insert("x-long", "v".repeat(64 * 1024).parse().unwrap());
    let status = client.reserve(long).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(reason(&status), "METADATA_TOO_LARGE");

    let mut many = Request::new(sale.call("u1", "q1"));
    for n in 0..2_000 {
        let name = tonic::metadata::MetadataKey::from_bytes(format!("x-{n}").as_bytes()).unwrap();
        many.metadata_mut().insert(name, "value".parse().unwrap());
    }
    let status = client.reserve(many).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(sale.stock().await, (10, 0));

    let fine = reserve(&mut client, sale.call("u1", "q1")).await;
    assert_eq!(fine.code(), ReserveCode::Accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_block_that_never_ends_is_cut_off() {
    let redis = PrivateRedis::start().await;
    let front = front(redis.url()).start().await;
    let memory = resident_kib(front.pid());
    let mut stream = TcpStream::connect(front.grpc_addr()).await.unwrap();
    let mut opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    opening.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    // HEADERS of stream 1 without END_HEADERS: `:method POST`, and more to come.
    opening.extend([0, 0, 1, 1, 0, 0, 0, 0, 1, 0x83]);
    stream.write_all(&opening).await.unwrap();
    // CONTINUATION frames of 16,000 bytes: literal fields named `a` with values of 100 bytes.
    let mut field = vec![0x00, 1, b'a', 100];
    field.extend([b'v'; 100]);
    let block = field.repeat(150);
    let length = u32::try_from(block.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], 9, 0, 0, 0, 0, 1];
    frame.extend(&block);
    let flood = async {
        let mut sent = 0;
        while sent < 64 * 1024 * 1024 {
            if stream.write_all(&frame).await.is_err() {
                return sent;
            }
            sent += frame.len();
        }
        sent
    };
    let sent = tokio::time::timeout(Duration::from_secs(20), flood)
        .await
        .unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    let grown = resident_kib(front.pid());
    eprintln!("cut off after {sent} bytes; {memory} KiB before, {grown} KiB after");
    assert!(sent < 64 * 1024 * 1024, "nobody cut the flood off");
    assert!(grown < memory + 16 * 1024);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_trace_context_is_replaced_and_never_a_reason_to_refuse() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(100)).await;
    let front = front(redis.url()).start().await;
    let mut client = client(&front).await;
    let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let upper = good.to_uppercase();
    let long = format!("{good}{}", "0".repeat(1_000));
    let contexts: [&[&str]; 8] = [
        &[good],
        &[""],
        &["00-00000000000000000000000000000000-b7ad6b7169203331-01"],
        &["00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"],
        &["ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
        &[&upper],
        &[&long],
        &[good, good],
    ];
    for (n, values) in contexts.into_iter().enumerate() {
        let mut call = Request::new(sale.call(&format!("u{n}"), &format!("q{n}")));
        let metadata = call.metadata_mut();
        for value in values {
            metadata.append("traceparent", value.parse().unwrap());
        }
        metadata.insert("tracestate", "k=v,".repeat(2_500).parse().unwrap());
        metadata.insert("baggage", "k=v,".repeat(4_000).parse().unwrap());
        let answer = client.reserve(call).await.unwrap().into_inner();
        assert_eq!(answer.code(), ReserveCode::Accepted, "{values:?}");
        let id = ReservationId::parse(answer.reservation_id).unwrap();
        let record = sale
            .redis
            .reservation(&sale.keys(), &id)
            .await
            .unwrap()
            .unwrap();
        let stored = record.traceparent.expect("a trace");
        assert_eq!(stored.as_str() == good, n == 0, "{values:?}");
        assert_ne!(stored.trace_id(), "0".repeat(32));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_lists_the_services() {
    let redis = PrivateRedis::start().await;
    let front = front(redis.url()).start().await;
    let channel = endpoint(&front).connect().await.unwrap();
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let requests = futures::stream::iter([request]);
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(requests)
        .await
        .unwrap()
        .into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let names: Vec<&str> = list
        .service
        .iter()
        .map(|service| service.name.as_str())
        .collect();
    assert!(
        names.contains(&"seckill.v1.ReservationService"),
        "{names:?}"
    );
    assert!(names.contains(&"grpc.health.v1.Health"), "{names:?}");
}
