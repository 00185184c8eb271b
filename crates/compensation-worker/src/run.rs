//! Puts the task loop and the event consumer together, and takes them apart before the stores.

use std::sync::Arc;

use seckill_dead_letters::{DeadLetterHandler, Parker};
use seckill_lua_scripts::Redis;
use seckill_message_bus::{Admin, Consumer, Group};
use seckill_order_store::Store;
use seckill_service_kit::Context;
use seckill_settlement::{Discrepancies, Replayer, run_kind};
use tokio::sync::Notify;

use crate::events::EventHandler;
use crate::release::Releaser;
use crate::settings::Settings;
use crate::tasks::Tasks;

/// Runs the service until it is told to stop.
///
/// # Errors
/// When a setting is unusable or a port cannot be had.
pub async fn run(ctx: Context, settings: Settings) -> anyhow::Result<()> {
    let redis = settings.redis.connect().await?;
    let store = settings.postgres.connect(ctx.service())?;
    let bus = settings.broker.config(ctx.service());
    let admin = Arc::new(Admin::connect(&ctx.bus, &bus).await?);
    let parker = Parker::new(store.clone(), redis.clone(), Group::CompensationWorker);
    let instance = format!("{}-{}", ctx.service(), ctx.instance());
    let discrepancies = Discrepancies::new(store.clone(), run_kind::COMPENSATION, instance);

    watch_dependencies(&ctx, &redis, &store, &admin);
    ctx.serve_admin().await?;
    // One for tasks and events: an order that either finds waiting gets the next unit that is freed.
    let replayer = Replayer::new(redis.clone(), store.clone());
    let releaser = Releaser::new(
        store.clone(),
        redis.clone(),
        replayer.clone(),
        discrepancies.clone(),
    );
    let nudge = start_tasks(&ctx, &settings, &store, releaser);
    let handler = Arc::new(EventHandler::new(
        redis.clone(),
        replayer,
        parker.clone(),
        discrepancies,
        nudge,
        settings.patience_ms,
        ctx.shutdown(),
    ));
    let events = Consumer::start(&ctx.bus, &bus, settings.events(), handler).await?;
    let drain = Arc::new(DeadLetterHandler::new(parker));
    let dead_letters =
        Consumer::start_dead_letters(&ctx.bus, &bus, settings.dead_letters(), drain).await?;

    ctx.shutdown().cancelled().await;
    // Work in hand is finished and acknowledged before anything it needs is closed.
    tokio::join!(events.shutdown(), dead_letters.shutdown());
    ctx.drained().await;
    admin.shutdown().await;
    redis.quit().await;
    store.close();
    Ok(())
}

/// Starts the loop over due tasks, and one that is woken in between. Both claim by lease, so they may
/// run at the same time.
fn start_tasks(
    ctx: &Context,
    settings: &Settings,
    store: &Store,
    releaser: Releaser,
) -> Arc<Notify> {
    let limits = settings.task_limits();
    let tasks = Arc::new(Tasks::new(store.clone(), releaser, limits, ctx.shutdown()));
    let by_timer = Arc::clone(&tasks);
    ctx.every("tasks", settings.task_interval_ms, move || {
        let tasks = Arc::clone(&by_timer);
        async move { tasks.round().await.map_err(with_causes) }
    });
    let nudge = Arc::new(Notify::new());
    let (nudged, stop) = (Arc::clone(&nudge), ctx.shutdown());
    ctx.spawn("nudged tasks", async move {
        loop {
            tokio::select! {
                () = nudged.notified() => {}
                () = stop.cancelled() => return,
            }
            // What fails here is found again by the timer, which also logs it.
            if let Err(error) = tasks.round().await {
                tracing::debug!(%error, "a nudged round failed");
            }
        }
    });
    nudge
}

fn watch_dependencies(ctx: &Context, redis: &Redis, store: &Store, admin: &Arc<Admin>) {
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
    let probe = Arc::clone(admin);
    ctx.dependency("broker", true, move || {
        let admin = Arc::clone(&probe);
        async move {
            match admin.consumer_ids(Group::CompensationWorker).await {
                Ok(members) if members.is_empty() => Err("the group has no members".to_owned()),
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        }
    });
}

/// What went wrong, down to its cause: a wrong password shows only there.
fn with_causes(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}
