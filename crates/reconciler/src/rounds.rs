//! Puts a finished round on record: what it looked at, what it found, and what is gone since.

use std::time::Duration;

use seckill_order_store::{Discrepancy, Error, NewRun, RunOutcome, Store};
use seckill_settlement::Class;
use seckill_state_machine::{BucketId, BucketScope, ReservationId, Scope};
use tokio::time::Instant;

/// Differences that are noted as still there in one statement.
const WAITING_PER_CALL: usize = 1_000;

/// What a round over one version came to.
#[derive(Debug)]
pub struct Round {
    /// When it began to look.
    pub began: Instant,
    /// Things compared.
    pub checked: u64,
    /// Steps taken towards agreement.
    pub settled: u64,
    /// Every difference that counts, new or known.
    pub found: Vec<Discrepancy>,
    /// Why it did not look at everything, if so.
    pub error: Option<String>,
    /// What it looked at and could not judge, since the bucket moved meanwhile: it proves all but that.
    pub unjudged: Vec<(BucketId, Class)>,
    /// What it saw and what may count later. Of these the round does not prove that they are gone:
    /// another process may have waited for longer.
    pub waiting: Vec<Discrepancy>,
}

impl Round {
    /// A round that begins now.
    #[must_use]
    pub fn begin() -> Self {
        Self {
            began: Instant::now(),
            checked: 0,
            settled: 0,
            found: Vec::new(),
            error: None,
            unjudged: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// Whether there is nothing to tell.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        self.settled == 0 && self.found.is_empty()
    }

    /// Whether what it did not find is not there.
    #[must_use]
    pub const fn is_proof(&self) -> bool {
        self.error.is_none()
    }

    /// Adds what another bucket's part came to.
    pub fn add(&mut self, mut other: Self) {
        self.checked += other.checked;
        self.settled += other.settled;
        self.found.append(&mut other.found);
        self.began = self.began.min(other.began);
        self.error = self.error.take().or(other.error);
        self.waiting.append(&mut other.waiting);
        self.unjudged.append(&mut other.unjudged);
    }
}

/// Records the rounds of one kind.
#[derive(Debug, Clone)]
pub struct Rounds {
    store: Store,
    kind: &'static str,
    instance: String,
    grace: Duration,
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
            grace,
            trusted_from: Instant::now() + grace * 2,
        }
    }

    /// The name of the check.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.kind
    }

    /// Records a round, and closes the differences on record that it did not see again. Says whether
    /// nothing is on record any more.
    ///
    /// # Errors
    /// Whatever the store met; the next round records the same again.
    pub async fn record(&self, scope: &Scope, round: &Round) -> Result<bool, Error> {
        let run = self
            .store
            .start_run(&NewRun {
                kind: self.kind.to_owned(),
                instance: self.instance.clone(),
                scope: Some(scope.clone()),
            })
            .await?;
        self.store.record_discrepancies(run, &round.found).await?;
        for waiting in round.waiting.chunks(WAITING_PER_CALL) {
            // Only what is on record is touched; what is not still has to prove itself.
            self.store.see_again(self.kind, waiting).await?;
        }
        let outcome = RunOutcome {
            checked: round.checked,
            settled: round.settled,
            discrepancies: u64::try_from(round.found.len()).unwrap_or(u64::MAX),
            error: round.error.clone(),
        };
        self.store.finish_run(run, &outcome).await?;
        if !round.is_proof() || Instant::now() < self.trusted_from {
            return Ok(false);
        }
        // Another process looks at other instants. What it put on record after this round began to
        // look, or as long before as the two may take to agree, this round cannot know to be gone.
        let margin = round.began.elapsed() + self.grace;
        let unjudged: Vec<(BucketId, &str)> = round
            .unjudged
            .iter()
            .map(|(bucket_id, class)| (*bucket_id, class.word()))
            .collect();
        let (resolved, open) = self.store.resolve_unseen(run, margin, &unjudged).await?;
        if resolved > 0 {
            tracing::info!(%scope, check = self.kind, resolved, "differences are gone");
        }
        Ok(open == 0)
    }
}

/// Tells about a difference that counts from now on: whoever is on call, if it waits for a person, and
/// the log, if the service mends it by itself.
pub fn alert(discrepancy: &Discrepancy, class: Class) {
    let BucketScope { scope, bucket_id } = &discrepancy.bucket;
    macro_rules! tell {
        ($level:ident, $message:literal) => {
            tracing::$level!(
                kind = discrepancy.kind,
                activity_id = %scope.activity_id,
                sku_id = %scope.sku_id,
                activity_version = %scope.version,
                %bucket_id,
                reservation_id = discrepancy.reservation_id.as_ref().map(ReservationId::as_str),
                detail = discrepancy.detail,
                $message
            )
        };
    }
    if class.is_automatic() {
        tell!(warn, "redis lags behind postgresql and is being mended");
    } else {
        tell!(error, "redis and postgresql differ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bucket_that_was_not_judged_makes_the_round_no_proof() {
        let mut round = Round::begin();
        round.add(Round::begin());
        assert!(round.is_proof());
        round.add(Round {
            error: Some("bucket 1 moved".to_owned()),
            ..Round::begin()
        });
        round.add(Round::begin());
        assert!(!round.is_proof());
        assert_eq!(round.error.as_deref(), Some("bucket 1 moved"));
    }

    #[test]
    fn a_round_began_when_its_first_part_did() {
        let first = Round::begin();
        let began = first.began;
        let mut round = Round {
            began: began + Duration::from_secs(1),
            ..Round::begin()
        };
        round.add(first);
        assert_eq!(round.began, began);
    }
}
