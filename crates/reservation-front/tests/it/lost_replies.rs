//! Replies that are lost after the script ran, and scripts that the server forgot (RC-01, RC-10, S0-199).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seckill_lua_scripts::Index;
use seckill_proto::v1::ReserveCode;
use seckill_test_support::{
    Dir, FaultProxy, Frame, FrameAction, Framing, PrivateRedis, Value, eventually,
};

use crate::harness::{
    PATIENCE, Sale, assert_honest, client, drive, front, reason, reserve, settings,
};

fn is_script_reply(frame: &Frame) -> bool {
    matches!(frame.redis_value(), Some(Value::List(elements)) if elements.len() == 5)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_is_lost_after_the_script_ran_takes_one_unit_and_forgets_nobody() {
    const USERS: u64 = 100;
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(2 * USERS)).await;
    let proxy = FaultProxy::start(redis.address(), Framing::Resp).await;
    let front = front(format!("redis://{}", proxy.addr())).start().await;
    let mut client = client(&front).await;

    let armed = Arc::new(AtomicBool::new(false));
    let mut asked_on = None;
    let trap = Arc::clone(&armed);
    proxy.on_frame(move |dir, _, frame| match dir {
        Dir::ToServer => {
            let is_script = frame.redis_command().as_deref() == Some("EVALSHA");
            if is_script && trap.load(Ordering::SeqCst) {
                asked_on = Some(frame.connection());
            }
            FrameAction::Forward
        }
        // The answer of the script alone has five elements; a probe's answer may come before it.
        Dir::ToClient if asked_on == Some(frame.connection()) && is_script_reply(frame) => {
            asked_on = None;
            trap.store(false, Ordering::SeqCst);
            FrameAction::Cut
        }
        Dir::ToClient => FrameAction::Forward,
    });

    let mut lost = 0;
    for n in 0..USERS {
        let (user, request) = (format!("user-{n}"), format!("request-{n}"));
        eventually(PATIENCE, "redis is connected", async || {
            let ready = front.readyz().await.map_err(|error| error.to_string())?;
            // The probe lags; a repeat of an old call shows the connection itself.
            let mut client = client.clone();
            let probe = client.reserve(sale.call("probe", "probe")).await;
            probe
                .map(|_| ())
                .map_err(|status| format!("{status} {}", ready.status))
        })
        .await;
        armed.store(true, Ordering::SeqCst);
        match client.reserve(sale.call(&user, &request)).await {
            Ok(answer) => assert_eq!(answer.get_ref().code(), ReserveCode::Accepted),
            Err(status) => {
                assert_honest(&status, &request);
                assert_eq!(reason(&status), "OUTCOME_UNKNOWN");
                lost += 1;
            }
        }
        assert!(!armed.load(Ordering::SeqCst), "the reply was cut");
    }
    eprintln!("{lost} of {USERS} callers were told that the outcome is unknown");
    proxy.clear_hook();
    for n in 0..USERS {
        let call = sale.call(&format!("user-{n}"), &format!("request-{n}"));
        let again = eventually(PATIENCE, "a repeat is answered", async || {
            let mut client = client.clone();
            let answer = client.reserve(call.clone()).await;
            answer.map_err(|status| status.to_string())
        })
        .await
        .into_inner();
        assert_eq!((again.code(), again.replay), (ReserveCode::Accepted, true));
    }
    // One unit each and one of the probe; all of them are where the scanner looks.
    assert_eq!(sale.stock().await, (USERS - 1, USERS + 1));
    let pending = sale.redis.index_len(&sale.keys(), Index::SendPending).await;
    assert_eq!(pending.unwrap(), USERS + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_script_costs_time_and_nothing_else() {
    const FLUSHES: u32 = 25;
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(100_000)).await;
    let front = front(redis.url()).start().await;
    reserve(&mut client(&front).await, sale.call("warm", "warm")).await;

    let flushing = async {
        let mut connection = redis.connection().await.unwrap();
        let mut every = tokio::time::interval(Duration::from_millis(200));
        for _ in 0..FLUSHES {
            every.tick().await;
            connection.call(&["SCRIPT", "FLUSH"]).await.unwrap();
        }
    };
    let calling = async {
        // About 1,000 calls a second, until the last flush is over.
        let mut every = tokio::time::interval(Duration::from_millis(100));
        let mut answers = Vec::new();
        for round in 0..FLUSHES * 2 {
            every.tick().await;
            let calls = (0..100).map(|n| {
                sale.call(
                    &format!("user-{round}-{n}"),
                    &format!("request-{round}-{n}"),
                )
            });
            answers.push(drive(&front, calls.collect::<Vec<_>>(), 100, None).await);
        }
        answers
    };
    let ((), answers) = futures::future::join(flushing, calling).await;

    for answer in &answers {
        let accepted = answer.with_code(ReserveCode::Accepted).len();
        assert_eq!(accepted, 100, "{:?}", answer.tally());
    }
    let stats = redis.cli(&["INFO", "commandstats"]).await.text();
    let loads = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_script|load:calls="))
        .and_then(|rest| rest.split(',').next())
        .map_or(0, |calls| calls.parse::<u32>().unwrap());
    eprintln!("{loads} loads for {FLUSHES} flushes and 5,000 calls");
    assert!(loads <= 4 * FLUSHES, "{loads} loads");
}
