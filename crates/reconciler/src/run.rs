//! Puts the three checks together.

use std::sync::Arc;

use seckill_lua_scripts::Redis;
use seckill_order_store::{Error as StoreError, Store};
use seckill_service_kit::Context;
use tokio::sync::Mutex;

use crate::expiry::Expiry;
use crate::holders::Holders;
use crate::rounds::Rounds;
use crate::settings::Settings;
use crate::totals::Totals;

/// Runs the service until it is told to stop.
///
/// # Errors
/// When a setting is unusable or a port cannot be had.
pub async fn run(ctx: Context, settings: Settings) -> anyhow::Result<()> {
    let redis = settings.redis.connect().await?;
    let store = settings.postgres.connect(ctx.service())?;
    watch_dependencies(&ctx, &redis, &store);
    ctx.serve_admin().await?;

    let rounds = |kind| {
        let instance = format!("{}-{}", ctx.service(), ctx.instance());
        Rounds::new(store.clone(), kind, instance, settings.grace_ms)
    };
    let grace = settings.grace_ms;
    let expiry = Expiry::new(redis.clone(), store.clone(), rounds("expiry"), grace);
    start_expiry(&ctx, &settings, expiry);
    let totals = Totals::new(redis.clone(), store.clone(), rounds("totals"), grace);
    start_totals(&ctx, &settings, totals);
    let interval = settings.holders_interval_ms;
    let holders = Holders::new(
        redis.clone(),
        store.clone(),
        rounds("holders"),
        interval,
        grace,
    );
    start_holders(&ctx, &settings, holders);

    ctx.drained().await;
    redis.quit().await;
    store.close();
    Ok(())
}

fn start_expiry(ctx: &Context, settings: &Settings, expiry: Expiry) {
    let expiry = Arc::new(Mutex::new(expiry));
    ctx.every("expiry", settings.expiry_interval_ms, move || {
        let expiry = Arc::clone(&expiry);
        async move { Ok::<(), anyhow::Error>(expiry.lock().await.tick().await?) }
    });
}

fn start_totals(ctx: &Context, settings: &Settings, totals: Totals) {
    let totals = Arc::new(Mutex::new(totals));
    ctx.every("totals", settings.totals_interval_ms, move || {
        let totals = Arc::clone(&totals);
        async move { Ok::<(), anyhow::Error>(totals.lock().await.round().await?) }
    });
}

fn start_holders(ctx: &Context, settings: &Settings, holders: Holders) {
    let holders = Arc::new(Mutex::new(holders));
    ctx.every("holders", settings.scan_pause_ms, move || {
        let holders = Arc::clone(&holders);
        async move { Ok::<(), anyhow::Error>(holders.lock().await.step().await?) }
    });
}

fn watch_dependencies(ctx: &Context, redis: &Redis, store: &Store) {
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
}

/// What went wrong, down to its cause: a wrong password shows only there.
fn with_causes(error: StoreError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}
