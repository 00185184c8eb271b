//! The front's settings.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Parser;
use seckill_service_kit::values::{count, millis, millis_between};
use seckill_service_kit::{
    BrokerArgs, Error, PostgresArgs, ProcessArgs, RedisArgs, SecretArgs, Settings,
};

/// Most calls in hand at once. Each holds about 4 KiB in its task, the script call included, so the
/// limit stays below 256 MiB.
const IN_FLIGHT_LIMIT: u64 = 65_536;

/// Most reservations that may wait for their first send: 300 bytes each, so at most 300 MB.
const SEND_QUEUE_LIMIT: u64 = 1_000_000;

/// Most sender tasks: four times 64 messages are in flight with the bus client's own limit of 256.
const SENDERS_LIMIT: u64 = 16;

/// Most refusals that one of the 256 request shards may remember; 65,536 are 16 million in all,
/// about 1.6 GiB.
const NEGATIVE_CACHE_LIMIT: u64 = 65_536;

/// Most connections at once. Each costs a file descriptor and, when a caller reads nothing, up to the
/// 1 MiB of its flow-control window; processes of 65,536 descriptors are as large as they come.
const CONNECTIONS_LIMIT: u64 = 65_536;

/// Queries in hand are a quarter of the calls in hand: each takes up to three reads of Redis, and the
/// queue in front of Redis must keep room for those who reserve.
const QUERIES_SHARE: usize = 4;

const LISTEN: &str = "--listen (SECKILL_FRONT_LISTEN)";

/// The reservation front of a flash sale
///
/// Takes gRPC calls, lets one Redis script decide who gets units, and hands accepted reservations to
/// RocketMQ. Every flag can also be given by the environment variable named beside it; an empty one
/// counts as unset.
#[derive(Debug, Parser)]
#[command(name = "reservation-front", version)]
pub struct FrontSettings {
    /// Address to serve gRPC on; port 0 takes any free one
    ///
    /// Without it the front serves on the first address of `SECKILL_FRONT_ADDR`, which clients dial,
    /// and on any free port of the loopback interface when that is not given either.
    #[arg(long, env = "SECKILL_FRONT_LISTEN", value_name = "ADDR")]
    pub listen: Option<SocketAddr>,

    /// What clients dial, comma-separated
    #[arg(long, env = "SECKILL_FRONT_ADDR", value_name = "ADDRS")]
    pub front_addr: Option<String>,

    /// Longest time for one call whose caller sets no sooner deadline, in milliseconds, up to 2000
    #[arg(long, env = "SECKILL_FRONT_CALL_BUDGET_MS", default_value = "1500", value_name = "MS",
          value_parser = millis_between::<10, 2_000>)]
    pub call_budget_ms: Duration,

    /// Calls in hand at once; further ones are turned away as busy
    #[arg(long, env = "SECKILL_FRONT_IN_FLIGHT_MAX", default_value = "2048", value_name = "COUNT",
          value_parser = count::<IN_FLIGHT_LIMIT>)]
    pub in_flight_max: usize,

    /// Connections at once; further ones are closed at once
    ///
    /// Callers share connections, each carrying up to 1,024 calls. The default stays below the usual
    /// limit of 1,024 file descriptors, with some 120 left for Redis, PostgreSQL, the broker and files.
    #[arg(long, env = "SECKILL_FRONT_CONNECTIONS_MAX", default_value = "900",
          value_name = "COUNT", value_parser = count::<CONNECTIONS_LIMIT>)]
    pub connections_max: usize,

    /// How long the settings of an activity are kept in memory, in milliseconds
    #[arg(long, env = "SECKILL_FRONT_ACTIVITY_CACHE_MS", default_value = "1000", value_name = "MS",
          value_parser = millis_between::<1, 3_000>)]
    pub activity_cache_ms: Duration,

    /// How long the scanner leaves the first send of a reservation to the front, in milliseconds
    #[arg(long, env = "SECKILL_FRONT_FIRST_SEND_GRACE_MS", default_value = "2000",
          value_name = "MS", value_parser = millis)]
    pub first_send_grace_ms: Duration,

    /// Refusals that one of the 256 request shards of a bucket remembers
    #[arg(long, env = "SECKILL_FRONT_NEGATIVE_CACHE_MAX", default_value = "4096",
          value_name = "COUNT", value_parser = count::<NEGATIVE_CACHE_LIMIT>)]
    pub negative_cache_max: usize,

    /// Accepted reservations that may wait for their first send; the scanner sends the others
    #[arg(long, env = "SECKILL_FRONT_SEND_QUEUE", default_value = "16384", value_name = "COUNT",
          value_parser = count::<SEND_QUEUE_LIMIT>)]
    pub send_queue: usize,

    /// Tasks that send
    #[arg(long, env = "SECKILL_FRONT_SENDERS", default_value = "4", value_name = "COUNT",
          value_parser = count::<SENDERS_LIMIT>)]
    pub senders: usize,

    /// Age at which a waiting first send is left to the scanner, in milliseconds
    #[arg(long, env = "SECKILL_FRONT_SEND_AGE_MAX_MS", default_value = "10000", value_name = "MS",
          value_parser = millis_between::<1, 60_000>)]
    pub send_age_max_ms: Duration,

    /// After a send of unknown outcome, how long until the scanner repeats it, in milliseconds
    #[arg(long, env = "SECKILL_FRONT_SEND_RETRY_MS", default_value = "2000", value_name = "MS",
          value_parser = millis_between::<1, 600_000>)]
    pub send_retry_ms: Duration,

    /// After the front's start or a reconnect to Redis, how long a repeat is not refused, in milliseconds
    ///
    /// A failover may have lost the first attempt's acceptance, which may still become an order.
    #[arg(long, env = "SECKILL_FRONT_ASSUME_WINDOW_MS", default_value = "10000",
          value_name = "MS", value_parser = millis)]
    pub assume_window_ms: Duration,

    /// How long a version is not sold after an answer that shows damaged data, in milliseconds
    ///
    /// Then one call is let through, whose answer decides whether the sale goes on.
    #[arg(long, env = "SECKILL_FRONT_DAMAGE_PAUSE_MS", default_value = "5000",
          value_name = "MS", value_parser = millis_between::<100, 600_000>)]
    pub damage_pause_ms: Duration,

    #[command(flatten)]
    pub(crate) redis: RedisArgs,

    #[command(flatten)]
    pub(crate) postgres: PostgresArgs,

    #[command(flatten)]
    pub(crate) broker: BrokerArgs,

    #[command(flatten)]
    pub(crate) secrets: SecretArgs,

    #[command(flatten)]
    pub(crate) process: ProcessArgs,
}

impl FrontSettings {
    /// Where to serve gRPC.
    ///
    /// # Errors
    /// [`Error::Setting`] when only a name is known, which says nothing about this machine.
    pub fn listen_addr(&self) -> Result<SocketAddr, Error> {
        if let Some(address) = self.listen {
            return Ok(address);
        }
        let Some(dialled) = &self.front_addr else {
            return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
        };
        let first = dialled.split(',').next().unwrap_or_default().trim();
        first.parse().map_err(|_| {
            Error::setting(
                LISTEN,
                "must be given, for SECKILL_FRONT_ADDR is not an IP address and port",
            )
        })
    }

    /// The name under which errors speak of the listen address.
    pub(crate) const fn listen_name() -> &'static str {
        LISTEN
    }

    /// How many queries may be in hand at once.
    pub(crate) fn queries_max(&self) -> usize {
        (self.in_flight_max / QUERIES_SHARE).max(1)
    }

    /// The first send's grace as the script takes it.
    pub(crate) fn first_send_grace(&self) -> i64 {
        i64::try_from(self.first_send_grace_ms.as_millis()).unwrap_or(i64::MAX)
    }

    /// The refusals' limit as the script takes it.
    pub(crate) fn negative_cache(&self) -> u32 {
        u32::try_from(self.negative_cache_max).unwrap_or(u32::MAX)
    }
}

impl Settings for FrontSettings {
    fn process(&self) -> &ProcessArgs {
        &self.process
    }

    fn check(&self) -> Result<(), Error> {
        self.listen_addr()?;
        if self.redis.redis_command_timeout_ms >= self.call_budget_ms {
            return Err(Error::setting(
                "--redis-command-timeout-ms (SECKILL_REDIS_COMMAND_TIMEOUT_MS)",
                "must be less than --call-budget-ms (SECKILL_FRONT_CALL_BUDGET_MS)",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> FrontSettings {
        let secret = format!("1:{}", "A".repeat(43) + "=");
        let fixed = [
            "reservation-front",
            "--redis-url=redis://127.0.0.1:1",
            "--database-url=postgres://u:p@127.0.0.1/d",
            "--rocketmq-namesrv=127.0.0.1:2",
            "--hmac-secrets",
            &secret,
        ];
        FrontSettings::parse_from(fixed.iter().chain(arguments))
    }

    #[test]
    fn the_listen_address_follows_what_clients_dial_unless_given() {
        let dialled = parse(&["--front-addr", "127.0.0.1:7000,127.0.0.1:7001"]);
        assert_eq!(dialled.listen_addr().unwrap().port(), 7000);
        let both = parse(&["--front-addr", "front:7000", "--listen", "0.0.0.0:7000"]);
        assert_eq!(both.listen_addr().unwrap().to_string(), "0.0.0.0:7000");
        let name = parse(&["--front-addr", "front:7000"]);
        assert!(
            name.check()
                .unwrap_err()
                .to_string()
                .contains("SECKILL_FRONT_LISTEN")
        );
    }

    #[test]
    fn a_script_may_not_take_longer_than_a_call() {
        assert!(
            parse(&["--redis-command-timeout-ms", "1000"])
                .check()
                .is_ok()
        );
        let wrong = parse(&["--redis-command-timeout-ms", "1500"]);
        assert!(
            wrong
                .check()
                .unwrap_err()
                .to_string()
                .contains("SECKILL_REDIS_COMMAND_TIMEOUT_MS")
        );
    }
}
