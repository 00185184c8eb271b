//! Receiving: batches to a handler, acknowledged as a whole.

use std::sync::Arc;
use std::time::Duration;

use rocketmq_client_rust::{DefaultMQPushConsumer, MQPushConsumer as _};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::listener::Listener;
use crate::names::Names;
use crate::runtime::ThreadLease;
use crate::{BatchHandler, BusConfig, BusRuntime, Error, Group, Topic};

/// The longest handler deadline. The client's own limits for a listener lie above it (15 minutes), or
/// it would take a running handler for a failed one.
pub const HANDLER_DEADLINE_MAX: Duration = Duration::from_secs(600);

/// The largest batch: what the broker hands out in one answer when it is set up for it.
const BATCH_MAX: u32 = 256;

/// What the client may take beyond the running handlers' deadline to persist offsets and to leave its
/// group. Measured: 6–100 ms, and 6 s while the broker was frozen.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How a group's messages are consumed by this process.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// The group.
    pub group: Group,
    /// What it subscribes to; plays no part for dead letters, whose topic belongs to the group.
    pub topics: Vec<Topic>,
    /// The most messages of one batch, 1 to 256.
    pub batch_max: u32,
    /// Batches that are handled at a time.
    pub threads: u32,
    /// When a handler is given up and its batch redelivered.
    pub handler_deadline: Duration,
    /// Redeliveries before the broker moves a message to the group's dead letters.
    pub max_redeliveries: i32,
}

impl ConsumerConfig {
    fn validate(&self) -> Result<(), Error> {
        let wrong = |setting, problem: String| Err(Error::Setting { setting, problem });
        if !(1..=BATCH_MAX).contains(&self.batch_max) {
            return wrong(
                "batch_max",
                format!("must be 1 to {BATCH_MAX}, is {}", self.batch_max),
            );
        }
        if self.threads == 0 {
            return wrong("threads", "must be at least 1".to_owned());
        }
        if self.handler_deadline.is_zero() || self.handler_deadline > HANDLER_DEADLINE_MAX {
            return wrong(
                "handler_deadline",
                "must be above 0 and at most 600 s".to_owned(),
            );
        }
        if self.max_redeliveries < 0 {
            return wrong("max_redeliveries", "must not be negative".to_owned());
        }
        Ok(())
    }
}

/// A running consumer of one group. Dropping it without [`Consumer::shutdown`] loses nothing, but what
/// it was working on comes again.
pub struct Consumer {
    client: DefaultMQPushConsumer,
    handler_deadline: Duration,
    _threads: ThreadLease,
}

impl Consumer {
    /// Starts consuming. Works without a broker: messages come once it is there. The first ones take
    /// 1.5 to 4.3 s (measured), for queues are shared out among the group's members before.
    ///
    /// # Errors
    /// [`Error::Setting`] for a wrong setting; retryable errors of the client.
    pub async fn start(
        runtime: &BusRuntime,
        bus: &BusConfig,
        config: ConsumerConfig,
        handler: Arc<dyn BatchHandler>,
    ) -> Result<Self, Error> {
        if config.topics.is_empty() {
            return Err(Error::Setting {
                setting: "topics",
                problem: "must not be empty".to_owned(),
            });
        }
        let names = Names::new(&bus.namespace);
        let topics = config
            .topics
            .iter()
            .map(|topic| names.topic(*topic))
            .collect();
        let group = names.group(config.group);
        Self::subscribe(runtime, bus, &config, group, topics, handler).await
    }

    /// Starts draining the dead letters of a group, as the group `<group>-dlq`.
    ///
    /// # Errors
    /// As [`Consumer::start`].
    pub async fn start_dead_letters(
        runtime: &BusRuntime,
        bus: &BusConfig,
        config: ConsumerConfig,
        handler: Arc<dyn BatchHandler>,
    ) -> Result<Self, Error> {
        let names = Names::new(&bus.namespace);
        let topics = vec![names.dead_letter_topic(config.group)];
        let group = names.dead_letter_group(config.group);
        Self::subscribe(runtime, bus, &config, group, topics, handler).await
    }

    async fn subscribe(
        runtime: &BusRuntime,
        bus: &BusConfig,
        config: &ConsumerConfig,
        group: String,
        topics: Vec<String>,
        handler: Arc<dyn BatchHandler>,
    ) -> Result<Self, Error> {
        config.validate()?;
        let threads = runtime.lease_listener_threads(config.threads)?;
        let role = group.clone();
        let await_ms = u64::try_from(config.handler_deadline.as_millis()).unwrap_or(u64::MAX);
        let mut client = DefaultMQPushConsumer::builder(runtime.client())
            .client_config(bus.client_config(&role)?)
            .consumer_group(group)
            // The client's default, the last offset, would skip what was sent before the group existed.
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .consume_thread_min(config.threads)
            .consume_thread_max(config.threads)
            .consume_message_batch_max_size(config.batch_max)
            .pull_batch_size(config.batch_max)
            .max_reconsume_times(config.max_redeliveries)
            .await_termination_millis_when_shutdown(await_ms.saturating_add(1_000))
            .build();
        for topic in topics {
            client
                .subscribe(topic, "*")
                .await
                .map_err(|error| Error::client("subscribing", &error))?;
        }
        client.register_message_listener_concurrently(Listener {
            handler,
            handle: Handle::current(),
            deadline: config.handler_deadline,
        });
        Box::pin(client.start())
            .await
            .map_err(|error| Error::client("starting the consumer", &error))?;
        Ok(Self {
            client,
            handler_deadline: config.handler_deadline,
            _threads: threads,
        })
    }

    /// Stops fetching; what was fetched is still handled.
    pub async fn pause(&self) {
        self.client.suspend().await;
    }

    /// Fetches again.
    pub async fn resume(&self) {
        self.client.resume().await;
    }

    /// Stops receiving, lets running handlers finish, acknowledges and leaves the group. Batches that
    /// were fetched but not begun stay unacknowledged and go to another member.
    pub async fn shutdown(mut self) {
        let limit = self.handler_deadline + CLOSE_LIMIT;
        if timeout(limit, Box::pin(self.client.shutdown()))
            .await
            .is_err()
        {
            tracing::warn!("the consumer did not leave its group in time");
        }
    }
}
