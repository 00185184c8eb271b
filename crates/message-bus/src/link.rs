//! The producer's client, and its replacement after an outage.
//!
//! After five failed connects the client refuses every send to that broker for 30 s, whether or not
//! the broker is back; the limit cannot be set. A client that was made anew has not failed yet, so a
//! producer whose sends keep failing gets one now and then, and sends again within seconds
//! of the broker's return.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rocketmq_client_rust::{ClientError, ClientRuntime, DefaultMQProducer};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::names::Names;
use crate::{BusConfig, Error};

/// The client's code for a connect that failed, and for one that it did not even try.
const CONNECTION_FAILED: &str = "transport.connection.failed";

/// The failures in a row after which the client stops trying.
const FAILURES_BEFORE_RENEWAL: u32 = 5;

/// The least age of a client before it is replaced; doubled once a replacement did not help.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

/// 2 s at most: 1,800 replacements in an hour's outage, each costing some 20 ms, and only while
/// somebody sends and the name server still names the broker.
const RENEWAL_DOUBLINGS_MAX: u32 = 1;

/// Further attempts of the client within the same time limit; the next goes to another broker, if
/// there is one. Whoever sends repeats later on its own.
const SECOND_ATTEMPTS: u32 = 1;

/// One client and what is known of its health.
pub(crate) struct Generation {
    pub(crate) client: DefaultMQProducer,
    started: Instant,
    failures: AtomicU32,
    /// Replacements since the last good send.
    fruitless: AtomicU32,
}

impl Generation {
    /// Notes that the broker answered.
    pub(crate) fn worked(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.fruitless.store(0, Ordering::Relaxed);
    }
}

/// The current client.
pub(crate) struct Link {
    shared: Arc<Shared>,
    renewals: Mutex<JoinSet<()>>,
}

struct Shared {
    runtime: Arc<ClientRuntime>,
    config: BusConfig,
    current: RwLock<Arc<Generation>>,
    renewing: AtomicBool,
}

impl Link {
    pub(crate) async fn start(
        runtime: Arc<ClientRuntime>,
        config: BusConfig,
    ) -> Result<Self, Error> {
        let first = start_client(Arc::clone(&runtime), &config, 0).await?;
        Ok(Self {
            shared: Arc::new(Shared {
                runtime,
                config,
                current: RwLock::new(Arc::new(first)),
                renewing: AtomicBool::new(false),
            }),
            renewals: Mutex::default(),
        })
    }

    pub(crate) fn current(&self) -> Arc<Generation> {
        self.shared.current()
    }

    /// Notes a failed send, and has the client replaced if it has given up on the broker.
    pub(crate) fn failed(&self, generation: &Generation, error: &ClientError) {
        if error.descriptor().code().as_str() != CONNECTION_FAILED {
            return;
        }
        let failures = generation.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let doublings = generation
            .fruitless
            .load(Ordering::Relaxed)
            .min(RENEWAL_DOUBLINGS_MAX);
        let pause = RENEWAL_PAUSE * 2_u32.pow(doublings);
        let due = failures >= FAILURES_BEFORE_RENEWAL && generation.started.elapsed() >= pause;
        if due && !self.shared.renewing.swap(true, Ordering::AcqRel) {
            let mut renewals = self.renewals();
            // Forgets those that have ended.
            while renewals.try_join_next().is_some() {}
            renewals.spawn(Arc::clone(&self.shared).renew());
        }
    }

    /// Closes the client; nothing may be in flight any more.
    pub(crate) async fn shutdown(&self, limit: Duration) {
        // No further replacement begins.
        self.shared.renewing.store(true, Ordering::Release);
        let mut renewals = std::mem::take(&mut *self.renewals());
        // One that is under way swaps the client or fails, and closes the old one, in bounded time.
        if timeout(limit, async {
            while renewals.join_next().await.is_some() {}
        })
        .await
        .is_err()
        {
            tracing::warn!("a replaced connection to the broker did not close in time");
        }
        let mut client = self.current().client.clone();
        if timeout(limit, Box::pin(client.shutdown())).await.is_err() {
            tracing::warn!("the producer did not close in time");
        }
    }
}

impl Link {
    fn renewals(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.renewals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn current(&self) -> Arc<Generation> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn renew(self: Arc<Self>) {
        let old = self.current();
        let fruitless = old.fruitless.load(Ordering::Relaxed) + 1;
        match start_client(Arc::clone(&self.runtime), &self.config, fruitless).await {
            Ok(new) => {
                tracing::info!("the connection to the broker is made anew after failed sends");
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                self.renewing.store(false, Ordering::Release);
                self.retire(old).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the connection to the broker could not be made anew");
                self.renewing.store(false, Ordering::Release);
            }
        }
    }

    /// Closes a replaced client when nobody sends with it any more.
    async fn retire(&self, old: Arc<Generation>) {
        let limit = 2 * self.config.send_timeout;
        let begun = Instant::now();
        while Arc::strong_count(&old) > 1 && begun.elapsed() < limit {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut client = old.client.clone();
        drop(timeout(limit, Box::pin(client.shutdown())).await);
    }
}

async fn start_client(
    runtime: Arc<ClientRuntime>,
    config: &BusConfig,
    fruitless: u32,
) -> Result<Generation, Error> {
    let send_timeout_ms = u32::try_from(config.send_timeout.as_millis()).unwrap_or(u32::MAX);
    let mut client = DefaultMQProducer::builder(runtime)
        .client_config(config.client_config("producer")?)
        .producer_group(Names::new(&config.namespace).producer_group())
        .send_msg_timeout(send_timeout_ms)
        .retry_times_when_send_failed(SECOND_ATTEMPTS)
        .build();
    Box::pin(client.start())
        .await
        .map_err(|error| Error::client("starting the producer", &error))?;
    Ok(Generation {
        client,
        started: Instant::now(),
        failures: AtomicU32::new(0),
        fruitless: AtomicU32::new(fruitless),
    })
}
