//! A Redis whose disk is slow (S0-143, S0-203).

use std::time::{Duration, Instant};

use futures::StreamExt;
use seckill_integration_tests::{Plan, Sandbox};
use seckill_proto::v1::ReserveCode;
use seckill_test_support::eventually;
use tonic::Code;

use crate::harness::{SETTLES, SOON, is_accepted, orders};

/// How long each write of the append-only file takes, in microseconds: longer than a call may wait.
const SLOW_US: &str = "800000";

/// The longest that a call may take: the front's own budget of 1.5 s, on a busy machine.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Goal: a slow disk costs answers and no unit: each call is answered in time, by an acceptance or by the
/// fault that it is, and never by a refusal; the same requests are served once the disk is well, and each
/// is one order. Method: the server itself sleeps before each write of the file, while 64 callers ask.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_disk_of_redis_sheds_calls_and_loses_nothing() {
    const CALLS: usize = 400;
    const AT_ONCE: usize = 64;
    let sandbox = Sandbox::builder()
        .redis_arguments(&["--appendonly", "yes"])
        .env("SECKILL_REDIS_COMMAND_TIMEOUT_MS", 400)
        .start()
        .await;
    let plan = Plan::new(1_000).term("patience-ms", 120_000);
    let sale = sandbox.open(&plan).await;
    let services = sandbox.run_all().await;
    services.allow_errors("");
    let client = sandbox.client(&services.front);
    eventually(SOON, "a first purchase", async || {
        client.reserve(&sale, "warm", "warm").await
    })
    .await;
    let disk = async |us: &str| {
        let reply = sandbox.redis().cli(&["DEBUG", "AOF-FLUSH-SLEEP", us]).await;
        assert_eq!(reply.error(), None);
    };
    disk(SLOW_US).await;
    let names: Vec<String> = (0..CALLS).map(|n| format!("u-{n}")).collect();
    let calls = names.iter().map(|name| {
        let (client, sale) = (&client, &sale);
        async move {
            let began = Instant::now();
            let answer = client.reserve(sale, name, name).await;
            (answer, began.elapsed())
        }
    });
    let answers: Vec<_> = futures::stream::iter(calls)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut shed = 0;
    for (answer, took) in answers {
        assert!(took < CALL_LIMIT, "{took:?}: {answer:?}");
        match answer {
            Ok(answer) => assert_eq!(answer.code(), ReserveCode::Accepted, "{answer:?}"),
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable, "{status:?}");
                shed += 1;
            }
        }
    }
    eprintln!("{shed} of {CALLS} calls were shed");
    assert!(shed > 0, "the disk was never slow");
    disk("0").await;
    for name in &names {
        let answer = eventually(SOON, "the same request is served", async || {
            client.reserve(&sale, name, name).await
        })
        .await;
        assert!(is_accepted(answer.code), "{answer:?}");
    }
    sandbox.assert_settles_consistent(SETTLES).await;
    let all = i64::try_from(CALLS + 1).unwrap();
    assert_eq!(orders(&sandbox, &sale).await, all);
    for service in services.all() {
        service.stop(SOON).await;
    }
}
