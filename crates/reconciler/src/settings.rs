//! What an operator can set. Every timer is a setting, so that tests can run with short ones.

use std::time::Duration;

use clap::Parser;
use seckill_service_kit::values::positive_millis;
use seckill_service_kit::{self as kit, PostgresArgs, ProcessArgs, RedisArgs};

/// Compares Redis with PostgreSQL and settles what is decided.
#[derive(Debug, Parser)]
#[command(name = "reconciler", version)]
pub struct Settings {
    /// How the process starts, is watched and stops.
    #[command(flatten)]
    pub process: ProcessArgs,
    /// One of the two sides.
    #[command(flatten)]
    pub redis: RedisArgs,
    /// The side that is right.
    #[command(flatten)]
    pub postgres: PostgresArgs,

    /// From one look at the reservations whose time is up to the next, in milliseconds
    ///
    /// 1 to 86,400,000.
    #[arg(long, env = "SECKILL_RECONCILER_EXPIRY_INTERVAL_MS", default_value = "5000",
          value_name = "MS", value_parser = positive_millis)]
    pub expiry_interval_ms: Duration,

    /// From one comparison of the totals to the next, in milliseconds
    ///
    /// 1 to 86,400,000.
    #[arg(long, env = "SECKILL_RECONCILER_TOTALS_INTERVAL_MS", default_value = "30000",
          value_name = "MS", value_parser = positive_millis)]
    pub totals_interval_ms: Duration,

    /// From one slow pass over all reservations to the next, in milliseconds
    ///
    /// 1 to 86,400,000. It scans keys, in paced steps of 500.
    #[arg(long, env = "SECKILL_RECONCILER_HOLDERS_INTERVAL_MS", default_value = "600000",
          value_name = "MS", value_parser = positive_millis)]
    pub holders_interval_ms: Duration,

    /// From one step of the slow pass to the next, in milliseconds
    ///
    /// 1 to 86,400,000. The default walks at most 10,000 keys a second.
    #[arg(long, env = "SECKILL_RECONCILER_SCAN_PAUSE_MS", default_value = "50",
          value_name = "MS", value_parser = positive_millis)]
    pub scan_pause_ms: Duration,

    /// How long a difference may be something on its way before it counts, in milliseconds
    ///
    /// 1 to 86,400,000. It must exceed what settling and releasing take in an ordinary disturbance.
    #[arg(long, env = "SECKILL_RECONCILER_GRACE_MS", default_value = "60000",
          value_name = "MS", value_parser = positive_millis)]
    pub grace_ms: Duration,
}

impl kit::Settings for Settings {
    fn process(&self) -> &ProcessArgs {
        &self.process
    }
}
