//! Reaching the dependencies, each for a bounded time.
//!
//! A command may be the first thing that runs after a server was started, so a server that is not
//! there yet is tried again; one that stays away ends the command with its own exit code.

use std::fmt::Display;
use std::time::{Duration, Instant};

use clap::Args;
use seckill_activity_control::Control;
use seckill_lua_scripts::Redis;
use seckill_message_bus::{Admin, BusRuntime};
use seckill_order_store::{ErrorKind as StoreErrorKind, Store};
use seckill_service_kit::values::positive_millis;
use seckill_service_kit::{BrokerArgs, PostgresArgs, RedisArgs};

use crate::exit::Failure;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Least time limit of one Redis command. The default of services, 40 ms, guards buyers; an
/// operator's scan beside a full sale may wait a second.
const REDIS_LIMIT_MIN: Duration = Duration::from_secs(1);

const NAME: &str = "seckillctl";

/// How long to try.
#[derive(Debug, Clone, Copy, Args)]
pub struct PatienceArgs {
    /// How long to wait for a dependency that cannot be reached, in milliseconds
    #[arg(long, env = "SECKILL_CONNECT_LIMIT_MS", default_value = "10000", value_name = "MS",
          value_parser = positive_millis)]
    pub connect_limit_ms: Duration,
}

/// Where both stores are.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    #[command(flatten)]
    pub(crate) redis: RedisArgs,
    #[command(flatten)]
    pub(crate) postgres: PostgresArgs,
    #[command(flatten)]
    pub(crate) patience: PatienceArgs,
}

impl StoreArgs {
    /// Connects to both stores and sees that they answer and that the schema is the right one.
    ///
    /// # Errors
    /// [`Failure::Unreachable`] naming the store that stays away.
    pub async fn control(&self) -> anyhow::Result<Control> {
        let store = store(&self.postgres, self.patience).await?;
        let redis = redis(&self.redis, self.patience).await?;
        Ok(Control::new(store, redis))
    }
}

/// Connects to PostgreSQL and checks the schema.
///
/// # Errors
/// [`Failure::Unreachable`], and the store's error when the schema is another.
pub async fn store(args: &PostgresArgs, patience: PatienceArgs) -> anyhow::Result<Store> {
    reach_store(args, patience, async |store| store.check_schema().await).await
}

/// Connects to PostgreSQL, whatever its schema.
///
/// # Errors
/// [`Failure::Unreachable`].
pub async fn store_of_any_schema(
    args: &PostgresArgs,
    patience: PatienceArgs,
) -> anyhow::Result<Store> {
    reach_store(args, patience, async |store| store.ping().await).await
}

async fn reach_store(
    args: &PostgresArgs,
    patience: PatienceArgs,
    probe: impl AsyncFn(&Store) -> Result<(), seckill_order_store::Error>,
) -> anyhow::Result<Store> {
    let store = args.connect(NAME)?;
    let is_final = |error: &seckill_order_store::Error| error.kind() != StoreErrorKind::Retryable;
    let setting = "--database-url (SECKILL_DATABASE_URL)";
    reach("PostgreSQL", setting, patience, is_final, async || {
        probe(&store).await
    })
    .await?;
    Ok(store)
}

/// The settings with a time limit that suits an operator.
fn patient(args: &RedisArgs) -> RedisArgs {
    let mut args = args.clone();
    args.redis_command_timeout_ms = args.redis_command_timeout_ms.max(REDIS_LIMIT_MIN);
    args
}

/// Connects to Redis.
///
/// # Errors
/// [`Failure::Unreachable`].
pub async fn redis(args: &RedisArgs, patience: PatienceArgs) -> anyhow::Result<Redis> {
    let redis = patient(args).connect().await?;
    reach(
        "Redis",
        "--redis-url (SECKILL_REDIS_URL)",
        patience,
        |_| false,
        async || redis.ping().await,
    )
    .await?;
    Ok(redis)
}

/// Connects to the broker as an administrator.
///
/// # Errors
/// When the client cannot be started.
pub async fn admin(args: &BrokerArgs, bus: Option<&BusRuntime>) -> anyhow::Result<Admin> {
    let bus = bus.ok_or_else(|| anyhow::anyhow!("this command was started without the bus"))?;
    Ok(Admin::connect(bus, &args.config(NAME)).await?)
}

/// Tries until an answer comes, an error is final or the time is up.
///
/// # Errors
/// The final error, or [`Failure::Unreachable`] with the last one.
pub async fn reach<T, E: Display + Send + Sync + std::error::Error + 'static>(
    name: &'static str,
    setting: &'static str,
    patience: PatienceArgs,
    is_final: impl Fn(&E) -> bool,
    attempt: impl AsyncFn() -> Result<T, E>,
) -> anyhow::Result<T> {
    let limit = patience.connect_limit_ms;
    let started = Instant::now();
    loop {
        let error = match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if is_final(&error) => return Err(error.into()),
            Err(error) => error,
        };
        if started.elapsed() + PAUSE > limit {
            let reason = format!("{:#}", anyhow::Error::from(error));
            return Err(Failure::Unreachable {
                name,
                setting,
                seconds: limit.as_secs(),
                reason,
            }
            .into());
        }
        tokio::time::sleep(PAUSE).await;
    }
}
