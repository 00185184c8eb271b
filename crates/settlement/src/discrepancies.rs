//! Reports what no rule can settle by itself: to the log for whoever is on call, and to PostgreSQL
//! for the audit. A difference that is already on record is only seen again.

use seckill_order_store::{Discrepancy, Error, NewRun, RunOutcome, Store};
use seckill_state_machine::{BucketScope, ReservationId};

use crate::Class;

/// The kinds of runs under which single reservations are reported by those who settle them.
pub mod run_kind {
    /// The order consumer.
    pub const SETTLEMENT: &str = "settlement";
    /// The compensation worker.
    pub const COMPENSATION: &str = "compensation";
}

/// The words by which the settling services name differences.
pub mod kind {
    use crate::Class;

    /// PostgreSQL has decided about a reservation that Redis does not have.
    pub const RESERVATION_MISSING: &str = Class::ReservationMissing.word();
    /// Redis holds a state that PostgreSQL's decision does not allow.
    pub const CONTRADICTION: &str = Class::Contradiction.word();
    /// The release script found counters or ids that contradict each other.
    pub const RELEASE_REFUSED: &str = Class::ReleaseRefused.word();
    /// What Redis holds for a reservation cannot be read.
    pub const UNREADABLE: &str = Class::Unreadable.word();
}

/// What each side holds, for a person. Never a user id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// In Redis.
    pub redis: String,
    /// In PostgreSQL.
    pub postgres: String,
}

/// A difference with what is known about its class.
#[must_use]
pub fn discrepancy(
    class: Class,
    bucket: &BucketScope,
    reservation_id: Option<ReservationId>,
    evidence: Evidence,
) -> Discrepancy {
    let Evidence { redis, postgres } = evidence;
    let detail = format!("redis: {redis}; postgresql: {postgres}");
    named(class.word(), bucket, reservation_id, detail).with_evidence(redis, postgres)
}

fn named(
    kind: &str,
    bucket: &BucketScope,
    reservation_id: Option<ReservationId>,
    detail: String,
) -> Discrepancy {
    let found = Discrepancy::new(kind, bucket.clone(), reservation_id, detail);
    match Class::parse(kind).map(Class::entry) {
        Some(entry) => found.with_repair(entry.action, entry.repairable),
        None => found,
    }
}

/// Writes reports of one process.
#[derive(Debug, Clone)]
pub struct Discrepancies {
    store: Store,
    run_kind: &'static str,
    instance: String,
}

impl Discrepancies {
    /// `run_kind` names the check in the list of runs, `instance` the process.
    #[must_use]
    pub const fn new(store: Store, run_kind: &'static str, instance: String) -> Self {
        Self {
            store,
            run_kind,
            instance,
        }
    }

    /// Reports differences; the log tells of each one once, when it goes on record. Never fails: whoever
    /// finds one has other work that must go on, and a difference that stays is found again.
    pub async fn report(&self, found: Vec<Discrepancy>) {
        if found.is_empty() {
            return;
        }
        match self.record(&found).await {
            Ok(new) => new.iter().for_each(log),
            Err(error) => {
                found.iter().for_each(log);
                tracing::warn!(
                    %error,
                    cause = error.cause().map(tracing::field::display),
                    found = found.len(),
                    "differences could not be put on record"
                );
            }
        }
    }

    /// A run is put on record only with something new: a task that is tried again and again would
    /// leave one behind each time. Returns what is new.
    async fn record(&self, found: &[Discrepancy]) -> Result<Vec<Discrepancy>, Error> {
        let new = self.store.see_again(self.run_kind, found).await?;
        if new.is_empty() {
            return Ok(new);
        }
        let run = self
            .store
            .start_run(&NewRun {
                kind: self.run_kind.to_owned(),
                instance: self.instance.clone(),
                scope: None,
            })
            .await?;
        self.store.record_discrepancies(run, &new).await?;
        let count = u64::try_from(new.len()).unwrap_or(u64::MAX);
        let outcome = RunOutcome {
            checked: count,
            settled: 0,
            discrepancies: count,
            error: None,
        };
        self.store.finish_run(run, &outcome).await?;
        Ok(new)
    }

    /// Closes what is on record about a reservation on which the two sides agree, whoever of those
    /// that settle reported it. Never fails: the agreement stands without it.
    pub async fn agreed(&self, bucket: &BucketScope, reservation_id: &ReservationId) {
        let kinds = [run_kind::SETTLEMENT, run_kind::COMPENSATION];
        let closed = self
            .store
            .resolve_reservation(&kinds, bucket, reservation_id)
            .await;
        match closed {
            Ok(0) => {}
            Ok(_) => tracing::info!(%reservation_id, %bucket, "differences are gone"),
            Err(error) => tracing::warn!(
                %reservation_id,
                %bucket,
                %error,
                cause = error.cause().map(tracing::field::display),
                "differences that are gone could not be closed"
            ),
        }
    }

    /// A difference about one reservation.
    #[must_use]
    pub fn of(
        kind: &'static str,
        bucket: &BucketScope,
        reservation_id: &ReservationId,
        detail: String,
    ) -> Discrepancy {
        named(kind, bucket, Some(reservation_id.clone()), detail)
    }
}

fn log(discrepancy: &Discrepancy) {
    let scope = &discrepancy.bucket.scope;
    tracing::error!(
        kind = discrepancy.kind,
        activity_id = %scope.activity_id,
        sku_id = %scope.sku_id,
        activity_version = %scope.version,
        bucket_id = %discrepancy.bucket.bucket_id,
        reservation_id = discrepancy.reservation_id.as_ref().map(ReservationId::as_str),
        detail = discrepancy.detail,
        "redis and postgresql differ"
    );
}
