//! Order events on their way to the bus.
use std::time::Duration;

use seckill_state_machine::OrderEvent;
use uuid::Uuid;

use crate::{Error, Store};

/// An event that is committed and not yet known to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its place in the table.
    pub id: i64,
    /// The id it is published under; the same for every attempt.
    pub event_id: String,
    /// What happened.
    pub event: OrderEvent,
    /// Attempts so far, this one included.
    pub attempts: u32,
    /// Proves the claim.
    pub lease_token: Uuid,
}

impl Store {
    /// Claims unpublished rows for a while, oldest first.
    ///
    /// # Errors
    /// As every write.
    pub async fn claim_outbox(&self, limit: i64, lease: Duration) -> Result<Vec<OutboxRow>, Error> {
        let _ = (limit, lease);
        todo!()
    }
    /// Marks rows as published, as far as the claim still holds; returns how many.
    ///
    /// # Errors
    /// As every write.
    pub async fn mark_published(&self, rows: &[OutboxRow]) -> Result<u64, Error> {
        let _ = rows;
        todo!()
    }
    /// Gives rows back for a later attempt; returns how many.
    ///
    /// # Errors
    /// As every write.
    pub async fn postpone_outbox(&self, rows: &[OutboxRow], delay: Duration) -> Result<u64, Error> {
        let _ = (rows, delay);
        todo!()
    }
    /// Rows that are not published.
    ///
    /// # Errors
    /// As every read.
    pub async fn outbox_unpublished(&self) -> Result<u64, Error> {
        todo!()
    }
}
