//! Puts a finished round on record: what it looked at, what it found, and what is gone since.

use std::time::Duration;

use seckill_order_store::{Discrepancy, Error, NewRun, RunOutcome, Store};
use seckill_state_machine::{BucketScope, ReservationId, Scope};
use tokio::time::Instant;

/// What a round over one version came to.
#[derive(Debug, Default)]
pub struct Round {
    /// Things compared.
    pub checked: u64,
    /// Steps taken towards agreement.
    pub settled: u64,
    /// Every difference that counts, new or known.
    pub found: Vec<Discrepancy>,
}

impl Round {
    /// Whether there is nothing to tell.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        self.settled == 0 && self.found.is_empty()
    }

    /// Adds what another bucket's part came to.
    pub fn add(&mut self, mut other: Self) {
        self.checked += other.checked;
        self.settled += other.settled;
        self.found.append(&mut other.found);
    }
}

/// Records the rounds of one kind.
#[derive(Debug, Clone)]
pub struct Rounds {
    store: Store,
    kind: &'static str,
    instance: String,
    trusted_from: Instant,
}

impl Rounds {
    /// `kind` names the check. For twice the grace after the start a difference that is still there
    /// may not count yet, so that long nothing is taken for gone.
    #[must_use]
    pub fn new(store: Store, kind: &'static str, instance: String, grace: Duration) -> Self {
        Self {
            store,
            kind,
            instance,
            trusted_from: Instant::now() + grace * 2,
        }
    }

    /// Whether a round that finds nothing proves that nothing is there.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        Instant::now() >= self.trusted_from
    }

    /// Records a round, and closes the differences on record that it did not see again.
    ///
    /// # Errors
    /// Whatever the store met; the next round records the same again.
    pub async fn record(&self, scope: &Scope, round: &Round) -> Result<(), Error> {
        let run = self
            .store
            .start_run(&NewRun {
                kind: self.kind.to_owned(),
                instance: self.instance.clone(),
                scope: Some(scope.clone()),
            })
            .await?;
        self.store.record_discrepancies(run, &round.found).await?;
        let outcome = RunOutcome {
            checked: round.checked,
            settled: round.settled,
            discrepancies: u64::try_from(round.found.len()).unwrap_or(u64::MAX),
            error: None,
        };
        self.store.finish_run(run, &outcome).await?;
        if self.is_trusted() {
            // Only a finished round proves that what it did not see is gone.
            let resolved = self.store.resolve_unseen(run).await?;
            if resolved > 0 {
                tracing::info!(%scope, check = self.kind, resolved, "differences are gone");
            }
        }
        Ok(())
    }
}

/// Tells whoever is on call about a difference that counts from now on.
pub fn alert(discrepancy: &Discrepancy) {
    let BucketScope { scope, bucket_id } = &discrepancy.bucket;
    tracing::error!(
        kind = discrepancy.kind,
        activity_id = %scope.activity_id,
        sku_id = %scope.sku_id,
        activity_version = %scope.version,
        %bucket_id,
        reservation_id = discrepancy.reservation_id.as_ref().map(ReservationId::as_str),
        detail = discrepancy.detail,
        "redis and postgresql differ"
    );
}
