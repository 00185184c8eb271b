//! Puts the front together and takes it apart.

use std::sync::Arc;

use seckill_lua_scripts::Redis;
use seckill_message_bus::{Producer, Topic};
use seckill_order_store::Store;
use seckill_service_kit::{Context, Error};
use tokio::net::TcpListener;
use tonic_health::server::HealthReporter;

use crate::activities::Activities;
use crate::counters::Counters;
use crate::first_send::Senders;
use crate::query::Querying;
use crate::reserve::Reserving;
use crate::service::Front;
use crate::settings::FrontSettings;
use crate::{health, server};

/// Runs the front until it is told to stop.
///
/// # Errors
/// When a setting cannot be used or the listener breaks.
pub async fn run(ctx: Context, settings: FrontSettings) -> anyhow::Result<()> {
    let redis = settings.redis.connect().await?;
    let store = settings.postgres.connect("reservation-front")?;
    let producer = Producer::start(&ctx.bus, &settings.broker.config("front"))
        .await
        .map_err(|error| Error::setting("--rocketmq-* (SECKILL_ROCKETMQ_*)", error))?;
    watch_dependencies(&ctx, &redis, &store, &producer);

    let listen = |error| Error::setting(FrontSettings::listen_name(), error);
    let listener = TcpListener::bind(settings.listen_addr()?)
        .await
        .map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    ctx.set_grpc_addr(address);

    let counters = Arc::new(Counters::default());
    let (first_sends, senders) = Senders::new(
        redis.clone(),
        producer.clone(),
        Arc::clone(&counters),
        &settings,
    );
    for _ in 0..settings.senders {
        ctx.spawn("first-sends", Arc::clone(&senders).run());
    }
    let activities = Arc::new(Activities::new(redis.clone(), settings.activity_cache_ms));
    let reserving = Arc::new(Reserving::new(
        redis.clone(),
        Arc::clone(&activities),
        first_sends,
        &settings,
    ));
    let querying = Querying::new(
        redis.clone(),
        store,
        activities,
        Arc::clone(&reserving),
        &settings,
    );
    let front = Front::new(Arc::clone(&reserving), querying, settings.call_budget_ms);

    let reporter = HealthReporter::new();
    health::publish(&reporter, &ctx.readiness().borrow().clone()).await;
    ctx.spawn("health", health::follow(ctx.clone(), reporter.clone()));
    let limits = server::Limits {
        own_budget: settings.call_budget_ms,
        connections_max: settings.connections_max,
    };
    ctx.spawn(
        "grpc",
        server::serve(
            ctx.clone(),
            listener,
            front,
            reporter,
            reserving,
            senders,
            limits,
        ),
    );
    tracing::info!(grpc_addr = %address, "serving");
    ctx.serve_admin().await?;

    ctx.drained().await;
    counters.log();
    producer.shutdown().await;
    redis.quit().await;
    Ok(())
}

/// The front sells with Redis alone: without the broker accepted reservations wait in
/// `send_pending`, and without PostgreSQL queries are answered by Redis.
fn watch_dependencies(ctx: &Context, redis: &Redis, store: &Store, producer: &Producer) {
    let probed = redis.clone();
    ctx.dependency("redis", true, move || {
        let redis = probed.clone();
        async move { redis.ping().await }
    });
    let probed = store.clone();
    ctx.dependency("postgres", false, move || {
        let store = probed.clone();
        // As anyhow's error, which tells the causes: a wrong password shows only there.
        async move { store.check_schema().await.map_err(anyhow::Error::from) }
    });
    let probed = producer.clone();
    ctx.dependency("broker", false, move || {
        let producer = probed.clone();
        async move {
            if producer.is_ready(Topic::OrderRequest).await {
                Ok(())
            } else {
                Err("the name server knows no route to the topic of order requests")
            }
        }
    });
}
