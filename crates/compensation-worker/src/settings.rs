//! What an operator can set. Every timer is a setting, so that tests can run with short ones.

use std::time::Duration;

use clap::Parser;
use seckill_message_bus::{
    ConsumerConfig, Group, HANDLER_DEADLINE_MAX, LISTENER_THREADS_MAX, Topic,
};
use seckill_service_kit::values::{count, positive_millis};
use seckill_service_kit::{
    self as kit, Backoff, BrokerArgs, Error, PostgresArgs, ProcessArgs, RedisArgs,
};

use crate::tasks::TaskLimits;

/// The largest batch: what the broker hands out at once.
const BATCH_MAX: u64 = 256;

/// Most redeliveries that can be allowed: 82 days of two hours.
const REDELIVERIES_MAX: u64 = 1_000;

/// What a handler may take beyond its patience: four rounds of Redis calls and the parking.
const HANDLER_SLACK: Duration = Duration::from_secs(60);

/// Redeliveries of dead letters, which may only wait for the database: two years of two hours.
const DEAD_LETTER_REDELIVERIES: i32 = 10_000;

/// Dead letters are rare, and parked one by one.
const DEAD_LETTER_BATCH: u32 = 32;

/// A lease must outlast a task's five round trips, each at its time limit, and its fence.
const LEASE_MIN: Duration = Duration::from_secs(1);

/// Fences and releases reservations that will not become orders.
#[derive(Debug, Parser)]
#[command(name = "compensation-worker", version)]
pub struct Settings {
    /// How the process starts, is watched and stops.
    #[command(flatten)]
    pub process: ProcessArgs,
    /// Where the units are.
    #[command(flatten)]
    pub redis: RedisArgs,
    /// Where decisions and tasks are.
    #[command(flatten)]
    pub postgres: PostgresArgs,
    /// Where order events come from.
    #[command(flatten)]
    pub broker: BrokerArgs,

    /// From one look at the due tasks to the next, in milliseconds
    ///
    /// 1 to 86,400,000. An event about a refusal wakes the worker earlier.
    #[arg(long, env = "SECKILL_COMPENSATION_WORKER_TASK_INTERVAL_MS", default_value = "500",
          value_name = "MS", value_parser = positive_millis)]
    pub task_interval_ms: Duration,

    /// How long other replicas leave a claimed task alone, in milliseconds
    ///
    /// 1,000 to 86,400,000. After a crash the task's next attempt waits this long.
    #[arg(long, env = "SECKILL_COMPENSATION_WORKER_LEASE_MS", default_value = "30000",
          value_name = "MS", value_parser = positive_millis)]
    pub lease_ms: Duration,

    /// From a first attempt that failed to the second, in milliseconds; each further wait doubles
    #[arg(long, env = "SECKILL_COMPENSATION_WORKER_BACKOFF_FIRST_MS", default_value = "1000",
          value_name = "MS", value_parser = positive_millis)]
    pub backoff_first_ms: Duration,

    /// Longest wait between two attempts, in milliseconds
    #[arg(long, env = "SECKILL_COMPENSATION_WORKER_BACKOFF_MAX_MS", default_value = "60000",
          value_name = "MS", value_parser = positive_millis)]
    pub backoff_max_ms: Duration,

    /// Most order events of one batch, 1 to 256
    #[arg(long, env = "SECKILL_COMPENSATION_WORKER_BATCH_MAX", default_value = "256",
          value_name = "COUNT", value_parser = count::<BATCH_MAX>)]
    pub batch_max: usize,

    /// Batches of order events worked on at once
    #[arg(long, env = "SECKILL_COMPENSATION_WORKER_THREADS", default_value = "2",
          value_name = "COUNT", value_parser = count::<{ LISTENER_THREADS_MAX as u64 - 1 }>)]
    pub threads: usize,

    /// How long a batch waits for a Redis that is away before it is redelivered, in milliseconds
    ///
    /// 1 to 500,000.
    #[arg(long, env = "SECKILL_COMPENSATION_WORKER_PATIENCE_MS", default_value = "20000",
          value_name = "MS", value_parser = positive_millis)]
    pub patience_ms: Duration,

    /// Redeliveries after which the broker moves an event to the dead letters, 1 to 1,000
    #[arg(long, env = "SECKILL_COMPENSATION_WORKER_REDELIVERIES_MAX", default_value = "16",
          value_name = "COUNT", value_parser = count::<REDELIVERIES_MAX>)]
    pub redeliveries_max: usize,
}

impl Settings {
    /// How tasks are claimed and repeated.
    #[must_use]
    pub const fn task_limits(&self) -> TaskLimits {
        TaskLimits {
            lease: self.lease_ms,
            backoff: Backoff::new(self.backoff_first_ms, self.backoff_max_ms),
        }
    }

    /// How order events are consumed.
    #[must_use]
    pub fn events(&self) -> ConsumerConfig {
        ConsumerConfig {
            group: Group::CompensationWorker,
            topics: vec![Topic::OrderEvent],
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
            ..self.events()
        }
    }

    fn handler_deadline(&self) -> Duration {
        self.patience_ms + HANDLER_SLACK
    }
}

impl kit::Settings for Settings {
    fn process(&self) -> &ProcessArgs {
        &self.process
    }

    fn check(&self) -> Result<(), Error> {
        if self.lease_ms < LEASE_MIN {
            let setting = "--lease-ms (SECKILL_COMPENSATION_WORKER_LEASE_MS)";
            return Err(Error::setting(setting, "must be at least 1000"));
        }
        if self.backoff_max_ms < self.backoff_first_ms {
            let setting = "--backoff-max-ms (SECKILL_COMPENSATION_WORKER_BACKOFF_MAX_MS)";
            return Err(Error::setting(setting, "must not be below the first wait"));
        }
        if self.handler_deadline() > HANDLER_DEADLINE_MAX {
            let setting = "--patience-ms (SECKILL_COMPENSATION_WORKER_PATIENCE_MS)";
            let patience_max = HANDLER_DEADLINE_MAX - HANDLER_SLACK;
            let reason = format!("must not exceed {} ms", patience_max.as_millis());
            return Err(Error::setting(setting, reason));
        }
        Ok(())
    }
}
