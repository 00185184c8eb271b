//! What the audit and the reconciler read, and where they write what they found.
use seckill_state_machine::{BucketId, BucketScope, ReservationId, Scope};
use uuid::Uuid;

use crate::{DecisionRecord, Error, Store};

/// One bucket, counted twice: by its stock row and by its orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketTotals {
    /// Which bucket.
    pub bucket_id: BucketId,
    /// Units the bucket was given.
    pub total: u64,
    /// Units without an active order, as the stock row says.
    pub available: u64,
    /// Units in active orders, as the stock row says.
    pub sold: u64,
    /// Units in active orders, as the orders say.
    pub active_units: u64,
    /// Active orders.
    pub active_orders: u64,
}

impl BucketTotals {
    /// `total = available + active orders`, and the row agrees with the orders.
    #[must_use]
    pub const fn is_conserved(&self) -> bool {
        todo!()
    }
}

/// A round of checks that begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    /// What is checked: a lower-case word such as `totals` or `expiry`.
    pub kind: String,
    /// Who checks: the process's instance name.
    pub instance: String,
    /// Which version, unless all.
    pub scope: Option<Scope>,
}

/// How a round ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOutcome {
    /// Things compared.
    pub checked: u64,
    /// Steps taken towards agreement.
    pub settled: u64,
    /// Differences found.
    pub discrepancies: u64,
    /// Why it did not finish, if so.
    pub error: Option<String>,
}

/// A difference that no rule can settle by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discrepancy {
    /// A lower-case word that names the kind.
    pub kind: String,
    /// Where.
    pub bucket: BucketScope,
    /// Which reservation, unless the bucket as a whole.
    pub reservation_id: Option<ReservationId>,
    /// Both sides' values, for a person. Never a user id.
    pub detail: String,
}

impl Store {
    /// Totals of each bucket, in one snapshot.
    ///
    /// # Errors
    /// As every read.
    pub async fn bucket_totals(&self, scope: &Scope) -> Result<Vec<BucketTotals>, Error> {
        let _ = scope;
        todo!()
    }
    /// Decisions of a version in reservation order, after a given one.
    ///
    /// # Errors
    /// As every read.
    pub async fn decisions_page(
        &self,
        scope: &Scope,
        after: Option<&ReservationId>,
        limit: i64,
    ) -> Result<Vec<DecisionRecord>, Error> {
        let _ = (scope, after, limit);
        todo!()
    }
    /// Active orders too many: beyond one a user, a reservation or a request.
    ///
    /// # Errors
    /// As every read.
    pub async fn duplicate_orders(&self, scope: &Scope) -> Result<u64, Error> {
        let _ = scope;
        todo!()
    }
    /// Opens a round of checks.
    ///
    /// # Errors
    /// As every write.
    pub async fn start_run(&self, run: &NewRun) -> Result<Uuid, Error> {
        let _ = run;
        todo!()
    }
    /// Closes a round of checks.
    ///
    /// # Errors
    /// As every write; `NotFound` for an unknown run.
    pub async fn finish_run(&self, run: Uuid, outcome: &RunOutcome) -> Result<(), Error> {
        let _ = (run, outcome);
        todo!()
    }
    /// Records differences; one that is already open is only seen again. Returns the new ones' count.
    ///
    /// # Errors
    /// As every write.
    pub async fn record_discrepancies(
        &self,
        run: Uuid,
        found: &[Discrepancy],
    ) -> Result<u64, Error> {
        let _ = (run, found);
        todo!()
    }
    /// Closes the open differences of the run's kind and scope that it did not see again.
    ///
    /// # Errors
    /// As every write.
    pub async fn resolve_unseen(&self, run: Uuid) -> Result<u64, Error> {
        let _ = run;
        todo!()
    }
    /// Open differences, of one version or of all.
    ///
    /// # Errors
    /// As every read.
    pub async fn open_discrepancies(
        &self,
        scope: Option<&Scope>,
        limit: i64,
    ) -> Result<Vec<Discrepancy>, Error> {
        let _ = (scope, limit);
        todo!()
    }
}
