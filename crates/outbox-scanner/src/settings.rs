//! What an operator can set. Every timer is a setting, so that tests can run with short ones.

use std::time::Duration;

use clap::Parser;
use seckill_service_kit::values::{count, positive_millis};
use seckill_service_kit::{
    self as kit, Backoff, BrokerArgs, Error, PostgresArgs, ProcessArgs, RedisArgs,
};

use crate::backoff::schedule;
use crate::relay::RelayLimits;
use crate::resend::ResendLimits;

/// Send time limits that a lease must outlast. A batch waits up to one for its turn and up to one for
/// its answer; the third is left for the claims and the records.
const SEND_TIMEOUTS_PER_LEASE: u32 = 3;

/// Most buckets worked on at once: each keeps 32 script calls in flight, and the client's buffer
/// holds 2,000 by default.
const BUCKETS_AT_ONCE_MAX: u64 = 32;

/// Highest rate that can be set; far above what one hot bucket's scripts can take.
const RESENDS_PER_SECOND_MAX: u64 = 100_000;

/// Resends reservations whose order request may be lost and relays the PostgreSQL outbox.
#[derive(Debug, Parser)]
#[command(name = "outbox-scanner", version)]
pub struct Settings {
    /// How the process starts, is watched and stops.
    #[command(flatten)]
    pub process: ProcessArgs,
    /// Where the reservations are.
    #[command(flatten)]
    pub redis: RedisArgs,
    /// Where the open activities and the outbox are.
    #[command(flatten)]
    pub postgres: PostgresArgs,
    /// Where messages go.
    #[command(flatten)]
    pub broker: BrokerArgs,

    /// From one look at the due reservations of all open buckets to the next, in milliseconds
    ///
    /// 1 to 86,400,000. An idle bucket costs two Redis commands a look.
    #[arg(long, env = "SECKILL_OUTBOX_SCANNER_SCAN_INTERVAL_MS", default_value = "500",
          value_name = "MS", value_parser = positive_millis)]
    pub scan_interval_ms: Duration,

    /// From one read of the open activities to the next, in milliseconds
    ///
    /// 1 to 86,400,000. The last list is kept while PostgreSQL is away.
    #[arg(long, env = "SECKILL_OUTBOX_SCANNER_SCOPE_REFRESH_MS", default_value = "2000",
          value_name = "MS", value_parser = positive_millis)]
    pub scope_refresh_ms: Duration,

    /// How long other replicas leave a claimed reservation alone, in milliseconds
    ///
    /// At least three times the time limit of a send, so that no two replicas send one reservation
    /// at once. After a crash its next attempt waits this long.
    #[arg(long, env = "SECKILL_OUTBOX_SCANNER_LEASE_MS", default_value = "15000",
          value_name = "MS", value_parser = positive_millis)]
    pub lease_ms: Duration,

    /// From a first attempt without an answer to the second, in milliseconds
    ///
    /// 1 to 86,400,000. Each further wait is three times as long, up to the longest.
    #[arg(long, env = "SECKILL_OUTBOX_SCANNER_BACKOFF_FIRST_MS", default_value = "5000",
          value_name = "MS", value_parser = positive_millis)]
    pub backoff_first_ms: Duration,

    /// Longest wait between two attempts, in milliseconds
    ///
    /// 1 to 86,400,000. Above 60,000 a backlog may take longer than two minutes to drain after the
    /// broker came back.
    #[arg(long, env = "SECKILL_OUTBOX_SCANNER_BACKOFF_MAX_MS", default_value = "60000",
          value_name = "MS", value_parser = positive_millis)]
    pub backoff_max_ms: Duration,

    /// Most reservations resent a second, over all buckets
    #[arg(long, env = "SECKILL_OUTBOX_SCANNER_RESENDS_PER_SECOND", default_value = "5000",
          value_name = "COUNT", value_parser = count::<RESENDS_PER_SECOND_MAX>)]
    pub resends_per_second: usize,

    /// Buckets worked on at once
    #[arg(long, env = "SECKILL_OUTBOX_SCANNER_BUCKETS_AT_ONCE", default_value = "8",
          value_name = "COUNT", value_parser = count::<BUCKETS_AT_ONCE_MAX>)]
    pub buckets_at_once: usize,

    /// From a look at the outbox that found nothing to the next, in milliseconds
    ///
    /// 1 to 86,400,000. It bounds how late a settlement is repeated by its event.
    #[arg(long, env = "SECKILL_OUTBOX_SCANNER_RELAY_INTERVAL_MS", default_value = "200",
          value_name = "MS", value_parser = positive_millis)]
    pub relay_interval_ms: Duration,

    /// How long other replicas leave claimed outbox rows alone, in milliseconds
    ///
    /// At least three times the time limit of a send.
    #[arg(long, env = "SECKILL_OUTBOX_SCANNER_RELAY_LEASE_MS", default_value = "15000",
          value_name = "MS", value_parser = positive_millis)]
    pub relay_lease_ms: Duration,
}

impl Settings {
    /// How resending is bounded.
    #[must_use]
    pub const fn resend_limits(&self) -> ResendLimits {
        ResendLimits {
            lease: self.lease_ms,
            backoff: self.backoff(),
            per_second: self.resends_per_second,
            buckets_at_once: self.buckets_at_once,
        }
    }

    /// How relaying is bounded.
    #[must_use]
    pub const fn relay_limits(&self) -> RelayLimits {
        RelayLimits {
            lease: self.relay_lease_ms,
            backoff: self.backoff(),
        }
    }

    const fn backoff(&self) -> Backoff {
        schedule(self.backoff_first_ms, self.backoff_max_ms)
    }
}

impl kit::Settings for Settings {
    fn process(&self) -> &ProcessArgs {
        &self.process
    }

    fn check(&self) -> Result<(), Error> {
        let lease_min = self.broker.rocketmq_send_timeout_ms * SEND_TIMEOUTS_PER_LEASE;
        let leases = [
            (
                "--lease-ms (SECKILL_OUTBOX_SCANNER_LEASE_MS)",
                self.lease_ms,
            ),
            (
                "--relay-lease-ms (SECKILL_OUTBOX_SCANNER_RELAY_LEASE_MS)",
                self.relay_lease_ms,
            ),
        ];
        for (setting, lease) in leases {
            if lease < lease_min {
                let reason = format!(
                    "must be at least {} ms, three times the time limit of a send",
                    lease_min.as_millis()
                );
                return Err(Error::setting(setting, reason));
            }
        }
        if self.backoff_max_ms < self.backoff_first_ms {
            return Err(Error::setting(
                "--backoff-max-ms (SECKILL_OUTBOX_SCANNER_BACKOFF_MAX_MS)",
                "must not be below the first wait",
            ));
        }
        Ok(())
    }
}
