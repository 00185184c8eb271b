//! SIGTERM: calls in hand are answered, connections that hang are dropped, and the process ends
//! (GRPC-05).

use std::time::{Duration, Instant};

use seckill_proto::v1::ReserveCode;
use seckill_test_support::{Dir, FaultProxy, Framing, Mode, PrivateRedis, eventually};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::harness::{PATIENCE, Sale, client, front, reserve, settings};

/// The end of a connection that begins a call and never ends it: preface, SETTINGS, and the headers
/// of a POST whose body does not come.
async fn stalled_call(front: &seckill_test_support::ServiceProcess) -> TcpStream {
    const HEADERS: &[u8] = &[
        0x83, // :method POST
        0x86, // :scheme http
        0x04, 0x26, b'/', b's', b'e', b'c', b'k', b'i', b'l', b'l', b'.', b'v', b'1', b'.', b'R',
        b'e', b's', b'e', b'r', b'v', b'a', b't', b'i', b'o', b'n', b'S', b'e', b'r', b'v', b'i',
        b'c', b'e', b'/', b'R', b'e', b's', b'e', b'r', b'v', b'e', // :path
        0x0f, 0x10, 0x10, b'a', b'p', b'p', b'l', b'i', b'c', b'a', b't', b'i', b'o', b'n', b'/',
        b'g', b'r', b'p', b'c', // content-type
    ];
    let mut stream = TcpStream::connect(front.grpc_addr()).await.unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let length = u8::try_from(HEADERS.len()).unwrap();
    bytes.extend([0, 0, length, 1, 4, 0, 0, 0, 1]);
    bytes.extend(HEADERS);
    stream.write_all(&bytes).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_and_stuck_connections_do_not_delay_the_end() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(100)).await;
    let front = front(redis.url()).start().await;
    let mut idle = Vec::new();
    for n in 0..50 {
        let mut client = client(&front).await;
        reserve(
            &mut client,
            sale.call(&format!("user-{n}"), &format!("request-{n}")),
        )
        .await;
        idle.push(client);
    }
    let mut stuck = Vec::new();
    for _ in 0..5 {
        stuck.push(stalled_call(&front).await);
        stuck.push(TcpStream::connect(front.grpc_addr()).await.unwrap());
    }
    let address = front.grpc_addr();

    let began = Instant::now();
    front.terminate();
    eventually(
        Duration::from_secs(3),
        "the port is closed early",
        async || match TcpStream::connect(address).await {
            Ok(_) => Err("still accepts"),
            Err(_) => Ok(()),
        },
    )
    .await;
    let status = front.wait(Duration::from_secs(15)).await;
    eprintln!("ended after {:?}", began.elapsed());
    assert!(status.success(), "{status}");
    drop((idle, stuck));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_hand_is_answered_before_the_end() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(1)).await;
    let proxy = FaultProxy::start(redis.address(), Framing::Resp).await;
    let front = front(format!("redis://{}", proxy.addr())).start().await;
    let mut client = client(&front).await;
    reserve(&mut client, sale.call("u0", "warm")).await;

    proxy.set_mode(Mode::Delay(Duration::from_millis(600), Dir::ToClient));
    let repeat = sale.call("u0", "warm");
    let call = tokio::spawn(async move { client.reserve(repeat).await });
    front.wait_for_log("serving", PATIENCE).await;
    front.terminate();
    let answer = call.await.unwrap();
    let status = front.wait(Duration::from_secs(15)).await;
    assert!(status.success(), "{status}");
    let answer = answer.expect("the call in hand is answered").into_inner();
    assert_eq!(answer.code(), ReserveCode::Accepted);
    assert!(front.run_file().is_none(), "the run file is gone");
    assert!(front.log_text().contains("stopped"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_front_at_once() {
    let redis = PrivateRedis::start().await;
    let front = front(redis.url())
        .env("SECKILL_DRAIN_DELAY_MS", 60_000)
        .start()
        .await;
    front.terminate();
    front.wait_for_log("draining", PATIENCE).await;
    front.wait_until_unready(PATIENCE).await;
    front.terminate();
    let status = front.wait(Duration::from_secs(5)).await;
    assert_eq!(status.code(), Some(1));
}
