//! The table "safeguard removed, violation found": what each safeguard is for.

use crate::Safeguard as S;
use crate::whole::{requantified, transferred, two_buckets};
use crate::{Config, Request, Safeguard};

/// A safeguard, and what the search finds without it.
pub struct Removal {
    /// What is taken out.
    pub without: Safeguard,
    /// Whether another safeguard does its work meanwhile.
    pub cover: Cover,
    /// The first characters of the invariant that breaks.
    pub breaks: &'static str,
    /// What goes wrong.
    pub story: &'static str,
    /// Where it is found.
    pub config: fn() -> Config,
}

/// Whether another safeguard covers for the one that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// None does.
    None,
    /// This one does: the search finds something only without both.
    By(Safeguard),
}

impl Removal {
    /// What is out when the violation is found.
    #[must_use]
    pub fn without(&self) -> Vec<Safeguard> {
        match self.cover {
            Cover::None => vec![self.without],
            Cover::By(cover) => vec![self.without, cover],
        }
    }

    /// A row of the table in `docs/protocol-model.md`.
    #[must_use]
    pub fn row(&self) -> String {
        let cover = match self.cover {
            Cover::None => String::new(),
            Cover::By(cover) => format!("`{cover:?}`"),
        };
        let (without, breaks, story) = (self.without, self.breaks, self.story);
        format!("| `{without:?}` | {cover} | {breaks} | {story} |")
    }
}

fn one() -> Config {
    Config::new(&[Request::one(0, 0)], &[1])
}

/// With patience, or the searches of more than one request would be the largest of all.
fn patient(config: Config) -> Config {
    Config {
        overdue: false,
        ..config
    }
}

/// Two users for one unit.
fn rivals() -> Config {
    patient(Config::new(&[Request::one(0, 0), Request::one(1, 0)], &[1]))
}

/// One user with two requests for two units.
fn twice() -> Config {
    patient(Config::new(&[Request::one(0, 0), Request::one(0, 0)], &[2]))
}

fn failover(config: Config) -> Config {
    Config {
        failovers: 1,
        ..config
    }
}

fn repeated(config: Config) -> Config {
    Config { calls: 2, ..config }
}

const fn alone(
    without: Safeguard,
    breaks: &'static str,
    config: fn() -> Config,
    story: &'static str,
) -> Removal {
    Removal {
        without,
        cover: Cover::None,
        breaks,
        story,
        config,
    }
}

const fn covered(
    without: Safeguard,
    by: Safeguard,
    breaks: &'static str,
    config: fn() -> Config,
    story: &'static str,
) -> Removal {
    Removal {
        cover: Cover::By(by),
        ..alone(without, breaks, config, story)
    }
}

/// One row for each safeguard.
#[rustfmt::skip]
pub const REMOVALS: &[Removal] = &[
    alone(S::Fence, "I6", one,
        "a late message orders a unit that was given back"),
    alone(S::FenceBeforePending, "I5", one,
        "an order is decided between the two, and Redis can no longer say so"),
    alone(S::ConditionalStock, "I1", || failover(rivals()),
        "a unit that a failover forgot is sold twice"),
    alone(S::OneOrderPerUser, "I2", || failover(twice()),
        "a failover forgets the marker, and the user gets two orders"),
    alone(S::DecisionKey, "I7", one,
        "fence and order both write their decision"),
    alone(S::DecisionWins, "I7", one,
        "the order transaction overwrites the fence"),
    covered(S::Inbox, S::DecisionKey, "I7", || Config { workers: 0, copies: 2, ..patient(one()) },
        "a duplicate is decided a second time"),
    covered(S::DuplicatesSettle, S::Reconciler, "I5", one,
        "a lost settlement is not made up for by the redelivery"),
    alone(S::AckAfterCommit, "I8", one,
        "a consumer that dies loses the message; patience releases the unit"),
    alone(S::FirstResult, "I4", || repeated(one()),
        "a buyer who was accepted is told that somebody holds a reservation"),
    alone(S::QuantityInId, "I5", || failover(patient(requantified())),
        "Redis holds two units for an order of one"),
    alone(S::SoldOutAtZero, "S1", || patient(Config::new(&[Request::units(2, 0, 0), Request::units(2, 1, 0)], &[3])),
        "one unit is left and nobody is let in"),
    alone(S::CompensateGuard, "I3", || Config { workers: 2, ..one() },
        "a stale worker releases a second time"),
    alone(S::NothingForMissing, "I3", || failover(one()),
        "a unit is made of nothing"),
    covered(S::MarkerCheck, S::MarkerRepair, "I5", || failover(twice()),
        "a release deletes the marker of the user's order"),
    alone(S::MarkerRepair, "I5", || failover(twice()),
        "a rebuild finds the marker of another reservation, which is then released"),
    alone(S::GuardedRebuild, "I3", || failover(rivals()),
        "a rebuild takes a unit that was resold, and the counter falls below zero"),
    alone(S::GuardedInitialise, "I3", || Config { losses: 1, ..one() },
        "a second operator resets the stock under live reservations"),
    alone(S::Rebuild, "I5", || failover(one()),
        "an order has no reservation for ever"),
    alone(S::Tombstone, "I4", || repeated(failover(one())),
        "after a clean replay a repeat holds a unit that can only be released again"),
    alone(S::Reconciler, "I5", one,
        "a lost settlement leaves a decided reservation open"),
    alone(S::Overdue, "I5", || Config { drops: 1, ..one() },
        "a message that the broker lost keeps its unit for ever"),
    alone(S::Patience, "S2", || patient(one()),
        "a message that is on its way is released under the buyer's feet"),
    covered(S::EnqueuedFirst, S::Scanner, "I5", one,
        "the outcome is an illegal step from `RESERVED`"),
    covered(S::Scanner, S::Overdue, "I5", one,
        "a front dies before the send, and nobody sends"),
    alone(S::RowPerBucket, "I5", || failover(patient(two_buckets())),
        "a bucket sells the other one's unit: accept, reject, release for ever"),
    alone(S::OrderState, "I5", || Config { cancels: 1, ..one() },
        "a cancelled order keeps its unit in Redis"),
    alone(S::ReopenTask, "I5", || failover(one()),
        "a failover undoes a release whose task is closed"),
    alone(S::RefusedDeductsNothing, "I5", || failover(twice()),
        "PostgreSQL leaks the unit of a refused order"),
    alone(S::RecoveryWindow, "I9", || repeated(failover(rivals())),
        "a buyer is refused, and then the first attempt becomes an order"),
    alone(S::WindowAfterRebuild, "I9", || Config { losses: 1, ..repeated(rivals()) },
        "the same after a total loss: a stored message is still on its way"),
    alone(S::ParkOpensTask, "I5", || Config { parks: 1, ..failover(one()) },
        "a failover forgets the reservation of a parked message, and nobody decides it"),
    alone(S::TransferReplay, "I5", || failover(patient(transferred())),
        "a failover undoes one side of a transfer"),
    alone(S::TransferOnce, "I5", || patient(transferred()),
        "a mover dies and its successor adds the units again"),
];
