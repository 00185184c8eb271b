//! One membership of a consumer group: a client that subscribes, and its way in and out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rocketmq_client_rust::{ClientRuntime, DefaultMQPushConsumer, MQPushConsumer as _};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::listener::Listener;
use crate::{BatchHandler, BusConfig, ConsumerConfig, Error};

/// What the client may take beyond the running handlers' deadline to persist offsets and to leave its
/// group. Measured: 6–100 ms, and 6 s while the broker was frozen.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// What the client waits beyond the handlers' deadline for batches that are running.
const HANDLER_OVERTIME: Duration = Duration::from_secs(1);

/// How long the name server and the broker may take to answer a member's question.
const PROBE_LIMIT: Duration = Duration::from_secs(3);

/// All that it takes to join, once and again.
pub(crate) struct Plan {
    pub(crate) runtime: Arc<ClientRuntime>,
    pub(crate) bus: BusConfig,
    pub(crate) config: ConsumerConfig,
    /// Full names, from the group and the topics of `config`.
    pub(crate) group: String,
    pub(crate) topics: Vec<String>,
    pub(crate) handler: Arc<dyn BatchHandler>,
    pub(crate) handle: Handle,
}

pub(crate) struct Member {
    client: DefaultMQPushConsumer,
    pub(crate) since: Instant,
}

impl Plan {
    /// The longest that leaving takes.
    pub(crate) fn leave_limit(&self) -> Duration {
        self.config.handler_deadline + HANDLER_OVERTIME + CLOSE_LIMIT
    }

    pub(crate) async fn join(&self) -> Result<Member, Error> {
        let config = &self.config;
        let running = config.handler_deadline + HANDLER_OVERTIME;
        let mut client = DefaultMQPushConsumer::builder(Arc::clone(&self.runtime))
            .client_config(self.bus.client_config(&self.group)?)
            .consumer_group(self.group.as_str())
            // The client's default, the last offset, would skip what was sent before the group existed.
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .consume_thread_min(config.threads)
            .consume_thread_max(config.threads)
            .consume_message_batch_max_size(config.batch_max)
            .pull_batch_size(config.batch_max)
            .max_reconsume_times(config.max_redeliveries)
            .await_termination_millis_when_shutdown(
                u64::try_from(running.as_millis()).unwrap_or(u64::MAX),
            )
            .build();
        for topic in &self.topics {
            client
                .subscribe(topic.as_str(), "*")
                .await
                .map_err(|error| Error::client("subscribing", &error))?;
        }
        client.register_message_listener_concurrently(Listener {
            handler: Arc::clone(&self.handler),
            handle: self.handle.clone(),
            deadline: config.handler_deadline,
        });
        Box::pin(client.start())
            .await
            .map_err(|error| Error::client("starting the consumer", &error))?;
        Ok(Member {
            client,
            since: Instant::now(),
        })
    }
}

impl Member {
    /// Whether this client still reaches the name server and the broker of a topic's first queue.
    pub(crate) async fn reaches(&mut self, topic: &str) -> bool {
        let client = &mut self.client;
        let probe = async {
            let queues = client.fetch_subscribe_message_queues(topic).await.ok()?;
            client.max_offset(queues.first()?).await.ok()
        };
        matches!(timeout(PROBE_LIMIT, Box::pin(probe)).await, Ok(Some(_)))
    }

    pub(crate) async fn pause(&self) {
        self.client.suspend().await;
    }

    pub(crate) async fn resume(&self) {
        self.client.resume().await;
    }

    /// Stops receiving, waits for running batches, reports what is done and leaves the group.
    pub(crate) async fn leave(&mut self, limit: Duration) {
        if timeout(limit, Box::pin(self.client.shutdown()))
            .await
            .is_err()
        {
            tracing::warn!("a consumer did not leave its group in time");
        }
    }
}
