//! Puts the consumers together, and takes them apart before the stores they write to.

use std::sync::Arc;

use seckill_dead_letters::{DeadLetterHandler, Parker};
use seckill_lua_scripts::Redis;
use seckill_message_bus::{Admin, Consumer, Group};
use seckill_order_store::{Error as StoreError, Store};
use seckill_service_kit::Context;
use seckill_settlement::{Discrepancies, run_kind};

use crate::deciding::Decider;
use crate::handler::RequestHandler;
use crate::settings::Settings;
use crate::settling::Settler;

/// Runs the service until it is told to stop.
///
/// # Errors
/// When a setting is unusable or a port cannot be had.
pub async fn run(ctx: Context, settings: Settings) -> anyhow::Result<()> {
    let redis = settings.redis.connect().await?;
    let store = settings.postgres.connect(ctx.service())?;
    let bus = settings.broker.config(ctx.service());
    let admin = Arc::new(Admin::connect(&ctx.bus, &bus).await?);
    let parker = Parker::new(store.clone(), redis.clone(), Group::OrderConsumer);

    watch_dependencies(&ctx, &redis, &store, &admin);
    ctx.serve_admin().await?;
    let handler = Arc::new(handler(&ctx, &settings, &redis, &store, &parker));
    let requests = Consumer::start(&ctx.bus, &bus, settings.requests(), handler).await?;
    let drain = Arc::new(DeadLetterHandler::new(parker));
    let dead_letters =
        Consumer::start_dead_letters(&ctx.bus, &bus, settings.dead_letters(), drain).await?;

    ctx.shutdown().cancelled().await;
    // Batches in hand are committed, settled and acknowledged before anything they need is closed.
    tokio::join!(requests.shutdown(), dead_letters.shutdown());
    ctx.drained().await;
    admin.shutdown().await;
    redis.quit().await;
    store.close();
    Ok(())
}

fn handler(
    ctx: &Context,
    settings: &Settings,
    redis: &Redis,
    store: &Store,
    parker: &Parker,
) -> RequestHandler {
    let instance = format!("{}-{}", ctx.service(), ctx.instance());
    let discrepancies = Discrepancies::new(store.clone(), run_kind::SETTLEMENT, instance);
    let decider = Decider::new(
        store.clone(),
        parker.clone(),
        settings.threads,
        settings.attempts(),
        ctx.shutdown(),
    );
    let settler = Settler::new(
        redis.clone(),
        store.clone(),
        discrepancies,
        settings.settle_budget_ms,
    );
    RequestHandler::new(decider, parker.clone(), settler, settings.patience_ms)
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
            let members = admin.consumer_ids(Group::OrderConsumer).await;
            match members {
                Ok(members) if members.is_empty() => Err("the group has no members".to_owned()),
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        }
    });
}

/// What went wrong, down to its cause: a wrong password shows only there.
fn with_causes(error: StoreError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}
