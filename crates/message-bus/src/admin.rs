//! Topics and lag: for the migration, for readiness and for the question "is it settled?".

mod connection;
mod inspect;
mod progress;
mod redeliveries;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cheetah_string::CheetahString;
use rocketmq_client_rust::{ClientRuntime, ConsumerAdmin as _, RouteAdmin as _, TopicAdmin as _};
use rocketmq_model::topic::TopicConfig;
use rocketmq_protocol::code::response_code::ResponseCode;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::sleep;

use crate::names::Names;
use crate::{BusConfig, BusRuntime, Error, Group, Topic};
use connection::Connection;

pub use inspect::TopicState;
pub use progress::{QueuePosition, has_reached};
pub use redeliveries::{MayCome, Redeliveries};

/// The time limit of one question. The client's own is 5 s, but it may ask several servers in turn.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// How long new topics may take to be routable. Milliseconds on one broker; a name server that has
/// just restarted hears of the broker within 10 s (the least that brokers accept) to 30 s.
const ROUTE_LIMIT: Duration = Duration::from_secs(40);

/// Between two looks at the routes.
const ROUTE_POLL: Duration = Duration::from_millis(100);

/// Dead letters are rare; one queue keeps them in their order.
const DEAD_LETTER_QUEUES: u32 = 1;

/// Questions and changes that concern the whole bus.
pub struct Admin {
    connection: Mutex<Connection>,
    names: Names,
}

/// A topic as it must be on every broker.
struct WantedTopic {
    name: String,
    queues: u32,
}

impl Admin {
    /// Starts the client. Succeeds without a broker; questions fail until one is there.
    ///
    /// # Errors
    /// [`Error::Setting`] for a wrong setting.
    pub async fn connect(runtime: &BusRuntime, config: &BusConfig) -> Result<Self, Error> {
        Self::start(runtime.client(), config).await
    }

    async fn start(runtime: Arc<ClientRuntime>, config: &BusConfig) -> Result<Self, Error> {
        Ok(Self {
            connection: Mutex::new(Connection::start(runtime, config.clone()).await?),
            names: Names::new(&config.namespace),
        })
    }

    /// The client, for one question. A hanging question holds the others up for its time limit.
    async fn connection(&self) -> MutexGuard<'_, Connection> {
        let mut connection = self.connection.lock().await;
        connection.renew_if_broken().await;
        connection
    }

    /// Whether a client without a past reaches a topic's brokers.
    pub(crate) async fn reaches_afresh(
        runtime: Arc<ClientRuntime>,
        config: &BusConfig,
        topic: &str,
    ) -> bool {
        let Ok(admin) = Self::start(runtime, config).await else {
            return false;
        };
        let reached = {
            let connection = admin.connection().await;
            let client = connection.client();
            let answer = client.examine_topic_stats(topic.into(), None);
            matches!(
                connection.answer("reading a topic's offsets", answer).await,
                Ok(Ok(stats)) if !stats.get_offset_table().is_empty()
            )
        };
        admin.shutdown().await;
        reached
    }

    /// Creates what is missing of the system's topics and of its groups' dead-letter topics on every
    /// broker, and waits until the name server hands out their routes. Changes nothing that is right.
    ///
    /// # Errors
    /// Retryable errors of the client, and [`Error::NoRoute`].
    pub async fn ensure_topics(&self) -> Result<(), Error> {
        let brokers = self.brokers().await?;
        let wanted = self.wanted_topics();
        let started = Instant::now();
        for topic in self.unroutable(&wanted, brokers.len()).await? {
            for broker in &brokers {
                self.create(topic, broker).await?;
            }
        }
        loop {
            let missing = self.unroutable(&wanted, brokers.len()).await?;
            if missing.is_empty() {
                return Ok(());
            }
            if started.elapsed() > ROUTE_LIMIT {
                let names: Vec<&str> = missing.iter().map(|topic| topic.name.as_str()).collect();
                return Err(Error::NoRoute {
                    topics: names.join(", "),
                    after_ms: started.elapsed().as_millis(),
                });
            }
            sleep(ROUTE_POLL).await;
        }
    }

    /// Messages that a group has not acknowledged: those of the topic and of its redeliveries that are
    /// due. Consumers report once a second, so it trails by that much; redeliveries that wait for
    /// their delay are not counted.
    ///
    /// # Errors
    /// Retryable errors of the client.
    pub async fn lag(&self, group: Group, topic: Topic) -> Result<u64, Error> {
        let mut lag = 0;
        for broker in self.brokers().await? {
            for name in [self.names.topic(topic), self.names.retry_topic(group)] {
                lag += self.lag_on(&broker, self.names.group(group), name).await?;
            }
        }
        Ok(lag)
    }

    /// The dead letters of a group that its dead-letter group has not acknowledged.
    ///
    /// # Errors
    /// Retryable errors of the client.
    pub async fn dead_letter_lag(&self, group: Group) -> Result<u64, Error> {
        let mut lag = 0;
        for broker in self.brokers().await? {
            let (reader, topic) = (
                self.names.dead_letter_group(group),
                self.names.dead_letter_topic(group),
            );
            lag += self.lag_on(&broker, reader, topic).await?;
        }
        Ok(lag)
    }

    /// The ids of a group's clients that are connected.
    ///
    /// # Errors
    /// Retryable errors of the client.
    pub async fn consumer_ids(&self, group: Group) -> Result<Vec<String>, Error> {
        let mut ids = BTreeSet::new();
        let group = CheetahString::from(self.names.group(group));
        for broker in self.brokers().await? {
            let connection = self.connection().await;
            let answer = connection
                .client()
                .examine_consumer_connection_info(group.clone(), Some(broker));
            match connection.answer("listing consumers", answer).await? {
                Ok(connections) => ids.extend(
                    connections
                        .get_connection_set()
                        .iter()
                        .map(|connection| connection.get_client_id().to_string()),
                ),
                // The broker's way of saying that nobody is there.
                Err(error)
                    if error.broker_response_code()
                        == Some(i32::from(ResponseCode::ConsumerNotOnline)) => {}
                Err(error) => return Err(Error::client("listing consumers", &error)),
            }
        }
        Ok(ids.into_iter().collect())
    }

    /// Closes the client.
    pub async fn shutdown(&self) {
        self.connection.lock().await.shutdown().await;
    }

    fn wanted_topics(&self) -> Vec<WantedTopic> {
        let own = Topic::ALL.into_iter().map(|topic| WantedTopic {
            name: self.names.topic(topic),
            queues: topic.queues(),
        });
        // The broker makes these with the first dead letter; made before, their consumers find them
        // at once and do not complain about a missing route until then.
        let dead_letters = Group::ALL.into_iter().map(|group| WantedTopic {
            name: self.names.dead_letter_topic(group),
            queues: DEAD_LETTER_QUEUES,
        });
        own.chain(dead_letters).collect()
    }

    /// The addresses of all masters.
    async fn brokers(&self) -> Result<Vec<CheetahString>, Error> {
        const OPERATION: &str = "listing brokers";
        let connection = self.connection().await;
        let info = connection
            .answer(OPERATION, connection.client().examine_broker_cluster_info())
            .await?
            .map_err(|error| Error::client(OPERATION, &error))?;
        let masters: BTreeSet<CheetahString> = info
            .broker_addr_table
            .unwrap_or_default()
            .values()
            .filter_map(|broker| broker.broker_addrs().get(&MASTER_ID).cloned())
            .collect();
        if masters.is_empty() {
            return Err(Error::Client {
                operation: OPERATION,
                reason: "the name server knows no broker".to_owned(),
            });
        }
        Ok(masters.into_iter().collect())
    }

    async fn unroutable<'a>(
        &self,
        wanted: &'a [WantedTopic],
        brokers: usize,
    ) -> Result<Vec<&'a WantedTopic>, Error> {
        let mut missing = Vec::new();
        for topic in wanted {
            let connection = self.connection().await;
            let answer = connection
                .client()
                .examine_topic_route_info(topic.name.as_str().into());
            // No route is an error to the client, and so is a name server that is away. The latter
            // has shown itself when the brokers were listed.
            let route = connection
                .answer("reading a route", answer)
                .await?
                .ok()
                .flatten();
            let right = route.map_or(0, |route| {
                route
                    .queue_datas
                    .iter()
                    .filter(|queues| {
                        queues.read_queue_nums >= topic.queues
                            && queues.write_queue_nums >= topic.queues
                    })
                    .count()
            });
            if right < brokers {
                missing.push(topic);
            }
        }
        Ok(missing)
    }

    async fn create(&self, topic: &WantedTopic, broker: &CheetahString) -> Result<(), Error> {
        const OPERATION: &str = "creating a topic";
        let config = TopicConfig::with_queues(topic.name.as_str(), topic.queues, topic.queues);
        let connection = self.connection().await;
        let answer = connection
            .client()
            .create_and_update_topic_config(broker.clone(), config);
        connection
            .answer(OPERATION, answer)
            .await?
            .map_err(|error| Error::client(OPERATION, &error))
    }

    async fn lag_on(
        &self,
        broker: &CheetahString,
        group: String,
        topic: String,
    ) -> Result<u64, Error> {
        const OPERATION: &str = "reading a group's offsets";
        let connection = self.connection().await;
        let answer = connection.client().examine_consume_stats(
            group.into(),
            Some(topic.into()),
            None,
            Some(broker.clone()),
            None,
        );
        let stats = connection
            .answer(OPERATION, answer)
            .await?
            .map_err(|error| Error::client(OPERATION, &error))?;
        let behind = stats.offset_table.values().map(|queue| {
            // A group that never read a queue has offset -1 or none; it starts at the first message.
            let consumed = queue.get_consumer_offset().max(0);
            u64::try_from(queue.get_broker_offset() - consumed).unwrap_or(0)
        });
        Ok(behind.sum())
    }
}

/// The broker id of a master.
const MASTER_ID: u64 = 0;
