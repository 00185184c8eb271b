//! `seckillctl doctor`: does a running installation stand as this system needs it?
//!
//! Reads only. Each dependency is asked by itself, so that one that is down costs its own lines and no
//! others. What an answer means is judged by pure functions, one file a dependency, which say what was
//! found, what is wanted and what to change.

mod activities;
mod broker;
mod clocks;
mod finding;
mod postgres;
mod redis;
mod users;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use seckill_activity_control::Control;
use seckill_key_layout::{HmacSecrets, SecretsError};
use seckill_lua_scripts::Redis;
use seckill_message_bus::BusRuntime;
use seckill_order_store::Store;
use seckill_service_kit::{BrokerArgs, PostgresArgs, RedisArgs};
use serde::Serialize;

use crate::connect::{self, PatienceArgs};
use crate::exit::Verdict;
use crate::output::{Output, table};

use finding::{Area, Finding, Grade};

/// What is demanded of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Everything: replicas, users with few rights, a memory limit.
    #[default]
    Production,
    /// A single machine, on which those only earn a warning.
    Local,
}

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to demand: a local stack has neither replicas nor users of its own
    #[arg(
        long,
        env = "SECKILL_PROFILE",
        value_enum,
        default_value_t,
        value_name = "PROFILE"
    )]
    profile: Profile,

    /// Secrets of reservation ids, as the fronts have them; without them they are not checked
    #[arg(long, env = "SECKILL_HMAC_SECRETS", hide_env_values = true, value_name = "SECRETS",
          value_parser = secrets)]
    hmac_secrets: Option<Arc<HmacSecrets>>,

    #[command(flatten)]
    redis: RedisArgs,
    #[command(flatten)]
    postgres: PostgresArgs,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    patience: PatienceArgs,
}

fn secrets(text: &str) -> Result<Arc<HmacSecrets>, SecretsError> {
    text.parse().map(Arc::new)
}

#[derive(Debug, Serialize)]
struct Report {
    profile: Profile,
    ok: bool,
    findings: Vec<Finding>,
}

/// Runs the command.
///
/// # Errors
/// Only when a setting is wrong: a dependency that is away is a finding.
pub async fn run(args: Args, output: Output, bus: Option<&BusRuntime>) -> anyhow::Result<Verdict> {
    let (redis, store) = tokio::join!(reach_redis(&args), reach_store(&args));
    let (redis, store) = (redis?, store?);
    let open = activities::open(store.as_ref().ok()).await;
    let redis_config = args.redis.config();
    let asked = tokio::join!(
        redis::check(&redis, &redis_config, args.profile),
        postgres::check(&store),
        broker::check(&args.broker, bus, activities::any_on_sale(&open)),
    );
    let mut findings = [asked.0, asked.1, asked.2?].concat();
    findings.push(clocks::check(redis.as_ref().ok(), store.as_ref().ok()).await);
    if let Ok(store) = &store {
        findings.extend(waiting::check(store).await);
    }
    let control = redis.ok().zip(store.ok());
    let control = control.map(|(redis, store)| Control::new(store, redis));
    findings.extend(activities::check(&open, args.hmac_secrets.as_deref(), control.as_ref()).await);
    let report = Report {
        profile: args.profile,
        ok: findings.iter().all(|found| found.verdict != Grade::Fail),
        findings,
    };
    output.print(&report, || describe(&report))?;
    Ok(Verdict::of(report.ok))
}

/// Redis, or why it cannot be asked.
async fn reach_redis(args: &Args) -> anyhow::Result<Result<Redis, Finding>> {
    match connect::redis(&args.redis, args.patience).await {
        Ok(redis) => Ok(Ok(redis)),
        Err(error) => away(error, Area::Redis, "see SECKILL_REDIS_URL").map(Err),
    }
}

/// PostgreSQL, or why it cannot be asked. The schema is a finding of its own.
async fn reach_store(args: &Args) -> anyhow::Result<Result<Store, Finding>> {
    match connect::store_of_any_schema(&args.postgres, args.patience).await {
        Ok(store) => Ok(Ok(store)),
        Err(error) => away(error, Area::Postgres, "see SECKILL_DATABASE_URL").map(Err),
    }
}

/// A dependency that is away is a finding; a setting that is wrong ends the command.
fn away(error: anyhow::Error, area: Area, hint: &str) -> anyhow::Result<Finding> {
    if crate::exit::is_wrong_setting(&error) {
        return Err(error);
    }
    Ok(Finding::fail(
        area,
        "reachable",
        crate::exit::sentence(&error),
        "an answer",
        hint,
    ))
}

fn describe(report: &Report) -> String {
    let count = |grade| {
        let is_it = |found: &&Finding| found.verdict == grade;
        report.findings.iter().filter(is_it).count()
    };
    let rows = report.findings.iter().map(|found| {
        [
            found.verdict.word().to_owned(),
            format!("{} {}", found.area.word(), found.check),
            found.found.clone(),
            found.wanted.clone(),
            found.hint.clone(),
        ]
    });
    format!(
        "{}\n\n{} ok, {} to look at, {} wrong",
        table(["", "CHECK", "FOUND", "WANTED", "WHAT TO DO"], rows),
        count(Grade::Ok),
        count(Grade::Warn),
        count(Grade::Fail)
    )
}

/// The longest wait for one dependency's answers after it was reached: each is a handful of short
/// commands with time limits of their own.
const ASK_LIMIT: Duration = Duration::from_secs(60);
