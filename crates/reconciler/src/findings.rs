//! The words by which this service names differences, next to those it shares with the others.

pub use seckill_settlement::kind::{CONTRADICTION, RESERVATION_MISSING, UNREADABLE};

/// A reservation whose time is up and about which PostgreSQL has not decided.
pub const UNDECIDED: &str = "undecided";
/// A settled reservation that is still a member of the expiry index.
pub const LEFT_OVER: &str = "index_left_over";
/// A reservation that PostgreSQL has given up, for longer than its release takes.
pub const NOT_RELEASED: &str = "not_released";
/// An order that PostgreSQL has cancelled and whose units Redis still holds.
pub const NOT_RESTOCKED: &str = "order_cancelled_not_restocked";
/// Redis has no counters for a bucket that must have some.
pub const STOCK_MISSING: &str = "stock_missing";
/// A bucket's counters in Redis do not add up (I3).
pub const REDIS_NOT_CONSERVED: &str = "redis_not_conserved";
/// A bucket's row in PostgreSQL does not add up or does not agree with its orders (I1).
pub const POSTGRES_NOT_CONSERVED: &str = "postgres_not_conserved";
/// The two stores give a bucket different totals.
pub const INITIAL_DIFFERS: &str = "initial_differs";
/// Redis holds fewer units than PostgreSQL has sold: it may sell them again.
pub const HELD_BELOW_ORDERS: &str = "held_below_orders";
/// The units that Redis holds are neither sold nor on their way.
pub const UNITS_UNACCOUNTED: &str = "units_unaccounted";
/// A bucket's `reserved` is not what its reservations hold (I3).
pub const HOLDERS_DIFFER: &str = "holders_differ";
