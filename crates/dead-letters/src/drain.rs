//! Moves what the broker gave up on into `dead_letter`, where operators can list and replay it.

use async_trait::async_trait;
use seckill_message_bus::{BatchHandler, BatchVerdict, IncomingMessage};

use crate::{Parker, Reason};

/// Parks everything that arrives.
pub struct DeadLetterHandler {
    parker: Parker,
}

impl DeadLetterHandler {
    /// Parks with the given parker.
    #[must_use]
    pub const fn new(parker: Parker) -> Self {
        Self { parker }
    }
}

#[async_trait]
impl BatchHandler for DeadLetterHandler {
    async fn handle(&self, batch: Vec<IncomingMessage>) -> BatchVerdict {
        let mut all_parked = true;
        for message in batch {
            all_parked &= self
                .parker
                .park(&message, &Reason::RedeliveriesExhausted)
                .await;
        }
        if all_parked {
            BatchVerdict::Acknowledge
        } else {
            BatchVerdict::Redeliver
        }
    }
}
