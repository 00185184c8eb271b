//! Every call is answered in time, with a status that tells a caller what to do (RC-04, GRPC-02).

use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt, stream};
use seckill_proto::v1::ReserveCode;
use seckill_test_support::{Dir, FaultProxy, Framing, Mode, PrivateRedis, eventually};
use tonic::{Code, Request, Status};

use crate::harness::{PATIENCE, Sale, assert_honest, client, front, reserve, settings};

/// What an answer may take beyond its caller's limit.
const SLACK: Duration = Duration::from_millis(50);

/// What a machine that compiles at the same time may add to single answers.
const STALL: Duration = Duration::from_millis(500);

/// The client watches the deadline too, and calls it CANCELLED when an answer is late on a machine
/// that compiles at the same time. Only an answer of the front has headers.
fn is_clients_own(status: &Status) -> bool {
    status.code() == Code::Cancelled && status.metadata().is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_redis_never_keeps_a_caller_waiting() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(1_000)).await;
    let proxy = FaultProxy::start(redis.address(), Framing::Resp).await;
    let front = front(format!("redis://{}", proxy.addr())).start().await;
    let mut client = client(&front).await;
    let warm = reserve(&mut client, sale.call("warm", "warm")).await;
    assert_eq!(warm.code(), ReserveCode::Accepted);

    proxy.set_mode(Mode::BlackHole);
    let calls = (0..400).map(|n| {
        let deadline = (n % 2 == 0).then_some(Duration::from_millis(300));
        let request = format!("request-{n}");
        let mut call = Request::new(sale.call(&format!("user-{n}"), &request));
        if let Some(deadline) = deadline {
            call.set_timeout(deadline);
        }
        let mut client = client.clone();
        async move {
            let began = Instant::now();
            let status = client.reserve(call).await.unwrap_err();
            (status, request, deadline, began.elapsed())
        }
    });
    // Not all at one instant: the machine must be able to answer those whose time is up together.
    let answers: Vec<_> = stream::iter(calls).buffer_unordered(50).collect().await;
    let mut late = 0;
    let mut slow = 0;
    for (status, request, deadline, took) in answers {
        if is_clients_own(&status) {
            late += 1;
        } else {
            assert_honest(&status, &request);
        }
        let limit = deadline.unwrap_or(Duration::from_secs(2));
        slow += u32::from(took > limit + SLACK);
        let hard = limit + STALL;
        assert!(took <= hard, "{took:?} of {limit:?}: {status:?}");
    }
    eprintln!("{slow} of 400 answers took more than {SLACK:?} beyond their limit");
    assert!(slow <= 40, "{slow} answers were slow");
    eprintln!("{late} of 400 answers came after the client's own timer");
    assert!(late <= 100, "{late} answers were late");

    proxy.set_mode(Mode::Forward);
    eventually(PATIENCE, "calls are answered again", async || {
        let mut client = client.clone();
        match client.reserve(sale.call("after", "after")).await {
            Ok(_) => Ok(()),
            Err(status) => Err(status.to_string()),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_late_is_unavailable_or_deadline_exceeded_and_names_the_request() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(1_000)).await;
    let proxy = FaultProxy::start(redis.address(), Framing::Resp).await;
    let front = front(format!("redis://{}", proxy.addr())).start().await;
    let client = client(&front).await;
    reserve(&mut client.clone(), sale.call("warm", "warm")).await;

    proxy.set_mode(Mode::Delay(Duration::from_secs(2), Dir::ToClient));
    let deadlines = [
        Some(Duration::from_millis(500)),
        Some(Duration::from_secs(10)),
        None,
    ];
    let calls = (0..90).map(|n| {
        let request = format!("request-{n}");
        let mut call = Request::new(sale.call(&format!("user-{n}"), &request));
        if let Some(deadline) = deadlines[n % deadlines.len()] {
            call.set_timeout(deadline);
        }
        let mut client = client.clone();
        async move { (client.reserve(call).await.unwrap_err(), request) }
    });
    let mut unknown = 0;
    for (status, request) in join_all(calls).await {
        if is_clients_own(&status) {
            continue;
        }
        assert_honest(&status, &request);
        unknown += u32::from(crate::harness::reason(&status) == "OUTCOME_UNKNOWN");
    }
    assert!(unknown > 0, "some calls had been sent to the script");

    proxy.set_mode(Mode::Forward);
    eventually(
        PATIENCE,
        "a repeat tells what became of the call",
        async || {
            let mut client = client.clone();
            match client.reserve(sale.call("user-0", "request-0")).await {
                Ok(answer) if answer.get_ref().code() == ReserveCode::Accepted => Ok(()),
                other => Err(format!("{other:?}")),
            }
        },
    )
    .await;
}

#[tokio::test]
async fn a_deadline_that_has_passed_on_arrival_sends_nothing_to_redis() {
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(1)).await;
    let front = front(redis.url()).start().await;
    let mut client = client(&front).await;
    let mut call = Request::new(sale.call("user-1", "request-1"));
    call.metadata_mut()
        .insert("grpc-timeout", "1n".parse().unwrap());
    let status = client.reserve(call).await.unwrap_err();
    assert!(
        status.code() == Code::DeadlineExceeded || is_clients_own(&status),
        "{status:?}"
    );
    assert_eq!(sale.stock().await, (1, 0));
}
