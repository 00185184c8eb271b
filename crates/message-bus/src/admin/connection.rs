//! The admin's client, and its replacement once it has given up on a server that may be back.
//!
//! After five failed connects the client refuses a server for 30 s, whether or not it is back, and a
//! connection that hangs is not noticed. A client that was made anew has neither, so one whose question
//! found no way is replaced before the next. That others were answered says nothing: they may have gone
//! to another server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rocketmq_client_rust::{ClientResult, ClientRuntime, DefaultMQAdminExt, DefaultMQAdminExtImpl};
use tokio::time::timeout;

use super::CALL_LIMIT;
use crate::error::is_transport;
use crate::names::Names;
use crate::{BusConfig, Error};

/// The least age of a client before it is replaced: 3,600 replacements in an hour's outage, each costing
/// some 20 ms, and only while somebody asks.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

/// One client and what is known of its health.
pub(super) struct Connection {
    runtime: Arc<ClientRuntime>,
    config: BusConfig,
    client: DefaultMQAdminExt,
    started: Instant,
    broken: AtomicBool,
}

impl Connection {
    pub(super) async fn start(
        runtime: Arc<ClientRuntime>,
        config: BusConfig,
    ) -> Result<Self, Error> {
        let client = start_client(Arc::clone(&runtime), &config).await?;
        Ok(Self {
            runtime,
            config,
            client,
            started: Instant::now(),
            broken: AtomicBool::new(false),
        })
    }

    /// What questions are put to.
    pub(super) fn client(&self) -> &DefaultMQAdminExtImpl {
        self.client.inner()
    }

    /// Awaits an answer within the time limit of a question, and notes whether there was a way.
    pub(super) async fn answer<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = ClientResult<T>>,
    ) -> Result<ClientResult<T>, Error> {
        // Set before the question and taken back by an answer: a caller who stops waiting has not been
        // answered, either.
        let was_broken = self.broken.swap(true, Ordering::Relaxed);
        let answer = timeout(CALL_LIMIT, Box::pin(answer))
            .await
            .map_err(|_| Error::Timeout {
                operation,
                after_ms: CALL_LIMIT.as_millis(),
            })?;
        let is_broken = was_broken || matches!(&answer, Err(error) if is_transport(error));
        self.broken.store(is_broken, Ordering::Relaxed);
        Ok(answer)
    }

    /// Replaces a client that has given up.
    pub(super) async fn renew_if_broken(&mut self) {
        if !self.broken.load(Ordering::Relaxed) || self.started.elapsed() < RENEWAL_PAUSE {
            return;
        }
        match start_client(Arc::clone(&self.runtime), &self.config).await {
            Ok(new) => {
                let mut old = std::mem::replace(&mut self.client, new);
                self.started = Instant::now();
                self.broken.store(false, Ordering::Relaxed);
                // Nobody waits for it, and the runtime ends what is left of it.
                tokio::spawn(async move { close(&mut old).await });
            }
            Err(error) => tracing::warn!(%error, "the admin client could not be made anew"),
        }
    }

    pub(super) async fn shutdown(&mut self) {
        close(&mut self.client).await;
    }
}

async fn start_client(
    runtime: Arc<ClientRuntime>,
    config: &BusConfig,
) -> Result<DefaultMQAdminExt, Error> {
    let names = Names::new(&config.namespace);
    let client_config = config.client_config("admin")?;
    let mut client = DefaultMQAdminExt::with_admin_ext_group(runtime, names.admin_group());
    *client.client_config_mut() = client_config;
    Box::pin(client.start())
        .await
        .map_err(|error| Error::client("starting the admin client", &error))?;
    Ok(client)
}

async fn close(client: &mut DefaultMQAdminExt) {
    if timeout(CALL_LIMIT, Box::pin(client.shutdown()))
        .await
        .is_err()
    {
        tracing::warn!("the admin client did not close in time");
    }
}
