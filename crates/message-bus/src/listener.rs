//! The bridge from the client's synchronous listener to a service's asynchronous handler.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rocketmq_client_rust::{
    ClientResult, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus,
    MessageListenerConcurrently,
};
use rocketmq_model::common::message::message_ext::MessageExt;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::IncomingMessage;
use crate::message::property;

/// What a handler says about a whole batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchVerdict {
    /// Every message's effect is committed, or the message is parked.
    Acknowledge,
    /// All are to come again, one by one, after the broker's delay: seconds at first, two hours from
    /// the sixteenth time on. A handler that waits for a store should rather wait than answer this.
    Redeliver,
}

/// A service's side of consuming.
#[async_trait]
pub trait BatchHandler: Send + Sync + 'static {
    /// Handles a batch; it is acknowledged as a whole. The future is dropped at the handler's
    /// deadline, and the batch comes again.
    async fn handle(&self, batch: Vec<IncomingMessage>) -> BatchVerdict;
}

/// Runs on one of the client's blocking threads, one batch a call.
pub(crate) struct Listener {
    pub(crate) handler: Arc<dyn BatchHandler>,
    pub(crate) handle: Handle,
    pub(crate) deadline: Duration,
}

impl Listener {
    /// A panic in the handler, or one of the runtime because it is shutting down, is a redelivery.
    fn run(&self, batch: Vec<IncomingMessage>) -> BatchVerdict {
        let count = batch.len();
        let deadline = self.deadline;
        let run = || {
            self.handle
                .block_on(async { timeout(deadline, self.handler.handle(batch)).await })
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(_)) => {
                tracing::warn!(
                    count,
                    "a batch was not handled in time and will be redelivered"
                );
                BatchVerdict::Redeliver
            }
            Err(_) => {
                tracing::error!(
                    count,
                    "the handler of a batch panicked; it will be redelivered"
                );
                BatchVerdict::Redeliver
            }
        }
    }
}

impl MessageListenerConcurrently for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        let batch = messages.iter().map(|message| incoming(message)).collect();
        Ok(match self.run(batch) {
            BatchVerdict::Acknowledge => ConsumeConcurrentlyStatus::ConsumeSuccess,
            BatchVerdict::Redeliver => ConsumeConcurrentlyStatus::ReconsumeLater,
        })
    }
}

/// A message of the client's as this crate gives it out.
pub(crate) fn incoming(message: &MessageExt) -> IncomingMessage {
    let properties: std::collections::BTreeMap<String, String> = message
        .properties()
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect();
    let first_of = |name: &str| {
        let text = properties.get(name)?;
        text.split_whitespace().next().map(str::to_owned)
    };
    // The client's own `msg_id` is a place in the broker's log and changes with each redelivery.
    let message_id = [property::MESSAGE_ID, property::UNIQ_KEY, property::KEYS]
        .into_iter()
        .find_map(first_of);
    IncomingMessage {
        message_id,
        topic: message.topic().to_string(),
        queue_id: message.queue_id(),
        queue_offset: message.queue_offset(),
        broker_message_id: message.msg_id().to_string(),
        body: message.body().unwrap_or_default(),
        reconsume_times: u32::try_from(message.reconsume_times()).unwrap_or(0),
        born_at_ms: message.born_timestamp(),
        properties,
    }
}
