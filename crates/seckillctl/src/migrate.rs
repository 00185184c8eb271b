//! `seckillctl migrate`: schema and topics.
//!
//! Both steps may be repeated at any time and by several at once: the migrations run under a lock of
//! the database, and creating a topic that is there changes nothing. A crash between them leaves the
//! schema without topics; running it again finishes.

use seckill_message_bus::{BusRuntime, ErrorKind as BusErrorKind, Topic};
use seckill_order_store::{ErrorKind as StoreErrorKind, migrate};
use seckill_service_kit::{BrokerArgs, PostgresArgs};
use serde::Serialize;

use crate::connect::{self, PatienceArgs};
use crate::exit::Verdict;
use crate::output::Output;

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    postgres: PostgresArgs,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    patience: PatienceArgs,
}

#[derive(Debug, Serialize)]
struct Result {
    schema_version: u32,
    applied: Vec<String>,
    topics: Vec<&'static str>,
}

/// Runs the command.
///
/// # Errors
/// When a dependency stays away or a migration fails.
pub async fn run(args: Args, output: Output, bus: Option<&BusRuntime>) -> anyhow::Result<Verdict> {
    let url = &args.postgres.database_url;
    let is_final = |error: &seckill_order_store::Error| error.kind() != StoreErrorKind::Retryable;
    let setting = "--database-url (SECKILL_DATABASE_URL)";
    let migrated = connect::reach("PostgreSQL", setting, args.patience, is_final, async || {
        migrate(url).await
    })
    .await?;
    let admin = connect::admin(&args.broker, bus).await?;
    let is_final = |error: &seckill_message_bus::Error| error.kind() != BusErrorKind::Retryable;
    let setting = "--rocketmq-namesrv (SECKILL_ROCKETMQ_NAMESRV)";
    let topics = connect::reach("RocketMQ", setting, args.patience, is_final, async || {
        admin.ensure_topics().await
    })
    .await;
    admin.shutdown().await;
    topics?;
    let result = Result {
        schema_version: migrated.version,
        applied: migrated.applied,
        topics: Topic::ALL.into_iter().map(Topic::name).collect(),
    };
    output.print(&result, || {
        let applied = match result.applied.len() {
            0 => "nothing to apply".to_owned(),
            count => format!("{count} migrations applied"),
        };
        format!(
            "schema    ready    version {}, {applied}\ntopics    ready    {}",
            result.schema_version,
            result.topics.join(", ")
        )
    })?;
    Ok(Verdict::Fine)
}
