//! How far a group has come, queue by queue: for whoever must know that everything which was sent
//! before an instant has been consumed, and whether anybody consumes at all.

use std::collections::BTreeMap;

use cheetah_string::CheetahString;
use rocketmq_client_rust::{ClientResult, ConsumerAdmin as _, TopicAdmin as _};

use rocketmq_model::common::message::message_queue::MessageQueue;
use rocketmq_protocol::code::response_code::ResponseCode;
use rocketmq_protocol::protocol::admin::topic_stats_table::TopicStatsTable;

use super::Admin;
use crate::error::answer_code;
use crate::{Error, Group, Topic};

/// One queue and a position in it. The queue's name is `broker/queue id`.
pub type QueuePosition = (String, i64);

const ENDS: &str = "reading a topic's offsets";
const CONSUMED: &str = "reading a group's offsets";
const NO_SUCH_TOPIC: i32 = ResponseCode::TopicNotExist as i32;

impl Admin {
    /// The end of every queue of a topic, on every broker: the offset that the next message gets. What
    /// a broker had stored before the call lies before them.
    ///
    /// # Errors
    /// Retryable errors of the client. All brokers answer or none counts: a missing queue would look
    /// like one that has nothing in it.
    pub async fn queue_ends(&self, topic: Topic) -> Result<Vec<QueuePosition>, Error> {
        self.until_queued().await?;
        let topic = self.names.topic(topic);
        let mut ends = BTreeMap::new();
        for broker in self.brokers().await? {
            let Some(stats) = self.topic_stats(&broker, &topic).await? else {
                return Err(Error::Client {
                    operation: ENDS,
                    reason: "a broker does not have the topic".to_owned(),
                });
            };
            insert_ends(&mut ends, &stats);
        }
        Ok(ends.into_iter().collect())
    }

    /// As [`Admin::queue_ends`], at once, of a topic that brokers make when they need it first: on one
    /// that does not have it, it has no queue.
    pub(super) async fn ends_of(&self, topic: &str) -> Result<Vec<QueuePosition>, Error> {
        let mut ends = BTreeMap::new();
        for broker in self.brokers().await? {
            if let Some(stats) = self.topic_stats(&broker, topic).await? {
                insert_ends(&mut ends, &stats);
            }
        }
        Ok(ends.into_iter().collect())
    }

    /// The queues of a topic on one broker; `None` if it does not have the topic.
    pub(super) async fn topic_stats(
        &self,
        broker: &CheetahString,
        topic: &str,
    ) -> Result<Option<TopicStatsTable>, Error> {
        let connection = self.connection().await;
        let answer = connection
            .client()
            .examine_topic_stats(topic.into(), Some(broker.clone()));
        match connection.answer(ENDS, answer).await? {
            Err(error) if answer_code(&error) == Some(NO_SUCH_TOPIC) => Ok(None),
            answer => answered(ENDS, answer).map(Some),
        }
    }

    /// How far a group has acknowledged each queue of a topic. Consumers report once a second, so it
    /// trails by that much. A queue that the group never read is at 0.
    ///
    /// A message that a consumer handed back waits for its redelivery elsewhere and holds nothing up
    /// here; [`Redeliveries`](crate::Redeliveries) finds it.
    ///
    /// # Errors
    /// As [`Admin::queue_ends`].
    pub async fn consumed(&self, group: Group, topic: Topic) -> Result<Vec<QueuePosition>, Error> {
        self.consumed_of(&self.names.group(group), &self.names.topic(topic))
            .await
    }

    pub(super) async fn consumed_of(
        &self,
        group: &str,
        topic: &str,
    ) -> Result<Vec<QueuePosition>, Error> {
        let mut consumed = BTreeMap::new();
        for broker in self.brokers().await? {
            let connection = self.connection().await;
            let answer = connection.client().examine_consume_stats(
                group.into(),
                Some(topic.into()),
                None,
                Some(broker),
                None,
            );
            let stats = answered(CONSUMED, connection.answer(CONSUMED, answer).await?)?;
            for (queue, offsets) in &stats.offset_table {
                consumed.insert(queue_name(queue), offsets.get_consumer_offset().max(0));
            }
        }
        Ok(consumed.into_iter().collect())
    }

    /// How many clients of a group are connected. An answer also says that every broker is there; a
    /// broker that does not answer is an error, never a zero.
    ///
    /// # Errors
    /// Retryable errors of the client.
    pub async fn consumers_alive(&self, group: Group) -> Result<usize, Error> {
        Ok(self.consumer_ids(group).await?.len())
    }
}

fn insert_ends(ends: &mut BTreeMap<String, i64>, stats: &TopicStatsTable) {
    for (queue, offsets) in stats.get_offset_table() {
        ends.insert(queue_name(queue), offsets.get_max_offset());
    }
}

fn queue_name(queue: &MessageQueue) -> String {
    format!("{}/{}", queue.broker_name(), queue.queue_id())
}

pub(super) fn answered<T>(operation: &'static str, answer: ClientResult<T>) -> Result<T, Error> {
    answer.map_err(|error| Error::client(operation, &error))
}

/// Whether a group has come as far as `ends` in every queue. A queue that is unknown to the group
/// counts as not begun.
#[must_use]
pub fn has_reached(ends: &[QueuePosition], consumed: &[QueuePosition]) -> bool {
    let consumed: BTreeMap<&str, i64> = consumed
        .iter()
        .map(|(queue, offset)| (queue.as_str(), *offset))
        .collect();
    ends.iter()
        .all(|(queue, end)| *end <= consumed.get(queue.as_str()).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(positions: &[(&str, i64)]) -> Vec<QueuePosition> {
        positions
            .iter()
            .map(|(queue, offset)| ((*queue).to_owned(), *offset))
            .collect()
    }

    #[test]
    fn every_queue_must_have_been_consumed_to_its_end() {
        let ends = at(&[("b/0", 3), ("b/1", 0)]);
        assert!(has_reached(&ends, &at(&[("b/0", 3), ("b/1", 0)])));
        assert!(has_reached(&ends, &at(&[("b/0", 4)])));
        assert!(!has_reached(&ends, &at(&[("b/0", 2), ("b/1", 9)])));
        assert!(!has_reached(&ends, &[]));
        assert!(has_reached(&[], &[]));
    }
}
