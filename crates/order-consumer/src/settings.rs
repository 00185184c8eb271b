//! What an operator can set. Every timer is a setting, so that tests can run with short ones.

use std::time::Duration;

use clap::Parser;
use seckill_message_bus::{
    ConsumerConfig, Group, HANDLER_DEADLINE_MAX, LISTENER_THREADS_MAX, Topic,
};
use seckill_service_kit::values::{count, positive_millis};
use seckill_service_kit::{self as kit, BrokerArgs, Error, PostgresArgs, ProcessArgs, RedisArgs};

/// The largest batch: what the broker hands out at once.
const BATCH_MAX: u64 = 256;

/// Most failures or redeliveries that can be allowed. The broker's delay is two hours from the
/// sixteenth on, so 1,000 are 82 days.
const ATTEMPTS_MAX: u64 = 1_000;

/// What a handler may take beyond its own limits before it is given up: one transaction at three
/// times the default limit of a statement, twice.
const HANDLER_SLACK: Duration = Duration::from_secs(60);

/// Redeliveries of dead letters, which may only wait for the database: two years of two hours.
const DEAD_LETTER_REDELIVERIES: i32 = 10_000;

/// Dead letters are rare, and parked one by one.
const DEAD_LETTER_BATCH: u32 = 32;

/// Turns order requests into decisions and orders.
#[derive(Debug, Parser)]
#[command(name = "order-consumer", version)]
pub struct Settings {
    /// How the process starts, is watched and stops.
    #[command(flatten)]
    pub process: ProcessArgs,
    /// Where the reservations are.
    #[command(flatten)]
    pub redis: RedisArgs,
    /// Where decisions and orders are.
    #[command(flatten)]
    pub postgres: PostgresArgs,
    /// Where order requests come from.
    #[command(flatten)]
    pub broker: BrokerArgs,

    /// Most order requests of one transaction, 1 to 256
    #[arg(long, env = "SECKILL_ORDER_CONSUMER_BATCH_MAX", default_value = "256",
          value_name = "COUNT", value_parser = count::<BATCH_MAX>)]
    pub batch_max: usize,

    /// Batches worked on at once
    #[arg(long, env = "SECKILL_ORDER_CONSUMER_THREADS", default_value = "4",
          value_name = "COUNT", value_parser = count::<{ LISTENER_THREADS_MAX as u64 - 1 }>)]
    pub threads: usize,

    /// How long a batch waits for a database that is away before it is redelivered, in milliseconds
    ///
    /// 1 to 500,000. A redelivery costs ten seconds at first and two hours in the end.
    #[arg(long, env = "SECKILL_ORDER_CONSUMER_PATIENCE_MS", default_value = "20000",
          value_name = "MS", value_parser = positive_millis)]
    pub patience_ms: Duration,

    /// How long the settlement of Redis may keep a committed batch from its acknowledgement, in milliseconds
    ///
    /// What is left then is settled by the order event or by the reconciler.
    #[arg(long, env = "SECKILL_ORDER_CONSUMER_SETTLE_BUDGET_MS", default_value = "2000",
          value_name = "MS", value_parser = positive_millis)]
    pub settle_budget_ms: Duration,

    /// Redeliveries after which a message that fails for a reason of its own is parked, 1 to 1,000
    #[arg(long, env = "SECKILL_ORDER_CONSUMER_ATTEMPTS_MAX", default_value = "3",
          value_name = "COUNT", value_parser = count::<ATTEMPTS_MAX>)]
    pub attempts_max: usize,

    /// Redeliveries after which the broker moves any message to the dead letters, 1 to 1,000
    ///
    /// The default of 16 takes almost five hours by the broker's default delays.
    #[arg(long, env = "SECKILL_ORDER_CONSUMER_REDELIVERIES_MAX", default_value = "16",
          value_name = "COUNT", value_parser = count::<ATTEMPTS_MAX>)]
    pub redeliveries_max: usize,
}

impl Settings {
    /// How order requests are consumed.
    #[must_use]
    pub fn requests(&self) -> ConsumerConfig {
        ConsumerConfig {
            group: Group::OrderConsumer,
            topics: vec![Topic::OrderRequest],
            batch_max: u32::try_from(self.batch_max).unwrap_or(u32::MAX),
            threads: u32::try_from(self.threads).unwrap_or(u32::MAX),
            handler_deadline: self.handler_deadline(),
            max_redeliveries: i32::try_from(self.redeliveries_max).unwrap_or(i32::MAX),
        }
    }

    /// How dead letters are drained.
    #[must_use]
    pub fn dead_letters(&self) -> ConsumerConfig {
        ConsumerConfig {
            batch_max: DEAD_LETTER_BATCH,
            threads: 1,
            max_redeliveries: DEAD_LETTER_REDELIVERIES,
            ..self.requests()
        }
    }

    /// How often a message may fail for a reason of its own.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        u32::try_from(self.attempts_max).unwrap_or(u32::MAX)
    }

    /// A batch is settled in two parts, before and after the wait for contended rows.
    fn handler_deadline(&self) -> Duration {
        self.patience_ms + 2 * self.settle_budget_ms + HANDLER_SLACK
    }
}

impl kit::Settings for Settings {
    fn process(&self) -> &ProcessArgs {
        &self.process
    }

    fn check(&self) -> Result<(), Error> {
        if self.handler_deadline() > HANDLER_DEADLINE_MAX {
            let budget = HANDLER_DEADLINE_MAX - HANDLER_SLACK;
            let reason = format!(
                "must, with twice the settlement's budget, not exceed {} ms",
                budget.as_millis()
            );
            let setting = "--patience-ms (SECKILL_ORDER_CONSUMER_PATIENCE_MS)";
            return Err(Error::setting(setting, reason));
        }
        Ok(())
    }
}
