//! Reads for whoever checks an installation: which brokers there are, and how each topic stands.

use rocketmq_client_rust::TopicAdmin as _;

use super::Admin;
use crate::Error;

/// One topic of the system, as it is to be and as the name server tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicState {
    /// Its full name.
    pub name: String,
    /// The queues that it must have on every broker, to read from and to write to.
    pub wanted: u32,
    /// The fewer of both on each broker that has it; empty when there is no route.
    pub found: Vec<u32>,
}

impl Admin {
    /// The addresses of all masters that the name server knows.
    ///
    /// # Errors
    /// Retryable errors of the client, also when the name server knows none.
    pub async fn broker_addresses(&self) -> Result<Vec<String>, Error> {
        let brokers = self.brokers().await?;
        Ok(brokers.iter().map(ToString::to_string).collect())
    }

    /// The system's topics and the dead-letter topics of its groups. Changes nothing.
    ///
    /// # Errors
    /// Retryable errors of the client.
    pub async fn topic_states(&self) -> Result<Vec<TopicState>, Error> {
        let mut states = Vec::new();
        for topic in self.wanted_topics() {
            let connection = self.connection().await;
            let answer = connection
                .client()
                .examine_topic_route_info(topic.name.as_str().into());
            // To the client, no route is an error like any other; whether the name server answers
            // is asked elsewhere.
            let route = connection
                .answer("reading a route", answer)
                .await?
                .ok()
                .flatten();
            let found = route.map_or_else(Vec::new, |route| {
                route
                    .queue_datas
                    .iter()
                    .map(|queues| queues.read_queue_nums.min(queues.write_queue_nums))
                    .collect()
            });
            states.push(TopicState {
                name: topic.name,
                wanted: topic.queues,
                found,
            });
        }
        Ok(states)
    }
}
