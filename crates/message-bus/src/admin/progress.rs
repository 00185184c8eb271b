//! How far a group has come, queue by queue: for whoever must know that everything which was sent
//! before an instant has been consumed, and whether anybody consumes at all.

use std::collections::BTreeMap;

use cheetah_string::CheetahString;
use rocketmq_client_rust::{ClientResult, ConsumerAdmin as _, TopicAdmin as _};

use super::{Admin, limited};
use crate::{Error, Group, Topic};

/// One queue and a position in it. The queue's name is `broker/queue id`.
pub type QueuePosition = (String, i64);

const ENDS: &str = "reading a topic's offsets";
const CONSUMED: &str = "reading a group's offsets";

impl Admin {
    /// The end of every queue of a topic, on every broker: the offset that the next message gets.
    ///
    /// # Errors
    /// Retryable errors of the client. All brokers answer or none counts: a missing queue would look
    /// like one that has nothing in it.
    pub async fn queue_ends(&self, topic: Topic) -> Result<Vec<QueuePosition>, Error> {
        let name = CheetahString::from(self.names.topic(topic));
        let mut ends = BTreeMap::new();
        for broker in self.brokers().await? {
            let client = self.client.lock().await;
            let answer = client
                .inner()
                .examine_topic_stats(name.clone(), Some(broker));
            let stats = answered(ENDS, limited(ENDS, answer).await?)?;
            for (queue, offsets) in stats.get_offset_table() {
                let queue = format!("{}/{}", queue.broker_name(), queue.queue_id());
                ends.insert(queue, offsets.get_max_offset());
            }
        }
        Ok(ends.into_iter().collect())
    }

    /// How far a group has acknowledged each queue of a topic. Consumers report once a second, so it
    /// trails by that much. A queue that the group never read is at 0.
    ///
    /// A message that a consumer handed back waits for its redelivery elsewhere and holds nothing up
    /// here; [`Admin::lag`] counts it once its delay is over.
    ///
    /// # Errors
    /// As [`Admin::queue_ends`].
    pub async fn consumed(&self, group: Group, topic: Topic) -> Result<Vec<QueuePosition>, Error> {
        let mut consumed = BTreeMap::new();
        for broker in self.brokers().await? {
            let client = self.client.lock().await;
            let answer = client.inner().examine_consume_stats(
                self.names.group(group).into(),
                Some(self.names.topic(topic).into()),
                None,
                Some(broker),
                None,
            );
            let stats = answered(CONSUMED, limited(CONSUMED, answer).await?)?;
            for (queue, offsets) in &stats.offset_table {
                let queue = format!("{}/{}", queue.broker_name(), queue.queue_id());
                consumed.insert(queue, offsets.get_consumer_offset().max(0));
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

fn answered<T>(operation: &'static str, answer: ClientResult<T>) -> Result<T, Error> {
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
