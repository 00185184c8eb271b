//! Puts the loops together.

use std::sync::Arc;
use std::time::Duration;

use seckill_lua_scripts::Redis;
use seckill_message_bus::Admin;
use seckill_order_store::{Error as StoreError, Store};
use seckill_service_kit::Context;
use seckill_settlement::Discrepancies;
use tokio::sync::Mutex;

use crate::apply::Applier;
use crate::expiry::Expiry;
use crate::recovery::Recovery;
use crate::retention::{Retention, Terms};
use crate::rounds::Rounds;
use crate::settings::Settings;
use crate::sweep::{Sides, Sweep};
use crate::totals::Totals;
use crate::watch::Watch;

/// What every loop needs.
struct Parts {
    redis: Redis,
    store: Store,
    admin: Arc<Admin>,
    instance: String,
    grace: Duration,
}

impl Parts {
    fn rounds(&self, kind: &'static str) -> Rounds {
        Rounds::new(self.store.clone(), kind, self.instance.clone(), self.grace)
    }

    fn applier(&self) -> Applier {
        Applier::new(self.redis.clone(), self.store.clone(), self.grace)
    }
}

/// Runs the service until it is told to stop.
///
/// # Errors
/// When a setting is unusable or a port cannot be had.
pub async fn run(ctx: Context, settings: Settings) -> anyhow::Result<()> {
    let bus = settings.broker.config(ctx.service());
    let parts = Parts {
        redis: settings.redis.connect().await?,
        store: settings.postgres.connect(ctx.service())?,
        admin: Arc::new(Admin::connect(&ctx.bus, &bus).await?),
        instance: format!("{}-{}", ctx.service(), ctx.instance()),
        grace: settings.grace_ms,
    };
    watch_dependencies(&ctx, &parts.redis, &parts.store);
    ctx.serve_admin().await?;

    start_watch(&ctx, &settings, &parts);
    start_recovery(&ctx, &settings, &parts);
    start_expiry(&ctx, &settings, &parts);
    start_totals(&ctx, &settings, &parts);
    start_sweep(&ctx, &settings, &parts);
    start_retention(&ctx, &settings, &parts);

    ctx.drained().await;
    parts.admin.shutdown().await;
    parts.redis.quit().await;
    parts.store.close();
    Ok(())
}

fn start_watch(ctx: &Context, settings: &Settings, parts: &Parts) {
    let interval = settings.watch_interval_ms;
    let (admin, store) = (Arc::clone(&parts.admin), parts.store.clone());
    let watch = Watch::new(admin, store, interval, settings.watch_limit_ms);
    let watch = Arc::new(Mutex::new(watch));
    ctx.every("watch", interval, move || {
        let watch = Arc::clone(&watch);
        async move { Ok::<(), anyhow::Error>(watch.lock().await.look().await?) }
    });
}

fn start_recovery(ctx: &Context, settings: &Settings, parts: &Parts) {
    let delay = settings.window_delay_ms + settings.broker.rocketmq_send_timeout_ms;
    let (redis, store) = (parts.redis.clone(), parts.store.clone());
    let admin = Arc::clone(&parts.admin);
    let interval = settings.recovery_interval_ms;
    let watcher = Recovery::new(redis.clone(), store.clone(), admin, interval, delay);
    let watcher = Arc::new(Mutex::new(watcher));
    ctx.every("failovers", interval, move || {
        let watcher = Arc::clone(&watcher);
        async move { Ok::<(), anyhow::Error>(watcher.lock().await.watch().await?) }
    });
    let admin = Arc::clone(&parts.admin);
    let recovery = Recovery::new(redis, store, admin, interval, delay);
    let recovery = Arc::new(Mutex::new(recovery));
    ctx.every("recovery", interval, move || {
        let recovery = Arc::clone(&recovery);
        async move { Ok::<(), anyhow::Error>(recovery.lock().await.look().await?) }
    });
}

fn start_expiry(ctx: &Context, settings: &Settings, parts: &Parts) {
    let expiry = Expiry::new(
        parts.redis.clone(),
        parts.store.clone(),
        parts.rounds("expiry"),
        parts.applier(),
        parts.grace,
    );
    let expiry = Arc::new(Mutex::new(expiry));
    ctx.every("expiry", settings.expiry_interval_ms, move || {
        let expiry = Arc::clone(&expiry);
        async move { Ok::<(), anyhow::Error>(expiry.lock().await.tick().await?) }
    });
}

fn start_totals(ctx: &Context, settings: &Settings, parts: &Parts) {
    let totals = Totals::new(
        parts.redis.clone(),
        parts.store.clone(),
        parts.rounds("totals"),
        parts.applier(),
        parts.grace,
    );
    let totals = Arc::new(Mutex::new(totals));
    ctx.every("totals", settings.totals_interval_ms, move || {
        let totals = Arc::clone(&totals);
        async move { Ok::<(), anyhow::Error>(totals.lock().await.round().await?) }
    });
}

fn start_sweep(ctx: &Context, settings: &Settings, parts: &Parts) {
    const KIND: &str = "holders";
    let sides = Sides {
        redis: parts.redis.clone(),
        store: parts.store.clone(),
        discrepancies: Discrepancies::new(parts.store.clone(), KIND, parts.instance.clone()),
    };
    let sweep = Sweep::new(
        sides,
        parts.rounds(KIND),
        parts.applier(),
        settings.holders_interval_ms,
        parts.grace,
    );
    let sweep = Arc::new(Mutex::new(sweep));
    ctx.every("sweep", settings.scan_pause_ms, move || {
        let sweep = Arc::clone(&sweep);
        async move { Ok::<(), anyhow::Error>(sweep.lock().await.step().await?) }
    });
}

fn start_retention(ctx: &Context, settings: &Settings, parts: &Parts) {
    let terms = Terms {
        margin: settings.retention_margin_ms,
        extension: settings.retention_extension_ms,
        pause: settings.scan_pause_ms,
    };
    let retention = Retention::new(
        parts.redis.clone(),
        parts.store.clone(),
        parts.rounds("retention"),
        terms,
    );
    let retention = Arc::new(Mutex::new(retention));
    ctx.every("retention", settings.retention_interval_ms, move || {
        let retention = Arc::clone(&retention);
        async move { Ok::<(), anyhow::Error>(retention.lock().await.look().await?) }
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
