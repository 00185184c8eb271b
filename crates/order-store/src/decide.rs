//! The order decision: a batch of order requests in one transaction.
use seckill_state_machine::{OrderId, OrderRequest, RejectReason};

use crate::{Error, Store};

/// What became of one order request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    /// It is an order.
    Ordered {
        /// Made by PostgreSQL.
        order_id: OrderId,
        /// Decided by this very call; otherwise found.
        fresh: bool,
        /// The order was cancelled meanwhile.
        cancelled: bool,
    },
    /// The rules said no.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// Decided by this very call; otherwise found: reopen its task when Redis holds units.
        fresh: bool,
    },
    /// It was fenced before: reopen its task when Redis holds units.
    Released {
        /// What the fence was put up for.
        reason: String,
    },
    /// There is no such stock row; nothing was written, the message is to be parked.
    UnknownBucket,
}

impl Store {
    /// Decides order requests; the answers are in the order of the requests.
    ///
    /// One transaction for all. A repeated request is answered as the first; repeating the whole
    /// call after `OutcomeUnknown` is safe.
    ///
    /// # Errors
    /// Nothing is written on any error but `OutcomeUnknown`. `Retryable`: again later. Callers
    /// repeat a failed batch request by request, so that one poison request cannot hold the others.
    pub async fn decide(&self, batch: &[OrderRequest]) -> Result<Vec<Decided>, Error> {
        let _ = batch;
        todo!()
    }
}
