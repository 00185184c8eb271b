//! What an operator can set. Every timer is a setting, so that tests can run with short ones.

use std::time::Duration;

use clap::Parser;
use seckill_service_kit::values::{millis, positive_millis};
use seckill_service_kit::{self as kit, BrokerArgs, PostgresArgs, ProcessArgs, RedisArgs};

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
    /// Whether it delivers, and how far its consumers have come.
    #[command(flatten)]
    pub broker: BrokerArgs,

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

    /// From one look at the broker and its consumers to the next, in milliseconds
    ///
    /// 1 to 86,400,000. Patience with undecided reservations counts only between looks that saw both.
    #[arg(long, env = "SECKILL_RECONCILER_WATCH_INTERVAL_MS", default_value = "2000",
          value_name = "MS", value_parser = positive_millis)]
    pub watch_interval_ms: Duration,

    /// A broker that needs longer than this to answer counts as down, in milliseconds
    ///
    /// 1 to 86,400,000.
    #[arg(long, env = "SECKILL_RECONCILER_WATCH_LIMIT_MS", default_value = "3000",
          value_name = "MS", value_parser = positive_millis)]
    pub watch_limit_ms: Duration,

    /// From one look for a failover to the next, in milliseconds
    ///
    /// 1 to 86,400,000. The fronts cover 10 s after a failover by themselves.
    #[arg(long, env = "SECKILL_RECONCILER_RECOVERY_INTERVAL_MS", default_value = "2000",
          value_name = "MS", value_parser = positive_millis)]
    pub recovery_interval_ms: Duration,

    /// How long a front may hold a first send before it drops it, in milliseconds
    ///
    /// 0 to 86,400,000. With the time limit of one send it is how long after a failover a message from
    /// before may still be sent.
    #[arg(long, env = "SECKILL_RECONCILER_WINDOW_DELAY_MS", default_value = "10000",
          value_name = "MS", value_parser = millis)]
    pub window_delay_ms: Duration,

    /// From one look for versions at the end of their retention to the next, in milliseconds
    ///
    /// 1 to 86,400,000.
    #[arg(long, env = "SECKILL_RECONCILER_RETENTION_INTERVAL_MS", default_value = "60000",
          value_name = "MS", value_parser = positive_millis)]
    pub retention_interval_ms: Duration,

    /// How long before its keys expire a version must have nothing open, in milliseconds
    ///
    /// 1 to 86,400,000. A closed version that has nothing open then is archived.
    #[arg(long, env = "SECKILL_RECONCILER_RETENTION_MARGIN_MS", default_value = "86400000",
          value_name = "MS", value_parser = positive_millis)]
    pub retention_margin_ms: Duration,

    /// For how long a version with open work is left alone, its retention extended, in milliseconds
    ///
    /// 0 to 86,400,000; with 0 it is not extended, and only told. The new end is the margin and this
    /// much from then.
    #[arg(long, env = "SECKILL_RECONCILER_RETENTION_EXTENSION_MS", default_value = "0",
          value_name = "MS", value_parser = millis)]
    pub retention_extension_ms: Duration,
}

impl kit::Settings for Settings {
    fn process(&self) -> &ProcessArgs {
        &self.process
    }
}
