//! Redis is cut for a while under load: memory stays flat, calls are shed at once, and no flood of
//! old calls runs afterwards (RC-07; in a soak for a minute).

use std::time::Duration;

use seckill_proto::v1::ReserveCode;
use seckill_test_support::{FaultProxy, Framing, Mode, PrivateRedis, at_length};

use crate::harness::{
    PATIENCE, Sale, client, drive, drive_to_the_end, front, reserve, resident_kib, settings,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_neither_fills_the_memory_nor_takes_units_afterwards() {
    const IN_FLIGHT_MAX: u64 = 2_048;
    let redis = PrivateRedis::start().await;
    let sale = Sale::open(&redis, settings(100_000)).await;
    let proxy = FaultProxy::start(redis.address(), Framing::Resp).await;
    let front = front(format!("redis://{}", proxy.addr())).start().await;
    let deadline = Some(Duration::from_millis(200));
    let calls = |name: &str, count: usize| {
        let calls = (0..count).map(|n| sale.call(&format!("{name}-{n}"), &format!("{name}-{n}")));
        calls.collect::<Vec<_>>()
    };

    let before = drive_to_the_end(&front, calls("before", 10_000), 64).await;
    before.report("before the outage");
    assert_eq!(before.with_code(ReserveCode::Accepted).len(), 10_000);
    let memory = resident_kib(front.pid());

    proxy.set_mode(Mode::Refuse);
    let during = drive(
        &front,
        calls("during", at_length(20_000, 180_000)),
        64,
        deadline,
    )
    .await;
    during.report("during the outage");
    assert!(during.replies.iter().all(Result::is_err));
    assert!(
        during.quantile(0.99) <= Duration::from_millis(250),
        "calls are shed fast"
    );
    let grown = resident_kib(front.pid());
    eprintln!("resident memory {memory} KiB before, {grown} KiB during");
    assert!(grown <= memory * 6 / 5, "{memory} KiB to {grown} KiB");

    front.wait_until_unready(PATIENCE).await;
    proxy.set_mode(Mode::Forward);
    front.wait_until_ready(PATIENCE).await;
    let mut client = client(&front).await;
    let after = reserve(&mut client, sale.call("after", "after")).await;
    assert_eq!(after.code(), ReserveCode::Accepted);
    let (_, reserved) = sale.stock().await;
    let told_otherwise = reserved - 10_000 - 1;
    eprintln!("{told_otherwise} units went to callers who were told of a fault");
    assert!(told_otherwise <= IN_FLIGHT_MAX);
}
