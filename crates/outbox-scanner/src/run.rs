//! Puts the loops together, and takes them apart in the order in which they depend on each other.

use std::sync::Arc;
use std::time::Duration;

use seckill_lua_scripts::Redis;
use seckill_message_bus::{Producer, Topic};
use seckill_order_store::{Error as StoreError, Store};
use seckill_service_kit::Context;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::relay::Relay;
use crate::resend::Resender;
use crate::scopes::OpenBuckets;
use crate::settings::Settings;

/// How long a loop may go on without a pause while it makes progress. Then it shows its heartbeat,
/// which counts as stalled after a minute.
const BUSY_MAX: Duration = Duration::from_secs(20);

/// Runs the service until it is told to stop.
///
/// # Errors
/// When a setting is unusable or a port cannot be had.
pub async fn run(ctx: Context, settings: Settings) -> anyhow::Result<()> {
    let redis = settings.redis.connect().await?;
    let store = settings.postgres.connect(ctx.service())?;
    let producer = Producer::start(&ctx.bus, &settings.broker.config(ctx.service())).await?;

    watch_dependencies(&ctx, &redis, &store, &producer);
    ctx.serve_admin().await?;
    let open = Arc::new(OpenBuckets::default());
    start_refresh(&ctx, &settings, &store, &open);
    let resender = Resender::new(redis.clone(), producer.clone(), settings.resend_limits());
    start_resend(&ctx, &settings, resender, &open);
    let relay = Relay::new(store.clone(), producer.clone(), settings.relay_limits());
    start_relay(&ctx, &settings, relay);

    // Pages in hand are finished before the clients they need are closed.
    ctx.drained().await;
    producer.shutdown().await;
    redis.quit().await;
    store.close();
    Ok(())
}

fn watch_dependencies(ctx: &Context, redis: &Redis, store: &Store, producer: &Producer) {
    let probe = redis.clone();
    ctx.dependency("redis", true, move || {
        let redis = probe.clone();
        async move { redis.ping().await }
    });
    let probe = store.clone();
    ctx.dependency("postgres", true, move || {
        let store = probe.clone();
        async move { store.check_schema().await.map_err(with_causes) }
    });
    let probe = producer.clone();
    ctx.dependency("broker", true, move || {
        let producer = probe.clone();
        async move {
            let routed = producer.is_ready(Topic::OrderRequest).await
                && producer.is_ready(Topic::OrderEvent).await;
            routed.then_some(()).ok_or("no route to the topics")
        }
    });
}

fn start_refresh(ctx: &Context, settings: &Settings, store: &Store, open: &Arc<OpenBuckets>) {
    let (store, open) = (store.clone(), Arc::clone(open));
    ctx.every("scopes", settings.scope_refresh_ms, move || {
        let (store, open) = (store.clone(), Arc::clone(&open));
        async move { open.refresh(&store).await.map_err(with_causes) }
    });
}

fn start_resend(ctx: &Context, settings: &Settings, resender: Resender, open: &Arc<OpenBuckets>) {
    let (resender, open, stop) = (Arc::new(resender), Arc::clone(open), ctx.shutdown());
    ctx.every("resend", settings.scan_interval_ms, move || {
        let (resender, open, stop) = (Arc::clone(&resender), Arc::clone(&open), stop.clone());
        async move { resend(&resender, &open, &stop).await }
    });
}

/// Passes until nothing is due. Fails when no bucket at all could be read, or nothing that is due could
/// be claimed, so that the loop's own backoff spares a Redis that is away or full.
async fn resend(
    resender: &Resender,
    open: &OpenBuckets,
    stop: &CancellationToken,
) -> Result<(), &'static str> {
    let until = Instant::now() + BUSY_MAX;
    loop {
        let buckets = open.current();
        let report = resender.pass(&buckets, until, stop).await;
        let all = u64::try_from(buckets.len()).unwrap_or(u64::MAX);
        if report.unreadable > 0 && report.unreadable == all {
            return Err("no bucket could be read from redis");
        }
        if report.got_nowhere() {
            return Err("redis lets no reservation be claimed");
        }
        if !report.wants_another_pass() || stop.is_cancelled() || Instant::now() >= until {
            return Ok(());
        }
    }
}

fn start_relay(ctx: &Context, settings: &Settings, relay: Relay) {
    let (relay, stop) = (Arc::new(relay), ctx.shutdown());
    ctx.every("relay", settings.relay_interval_ms, move || {
        let (relay, stop) = (Arc::clone(&relay), stop.clone());
        async move { relay_all(&relay, &stop).await.map_err(with_causes) }
    });
}

async fn relay_all(relay: &Relay, stop: &CancellationToken) -> Result<(), StoreError> {
    let until = Instant::now() + BUSY_MAX;
    loop {
        let relayed = relay.claim().await?;
        if !relayed.wants_another_claim() || stop.is_cancelled() || Instant::now() >= until {
            return Ok(());
        }
    }
}

/// What went wrong, down to its cause: a wrong password shows only there.
fn with_causes(error: StoreError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}
