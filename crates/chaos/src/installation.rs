//! The servers of the run, the proxies before them, and the settings that lead through these.
//!
//! Redis is a primary with a replica, PostgreSQL a server of its own, the broker that of the run's own
//! stack. Services go through fault proxies; operators and the checks go past them, except that a
//! further proxy follows the primary of Redis when it moves.

mod broker;
mod redis;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use seckill_integration_tests::{HMAC_SECRETS, Service, timers};
use seckill_test_support::{
    FaultProxy, Framing, MqNamespace, NamesrvProxy, PrivatePostgres, ServiceBuilder,
    ServiceProcess, TestDatabase, TestStack,
};
use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::plan::Link;

pub(crate) use broker::Broker;
pub(crate) use redis::{Failover, Redis};

/// The longest command of an operator waits for topics to be routed.
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);

/// Besides the timers of all tests. Sends and calls give up sooner than the longest faults last, so
/// that they are met; a front that reconnects assumes that a failover has happened, as in production.
const TIMERS: [(&str, &str); 2] = [
    ("SECKILL_FRONT_ASSUME_WINDOW_MS", "5000"),
    ("SECKILL_DATABASE_POOL_SIZE", "3"),
];

/// Everything that the services run on.
pub(crate) struct Installation {
    pub(crate) clock: Clock,
    pub(crate) redis: Redis,
    pub(crate) broker: Broker,
    /// Held by whoever runs a command of an operator, and by whoever takes a server away from under
    /// it: a command that fails half-way is its operator's to repeat, and not what is proved here.
    pub(crate) control: Mutex<()>,
    environment: BTreeMap<String, String>,
    operator: BTreeMap<String, String>,
    postgres_proxy: FaultProxy,
    broker_proxy: NamesrvProxy,
    namespace: MqNamespace,
    database: TestDatabase,
    postgres: PrivatePostgres,
    folder: PathBuf,
}

impl Installation {
    /// Starts the servers and makes schema and topics.
    pub(crate) async fn start(stack: &Path, folder: &Path) -> anyhow::Result<Self> {
        let broker = Broker::of_stack(stack)?;
        let (redis, postgres, broker_proxy) = tokio::join!(
            Redis::start(),
            PrivatePostgres::start(),
            NamesrvProxy::start()
        );
        let database = TestDatabase::create_in(&postgres).await;
        let postgres_proxy = FaultProxy::start(postgres.address(), Framing::Postgres).await;
        let mut installation = Self {
            clock: Clock::start(),
            redis,
            broker,
            control: Mutex::new(()),
            environment: BTreeMap::new(),
            operator: BTreeMap::new(),
            postgres_proxy,
            broker_proxy,
            namespace: MqNamespace::unique(),
            database,
            postgres,
            folder: folder.to_owned(),
        };
        installation.set_environment();
        installation.ctl(&["migrate"]).await?;
        Ok(installation)
    }

    fn set_environment(&mut self) {
        let text = |value: &str| value.to_owned();
        let own = [
            ("SECKILL_ROCKETMQ_NAMESPACE", text(self.namespace.as_str())),
            ("SECKILL_HMAC_SECRETS", text(HMAC_SECRETS)),
        ];
        let fixed = timers().into_iter().chain(TIMERS);
        let common: BTreeMap<String, String> = fixed
            .map(|(name, value)| (name, text(value)))
            .chain(own)
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let places = |redis: String, database: String, broker: String| {
            [
                ("SECKILL_REDIS_URL", redis),
                ("SECKILL_DATABASE_URL", database),
                ("SECKILL_ROCKETMQ_NAMESRV", broker),
            ]
            .map(|(name, value)| (name.to_owned(), value))
        };
        let through = self.database.url_via(self.postgres_proxy.port());
        let through_broker = self.broker_proxy.addr().to_string();
        self.environment.clone_from(&common);
        self.environment
            .extend(places(self.redis.url(), through, through_broker));
        let past = self.database.url().to_owned();
        let past_broker = TestStack::shared().namesrv().to_owned();
        self.operator = common;
        self.operator
            .extend(places(self.redis.operators_url(), past, past_broker));
    }

    /// A service's settings, as one of several replicas.
    pub(crate) fn service(&self, service: Service, instance: u32) -> ServiceBuilder {
        ServiceProcess::builder(service.name())
            .envs(&self.environment)
            .instance(instance)
            .run_dir(&self.folder)
            .log_dir(&self.folder)
            .unjudged()
    }

    /// Runs `seckillctl`, which must succeed, and returns its JSON.
    pub(crate) async fn ctl(&self, arguments: &[&str]) -> anyhow::Result<serde_json::Value> {
        let (code, output) = self.try_ctl(arguments).await;
        anyhow::ensure!(
            code == Some(0),
            "seckillctl {arguments:?}: {code:?} {output}"
        );
        if output.trim().is_empty() {
            return Ok(serde_json::Value::Null);
        }
        serde_json::from_str(&output)
            .with_context(|| format!("no JSON from {arguments:?}: {output}"))
    }

    /// Runs `seckillctl` and returns its exit code with what it has printed, or complained about when
    /// it failed.
    pub(crate) async fn try_ctl(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = ServiceProcess::builder("seckillctl")
            .envs(&self.operator)
            .env("SECKILL_RUN_DIR", self.folder.display())
            .env("SECKILL_OUTPUT", "json");
        for argument in arguments {
            command = command.arg(*argument);
        }
        let finished = command.run(COMMAND_DEADLINE).await;
        let output = match finished.code {
            Some(0) => finished.stdout,
            _ => format!("{}{}", finished.stdout, finished.stderr),
        };
        (finished.code, output)
    }

    /// The proxy before a server.
    pub(crate) const fn proxy(&self, link: Link) -> &FaultProxy {
        match link {
            Link::Redis => self.redis.proxy(),
            Link::Broker => self.broker_proxy.broker(),
            Link::Postgres => &self.postgres_proxy,
        }
    }

    pub(crate) const fn database(&self) -> &TestDatabase {
        &self.database
    }

    pub(crate) const fn postgres(&self) -> &PrivatePostgres {
        &self.postgres
    }

    pub(crate) const fn namespace(&self) -> &MqNamespace {
        &self.namespace
    }

    /// Where logs and run files are.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}
