//! What an audit has read of one bucket, on either side, before anything is judged.
//!
//! Plain values without a store behind them, so that every rule of the ledger is tested without one.

use std::collections::{BTreeMap, BTreeSet};

use seckill_key_layout::KeyKind;
use seckill_lua_scripts::Meta;
use seckill_state_machine::invariants::StockCounters;
use seckill_state_machine::{
    BucketScope, DecisionKind, OrderId, OrderState, ReservationId, ReservationStatus, UserId,
};

/// One reservation hash in Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationFacts {
    /// Where it stands.
    pub status: ReservationStatus,
    /// Its units.
    pub quantity: u64,
    /// Its buyer.
    pub user_id: UserId,
    /// The order it was settled with.
    pub order_id: Option<OrderId>,
}

/// A bucket's counters in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockFacts {
    /// Initial, available and reserved.
    pub counters: StockCounters,
    /// Units that went back on sale so far.
    pub released_total: u64,
}

/// Everything a bucket has in Redis.
#[derive(Debug, Clone)]
pub struct BucketFacts {
    /// Which one.
    pub bucket: BucketScope,
    /// Whether its meta is there, readable or not.
    pub has_meta: bool,
    /// Its meta, unless it is gone or unreadable.
    pub meta: Option<Meta>,
    /// Its counters, unless they are gone.
    pub stock: Option<StockFacts>,
    /// Its reservations.
    pub reservations: BTreeMap<ReservationId, ReservationFacts>,
    /// Its user markers.
    pub markers: BTreeMap<UserId, ReservationId>,
    /// The members of `send_pending`, as they are written.
    pub send_pending: BTreeSet<String>,
    /// The members of `reservation_expiry`, as they are written.
    pub reservation_expiry: BTreeSet<String>,
    /// Whether the sold-out mark stands.
    pub sold_out: bool,
    /// Keys that would live for ever.
    pub without_expiry: Vec<KeyKind>,
    /// Keys that could not be understood, each with the reason.
    pub unreadable: Vec<(Subject, String)>,
    /// Whether the counters were the same before and after the scan: a script that moves units
    /// changes at least one of them, so that equal counters make the scan a snapshot.
    pub steady: bool,
}

/// The key that something is wrong with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A key of a known kind.
    Key(KeyKind),
    /// A name that this version never writes.
    Foreign(String),
}

impl BucketFacts {
    /// A bucket of which nothing was found.
    #[must_use]
    pub fn empty(bucket: &BucketScope) -> Self {
        Self {
            bucket: bucket.clone(),
            has_meta: false,
            meta: None,
            stock: None,
            reservations: BTreeMap::new(),
            markers: BTreeMap::new(),
            send_pending: BTreeSet::new(),
            reservation_expiry: BTreeSet::new(),
            sold_out: false,
            without_expiry: Vec::new(),
            unreadable: Vec::new(),
            steady: true,
        }
    }

    /// Whether nothing at all is there.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        !self.has_meta && self.stock.is_none() && self.reservations.is_empty()
    }

    /// Units of reservations that hold some and are not ordered yet.
    #[must_use]
    pub fn open_units(&self) -> u64 {
        self.units(|status| status.holds_units() && status != ReservationStatus::OrderCreated)
    }

    /// Units of reservations that became orders.
    #[must_use]
    pub fn ordered_units(&self) -> u64 {
        self.units(|status| status == ReservationStatus::OrderCreated)
    }

    /// Units of reservations that gave theirs back.
    #[must_use]
    pub fn returned_units(&self) -> u64 {
        self.units(|status| !status.holds_units())
    }

    fn units(&self, counts: impl Fn(ReservationStatus) -> bool) -> u64 {
        self.reservations
            .values()
            .filter(|reservation| counts(reservation.status))
            .fold(0, |sum, reservation| {
                sum.saturating_add(reservation.quantity)
            })
    }
}

/// One stock row in PostgreSQL with the active orders that deducted from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BookFacts {
    /// Units in all.
    pub total: u64,
    /// Units left.
    pub available: u64,
    /// Units of active orders.
    pub ordered_units: u64,
    /// Active orders.
    pub orders: u64,
}

/// One decision in PostgreSQL with the order that stands behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionFacts {
    /// What it decides on.
    pub reservation_id: ReservationId,
    /// The bucket whose row it concerns.
    pub bucket: BucketScope,
    /// The buyer.
    pub user_id: UserId,
    /// Units.
    pub quantity: u64,
    /// The decision.
    pub kind: DecisionKind,
    /// The order of an `ORDERED` decision.
    pub order: Option<(OrderId, OrderState)>,
}
