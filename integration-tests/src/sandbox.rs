//! One isolated installation.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use seckill_test_support::{
    Dump, FaultProxy, Framing, MqNamespace, NamesrvProxy, OrFail, PrivatePostgres, PrivateRedis,
    RedisCluster, RedisPair, ServiceBuilder, ServiceProcess, TempDir, TestDatabase, TestStack,
    eventually,
};

use crate::checks;
use crate::ctl::{self, CtlOutput};
use crate::front::FrontClient;
use crate::settings::{HMAC_SECRETS, Service, timers};
use crate::settled::unsettled;
use crate::store::{Form, Store};

/// Names the Redis of a process.
const REDIS_URL: &str = "SECKILL_REDIS_URL";

/// What a sandbox is made of.
#[derive(Debug, Default, Clone)]
pub struct SandboxBuilder {
    redis_arguments: Vec<String>,
    redis_form: Form,
    private_postgres: bool,
    redis_proxy: bool,
    postgres_proxy: bool,
    broker_proxy: bool,
    environment: BTreeMap<String, String>,
}

/// One installation of its own. Services that a test starts in it are held by the test, and must be
/// dropped before it, which is the order of declaration.
#[derive(Debug)]
pub struct Sandbox {
    environment: BTreeMap<String, String>,
    operator: BTreeMap<String, String>,
    redis: Store,
    database: TestDatabase,
    postgres: Option<PrivatePostgres>,
    namespace: MqNamespace,
    postgres_proxy: Option<FaultProxy>,
    broker_proxy: Option<NamesrvProxy>,
    folder: TempDir,
}

/// All five services, one process each.
#[derive(Debug)]
pub struct Services {
    /// `reservation-front`
    pub front: ServiceProcess,
    /// `outbox-scanner`
    pub scanner: ServiceProcess,
    /// `order-consumer`
    pub consumer: ServiceProcess,
    /// `compensation-worker`
    pub compensation: ServiceProcess,
    /// `reconciler`
    pub reconciler: ServiceProcess,
}

impl Services {
    /// All of them.
    #[must_use]
    pub const fn all(&self) -> [&ServiceProcess; 5] {
        [
            &self.front,
            &self.scanner,
            &self.consumer,
            &self.compensation,
            &self.reconciler,
        ]
    }

    /// Allows errors whose line contains this text in all of them.
    pub fn allow_errors(&self, text: &str) {
        for service in self.all() {
            service.allow_errors(text);
        }
    }
}

impl SandboxBuilder {
    /// Starts Redis with further arguments: one server, or the shipped pair.
    #[must_use]
    pub fn redis_arguments(mut self, arguments: &[&str]) -> Self {
        self.redis_arguments = arguments.iter().map(ToString::to_string).collect();
        self
    }

    /// Uses a Redis Cluster of three nodes.
    #[must_use]
    pub const fn cluster(mut self) -> Self {
        self.redis_form = Form::Cluster;
        self
    }

    /// Uses a Redis Cluster of three primaries with a replica each.
    #[must_use]
    pub const fn cluster_with_replicas(mut self) -> Self {
        self.redis_form = Form::ClusterWithReplicas;
        self
    }

    /// Uses a primary and a replica behind an address that moves at a failover; the proxy before it is
    /// [`Sandbox::redis_proxy`].
    #[must_use]
    pub const fn replicated(mut self) -> Self {
        self.redis_form = Form::Pair;
        self
    }

    /// The same with the configuration and the users of `deploy/redis`: every service logs in as itself.
    #[must_use]
    pub const fn shipped_redis(mut self) -> Self {
        self.redis_form = Form::Shipped;
        self
    }

    /// Uses a PostgreSQL of its own, for tests that stop it.
    #[must_use]
    pub const fn private_postgres(mut self) -> Self {
        self.private_postgres = true;
        self
    }

    /// Puts a fault proxy between the services and Redis (not for a cluster).
    #[must_use]
    pub const fn redis_proxy(mut self) -> Self {
        self.redis_proxy = true;
        self
    }

    /// Puts a fault proxy between the services and PostgreSQL.
    #[must_use]
    pub const fn postgres_proxy(mut self) -> Self {
        self.postgres_proxy = true;
        self
    }

    /// Puts fault proxies between the services and the name server and broker.
    #[must_use]
    pub const fn broker_proxy(mut self) -> Self {
        self.broker_proxy = true;
        self
    }

    /// Sets a variable for every service.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.insert(name.to_owned(), value.to_string());
        self
    }

    /// Starts the servers and the proxies and makes schema and topics, as an operator would.
    ///
    /// # Panics
    ///
    /// When one of them does not come up.
    pub async fn start(self) -> Sandbox {
        let sandbox = self.start_empty().await;
        let migrated = sandbox.ctl(&["migrate"]).await;
        assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);
        sandbox
    }

    /// Starts the servers and the proxies, with neither schema nor topics.
    ///
    /// # Panics
    ///
    /// When one of them does not come up.
    pub async fn start_empty(self) -> Sandbox {
        let redis = Store::start(self.redis_form, &self.redis_arguments, self.redis_proxy).await;
        let postgres = if self.private_postgres {
            Some(PrivatePostgres::start().await)
        } else {
            None
        };
        let database = match &postgres {
            Some(server) => TestDatabase::create_in(server).await,
            None => TestDatabase::create().await,
        };
        let namespace = MqNamespace::unique();
        let postgres_proxy = if self.postgres_proxy {
            Some(FaultProxy::start(database.server_addr(), Framing::Postgres).await)
        } else {
            None
        };
        let broker_proxy = if self.broker_proxy {
            Some(NamesrvProxy::start().await)
        } else {
            None
        };
        let mut sandbox = Sandbox {
            environment: BTreeMap::new(),
            operator: BTreeMap::new(),
            redis,
            database,
            postgres,
            namespace,
            postgres_proxy,
            broker_proxy,
            folder: TempDir::new("sandbox").or_fail("making the folder of a sandbox"),
        };
        sandbox.operator = sandbox.common_settings();
        sandbox.environment = sandbox.service_settings(self.environment);
        sandbox
    }
}

impl Sandbox {
    /// The parts of a sandbox; all of them default to none.
    #[must_use]
    pub fn builder() -> SandboxBuilder {
        SandboxBuilder::default()
    }

    /// A sandbox without proxies.
    ///
    /// # Panics
    ///
    /// When its servers do not come up.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// The settings of every process, past all proxies; only Redis depends on who asks.
    fn common_settings(&self) -> BTreeMap<String, String> {
        let own = [
            ("SECKILL_DATABASE_URL", self.database.url().to_owned()),
            (
                "SECKILL_ROCKETMQ_NAMESRV",
                TestStack::shared().namesrv().to_owned(),
            ),
            (
                "SECKILL_ROCKETMQ_NAMESPACE",
                self.namespace.as_str().to_owned(),
            ),
            ("SECKILL_HMAC_SECRETS", HMAC_SECRETS.to_owned()),
        ];
        let timers = timers().map(|(name, value)| (name, value.to_owned()));
        own.into_iter()
            .chain(timers)
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    fn service_settings(&self, further: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut settings = self.common_settings();
        let mut set = |name: &str, value: String| settings.insert(name.to_owned(), value);
        if let Some(proxy) = &self.postgres_proxy {
            set("SECKILL_DATABASE_URL", self.database.url_via(proxy.port()));
        }
        if let Some(proxy) = &self.broker_proxy {
            set("SECKILL_ROCKETMQ_NAMESRV", proxy.addr().to_string());
        }
        settings.extend(further);
        settings
    }

    /// A service with the settings of this sandbox; further ones can be added before it is started.
    #[must_use]
    pub fn service(&self, service: Service) -> ServiceBuilder {
        ServiceProcess::builder(service.name())
            .env(REDIS_URL, self.redis.url_of(service.name()))
            .envs(&self.environment)
            .run_dir(self.folder.path())
            .log_dir(self.folder.path())
    }

    /// Starts a service and awaits its readiness.
    ///
    /// # Panics
    ///
    /// When it is not ready within a minute.
    pub async fn run(&self, service: Service) -> ServiceProcess {
        self.service(service).start().await
    }

    /// Starts all five services and awaits their readiness.
    ///
    /// # Panics
    ///
    /// When one of them is not ready within a minute.
    pub async fn run_all(&self) -> Services {
        let (front, scanner, consumer, compensation, reconciler) = tokio::join!(
            self.run(Service::Front),
            self.run(Service::Scanner),
            self.run(Service::Consumer),
            self.run(Service::Compensation),
            self.run(Service::Reconciler),
        );
        Services {
            front,
            scanner,
            consumer,
            compensation,
            reconciler,
        }
    }

    /// A client of a front.
    #[must_use]
    pub fn client(&self, front: &ServiceProcess) -> FrontClient {
        FrontClient::connect(front.grpc_addr())
    }

    /// Runs `seckillctl --output json` past all proxies.
    ///
    /// # Panics
    ///
    /// When it does not end within a minute.
    pub async fn ctl(&self, arguments: &[&str]) -> CtlOutput {
        let mut settings = self.operator.clone();
        let redis_url = self.redis.operators_url(ctl::TOOL);
        settings.insert(REDIS_URL.to_owned(), redis_url);
        ctl::run(&settings, self.folder.path(), arguments).await
    }

    /// Runs `seckillctl`, which must succeed, and returns its JSON.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub async fn ctl_ok(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.ctl(arguments).await;
        assert_eq!(output.code, Some(0), "{arguments:?}: {output:?}");
        output.json()
    }

    /// Its Redis, past all proxies; of a pair the one that takes the writes.
    ///
    /// # Panics
    ///
    /// When it is a cluster.
    #[must_use]
    pub fn redis(&self) -> &PrivateRedis {
        self.redis.server()
    }

    /// Its pair of primary and replica.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[must_use]
    pub fn redis_pair(&self) -> &RedisPair {
        self.redis.pair()
    }

    /// Its cluster, past all proxies.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[must_use]
    pub fn redis_cluster(&self) -> &RedisCluster {
        self.redis.cluster()
    }

    /// Every key of its Redis.
    ///
    /// # Panics
    ///
    /// When Redis does not answer.
    pub async fn dump(&self) -> Dump {
        self.redis.dump().await
    }

    /// Its database, past all proxies.
    #[must_use]
    pub const fn database(&self) -> &TestDatabase {
        &self.database
    }

    /// Its own PostgreSQL server.
    ///
    /// # Panics
    ///
    /// When it was not asked for.
    #[must_use]
    pub fn postgres(&self) -> &PrivatePostgres {
        present(self.postgres.as_ref(), "private_postgres")
    }

    /// The proxy before Redis.
    ///
    /// # Panics
    ///
    /// When it was not asked for.
    #[must_use]
    pub fn redis_proxy(&self) -> &FaultProxy {
        self.redis.proxy()
    }

    /// The proxy before PostgreSQL.
    ///
    /// # Panics
    ///
    /// When it was not asked for.
    #[must_use]
    pub fn postgres_proxy(&self) -> &FaultProxy {
        present(self.postgres_proxy.as_ref(), "postgres_proxy")
    }

    /// The proxy before the broker.
    ///
    /// # Panics
    ///
    /// When it was not asked for.
    #[must_use]
    pub fn broker_proxy(&self) -> &FaultProxy {
        present(self.broker_proxy.as_ref(), "broker_proxy").broker()
    }

    /// The proxy before the name server.
    ///
    /// # Panics
    ///
    /// When it was not asked for.
    #[must_use]
    pub fn namesrv_proxy(&self) -> &FaultProxy {
        present(self.broker_proxy.as_ref(), "broker_proxy").namesrv()
    }

    /// Its namespace on the shared broker.
    #[must_use]
    pub const fn namespace(&self) -> &MqNamespace {
        &self.namespace
    }

    /// The folder of run files and logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Lets patience count without a reconciler that looks after the broker: somebody has looked, and
    /// the next look may be an hour away.
    pub async fn let_patience_count(&self) {
        let seen = "UPDATE patience_watch SET healthy_at = now(), observed_at = now(),
            healthy = true, cause = '', max_gap_ms = 3600000";
        self.database.execute(seen).await;
    }

    /// Awaits that everything is settled: no work left in Redis, PostgreSQL and RocketMQ, and every
    /// reservation in a final state.
    ///
    /// # Panics
    ///
    /// When something is left at the deadline; the panic lists it.
    pub async fn settle(&self, deadline: Duration) {
        eventually(deadline, "everything is settled", async || {
            let left = unsettled(self).await?;
            if left.is_empty() {
                Ok(())
            } else {
                Err(left.join("\n"))
            }
        })
        .await;
    }

    /// Checks what must hold at any time, in both stores.
    ///
    /// # Panics
    ///
    /// When something is violated; the panic lists all of it.
    pub async fn assert_consistent(&self) {
        let mut violations = checks::redis_violations(&self.dump().await);
        violations.extend(checks::postgres_violations(&self.database).await);
        assert!(violations.is_empty(), "{}", violations.join("\n"));
    }

    /// Awaits that everything is settled, then checks each store and that both agree by reservation.
    ///
    /// # Panics
    ///
    /// When something is left at the deadline or violated; the panic lists all of it.
    pub async fn assert_settles_consistent(&self, deadline: Duration) {
        self.settle(deadline).await;
        self.assert_consistent().await;
        let differences = checks::differences(&self.dump().await, &self.database).await;
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }
}

fn present<'a, T>(part: Option<&'a T>, name: &str) -> &'a T {
    match part {
        Some(part) => part,
        None => panic!("the sandbox was built without {name}()"),
    }
}
