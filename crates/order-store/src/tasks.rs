//! Compensation tasks and the release fence.
use std::time::Duration;

use seckill_state_machine::{OrderId, OrderRequest, OrderState, RejectReason, Scope};
use uuid::Uuid;

use crate::{Error, Store};

/// Why a task was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskOrigin {
    /// PostgreSQL rejected the request.
    Rejected,
    /// The undecided request was parked.
    Parked,
    /// Undecided for longer than patience.
    Overdue,
    /// Redis holds units again that were given up before.
    HeldAgain,
    /// The order was cancelled.
    Cancelled,
}

/// A task to be opened or reopened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// The reservation, as its order request tells it.
    pub request: OrderRequest,
    /// Why.
    pub origin: TaskOrigin,
    /// When it is due, from now.
    pub due_in: Duration,
}

/// A claimed task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompensationTask {
    /// The reservation, as its order request tells it.
    pub request: OrderRequest,
    /// Why it was (last) opened.
    pub origin: TaskOrigin,
    /// Adds one with every reopening; a result only counts for the generation it was worked on.
    pub generation: i64,
    /// Attempts of this generation, this one included.
    pub attempts: u32,
    /// Proves the claim.
    pub lease_token: Uuid,
}

/// The decision that stands, after the fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fence {
    /// There is an order: settle it instead of releasing.
    Ordered {
        /// Its id.
        order_id: OrderId,
        /// Active, or cancelled meanwhile.
        state: OrderState,
    },
    /// Rejected before: go on and release.
    Rejected {
        /// Why.
        reason: RejectReason,
    },
    /// Can never become an order: go on and release.
    Released {
        /// What the fence was put up for.
        reason: String,
        /// Put up by this very call.
        fresh: bool,
    },
}

impl Store {
    /// Claims due tasks for a while, the longest due first.
    ///
    /// # Errors
    /// As every write.
    pub async fn claim_tasks(
        &self,
        limit: i64,
        lease: Duration,
    ) -> Result<Vec<CompensationTask>, Error> {
        let _ = (limit, lease);
        todo!()
    }
    /// Records `RELEASED` unless a decision is there, and returns the one that stands (I6).
    ///
    /// # Errors
    /// As every write. On any error nothing may be released.
    pub async fn fence(&self, task: &CompensationTask) -> Result<Fence, Error> {
        let _ = task;
        todo!()
    }
    /// Closes a task, if nobody reopened or took it over meanwhile; says whether it did.
    ///
    /// # Errors
    /// As every write.
    pub async fn finish_task(&self, task: &CompensationTask, result: &str) -> Result<bool, Error> {
        let _ = (task, result);
        todo!()
    }
    /// Gives a task back for a later attempt; says whether the claim still held.
    ///
    /// # Errors
    /// As every write.
    pub async fn retry_task(
        &self,
        task: &CompensationTask,
        error: &str,
        delay: Duration,
    ) -> Result<bool, Error> {
        let _ = (task, error, delay);
        todo!()
    }
    /// Opens a task, or reopens it with the next generation.
    ///
    /// # Errors
    /// As every write.
    pub async fn open_task(&self, task: &NewTask) -> Result<(), Error> {
        let _ = task;
        todo!()
    }
    /// Open tasks, of one version or of all.
    ///
    /// # Errors
    /// As every read.
    pub async fn open_tasks(&self, scope: Option<&Scope>) -> Result<u64, Error> {
        let _ = scope;
        todo!()
    }
}
