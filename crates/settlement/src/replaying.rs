//! Replay of single decisions: look at both sides, take the one step that leads on, look again.
//!
//! `seckill_state_machine::replay` says which step; this takes it. Each is one script or one
//! transaction, so a crash lies between them:
//!
//! | crash after | is left | who repairs it |
//! | --- | --- | --- |
//! | both sides were read | nothing | the next replay |
//! | `ENQUEUED`, before the outcome | a state that the same step accepts | the next replay, or the order's event |
//! | `REJECTED`, before the hand-over | the refusal's own task, or none after a failover | the next replay hands it over |
//! | the hand-over | an open task | the compensation worker |
//! | settled as ordered, before the cancel script | the order's cancellation in PostgreSQL and its task | the next replay, or the worker |
//! | units were given back, before the broadcast | fronts that believe in the sold-out mark | they ask again within half a second |
//! | the rebuild found too few units | nothing | the next replay opens the task |
//! | the reservation was rebuilt, before its marker | a marker that names another reservation | the next replay |
//! | a tombstone was written | nothing | — |
//!
//! Every script looks at the state itself and refuses what it does not allow, so two replays of one
//! decision, of whatever processes, do no harm, and neither does one that works from an order's state
//! that has changed meanwhile: whoever cancels the order opens its task, which settles what such a
//! replay has rebuilt.

mod page;
mod steps;

use std::borrow::Cow;

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{ErrorKind as RedisErrorKind, Redis};
use seckill_order_store::{Claim, DecisionRecord, Store};
use seckill_state_machine::{ReservationId, Traceparent};

use crate::discrepancies::kind;
use crate::{Error, Facts, Waiting};

pub use page::PAGE_SIZE;

/// How often a reservation is looked at that others keep moving. It has five steps to its end at most,
/// and each of its other workers takes one between two looks.
const LOOKS_MAX: usize = 5;

/// How a replay ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replayed {
    /// Both sides agree and did before.
    Agreed,
    /// Settled as ordered.
    Settled,
    /// Its release is the compensation worker's, whose task is open.
    HandedOver,
    /// The reservation of an active order is back and holds its units.
    Rebuilt,
    /// It cannot be rebuilt yet: too few units are available. Its task is open, and the next release in
    /// its bucket goes to it.
    Waits,
    /// Recorded as ended, so that a repeat takes no unit.
    Tombstoned,
    /// The user's marker names the order's reservation again.
    MarkerRepaired,
    /// The units of a cancelled order are back on sale.
    Cancelled,
    /// Redis has no settings for the bucket, or its retention has passed. Nothing can be written there;
    /// who looks at buckets reports it once a bucket.
    BucketGone,
    /// Redis has the bucket's settings and no counters, so that nothing can be brought back until an
    /// operator rebuilds the version. Reported once a bucket as well.
    NoCounters,
    /// Redis gave back units of an order, or claims something that PostgreSQL never decided.
    Contradiction {
        /// Both sides' words.
        detail: String,
    },
    /// A script found counters or ids that contradict each other, and moved nothing.
    Refused {
        /// Which, and what it said.
        detail: String,
    },
    /// What Redis holds for it cannot be read.
    Unreadable {
        /// What is wrong.
        detail: String,
    },
    /// Others moved it at every look, or its user's marker names another reservation that holds units.
    /// They are at work on it, so it is not in the same state for long: look again later.
    Moving,
}

impl Replayed {
    /// Whether both sides agree now.
    #[must_use]
    pub const fn agrees(&self) -> bool {
        match self {
            Self::Agreed
            | Self::Settled
            | Self::Rebuilt
            | Self::Tombstoned
            | Self::MarkerRepaired
            | Self::Cancelled => true,
            Self::HandedOver
            | Self::Waits
            | Self::BucketGone
            | Self::NoCounters
            | Self::Contradiction { .. }
            | Self::Refused { .. }
            | Self::Unreadable { .. }
            | Self::Moving => false,
        }
    }

    /// A lower-case word for logs, results and labels.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Agreed => "agreed",
            Self::Settled => "settled",
            Self::HandedOver => "handed_over",
            Self::Rebuilt => "rebuilt",
            Self::Waits => "waits",
            Self::Tombstoned => "tombstoned",
            Self::MarkerRepaired => "marker_repaired",
            Self::Cancelled => "cancelled",
            Self::BucketGone => "bucket_gone",
            Self::NoCounters => "no_counters",
            Self::Contradiction { .. } => "contradiction",
            Self::Refused { .. } => "refused",
            Self::Unreadable { .. } => "unreadable",
            Self::Moving => "moving",
        }
    }

    /// What a person must know about: the difference's name and its words.
    #[must_use]
    pub fn difference(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::Contradiction { detail } => Some((kind::CONTRADICTION, detail)),
            Self::Refused { detail } => Some((kind::RELEASE_REFUSED, detail)),
            Self::Unreadable { detail } => Some((kind::UNREADABLE, detail)),
            Self::Agreed
            | Self::Settled
            | Self::HandedOver
            | Self::Rebuilt
            | Self::Waits
            | Self::Tombstoned
            | Self::MarkerRepaired
            | Self::Cancelled
            | Self::BucketGone
            | Self::NoCounters
            | Self::Moving => None,
        }
    }

    /// Whether it is how a decision that was just made is usually found: its consumer, or the worker with
    /// its task, is about to do the same.
    pub(crate) const fn is_usual_at_first(&self) -> bool {
        matches!(self, Self::Settled | Self::HandedOver | Self::Moving)
    }

    /// Whether fronts may believe something about the bucket that is not so any more.
    const fn concerns_fronts(&self) -> bool {
        matches!(self, Self::Cancelled | Self::Rebuilt)
    }

    /// Whether a person who follows one purchase wants to read about it.
    const fn is_news(&self) -> bool {
        match self {
            Self::Agreed | Self::BucketGone | Self::NoCounters | Self::Moving => false,
            // Told by whoever reports differences.
            Self::Contradiction { .. } | Self::Refused { .. } | Self::Unreadable { .. } => false,
            Self::Settled
            | Self::HandedOver
            | Self::Rebuilt
            | Self::Waits
            | Self::Tombstoned
            | Self::MarkerRepaired
            | Self::Cancelled => true,
        }
    }
}

/// Brings Redis to agreement with PostgreSQL, decision by decision. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Replayer {
    redis: Redis,
    store: Store,
    waiting: Waiting,
    /// The claim under which the task of what is replayed is held, if it is.
    own: Option<Claim>,
}

impl Replayer {
    /// Between these two stores, with a set of waiting orders of its own.
    #[must_use]
    pub fn new(redis: Redis, store: Store) -> Self {
        Self {
            redis,
            store,
            waiting: Waiting::default(),
            own: None,
        }
    }

    /// The same for the work on a claimed task, whose claim it must not take for another worker's.
    #[must_use]
    pub fn under(&self, claim: Claim) -> Self {
        Self {
            own: Some(claim),
            ..self.clone()
        }
    }

    /// The orders that it has found waiting for units. Whoever gives units back in the same process
    /// offers them to these first.
    #[must_use]
    pub const fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Brings one reservation to agreement, as far as that can be done now.
    ///
    /// # Errors
    /// Whatever a store met. Repeating it is safe.
    pub async fn replay(&self, decision: &DecisionRecord) -> Result<Replayed, Error> {
        self.replay_facts(&Facts::from(decision)).await
    }

    /// The same for a caller who has just decided, or put up a fence.
    ///
    /// # Errors
    /// Whatever a store met. Repeating it is safe.
    pub async fn replay_facts(&self, facts: &Facts) -> Result<Replayed, Error> {
        let keys = BucketKeys::new(&facts.request.bucket);
        let replayed = self.quietly(&keys, facts).await?;
        if replayed.concerns_fronts() {
            self.tell_fronts(&keys).await;
        }
        Ok(replayed)
    }

    /// The same for a caller who knows the id alone. `None`: it is not decided.
    ///
    /// # Errors
    /// Whatever a store met. Repeating it is safe.
    pub async fn replay_by_id(&self, id: &ReservationId) -> Result<Option<Replayed>, Error> {
        match self.decision(id).await? {
            Some(decision) => Ok(Some(self.replay(&decision).await?)),
            None => Ok(None),
        }
    }

    async fn decision(&self, id: &ReservationId) -> Result<Option<DecisionRecord>, Error> {
        let mut found = self.store.decisions(std::slice::from_ref(id)).await?;
        Ok(found.pop())
    }

    /// Without a word to the fronts: a caller with many decisions of one bucket has one for all.
    async fn quietly(&self, keys: &BucketKeys, facts: &Facts) -> Result<Replayed, Error> {
        let replayed = match self.to_the_end(keys, facts).await {
            Ok(replayed) => replayed,
            // Damage does not heal by waiting, and must not hold back other decisions.
            Err(Error::Redis(error)) if error.kind() == RedisErrorKind::Broken => {
                Replayed::Unreadable {
                    detail: error.to_string(),
                }
            }
            Err(error) => return Err(error),
        };
        let request = &facts.request;
        if replayed.agrees() {
            let (bucket, id) = (&request.bucket, &request.reservation_id);
            self.waiting.forget(bucket, id);
        }
        if replayed.is_news() {
            tracing::info!(
                reservation_id = %request.reservation_id,
                bucket = %request.bucket,
                trace_id = request.traceparent.as_ref().map(Traceparent::trace_id),
                replayed = replayed.as_str(),
                "replayed a decision"
            );
        }
        Ok(replayed)
    }

    async fn to_the_end(&self, keys: &BucketKeys, facts: &Facts) -> Result<Replayed, Error> {
        let mut facts = Cow::Borrowed(facts);
        for _ in 0..LOOKS_MAX {
            let seen = self.look(keys, &facts).await?;
            match self.take(keys, &facts, &seen).await? {
                None => {}
                // The order may have been cancelled since its state was read.
                Some(contradiction @ Replayed::Contradiction { .. }) => {
                    match self.decision(&facts.request.reservation_id).await? {
                        Some(now) if Facts::from(&now) != *facts => {
                            facts = Cow::Owned(Facts::from(&now));
                        }
                        Some(_) | None => return Ok(contradiction),
                    }
                }
                Some(replayed) => return Ok(replayed),
            }
        }
        Ok(Replayed::Moving)
    }

    /// Fronts forget their sold-out mark sooner. One that does not hear of it asks again within half a
    /// second by itself, so a failure here is no reason to repeat anything.
    async fn tell_fronts(&self, keys: &BucketKeys) {
        if let Err(error) = self.redis.publish_soldout_cleared(keys).await {
            tracing::debug!(bucket = %keys.scope(), %error, "the sold-out mark was not cleared");
        }
    }
}
