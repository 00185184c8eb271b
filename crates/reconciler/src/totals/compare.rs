//! One bucket's counters on both sides, and which differences between them mean something.

use seckill_lua_scripts::Stock;
use seckill_order_store::BucketTotals;
use seckill_state_machine::ActivityState;

use seckill_settlement::Class;

use crate::finding::Finding;

/// What Redis had for a bucket at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InRedis {
    /// The counters, if there are any.
    pub stock: Option<Stock>,
    /// Reservations without an end: members of the expiry index.
    pub open: u64,
}

/// A bucket as one round saw it: Redis, then PostgreSQL, then Redis again.
#[derive(Debug, Clone, Copy)]
pub struct Sight {
    /// Where the activity stands.
    pub state: ActivityState,
    /// Most units of one reservation.
    pub max_quantity: u64,
    /// Redis before PostgreSQL was read.
    pub before: InRedis,
    /// PostgreSQL.
    pub totals: BucketTotals,
    /// Redis after PostgreSQL was read.
    pub after: InRedis,
}

/// The differences of a bucket whose counters in Redis cannot be read.
#[must_use]
pub fn unreadable(totals: &BucketTotals, damage: &str) -> Vec<Finding> {
    let mut found = Vec::from_iter(postgres(totals));
    found.push(Finding::of_bucket(Class::Unreadable, damage, ""));
    found
}

/// What PostgreSQL's side says against itself.
fn postgres(totals: &BucketTotals) -> Option<Finding> {
    let (total, available, sold) = (totals.total, totals.available, totals.sold);
    let (active, journal) = (totals.active_units, totals.journal_units);
    (!totals.is_conserved()).then(|| {
        let words = format!(
            "total {total}, available {available} (journal {journal}), sold {sold} (orders {active})"
        );
        Finding::of_bucket(Class::PostgresNotConserved, "", words)
    })
}

/// Compares the two sides. What it returns counts only if it stays the same.
#[must_use]
pub fn compare(sight: &Sight) -> Vec<Finding> {
    let totals = &sight.totals;
    let (total, sold) = (totals.total, totals.active_units);
    let mut found = Vec::from_iter(postgres(totals));
    let Some(stock) = sight.after.stock else {
        if owes_redis(sight.state, totals) {
            let words = format!("total {total}");
            found.push(Finding::of_bucket(Class::StockMissing, "nothing", words));
        }
        return found;
    };
    let counters = stock.counters;
    let (initial, available, held) = (counters.initial, counters.available, counters.reserved);
    if !counters.is_conserved() {
        let words = format!("initial {initial}, available {available}, reserved {held}");
        found.push(Finding::of_bucket(Class::RedisNotConserved, words, ""));
    }
    if initial != total {
        let words = (format!("initial {initial}"), format!("total {total}"));
        found.push(Finding::of_bucket(Class::InitialDiffers, words.0, words.1));
    }
    let postgres = format!("{sold} sold");
    // Redis was read last, and a unit is held before it is sold: no lag can make this true. It counts
    // whatever its values do meanwhile.
    if held < sold {
        let below = Finding::of_bucket(Class::HeldBelowOrders, format!("{held} held"), postgres);
        found.push(below.about(""));
    } else if sight.before == sight.after && !explains_open(sight, held) {
        let words = format!("{held} held, {} reservations open", sight.after.open);
        found.push(Finding::of_bucket(Class::UnitsUnaccounted, words, postgres));
    }
    found
}

/// Whether a version must have something in Redis: not before its preheat, and not when it was closed
/// without a sale.
#[must_use]
pub fn owes_redis(state: ActivityState, totals: &BucketTotals) -> bool {
    match state {
        ActivityState::Prepared => false,
        ActivityState::Closed => totals.active_units > 0,
        ActivityState::Active | ActivityState::Paused => true,
    }
}

/// Whether the open reservations explain the units that are held and not sold. Only a bucket that did
/// not move while it was read can be counted like this.
const fn explains_open(sight: &Sight, reserved: u64) -> bool {
    let unsold = reserved - sight.totals.active_units;
    let open = sight.after.open;
    open <= unsold && unsold <= open.saturating_mul(sight.max_quantity)
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::BucketId;
    use seckill_state_machine::invariants::StockCounters;

    use super::*;

    fn redis(available: u64, reserved: u64, open: u64) -> InRedis {
        InRedis {
            stock: Some(Stock {
                counters: StockCounters {
                    initial: 10,
                    available,
                    reserved,
                },
                released_total: 0,
            }),
            open,
        }
    }

    fn sight(in_redis: InRedis, sold: u64) -> Sight {
        Sight {
            state: ActivityState::Active,
            max_quantity: 1,
            before: in_redis,
            totals: BucketTotals {
                bucket_id: BucketId::ZERO,
                total: 10,
                available: 10 - sold,
                sold,
                active_units: sold,
                active_orders: sold,
                journal_units: 10 - sold as i64,
            },
            after: in_redis,
        }
    }

    fn kinds(sight: &Sight) -> Vec<Class> {
        compare(sight)
            .into_iter()
            .map(|found| found.class)
            .collect()
    }

    #[test]
    fn agreement_finds_nothing_with_and_without_open_reservations() {
        assert!(compare(&sight(redis(10, 0, 0), 0)).is_empty());
        assert!(compare(&sight(redis(4, 6, 2), 4)).is_empty());
        let several = Sight {
            max_quantity: 3,
            ..sight(redis(4, 6, 2), 1)
        };
        assert!(compare(&several).is_empty());
    }

    #[test]
    fn a_bucket_that_moves_is_not_counted() {
        let moving = Sight {
            before: redis(5, 5, 1),
            ..sight(redis(4, 6, 0), 4)
        };
        assert!(compare(&moving).is_empty());
    }

    #[test]
    fn planted_damage_is_named() {
        assert_eq!(kinds(&sight(redis(5, 4, 0), 4)), [Class::RedisNotConserved]);
        assert_eq!(kinds(&sight(redis(7, 3, 0), 4)), [Class::HeldBelowOrders]);
        assert_eq!(kinds(&sight(redis(5, 5, 0), 4)), [Class::UnitsUnaccounted]);
        assert_eq!(kinds(&sight(redis(5, 5, 3), 4)), [Class::UnitsUnaccounted]);
        let mut short = sight(redis(6, 4, 0), 4);
        short.totals.total = 11;
        short.totals.available = 7;
        short.totals.journal_units = 7;
        assert_eq!(kinds(&short), [Class::InitialDiffers]);
        let mut oversold = sight(redis(6, 4, 0), 4);
        oversold.totals.active_units = 3;
        assert!(kinds(&oversold).contains(&Class::PostgresNotConserved));
    }

    #[test]
    fn damaged_counters_are_a_difference_and_do_not_hide_postgresql() {
        let mut totals = sight(redis(6, 4, 0), 4).totals;
        let kinds = |totals: &BucketTotals| {
            let found = unreadable(totals, "stock is malformed");
            found
                .into_iter()
                .map(|found| found.class)
                .collect::<Vec<_>>()
        };
        assert_eq!(kinds(&totals), [Class::Unreadable]);
        totals.sold += 1;
        assert_eq!(
            kinds(&totals),
            [Class::PostgresNotConserved, Class::Unreadable]
        );
    }

    #[test]
    fn only_a_version_that_was_never_opened_may_lack_its_counters() {
        let nothing = InRedis {
            stock: None,
            open: 0,
        };
        assert_eq!(kinds(&sight(nothing, 0)), [Class::StockMissing]);
        let prepared = Sight {
            state: ActivityState::Prepared,
            ..sight(nothing, 0)
        };
        assert!(compare(&prepared).is_empty());
        let closed = |sold| Sight {
            state: ActivityState::Closed,
            ..sight(nothing, sold)
        };
        assert!(compare(&closed(0)).is_empty());
        assert!(!compare(&closed(1)).is_empty());
    }
}
