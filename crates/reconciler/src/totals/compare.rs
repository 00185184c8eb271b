//! One bucket's counters on both sides, and which differences between them mean something.

use seckill_lua_scripts::Stock;
use seckill_order_store::BucketTotals;
use seckill_state_machine::ActivityState;

use crate::findings;

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

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub kind: &'static str,
    /// Both sides' values.
    pub detail: String,
}

impl Difference {
    /// What must stay the same for it to count. A difference whose values move is still on its way,
    /// except for one that nothing on its way can cause.
    #[must_use]
    pub fn lasting(&self) -> (&'static str, String) {
        let values = match self.kind {
            findings::HELD_BELOW_ORDERS => String::new(),
            _ => self.detail.clone(),
        };
        (self.kind, values)
    }
}

/// The differences of a bucket whose counters in Redis cannot be read.
#[must_use]
pub fn unreadable(totals: &BucketTotals, damage: &str) -> Vec<Difference> {
    let mut found = Vec::from_iter(postgres(totals));
    found.push(Difference {
        kind: findings::UNREADABLE,
        detail: damage.to_owned(),
    });
    found
}

/// What PostgreSQL's side says against itself.
fn postgres(totals: &BucketTotals) -> Option<Difference> {
    let (total, available, sold) = (totals.total, totals.available, totals.sold);
    let (active, journal) = (totals.active_units, totals.journal_units);
    (!totals.is_conserved()).then(|| Difference {
        kind: findings::POSTGRES_NOT_CONSERVED,
        detail: format!(
            "total {total}, available {available} (journal {journal}), sold {sold} (orders {active})"
        ),
    })
}

/// Compares the two sides. What it returns counts only if it stays the same.
#[must_use]
pub fn compare(sight: &Sight) -> Vec<Difference> {
    let totals = &sight.totals;
    let mut found = Vec::from_iter(postgres(totals));
    let mut note = |kind, detail| found.push(Difference { kind, detail });
    let Some(stock) = sight.after.stock else {
        // Before its preheat a version has nothing in Redis.
        if sight.state != ActivityState::Prepared {
            note(
                findings::STOCK_MISSING,
                format!("postgresql: total {}", totals.total),
            );
        }
        return found;
    };
    let counters = stock.counters;
    if !counters.is_conserved() {
        let (initial, available, reserved) =
            (counters.initial, counters.available, counters.reserved);
        note(
            findings::REDIS_NOT_CONSERVED,
            format!("initial {initial}, available {available}, reserved {reserved}"),
        );
    }
    if counters.initial != totals.total {
        note(
            findings::INITIAL_DIFFERS,
            format!("redis: {}, postgresql: {}", counters.initial, totals.total),
        );
    }
    // Redis was read last, and a unit is held before it is sold: no lag can make this true.
    if counters.reserved < totals.active_units {
        note(
            findings::HELD_BELOW_ORDERS,
            format!(
                "redis: {} held, postgresql: {} sold",
                counters.reserved, totals.active_units
            ),
        );
    } else if sight.before == sight.after && !explains_open(sight, counters.reserved) {
        note(
            findings::UNITS_UNACCOUNTED,
            format!(
                "redis: {} held, {} reservations open; postgresql: {} sold",
                counters.reserved, sight.after.open, totals.active_units
            ),
        );
    }
    found
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

    fn kinds(sight: &Sight) -> Vec<&'static str> {
        compare(sight).into_iter().map(|found| found.kind).collect()
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
        assert_eq!(
            kinds(&sight(redis(5, 4, 0), 4)),
            [findings::REDIS_NOT_CONSERVED]
        );
        assert_eq!(
            kinds(&sight(redis(7, 3, 0), 4)),
            [findings::HELD_BELOW_ORDERS]
        );
        assert_eq!(
            kinds(&sight(redis(5, 5, 0), 4)),
            [findings::UNITS_UNACCOUNTED]
        );
        assert_eq!(
            kinds(&sight(redis(5, 5, 3), 4)),
            [findings::UNITS_UNACCOUNTED]
        );
        let mut short = sight(redis(6, 4, 0), 4);
        short.totals.total = 11;
        short.totals.available = 7;
        short.totals.journal_units = 7;
        assert_eq!(kinds(&short), [findings::INITIAL_DIFFERS]);
        let mut oversold = sight(redis(6, 4, 0), 4);
        oversold.totals.active_units = 3;
        assert!(kinds(&oversold).contains(&findings::POSTGRES_NOT_CONSERVED));
    }

    #[test]
    fn damaged_counters_are_a_difference_and_do_not_hide_postgresql() {
        let mut totals = sight(redis(6, 4, 0), 4).totals;
        let kinds = |totals: &BucketTotals| {
            let found = unreadable(totals, "stock is malformed");
            found
                .into_iter()
                .map(|found| found.kind)
                .collect::<Vec<_>>()
        };
        assert_eq!(kinds(&totals), [findings::UNREADABLE]);
        totals.sold += 1;
        assert_eq!(
            kinds(&totals),
            [findings::POSTGRES_NOT_CONSERVED, findings::UNREADABLE]
        );
    }

    #[test]
    fn only_a_version_that_was_never_opened_may_lack_its_counters() {
        let nothing = InRedis {
            stock: None,
            open: 0,
        };
        assert_eq!(kinds(&sight(nothing, 0)), [findings::STOCK_MISSING]);
        let prepared = Sight {
            state: ActivityState::Prepared,
            ..sight(nothing, 0)
        };
        assert!(compare(&prepared).is_empty());
    }
}
