//! Sending: one outcome for every message, in bounded time.

use std::sync::Arc;
use std::time::Duration;

use cheetah_string::CheetahString;
use futures::{StreamExt, stream};
use rocketmq_client_rust::{ClientResult, DefaultMQProducer};
use rocketmq_model::common::message::MessageTrait as _;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::result::{SendResult, SendStatus};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::describe;
use crate::link::Link;
use crate::message::property;
use crate::names::Names;
use crate::{BusConfig, BusRuntime, Error, OutgoingMessage, Topic};

/// Sends in flight of one producer. At 256 the broker answered each within 60 ms; at 1,024 the client
/// refused most of them by itself.
pub const IN_FLIGHT_MAX: usize = 256;

/// Messages of one batch. Measured up to here: 64 cost the client a sixteenth of single sends, and one
/// refused batch holds back no more than that.
pub const BATCH_COUNT_MAX: usize = 64;

/// Bytes of one batch: an eighth of the broker's limit of 4 MiB for a message, 16 times what 64
/// usual messages take.
pub const BATCH_BYTES_MAX: usize = 512 * 1024;

/// Batches of one [`Producer::send_batch`] call that are under way at a time.
const BATCHES_AT_ONCE: usize = 4;

/// What the client's own limit may be exceeded by before a send is given up from outside.
const OVERTIME: Duration = Duration::from_millis(500);

/// How long the name server may take to tell a route.
const ROUTE_LIMIT: Duration = Duration::from_secs(2);

/// What is known after a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendOutcome {
    /// The broker has it.
    Sent,
    /// The broker may have it or not, with the reason. It is to be sent again under the same id.
    Unknown(String),
}

impl SendOutcome {
    /// Whether the broker has it for certain.
    #[must_use]
    pub const fn is_sent(&self) -> bool {
        matches!(self, Self::Sent)
    }

    fn of(status: SendStatus) -> Self {
        match status {
            SendStatus::SendOk => Self::Sent,
            // Stored, but lost with the broker's machine or disk: not yet sent in any useful sense.
            SendStatus::FlushDiskTimeout => Self::Unknown("FLUSH_DISK_TIMEOUT".to_owned()),
            SendStatus::FlushSlaveTimeout => Self::Unknown("FLUSH_SLAVE_TIMEOUT".to_owned()),
            SendStatus::SlaveNotAvailable => Self::Unknown("SLAVE_NOT_AVAILABLE".to_owned()),
        }
    }
}

/// A handle for sending; cheap to clone.
#[derive(Clone)]
pub struct Producer {
    inner: Arc<Inner>,
}

struct Inner {
    link: Link,
    names: Names,
    in_flight: Semaphore,
    send_timeout: Duration,
}

impl Producer {
    /// Starts a producer. Succeeds without a broker; sends are unknown until one is there.
    ///
    /// # Errors
    /// [`Error::Setting`] for a wrong setting.
    pub async fn start(runtime: &BusRuntime, config: &BusConfig) -> Result<Self, Error> {
        Ok(Self {
            inner: Arc::new(Inner {
                link: Link::start(runtime.client(), config.clone()).await?,
                names: Names::new(&config.namespace),
                in_flight: Semaphore::new(IN_FLIGHT_MAX),
                send_timeout: config.send_timeout,
            }),
        })
    }

    /// Sends one message. Takes at most twice the send's time limit: once for a place among those in
    /// flight, once for the send.
    pub async fn send(&self, message: OutgoingMessage) -> SendOutcome {
        let message = match self.inner.encode(message) {
            Ok(message) => message,
            Err(outcome) => return outcome,
        };
        self.inner
            .bounded(async |client| Box::pin(client.send(message)).await)
            .await
    }

    /// Sends messages in batches, each to one queue, and returns an outcome per message in their
    /// order. Messages of different topics never share a batch.
    pub async fn send_batch(&self, messages: Vec<OutgoingMessage>) -> Vec<SendOutcome> {
        stream::iter(chunks(messages))
            .map(|chunk| self.send_chunk(chunk))
            .buffered(BATCHES_AT_ONCE)
            .collect::<Vec<Vec<SendOutcome>>>()
            .await
            .concat()
    }

    /// Waits for the sends in flight, then closes. Without the wait the client would fail them.
    pub async fn shutdown(&self) {
        let limit = self.inner.send_timeout + OVERTIME;
        let all = u32::try_from(IN_FLIGHT_MAX).unwrap_or(u32::MAX);
        let drained = timeout(limit, self.inner.in_flight.acquire_many(all)).await;
        self.inner.in_flight.close();
        if drained.is_err() {
            tracing::warn!("sends were still in flight when the producer was closed");
        }
        self.inner.link.shutdown(limit).await;
    }

    /// Whether the name server knows a route to the topic right now.
    pub async fn is_ready(&self, topic: Topic) -> bool {
        let mut client = self.inner.link.current().client.clone();
        let name = self.inner.names.topic(topic);
        let queues = Box::pin(client.fetch_publish_message_queues(&name));
        matches!(timeout(ROUTE_LIMIT, queues).await, Ok(Ok(queues)) if !queues.is_empty())
    }

    async fn send_chunk(&self, chunk: Vec<OutgoingMessage>) -> Vec<SendOutcome> {
        let count = chunk.len();
        let encoded: Result<Vec<Message>, SendOutcome> = chunk
            .into_iter()
            .map(|message| self.inner.encode(message))
            .collect();
        let outcome = match encoded {
            Ok(messages) => {
                self.inner
                    .bounded(async |client| Box::pin(client.send_batch(messages)).await.map(Some))
                    .await
            }
            Err(outcome) => outcome,
        };
        vec![outcome; count]
    }
}

impl Inner {
    /// Runs a send inside the in-flight limit and the time limit. Giving up the wait never means that
    /// the message was not sent.
    async fn bounded(
        &self,
        send: impl AsyncFnOnce(&DefaultMQProducer) -> ClientResult<Option<SendResult>>,
    ) -> SendOutcome {
        let _permit = match timeout(self.send_timeout, self.in_flight.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return SendOutcome::Unknown("the producer is closed".to_owned()),
            Err(_) => return SendOutcome::Unknown("too many sends in flight".to_owned()),
        };
        let generation = self.link.current();
        match timeout(self.send_timeout + OVERTIME, send(&generation.client)).await {
            Ok(Ok(Some(result))) => {
                generation.worked();
                SendOutcome::of(result.send_status)
            }
            Ok(Ok(None)) => SendOutcome::Unknown("no result".to_owned()),
            Ok(Err(error)) => {
                self.link.failed(&generation, &error);
                SendOutcome::Unknown(describe(&error))
            }
            Err(_) => SendOutcome::Unknown("no answer in time".to_owned()),
        }
    }

    fn encode(&self, message: OutgoingMessage) -> Result<Message, SendOutcome> {
        let refused = |_| SendOutcome::Unknown("the client refused the message".to_owned());
        let mut builder = Message::builder()
            .topic(self.names.topic(message.topic))
            .key(message.message_id.clone())
            .wait_store_msg_ok(true)
            .body(message.body);
        for (name, value) in message.properties {
            builder = builder
                .raw_property(name.into_owned(), value)
                .map_err(refused)?;
        }
        let mut encoded = builder.build().map_err(refused)?;
        // The client makes an id of its own only where this one is missing.
        encoded.put_property(
            CheetahString::from_static_str(property::UNIQ_KEY),
            CheetahString::from(message.message_id),
        );
        Ok(encoded)
    }
}

/// Splits by topic changes, count and bytes; the order stays.
fn chunks(messages: Vec<OutgoingMessage>) -> Vec<Vec<OutgoingMessage>> {
    let mut chunks: Vec<Vec<OutgoingMessage>> = Vec::new();
    let mut bytes = 0;
    for message in messages {
        let size = message.wire_bytes();
        match chunks.last_mut() {
            Some(chunk)
                if chunk.len() < BATCH_COUNT_MAX
                    && bytes + size <= BATCH_BYTES_MAX
                    && chunk.last().is_some_and(|last| last.topic == message.topic) =>
            {
                bytes += size;
                chunk.push(message);
            }
            _ => {
                bytes = size;
                chunks.push(vec![message]);
            }
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn message(topic: Topic, size: usize) -> OutgoingMessage {
        OutgoingMessage {
            topic,
            message_id: "m".to_owned(),
            body: Bytes::from(vec![0; size]),
            properties: Vec::new(),
        }
    }

    #[test]
    fn a_batch_ends_at_its_count_its_bytes_and_its_topic() {
        let by_count = chunks(vec![message(Topic::OrderRequest, 10); 150]);
        assert_eq!(
            by_count.iter().map(Vec::len).collect::<Vec<_>>(),
            [64, 64, 22]
        );
        let by_bytes = chunks(vec![message(Topic::OrderRequest, 200_000); 5]);
        assert_eq!(by_bytes.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
        let huge = chunks(vec![message(Topic::OrderRequest, 2 * BATCH_BYTES_MAX); 2]);
        assert_eq!(huge.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
        let mixed = chunks(vec![
            message(Topic::OrderRequest, 1),
            message(Topic::OrderEvent, 1),
        ]);
        assert_eq!(mixed.len(), 2);
        assert!(chunks(Vec::new()).is_empty());
    }

    #[test]
    fn only_the_plain_ok_counts_as_sent() {
        assert!(SendOutcome::of(SendStatus::SendOk).is_sent());
        for status in [
            SendStatus::FlushDiskTimeout,
            SendStatus::FlushSlaveTimeout,
            SendStatus::SlaveNotAvailable,
        ] {
            assert!(!SendOutcome::of(status).is_sent());
        }
    }
}
