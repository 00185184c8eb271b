//! What is sent and what arrives.
//!
//! The envelope repeats in properties what the body says about identity and scope, so that a message
//! whose body cannot be read can still be placed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;
use seckill_proto::events::v1 as pb;
use seckill_state_machine::{BucketScope, OrderEvent, OrderRequest, SCHEMA_VERSION, Traceparent};

use crate::Topic;

/// Names of the properties that the envelope carries.
pub mod property {
    /// The id that every resend of one message has.
    pub const MESSAGE_ID: &str = "message_id";
    /// The purchase's W3C trace context.
    pub const TRACEPARENT: &str = "traceparent";
    /// The body's schema version.
    pub const SCHEMA: &str = "schema";
    /// The activity.
    pub const ACTIVITY_ID: &str = "activity_id";
    /// The SKU.
    pub const SKU_ID: &str = "sku_id";
    /// The activity's version.
    pub const ACTIVITY_VERSION: &str = "activity_version";
    /// The bucket.
    pub const BUCKET_ID: &str = "bucket_id";

    /// The client's own unique id; set to the message id, it stays the same on every resend.
    pub(crate) const UNIQ_KEY: &str = "UNIQ_KEY";
    /// The keys under which the broker indexes a message, separated by blanks.
    pub(crate) const KEYS: &str = "KEYS";
    /// On a redelivered or dead message: the topic that it was sent to.
    pub(crate) const ORIGIN_TOPIC: &str = "RETRY_TOPIC";
    /// On a message whose delay is not over: the topic that it will appear in.
    pub(crate) const DELAYED_TOPIC: &str = "REAL_TOPIC";
}

/// A message to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// Where to.
    pub topic: Topic,
    /// The id it travels under; the same for every resend, without blanks.
    pub message_id: String,
    /// The encoded body.
    pub body: Bytes,
    /// The envelope's properties.
    pub properties: Vec<(Cow<'static, str>, String)>,
}

impl OutgoingMessage {
    /// The request that a reservation become an order.
    #[must_use]
    pub fn order_request(request: &OrderRequest) -> Self {
        Self::enveloped(
            Topic::OrderRequest,
            request.message_id().to_string(),
            pb::OrderRequest::from(request).encode_to_vec().into(),
            &request.bucket,
            request.traceparent.as_ref(),
        )
    }

    /// What became of an order request. `event_id` is the outbox row's, the same for every relay.
    #[must_use]
    pub fn order_event(event_id: &str, event: &OrderEvent) -> Self {
        Self::enveloped(
            Topic::OrderEvent,
            event_id.to_owned(),
            pb::OrderEvent::from(event).encode_to_vec().into(),
            &event.bucket,
            event.traceparent.as_ref(),
        )
    }

    /// A message that was kept, to be sent once more under its own id, with its own body and with
    /// the properties that its sender gave it. Those that brokers and clients add are left to them:
    /// their names are written in capitals or begin with `_`, this system's are not.
    #[must_use]
    pub fn again(
        topic: Topic,
        message_id: String,
        body: Bytes,
        properties: &BTreeMap<String, String>,
    ) -> Self {
        let is_senders = |name: &str| name.starts_with(|first: char| first.is_ascii_lowercase());
        let properties = properties
            .iter()
            .filter(|(name, _)| is_senders(name))
            .map(|(name, value)| (Cow::Owned(name.clone()), value.clone()))
            .collect();
        Self {
            topic,
            message_id,
            body,
            properties,
        }
    }

    fn enveloped(
        topic: Topic,
        message_id: String,
        body: Bytes,
        bucket: &BucketScope,
        traceparent: Option<&Traceparent>,
    ) -> Self {
        let scope = &bucket.scope;
        let traceparent = traceparent.map(|trace| (property::TRACEPARENT, trace.to_string()));
        let properties = [
            (property::MESSAGE_ID, message_id.clone()),
            (property::SCHEMA, SCHEMA_VERSION.to_string()),
            (property::ACTIVITY_ID, scope.activity_id.to_string()),
            (property::SKU_ID, scope.sku_id.to_string()),
            (property::ACTIVITY_VERSION, scope.version.to_string()),
            (property::BUCKET_ID, bucket.bucket_id.to_string()),
        ]
        .into_iter()
        .chain(traceparent)
        .map(|(name, value)| (Cow::Borrowed(name), value))
        .collect();
        Self {
            topic,
            message_id,
            body,
            properties,
        }
    }

    /// What it takes in a batch: body, properties with their separators, and the batch format's fixed
    /// part, rounded up.
    pub(crate) fn wire_bytes(&self) -> usize {
        const FIXED: usize = 128;
        let properties: usize = self
            .properties
            .iter()
            .map(|(name, value)| name.len() + value.len() + 2)
            .sum();
        FIXED + self.body.len() + properties + 2 * self.message_id.len()
    }
}

/// A message that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncomingMessage {
    /// The id it was sent under: property `message_id`, else the client's unique key, else its first
    /// key; the same on every delivery. `None` only for a message that this system did not send.
    pub message_id: Option<String>,
    /// The topic it was sent to; for a dead letter the dead-letter topic.
    pub topic: String,
    /// The queue it came from.
    pub queue_id: i32,
    /// Its place in that queue.
    pub queue_offset: i64,
    /// The broker's id, which names a place in its log and changes with every redelivery.
    pub broker_message_id: String,
    /// The body, undecoded.
    pub body: Bytes,
    /// All properties, the broker's own included.
    pub properties: BTreeMap<String, String>,
    /// How often it has been redelivered.
    pub reconsume_times: u32,
    /// When its sender made it, in milliseconds since the Unix epoch, by that machine's clock.
    pub born_at_ms: i64,
}

impl IncomingMessage {
    /// A property's text.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(String::as_str)
    }

    /// The full name of the topic that it was first sent to, also for a dead letter.
    #[must_use]
    pub fn origin_topic(&self) -> &str {
        self.property(property::ORIGIN_TOPIC).unwrap_or(&self.topic)
    }

    /// Which of the system's topics it was first sent to.
    #[must_use]
    pub fn origin(&self) -> Option<Topic> {
        let name = self.origin_topic();
        Topic::ALL.into_iter().find(|topic| {
            name.strip_suffix(topic.name())
                .is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('-'))
        })
    }

    /// The purchase's trace, if it carries a usable one.
    #[must_use]
    pub fn traceparent(&self) -> Option<Traceparent> {
        Traceparent::parse(self.property(property::TRACEPARENT)?).ok()
    }
}
