//! Callers that go away after the unit was taken (GRPC-01).

use std::time::Duration;

use futures::future::join_all;
use rand::Rng;
use seckill_lua_scripts::Index;
use seckill_proto::v1::ReserveCode;
use seckill_test_support::{Dir, FaultProxy, Framing, Mode, PrivateRedis, eventually};

use crate::harness::{PATIENCE, Sale, client, front, reserve, settings};

#[tokio::test(flavor = "multi_thread")]
async fn callers_who_leave_stop_nothing_half_way() {
    const CALLS: usize = 2_000;
    const PER_CONNECTION: usize = 100;
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(5_000)).await;
    let proxy = FaultProxy::start(redis.address(), Framing::Resp).await;
    let front = front(format!("redis://{}", proxy.addr())).start().await;
    reserve(&mut client(&front).await, sale.call("warm", "warm")).await;
    proxy.set_mode(Mode::Delay(Duration::from_millis(30), Dir::ToClient));

    for first in (0..CALLS).step_by(PER_CONNECTION) {
        // Every other group loses its whole connection, the others cancel call by call.
        let connection = client(&front).await;
        let drop_connection = (first / PER_CONNECTION).is_multiple_of(2);
        let group_leaves = Duration::from_millis(rand::rng().random_range(0..60));
        let calls = (first..first + PER_CONNECTION).map(|n| {
            let mut client = connection.clone();
            let call = sale.call(&format!("user-{n}"), &format!("request-{n}"));
            let leaves = match drop_connection {
                true => group_leaves,
                false => Duration::from_millis(rand::rng().random_range(0..60)),
            };
            async move {
                // A timer, not a wait for a condition: the caller gives up at a random moment.
                let _ = tokio::time::timeout(leaves, client.reserve(call)).await;
            }
        });
        join_all(calls).await;
    }
    proxy.set_mode(Mode::Forward);

    // Quiet: the counters stop moving when the last call in hand is done.
    let client = client(&front).await;
    let (_, reserved) = eventually(PATIENCE, "all calls in hand are done", async || {
        let before = sale.stock().await;
        reserve(&mut client.clone(), sale.call("warm", "warm")).await;
        let after = sale.stock().await;
        if before == after {
            Ok(after)
        } else {
            Err("still moving")
        }
    })
    .await;
    eprintln!("{reserved} units of {CALLS} callers who left");
    assert!(reserved > 1, "some calls got through");

    // Whoever was accepted is held whole: a unit, a marker, and a place where the scanner looks.
    let keys = sale.keys();
    let pending = sale
        .redis
        .index_len(&keys, Index::SendPending)
        .await
        .unwrap();
    let expiring = sale
        .redis
        .index_len(&keys, Index::ReservationExpiry)
        .await
        .unwrap();
    assert_eq!((pending, expiring), (reserved, reserved));
    let again = (0..CALLS).map(|n| {
        let mut client = client.clone();
        let call = sale.call(&format!("user-{n}"), &format!("request-{n}"));
        async move { reserve(&mut client, call).await }
    });
    let answers = join_all(again).await;
    assert!(
        answers
            .iter()
            .all(|answer| answer.code() == ReserveCode::Accepted)
    );
    let replayed = answers.iter().filter(|answer| answer.replay).count();
    assert_eq!(u64::try_from(replayed).unwrap() + 1, reserved);
}
