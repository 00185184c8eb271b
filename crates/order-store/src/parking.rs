//! Messages that cannot be processed, kept whole.
use std::collections::BTreeMap;

use seckill_state_machine::{BucketScope, OrderRequest, TimestampMs};

use crate::{Error, Store};

/// A message to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The topic it was read from.
    pub topic: String,
    /// The consumer group that gave up.
    pub consumer_group: String,
    /// The message id that its sender gave, if it can be read.
    pub message_key: Option<String>,
    /// The broker's own id.
    pub broker_message_id: String,
    /// The queue.
    pub queue_id: i32,
    /// The place in the queue.
    pub queue_offset: i64,
    /// When the sender made it.
    pub born_at_ms: Option<TimestampMs>,
    /// The body, whatever it is.
    pub body: Vec<u8>,
    /// All properties.
    pub properties: BTreeMap<String, String>,
    /// A lower-case word: `undecodable`, `unknown_bucket`, `attempts_exhausted` …
    pub reason: String,
    /// What went wrong, for a person. Never a user id.
    pub error: String,
    /// Deliveries so far.
    pub attempts: u32,
    /// Where it belongs, if its properties tell.
    pub bucket: Option<BucketScope>,
    /// The request inside, if it could be decoded: an undecided one gets a compensation task. For
    /// an undecodable body callers may fill this from the reservation that Redis still has.
    pub request: Option<OrderRequest>,
}

/// A message that was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedLetter {
    /// Its number, by which operators name it.
    pub id: i64,
    /// The message.
    pub letter: DeadLetter,
    /// When it was first parked.
    pub parked_at_ms: TimestampMs,
    /// How often it was parked.
    pub times_parked: u32,
}

/// Which parked messages to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Of this topic only.
    pub topic: Option<String>,
    /// After this number, for paging.
    pub after: Option<i64>,
}

impl Store {
    /// Keeps a message whole and, when it names an undecided reservation, opens its compensation
    /// task due after the activity's patience, in one transaction. Parking it again changes nothing
    /// but its count.
    ///
    /// # Errors
    /// As every write; then the message must not be acknowledged.
    pub async fn park(&self, letter: &DeadLetter) -> Result<(), Error> {
        let _ = letter;
        todo!()
    }
    /// Parked messages by number.
    ///
    /// # Errors
    /// As every read.
    pub async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: i64,
    ) -> Result<Vec<ParkedLetter>, Error> {
        let _ = (filter, limit);
        todo!()
    }
    /// How many messages are parked.
    ///
    /// # Errors
    /// As every read.
    pub async fn dead_letter_count(&self) -> Result<u64, Error> {
        todo!()
    }
}
