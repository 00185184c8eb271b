//! A crash in one window between two stores, each made on purpose and looked at before anybody repairs it.

use seckill_integration_tests::{Plan, Sale, Sandbox, Service};
use seckill_proto::v1::ReserveCode;
use seckill_test_support::{
    Dir, FaultProxy, Frame, FrameAction, Framing, ServiceProcess, eventually,
};

use crate::harness::{
    SETTLES, SOON, all_reach, bucket, fall_back, give_up, orders, reaches, remember, reservations,
};

/// A way to Redis for one service alone, on which some of its calls get lost.
async fn losing(
    sandbox: &Sandbox,
    is_lost: impl Fn(&Frame) -> bool + Send + 'static,
) -> FaultProxy {
    let proxy = FaultProxy::start(sandbox.redis().address(), Framing::Resp).await;
    proxy.on_frame(move |dir, _, frame| {
        let is_script = dir == Dir::ToServer && frame.redis_command().as_deref() == Some("EVALSHA");
        if is_script && is_lost(frame) {
            FrameAction::Drop
        } else {
            FrameAction::Forward
        }
    });
    proxy
}

async fn over(sandbox: &Sandbox, service: Service, way: &FaultProxy) -> ServiceProcess {
    let url = format!("redis://{}", way.addr());
    let builder = sandbox.service(service).env("SECKILL_REDIS_URL", url);
    builder.allow_errors("").start().await
}

/// One reservation whose message waits for a consumer, handed to the compensation worker.
async fn given_up(sandbox: &Sandbox) -> (Sale, ServiceProcess, String) {
    let sale = sandbox.open(&Plan::new(2)).await;
    let front = sandbox.run(Service::Front).await;
    let id = sandbox.client(&front).buy(&sale, "u1", "q1").await;
    all_reach(sandbox, &sale, "ENQUEUED", 1).await;
    let held = reservations(sandbox, &sale).await[&id].clone();
    give_up(sandbox, &held).await;
    (sale, front, id)
}

async fn is_fenced(sandbox: &Sandbox, id: &str) {
    let fenced = format!(
        "SELECT count(*) FROM reservation_decision WHERE kind = 'RELEASED' AND reservation_id = '{id}'"
    );
    eventually(SOON, "the fence", async || {
        match sandbox.database().number(&fenced).await {
            1 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
}

/// The first worker is dead. Another one releases once, and the message, read only now, creates nothing.
async fn is_released_once_by_another(sandbox: &Sandbox, sale: &Sale, id: &str) {
    let stock = bucket(sandbox, sale, 0).await.stock;
    assert_eq!(
        (&*stock["available"], &*stock["released_total"]),
        ("1", "0"),
        "the unit is still held"
    );
    let second = sandbox.service(Service::Compensation).instance(2);
    let (second, consumer, scanner) = tokio::join!(
        second.start(),
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Scanner),
    );
    reaches(sandbox, sale, id, "RELEASED").await;
    sandbox.assert_settles_consistent(SETTLES).await;
    let stock = bucket(sandbox, sale, 0).await.stock;
    assert_eq!(
        (&*stock["available"], &*stock["released_total"]),
        ("2", "1")
    );
    assert_eq!(orders(sandbox, sale).await, 0);
    let open = "SELECT count(*) FROM compensation_task WHERE closed_at IS NULL";
    assert_eq!(sandbox.database().number(open).await, 0);
    for service in [second, consumer, scanner] {
        service.stop(SOON).await;
    }
}

/// S0-205. Goal: a worker that dies between the fence and Redis leaves a decision and a task, and another
/// one releases once. Method: none of the first worker's scripts reaches Redis.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_behind_the_fence_is_made_up_for() {
    let sandbox = Sandbox::start().await;
    let (sale, front, id) = given_up(&sandbox).await;
    let way = losing(&sandbox, |_| true).await;
    let first = over(&sandbox, Service::Compensation, &way).await;
    is_fenced(&sandbox, &id).await;
    first.kill();
    let status = reservations(&sandbox, &sale).await[&id]["status"].clone();
    assert_eq!(status, "ENQUEUED", "Redis has not been told");
    is_released_once_by_another(&sandbox, &sale, &id).await;
    front.stop(SOON).await;
}

/// S0-205. Goal: a worker that dies between `RELEASE_PENDING` and the release leaves the unit held, and
/// another one releases once. Method: of the first worker's scripts the one that moves stock gets lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_before_the_release_is_made_up_for() {
    let sandbox = Sandbox::start().await;
    let (sale, front, id) = given_up(&sandbox).await;
    let way = losing(&sandbox, |frame| frame.contains(b":stock")).await;
    let first = over(&sandbox, Service::Compensation, &way).await;
    is_fenced(&sandbox, &id).await;
    reaches(&sandbox, &sale, &id, "RELEASE_PENDING").await;
    first.kill();
    is_released_once_by_another(&sandbox, &sale, &id).await;
    front.stop(SOON).await;
}

/// Goal: an order whose consumer could not settle Redis is settled by its event, without a reconciler.
/// Method: none of the consumer's scripts reaches Redis.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_its_consumer_cannot_settle_is_settled_by_its_event() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(3)).await;
    let way = losing(&sandbox, |_| true).await;
    let (front, consumer, scanner) = tokio::join!(
        sandbox.run(Service::Front),
        over(&sandbox, Service::Consumer, &way),
        sandbox.run(Service::Scanner),
    );
    let id = sandbox.client(&front).buy(&sale, "u1", "q1").await;
    eventually(SETTLES, "the order", async || {
        match orders(&sandbox, &sale).await {
            1 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    let status = reservations(&sandbox, &sale).await[&id]["status"].clone();
    assert_ne!(status, "ORDER_CREATED", "nobody has told Redis");
    let worker = sandbox.run(Service::Compensation).await;
    reaches(&sandbox, &sale, &id, "ORDER_CREATED").await;
    sandbox.assert_settles_consistent(SETTLES).await;
    for service in [front, consumer, scanner, worker] {
        service.stop(SOON).await;
    }
}

/// Goal: purchases of which nothing is left anywhere hold no unit; whoever repeats one is decided afresh,
/// under the same id while there are units. Method: the front dies before its sends, then Redis falls back
/// to before the purchases, and somebody else takes one of the two units.
#[tokio::test(flavor = "multi_thread")]
async fn purchases_that_left_no_trace_are_decided_afresh() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(2)).await;
    remember(&sandbox).await;
    let deaf = sandbox
        .service(Service::Front)
        .env("SECKILL_ROCKETMQ_NAMESRV", "127.0.0.1:9")
        .allow_errors("")
        .start()
        .await;
    let client = sandbox.client(&deaf);
    let first = client.buy(&sale, "u1", "q1").await;
    client.buy(&sale, "u2", "q2").await;
    deaf.kill();
    fall_back(&sandbox).await;
    assert!(reservations(&sandbox, &sale).await.is_empty());

    let front = sandbox.service(Service::Front).instance(2).start().await;
    let (consumer, scanner, worker) = tokio::join!(
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Compensation),
    );
    let client = sandbox.client(&front);
    client.buy(&sale, "u3", "q3").await;
    let again = client.repeat(&sale, "u1", "q1").await.unwrap();
    assert_eq!((again.code(), again.replay), (ReserveCode::Accepted, false));
    assert_eq!(again.reservation_id, first);
    let late = client.repeat(&sale, "u2", "q2").await.unwrap();
    assert_eq!(late.code(), ReserveCode::SoldOut);
    all_reach(&sandbox, &sale, "ORDER_CREATED", 2).await;
    sandbox.assert_settles_consistent(SETTLES).await;
    let decided = "SELECT user_id FROM reservation_decision ORDER BY user_id";
    assert_eq!(sandbox.database().texts(decided).await, [["u1"], ["u3"]]);
    for service in [front, consumer, scanner, worker] {
        service.stop(SOON).await;
    }
}
