//! One membership of a consumer group: a client that subscribes, and its way in and out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rocketmq_client_rust::{ClientRuntime, DefaultMQPushConsumer, MQPushConsumer as _};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::message::MessageQueue;
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
    /// Its queues that had something to fetch at the last look.
    behind: BTreeMap<MessageQueue, Fetched>,
}

/// How far a member has come in one of its queues. All that it has fetched is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fetched {
    asked_at_ms: u64,
    acknowledged: i64,
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
            behind: BTreeMap::new(),
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

    /// Takes the queues that are this member's share, and gives up the others.
    ///
    /// The client does so when the broker tells it that members came or went, unless it is at it just then:
    /// that word is lost, and the queues of whoever left belong to nobody for up to 20 s.
    pub(crate) async fn share_queues(&self) {
        self.client.resume().await;
    }

    /// Whether messages wait in one of this member's queues that it has not asked for since the last
    /// look, although it had nothing else of that queue to do.
    ///
    /// The broker answers a waiting question as soon as there is a message, so what was there at two looks
    /// was never answered: the question, or its answer, went down with a connection. The client asks
    /// again after 30 s.
    pub(crate) async fn has_stalled(&mut self) -> bool {
        let looked = timeout(PROBE_LIMIT, Box::pin(self.look_behind())).await;
        let behind = looked.ok().flatten().unwrap_or_default();
        let stalled = behind
            .iter()
            .any(|(queue, fetched)| self.behind.get(queue) == Some(fetched));
        self.behind = behind;
        stalled
    }

    /// Nothing when the client or the broker does not answer.
    async fn look_behind(&mut self) -> Option<BTreeMap<MessageQueue, Fetched>> {
        let client = &mut self.client;
        let info = client.consumer_running_info().await.ok()?;
        let mut behind = BTreeMap::new();
        for (queue, state) in info.mq_table {
            let fetched = Fetched {
                asked_at_ms: state.last_pull_timestamp,
                acknowledged: state.commit_offset.max(0),
            };
            let idle = !state.droped && state.cached_msg_count == 0;
            if idle && client.max_offset(&queue).await.ok()? > fetched.acknowledged {
                behind.insert(queue, fetched);
            }
        }
        Some(behind)
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
