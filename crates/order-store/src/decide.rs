//! The order decision: a batch of order requests becomes orders, or refusals, in one transaction.
//!
//! The key idea: the decision's key is taken provisionally first, then the stock rows are locked,
//! and only then, in statements of their own, everything that the ruling depends on is read. The
//! ruling itself is the domain's pure `rule`; the constraints only confirm it. Nothing but a rule
//! ever rejects: a time-out, a lock wait or a lost connection leaves the request undecided.

mod columns;
mod statements;
mod transaction;

use std::collections::{BTreeMap, BTreeSet};

use seckill_state_machine::{OrderId, OrderRequest, RejectReason, ReservationId};

use crate::facts::IDS_MAX;
use crate::{Error, ErrorKind, Store};

pub(crate) use columns::{BucketColumns, Columns};
pub(crate) use statements::lock_stock;

/// Most requests of one call. A consumer's batch has at most 256; four of them still lock a hot row
/// for less than a tenth of a second.
const BATCH_MAX: usize = IDS_MAX;

/// How often a batch runs again because another transaction got in its way. Every rerun means that
/// another one went forward, and a service has far fewer consumers than this.
const RUNS_MAX: usize = 16;

/// The constraints whose "no" is an answer, and what it means.
const RULES: [(&str, RejectReason); 5] = [
    ("orders_one_active_per_user", RejectReason::UserHasOrder),
    ("orders_one_per_request", RejectReason::RequestIdUsed),
    (
        "activity_stock_available_not_negative",
        RejectReason::StockExhausted,
    ),
    (
        "activity_stock_sold_not_negative",
        RejectReason::StockExhausted,
    ),
    ("activity_stock_conserved", RejectReason::StockExhausted),
];

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

/// The answers of one transaction, by reservation.
type Answers = BTreeMap<ReservationId, Decided>;

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
        if batch.len() > BATCH_MAX {
            return Err(Error::invalid("batch", format!("more than {BATCH_MAX}")));
        }
        // The message id is derived from the reservation id, so this drops duplicate messages.
        let mut seen = BTreeSet::new();
        let unique: Vec<&OrderRequest> = batch
            .iter()
            .filter(|request| seen.insert(&request.reservation_id))
            .collect();
        if unique.is_empty() {
            return Ok(Vec::new());
        }
        let answers = self.decide_until_undisturbed(&unique).await?;
        batch
            .iter()
            .map(|request| answers.get(&request.reservation_id).cloned())
            .collect::<Option<Vec<Decided>>>()
            .ok_or_else(|| Error::stored("reservation_decision", "a decision has vanished"))
    }

    async fn decide_until_undisturbed(&self, unique: &[&OrderRequest]) -> Result<Answers, Error> {
        let mut refused_by_rule = None;
        let mut runs = 1;
        loop {
            let error = match self.decide_once(unique, refused_by_rule).await {
                Ok(answers) => return Ok(answers),
                Err(error) => error,
            };
            if runs == RUNS_MAX {
                return Err(error);
            }
            if !error.is_collision() {
                // A constraint said no where the ruling said yes. Only a request that stands alone
                // can be blamed for it; of a batch the caller finds out which one it was.
                let [_alone] = unique else { return Err(error) };
                refused_by_rule = Some(rule_of(&error).ok_or(error)?);
            }
            runs += 1;
        }
    }

    async fn decide_once(
        &self,
        unique: &[&OrderRequest],
        refused_by_rule: Option<RejectReason>,
    ) -> Result<Answers, Error> {
        self.run_tx("decide", async |session| {
            transaction::run(session, unique, refused_by_rule).await
        })
        .await
    }
}

/// The refusal that a constraint's "no" stands for.
fn rule_of(error: &Error) -> Option<RejectReason> {
    if error.kind() != ErrorKind::Refused {
        return None;
    }
    let constraint = error.cause()?.constraint()?;
    RULES
        .into_iter()
        .find(|(name, _)| *name == constraint)
        .map(|(_, reason)| reason)
}
