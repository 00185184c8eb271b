//! The services and their settings, with timers scaled for tests.

/// The services of an installation, by the names of their executables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    /// Takes purchases over gRPC.
    Front,
    /// Sends what the front could not, and the order events.
    Scanner,
    /// Decides and makes orders.
    Consumer,
    /// Gives units back.
    Compensation,
    /// Finds what has been lost.
    Reconciler,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Front,
        Self::Scanner,
        Self::Consumer,
        Self::Compensation,
        Self::Reconciler,
    ];

    /// The name of its executable.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Front => "reservation-front",
            Self::Scanner => "outbox-scanner",
            Self::Consumer => "order-consumer",
            Self::Compensation => "compensation-worker",
            Self::Reconciler => "reconciler",
        }
    }
}

/// The secret of every sandbox, version 1: the bytes 0 to 31.
pub const HMAC_SECRETS: &str = "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// Timers that are tens of seconds in production would only make a test wait. A test that is about
/// one of them sets it itself.
///
/// Time limits of single calls stay generous: the machine compiles and runs other tests meanwhile,
/// and a limit that strikes by chance makes a fault that the test did not ask for.
const TIMERS: [(&str, &str); 30] = [
    ("SECKILL_REDIS_COMMAND_TIMEOUT_MS", "1000"),
    ("SECKILL_ROCKETMQ_SEND_TIMEOUT_MS", "2000"),
    ("SECKILL_DATABASE_POOL_SIZE", "4"),
    ("SECKILL_DRAIN_DELAY_MS", "100"),
    ("SECKILL_GRACE_PERIOD_MS", "10000"),
    ("SECKILL_LOG_FORMAT", "json"),
    ("SECKILL_FRONT_FIRST_SEND_GRACE_MS", "2000"),
    ("SECKILL_FRONT_SEND_RETRY_MS", "500"),
    // Refusals of a front that has just started are those of one that runs for long.
    ("SECKILL_FRONT_ASSUME_WINDOW_MS", "0"),
    ("SECKILL_OUTBOX_SCANNER_SCAN_INTERVAL_MS", "100"),
    ("SECKILL_OUTBOX_SCANNER_SCOPE_REFRESH_MS", "300"),
    ("SECKILL_OUTBOX_SCANNER_LEASE_MS", "6000"),
    ("SECKILL_OUTBOX_SCANNER_BACKOFF_FIRST_MS", "500"),
    ("SECKILL_OUTBOX_SCANNER_BACKOFF_MAX_MS", "2000"),
    ("SECKILL_OUTBOX_SCANNER_RELAY_INTERVAL_MS", "50"),
    ("SECKILL_OUTBOX_SCANNER_RELAY_LEASE_MS", "6000"),
    ("SECKILL_ORDER_CONSUMER_PATIENCE_MS", "5000"),
    ("SECKILL_ORDER_CONSUMER_SETTLE_BUDGET_MS", "2000"),
    ("SECKILL_COMPENSATION_WORKER_TASK_INTERVAL_MS", "100"),
    ("SECKILL_COMPENSATION_WORKER_LEASE_MS", "5000"),
    ("SECKILL_COMPENSATION_WORKER_BACKOFF_FIRST_MS", "200"),
    ("SECKILL_COMPENSATION_WORKER_BACKOFF_MAX_MS", "1000"),
    ("SECKILL_COMPENSATION_WORKER_PATIENCE_MS", "5000"),
    ("SECKILL_RECONCILER_EXPIRY_INTERVAL_MS", "200"),
    ("SECKILL_RECONCILER_TOTALS_INTERVAL_MS", "1000"),
    ("SECKILL_RECONCILER_HOLDERS_INTERVAL_MS", "5000"),
    ("SECKILL_RECONCILER_GRACE_MS", "5000"),
    ("SECKILL_RECONCILER_WATCH_INTERVAL_MS", "200"),
    ("SECKILL_RECONCILER_RECOVERY_INTERVAL_MS", "500"),
    ("SECKILL_RECONCILER_WINDOW_DELAY_MS", "1000"),
];

/// These timers, as variables of a service's environment.
#[must_use]
pub const fn timers() -> [(&'static str, &'static str); TIMERS.len()] {
    TIMERS
}
