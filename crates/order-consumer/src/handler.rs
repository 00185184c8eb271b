//! What happens to a batch of order requests, and when it may be acknowledged.
//!
//! A batch is acknowledged as a whole, and only when each of its messages is committed or parked.
//! The settlement of Redis comes after the commit and never decides about the acknowledgement: the
//! outbox event repeats it, and the reconciler after that.
//!
//! | crash after | is left | who repairs it |
//! | --- | --- | --- |
//! | a bad message was parked | its row, the message | it comes again; parking it again changes nothing |
//! | the transaction was committed | inbox rows, the messages | they come again and are settled then |
//! | Redis was settled | the messages | they come again; every step is a no-op |

use std::time::Duration;

use async_trait::async_trait;
use seckill_dead_letters::{Parker, Reason};
use seckill_message_bus::{BatchHandler, BatchVerdict, IncomingMessage};
use tokio::time::Instant;

use crate::contention::Parted;
use crate::deciding::Decider;
use crate::settling::Settler;
use crate::work::{Undecodable, sort};

/// Handles order requests.
pub struct RequestHandler {
    decider: Decider,
    parker: Parker,
    settler: Settler,
    patience: Duration,
}

impl RequestHandler {
    /// `patience` bounds how long one batch is waited for before it is left to a redelivery.
    #[must_use]
    pub const fn new(
        decider: Decider,
        parker: Parker,
        settler: Settler,
        patience: Duration,
    ) -> Self {
        Self {
            decider,
            parker,
            settler,
            patience,
        }
    }

    async fn park(&self, undecodable: Vec<Undecodable>) -> bool {
        let mut all_parked = true;
        for bad in undecodable {
            let reason = Reason::Undecodable(bad.error);
            all_parked &= self.parker.park(&bad.message, &reason).await;
        }
        all_parked
    }
}

#[async_trait]
impl BatchHandler for RequestHandler {
    async fn handle(&self, batch: Vec<IncomingMessage>) -> BatchVerdict {
        let deadline = Instant::now() + self.patience;
        let messages = batch.len();
        let (good, bad) = sort(batch);
        // The good ones first: nothing that is wrong with a bad one may delay them.
        let Parted { free, contended } = self.decider.part(good);
        let progress = self.decider.free(free, deadline).await;
        // What is committed is settled before anything waits for a contended row.
        self.settler.settle(progress.decided).await;
        let waited = self.decider.contended(contended, deadline).await;
        self.settler.settle(waited.decided).await;
        let complete = self.park(bad).await && progress.complete && waited.complete;
        tracing::debug!(messages, complete, "handled a batch of order requests");
        if complete {
            BatchVerdict::Acknowledge
        } else {
            BatchVerdict::Redeliver
        }
    }
}
