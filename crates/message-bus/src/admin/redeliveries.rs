//! What consumers handed back, wherever it waits: for whoever must know that a message has had its
//! effect, and not only that it was fetched.
//!
//! A message that a consumer hands back counts as consumed where it came from. The broker keeps it
//! with the delayed messages of everybody until its delay is over, offers it again in the group's
//! retry topic, and so on; after the last attempt it goes to the group's dead letters, whose reader
//! may hand it back as well. Each of these moves is written to the next place before it is done at the
//! last one, so that at any instant a message is in one of them at least.
//!
//! A look goes through the places in the order in which a message travels. Between two places it
//! might slip by, from one that is still to be looked at to one that was looked at before; but then
//! it has passed a topic of the group, whose end has moved. So the ends are read again in the end, and
//! a look during which one of them moved knows nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cheetah_string::CheetahString;
use rocketmq_client_rust::BrokerAdmin as _;
use rocketmq_model::common::message::message_queue::MessageQueue;
use rocketmq_model::result::PullStatus;
use rocketmq_protocol::protocol::body::kv_table::KVTable;
use seckill_state_machine::BucketScope;
use tokio::time::{Instant, sleep};

use super::progress::answered;
use super::{Admin, CALL_LIMIT, QueuePosition, has_reached};
use crate::listener::incoming;
use crate::message::property;
use crate::{Error, Group, placed_scope};

/// Where the broker keeps every delayed message, one queue for each level of delay.
const DELAYED: &str = "SCHEDULE_TOPIC_XXXX";

/// Delayed messages asked for at once; the broker hands out 32 as it comes, 256 as it is shipped here.
const PULL_COUNT: i32 = 256;

/// Pulls of one look: 6,400 messages of a broker as it comes, at 1 to 3 ms each. Others may have far
/// more delayed messages than that; what is left is read by the next looks, and each only once.
const PULLS_PER_LOOK: u32 = 200;

/// Between two questions whether everything stored has been sorted into its queue.
const QUEUED_POLL: Duration = Duration::from_millis(20);

const STATISTICS: &str = "reading a broker's statistics";
const PULL: &str = "reading delayed messages";

/// Whose messages may come again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MayCome {
    /// Something moved, waits to be fetched, has not been read, or names no bucket.
    unknown: bool,
    buckets: BTreeSet<BucketScope>,
}

impl MayCome {
    const UNKNOWN: Self = Self {
        unknown: true,
        buckets: BTreeSet::new(),
    };

    /// Whether a message of this bucket may come again. Only a "no" is certain.
    #[must_use]
    pub fn of(&self, bucket: &BucketScope) -> bool {
        self.unknown || self.buckets.contains(bucket)
    }
}

/// Looks for what the consumers of a group, and the readers of its dead letters, handed back.
pub struct Redeliveries {
    admin: Arc<Admin>,
    /// Topics and who reads them, in the order in which a message travels.
    places: [Place; 3],
    levels: BTreeMap<(CheetahString, i32), Level>,
}

struct Place {
    topic: String,
    reader: String,
}

/// A queue of delayed messages. They leave it from the front, and never change.
#[derive(Debug, Default)]
struct Level {
    /// What lies before has been read.
    read: i64,
    /// The group's own among them, by offset, with their bucket.
    own: BTreeMap<i64, Option<BucketScope>>,
}

impl Level {
    /// Forgets what the broker has delivered before `delivered`, and begins anew in a queue that is
    /// not the one that was read.
    fn follow(&mut self, delivered: i64, end: i64) {
        if self.read > end {
            *self = Self::default();
        }
        self.read = self.read.max(delivered);
        self.own = self.own.split_off(&delivered);
    }
}

impl Redeliveries {
    /// Of this group.
    #[must_use]
    pub fn new(admin: Arc<Admin>, group: Group) -> Self {
        let names = &admin.names;
        let (consumers, readers) = (names.group(group), names.dead_letter_group(group));
        let places = [
            (names.retry_topic(group), consumers),
            (names.dead_letter_topic(group), readers.clone()),
            (names.dead_letter_retry_topic(group), readers),
        ];
        Self {
            places: places.map(|(topic, reader)| Place { topic, reader }),
            levels: BTreeMap::new(),
            admin,
        }
    }

    /// One look. What the group had acknowledged in its topics before the look has been handed back
    /// before it, too: of that, nothing is missed.
    ///
    /// # Errors
    /// Retryable errors of the client; then nothing is known.
    pub async fn look(&mut self) -> Result<MayCome, Error> {
        let mut ends = Vec::new();
        for place in &self.places {
            let end = self.admin.ends_of(&place.topic).await?;
            let consumed = self.admin.consumed_of(&place.reader, &place.topic).await?;
            if !has_reached(&end, &consumed) {
                return Ok(MayCome::UNKNOWN);
            }
            ends.push(end);
        }
        self.admin.until_queued().await?;
        if !self.read_delayed().await? {
            return Ok(MayCome::UNKNOWN);
        }
        self.admin.until_queued().await?;
        if self.ends().await? != ends {
            return Ok(MayCome::UNKNOWN);
        }
        Ok(self.delayed())
    }

    async fn ends(&self) -> Result<Vec<Vec<QueuePosition>>, Error> {
        let mut ends = Vec::new();
        for place in &self.places {
            ends.push(self.admin.ends_of(&place.topic).await?);
        }
        Ok(ends)
    }

    /// Reads on in every queue of delayed messages; says whether to the end of all.
    async fn read_delayed(&mut self) -> Result<bool, Error> {
        let mut pulls = PULLS_PER_LOOK;
        let mut complete = true;
        for broker in self.admin.brokers().await? {
            // Before the queues are read: what is delivered after this is found in them as well.
            let delivered = self.admin.statistics(&broker).await?;
            let Some(stats) = self.admin.topic_stats(&broker, DELAYED).await? else {
                continue;
            };
            for (queue, offsets) in stats.get_offset_table() {
                let at = (broker.clone(), queue.queue_id());
                let mut level = self.levels.remove(&at).unwrap_or_default();
                let end = offsets.get_max_offset();
                level.follow(delivered_of(&delivered, queue)?, end);
                let read = self.read_level(&at.0, queue, &mut level, end, &mut pulls);
                let read = read.await;
                self.levels.insert(at, level);
                complete &= read?;
            }
        }
        Ok(complete)
    }

    async fn read_level(
        &self,
        broker: &CheetahString,
        queue: &MessageQueue,
        level: &mut Level,
        end: i64,
        pulls: &mut u32,
    ) -> Result<bool, Error> {
        while level.read < end {
            if *pulls == 0 {
                return Ok(false);
            }
            *pulls -= 1;
            let next = self.pull(broker, queue, level).await?;
            if next <= level.read {
                return Ok(false);
            }
            level.read = next;
        }
        Ok(true)
    }

    /// One page; returns where the next one begins.
    async fn pull(
        &self,
        broker: &CheetahString,
        queue: &MessageQueue,
        level: &mut Level,
    ) -> Result<i64, Error> {
        let limit_ms = u64::try_from(CALL_LIMIT.as_millis()).unwrap_or(u64::MAX);
        let connection = self.admin.connection().await;
        let page = connection
            .client()
            .pull_message_from_queue(broker, queue, "*", level.read, PULL_COUNT, limit_ms);
        let page = answered(PULL, connection.answer(PULL, page).await?)?;
        if *page.pull_status() == PullStatus::Found {
            for message in page.msg_found_list().unwrap_or_default() {
                let message = incoming(message);
                if self.is_own(message.property(property::DELAYED_TOPIC)) {
                    let bucket = placed_scope(&message);
                    level.own.insert(message.queue_offset, bucket);
                }
            }
        }
        Ok(i64::try_from(page.next_begin_offset()).unwrap_or(i64::MAX))
    }

    fn is_own(&self, topic: Option<&str>) -> bool {
        topic.is_some_and(|topic| self.places.iter().any(|place| place.topic == topic))
    }

    /// What is known of the delayed messages.
    fn delayed(&self) -> MayCome {
        let mut may_come = MayCome::default();
        for bucket in self.levels.values().flat_map(|level| level.own.values()) {
            match bucket {
                Some(bucket) => {
                    may_come.buckets.insert(bucket.clone());
                }
                None => may_come.unknown = true,
            }
        }
        may_come
    }
}

/// Where the broker goes on delivering from a queue of delayed messages. It names those that it has
/// delivered from, as `<next>,<end>`.
fn delivered_of(statistics: &KVTable, queue: &MessageQueue) -> Result<i64, Error> {
    let level = queue.queue_id() + 1;
    let name = CheetahString::from(format!("scheduleMessageOffset_{level}"));
    let Some(text) = statistics.table.get(&name) else {
        return Ok(0);
    };
    let next = text.as_str().split(',').next().unwrap_or_default();
    next.trim().parse().map_err(|_| malformed(&name))
}

fn malformed(name: &str) -> Error {
    Error::Client {
        operation: STATISTICS,
        reason: format!("{name} is missing or no number"),
    }
}

impl Admin {
    /// Waits until every broker has sorted what it had stored before the call into its queues. It does
    /// so a moment after it has acknowledged a message; until then no queue's end counts it.
    ///
    /// # Errors
    /// Retryable errors of the client; [`Error::Timeout`] for a broker that does not keep up.
    pub(super) async fn until_queued(&self) -> Result<(), Error> {
        const BEHIND: &str = "dispatchBehindBytes";
        for broker in self.brokers().await? {
            let started = Instant::now();
            loop {
                let statistics = self.statistics(&broker).await?;
                let behind = statistics.table.get(BEHIND);
                let behind = behind.and_then(|bytes| bytes.trim().parse::<i64>().ok());
                if behind.ok_or_else(|| malformed(BEHIND))? <= 0 {
                    break;
                }
                if started.elapsed() >= CALL_LIMIT {
                    return Err(Error::Timeout {
                        operation: "waiting for the broker's queues",
                        after_ms: CALL_LIMIT.as_millis(),
                    });
                }
                sleep(QUEUED_POLL).await;
            }
        }
        Ok(())
    }

    async fn statistics(&self, broker: &CheetahString) -> Result<KVTable, Error> {
        let connection = self.connection().await;
        let answer = connection
            .client()
            .fetch_broker_runtime_stats(broker.clone());
        answered(STATISTICS, connection.answer(STATISTICS, answer).await?)
    }
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::{ActivityId, ActivityVersion, BucketId, Scope, SkuId};

    use super::*;

    fn bucket(n: u32) -> BucketScope {
        let scope = Scope {
            activity_id: ActivityId::parse("a1").unwrap(),
            sku_id: SkuId::parse("s1").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        };
        scope.bucket(BucketId::new(n).unwrap())
    }

    #[test]
    fn what_is_unknown_may_come_for_everybody() {
        let may_come = MayCome {
            buckets: [bucket(1)].into(),
            ..MayCome::default()
        };
        assert!(may_come.of(&bucket(1)) && !may_come.of(&bucket(2)));
        assert!(MayCome::UNKNOWN.of(&bucket(2)));
        assert!(!MayCome::default().of(&bucket(1)));
    }

    #[test]
    fn a_level_forgets_what_was_delivered_and_a_queue_that_is_another() {
        let mut level = Level {
            read: 10,
            own: [(3, Some(bucket(0))), (7, None)].into(),
        };
        level.follow(5, 12);
        assert_eq!((level.read, level.own.len()), (10, 1));
        level.follow(11, 12);
        assert_eq!((level.read, level.own.len()), (11, 0));
        level.own.insert(11, None);
        level.follow(0, 4);
        assert_eq!((level.read, level.own.len()), (0, 0));
    }

    #[test]
    fn a_level_that_nothing_was_delivered_from_begins_at_its_front() {
        let queue = |id| MessageQueue::from_parts(DELAYED, "b", id);
        let named = |text: &str| KVTable {
            table: [("scheduleMessageOffset_3".into(), text.into())].into(),
        };
        assert_eq!(delivered_of(&named("7,9"), &queue(2)).unwrap(), 7);
        assert_eq!(delivered_of(&named("7,9"), &queue(3)).unwrap(), 0);
        assert!(delivered_of(&named("many"), &queue(2)).is_err());
    }
}
