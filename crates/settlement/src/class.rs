//! Every kind of difference that can be found, in one place: its word, what it means, which side is
//! right, what repairs it, and who may.
//!
//! A difference is repaired without a person only where the repair is safe by construction: it
//! replays a decision of PostgreSQL through a script that checks all it touches and does nothing the
//! second time. Whatever would have to move units, or to choose between two claims, waits for a person.

use std::fmt;

use seckill_order_store::Repairable;

/// Which of the two stores is to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// PostgreSQL; Redis follows.
    Postgres,
    /// Redis; PostgreSQL must still hear of it.
    Redis,
    /// Neither by itself: a person has to look.
    Neither,
}

impl Right {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Redis => "Redis",
            Self::Neither => "neither",
        }
    }
}

/// All that is known about a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The word by which it is recorded and alarmed on.
    pub word: &'static str,
    /// What it means.
    pub means: &'static str,
    /// Who is right.
    pub right: Right,
    /// The word of what is done about it; empty where nothing but a person can do something.
    pub action: &'static str,
    /// What repairs it.
    pub repair: &'static str,
    /// Who repairs it.
    pub repairable: Repairable,
}

macro_rules! classes {
    ($($name:ident $word:literal $means:literal $right:ident $by:ident $action:literal
        $repair:literal)*) => {
        /// A kind of difference.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Class {
            $(#[doc = $means] $name,)*
        }

        impl Class {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// All that is known about it.
            #[must_use]
            pub const fn entry(self) -> Entry {
                match self {
                    $(Self::$name => Entry {
                        word: $word,
                        means: $means,
                        right: Right::$right,
                        action: $action,
                        repair: $repair,
                        repairable: Repairable::$by,
                    },)*
                }
            }
        }
    };
}

classes! {
    // One reservation, as PostgreSQL's decision has it.
    ReservationMissing "reservation_missing"
        "PostgreSQL holds an active order and Redis has lost its reservation." Postgres Automatic "rebuild_reservation"
        "rebuild_reservation, which takes the units only if they are available; else the next release of the bucket does"
    TombstoneMissing "tombstone_missing"
        "PostgreSQL has given a reservation up and Redis has forgotten it: a repeat could take a unit hostage." Postgres Automatic "write_tombstone"
        "write_tombstone"
    NotSettled "not_settled"
        "PostgreSQL has decided and Redis has not been told for longer than that takes." Postgres Automatic "settle"
        "replay the decision: ENQUEUED, then the outcome"
    NotReleased "not_released"
        "PostgreSQL has given a reservation up and Redis still holds its units." Postgres Automatic "hand_over"
        "hand it over to the compensation worker, which releases it once"
    NotRestocked "order_cancelled_not_restocked"
        "PostgreSQL has cancelled an order and Redis still holds its units." Postgres Automatic "cancel"
        "replay: settle, then the cancel script"
    MarkerMissing "marker_missing"
        "A reservation holds units and its buyer's marker is gone: the buyer could take a second one." Postgres Automatic "repair_marker"
        "repair_marker, once it is ordered"
    MarkerElsewhere "marker_elsewhere"
        "The marker of a buyer with an order names another reservation." Postgres Automatic "repair_marker"
        "repair_marker, unless the other one holds units"
    ReleasedInRedisOnly "released_in_redis_only"
        "Redis has put units back on sale that PostgreSQL holds in an active order." Postgres Operator ""
        "no script takes units back; cancel the order, or pause and rebuild the version"
    ReleasedWithoutDecision "released_without_decision"
        "Redis has put units back on sale and PostgreSQL never decided so." Neither Operator "hand_over"
        "hand it over: the fence records the release, unless a late message has made an order"
    OrderedWithoutOrder "ordered_without_order"
        "Redis says that an order was made or cancelled and PostgreSQL has no decision." Postgres Operator ""
        "no script undoes an order; find its message, or rebuild the version"
    IdentityDiffers "identity_differs"
        "Both sides know a reservation, with another buyer, quantity, bucket, request or order." Postgres Operator ""
        "compare the records; a changed one in Redis has to be restored by hand"
    Contradiction "contradiction"
        "Redis holds a state that PostgreSQL's decision does not allow." Postgres Operator ""
        "look at both records and at the log of the reservation"
    Overdue "overdue"
        "A reservation is undecided beyond its patience and the compensation worker has not fenced it." Redis Automatic "hand_over"
        "hand it over again; see that a compensation worker runs"
    // One reservation, as Redis has it.
    NotInExpiry "not_in_expiry_index"
        "An open reservation is not a member of `reservation_expiry`: nobody would come back to it." Redis Automatic "hand_over"
        "replay its decision; undecided, hand it over once patience has passed"
    NotInSendPending "not_in_send_pending"
        "A reservation that was not sent is not a member of `send_pending`: nobody would send it." Redis Automatic "resend"
        "the transition script puts it there, as SEND_UNKNOWN"
    IndexLeftOver "index_left_over"
        "An index still names a reservation that needs it no more." Redis Automatic "unindex"
        "the transition script, repeated, removes it"
    IndexStray "index_stray"
        "An index names a reservation that neither side knows." Neither Operator "remove_stray"
        "remove_stray, after a look at the log"
    MarkerStray "marker_stray"
        "A buyer's marker names a reservation that does not exist, holds nothing or is another's, and the buyer has no order." Neither Operator "remove_stray"
        "remove_stray, so that the buyer can buy; it looks for the marker among all keys of the bucket"
    CachedResultUnreadable "cached_result_unreadable"
        "The remembered answer to a request cannot be read: its repeats get `INVARIANT_VIOLATION`." Redis Operator "remove_stray"
        "remove_stray; the repeat makes it again from the reservation"
    CachedResultDiffers "cached_result_differs"
        "The remembered answer to a request is not that of the reservation it made." Redis Operator "remove_stray"
        "remove_stray; the repeat makes it again from the reservation"
    ForeignScope "foreign_scope"
        "A bucket holds a reservation of another activity, version or bucket." Neither Operator ""
        "find out who wrote it; only the services' scripts may"
    KeyWithoutExpiry "key_without_expiry"
        "A key would live for ever (I10)." Postgres Automatic "extend_retention"
        "extend_retention gives it the version's expiry"
    ReservedAhead "reserved_in_future"
        "A reservation says to have been accepted more than a minute from now, as by a clock that was ahead: patience with it begins only then." Neither Operator ""
        "see to the clocks (seckillctl doctor compares them); it is gone once its time has come, and only its message decides it before"
    Unreadable "unreadable"
        "What a store holds cannot be read." Neither Operator ""
        "restore the record by hand from the other side"
    // A bucket.
    StockMissing "stock_missing"
        "Redis has no counters for a bucket that must have some." Postgres Operator "rebuild_version"
        "seckillctl activity rebuild"
    MetaMissing "meta_missing"
        "Redis has no settings for a bucket that must have some." Postgres Operator "rebuild_version"
        "seckillctl activity rebuild"
    MetaDiffers "meta_differs"
        "Redis sells by other settings than PostgreSQL's." Postgres Operator ""
        "pause, restore the field by hand, resume"
    StateDiffers "state_differs"
        "A bucket's state is not the activity's: a failover or a crash lost a change." Postgres Automatic "set_activity_state"
        "set_activity_state"
    PointerDiffers "pointer_differs"
        "Buyers are not pointed at the version on sale." Postgres Operator "set_current_version"
        "seckillctl activity open or resume, run again"
    InitialDiffers "initial_differs"
        "The two stores give a bucket different totals." Postgres Operator ""
        "find the transfer or the write that only one side has; else rebuild"
    RedisNotConserved "redis_not_conserved"
        "A bucket's counters in Redis do not add up (I3)." Postgres Operator "rebuild_version"
        "pause and rebuild the version"
    HeldBelowOrders "held_below_orders"
        "Redis holds fewer units than PostgreSQL has sold: it may sell them again." Postgres Operator ""
        "pause; lost reservations are rebuilt as units come free, else rebuild the version"
    UnitsUnaccounted "units_unaccounted"
        "The units that Redis holds are neither sold nor on their way." Postgres Operator ""
        "look for its reservations; else rebuild the version"
    HoldersDiffer "holders_differ"
        "A bucket's reserved is not what its reservations hold (I3)." Postgres Operator "rebuild_version"
        "pause and rebuild the version"
    SoldOutStale "soldout_stale"
        "A bucket is marked sold out although units are available." Redis Operator "remove_stray"
        "remove_stray; the next release does so too"
    ForeignKey "foreign_key"
        "A bucket has a key that no version of this program writes." Neither Operator ""
        "find out who wrote it; only the services' scripts may"
    PostgresNotConserved "postgres_not_conserved"
        "A bucket's row in PostgreSQL does not add up or does not agree with its orders (I1)." Neither None ""
        "nothing by itself: compare row, orders and journal"
    DuplicateOrder "duplicate_order"
        "A buyer or a request has more than one active order (I2)." Neither None ""
        "seckillctl order cancel for the surplus one"
    DecisionWithoutOrder "decision_without_order"
        "PostgreSQL decided that a reservation is ordered and has no order." Neither None ""
        "nothing by itself: look for who deleted it"
    OrderWithoutDecision "order_without_decision"
        "PostgreSQL has an order without a decision behind it (I7)." Neither None ""
        "nothing by itself: look for who wrote it"
    ReleaseRefused "release_refused"
        "The release script found counters or ids that contradict each other." Neither Operator ""
        "look at the bucket's other differences first"
    OpenBeforeRetention "open_before_retention"
        "A version's keys are about to expire, or have expired, and not all of its work was done." Neither Operator "settle"
        "settle what is named, or extend the retention; once its keys have expired, resolve it when nothing else is open"
}

impl Class {
    /// The word by which it is recorded and alarmed on.
    #[must_use]
    pub const fn word(self) -> &'static str {
        self.entry().word
    }

    /// Who repairs it.
    #[must_use]
    pub const fn repairable(self) -> Repairable {
        self.entry().repairable
    }

    /// Whether the service repairs it by itself.
    #[must_use]
    pub const fn is_automatic(self) -> bool {
        matches!(self.repairable(), Repairable::Automatic)
    }

    /// Whether a command repairs it: [`crate::repair()`] has something for it.
    #[must_use]
    pub const fn has_command(self) -> bool {
        self.is_automatic()
            || matches!(
                self,
                Self::ReleasedWithoutDecision
                    | Self::IndexStray
                    | Self::MarkerStray
                    | Self::CachedResultUnreadable
                    | Self::CachedResultDiffers
                    | Self::SoldOutStale
            )
    }

    /// The class of a word on record.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|class| class.word() == word)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_word_names_one_class() {
        let words: BTreeSet<&str> = Class::ALL.iter().map(|class| class.word()).collect();
        assert_eq!(words.len(), Class::ALL.len());
        for class in Class::ALL {
            assert_eq!(Class::parse(class.word()), Some(*class));
        }
        assert_eq!(Class::parse("no_such_word"), None);
    }

    /// Goal: nothing that would move units or choose between two claims is done without a person.
    #[test]
    fn damage_to_counters_and_to_postgresql_waits_for_a_person() {
        for class in [
            Class::StockMissing,
            Class::MetaMissing,
            Class::RedisNotConserved,
            Class::HoldersDiffer,
            Class::HeldBelowOrders,
            Class::PostgresNotConserved,
            Class::ReleasedInRedisOnly,
            Class::OrderedWithoutOrder,
            Class::Contradiction,
        ] {
            assert!(!class.is_automatic(), "{class}");
        }
    }

    /// Goal: the operators' table says what the code does.
    #[test]
    fn the_operators_page_lists_every_class() {
        let page = include_str!("../../../docs/reconciliation.md");
        for class in Class::ALL {
            let entry = class.entry();
            let by = match entry.repairable {
                Repairable::Automatic => "service",
                Repairable::Operator => "operator",
                Repairable::None => "nobody",
            };
            let row = format!(
                "| `{}` | {} | {} | {by} | {} |",
                entry.word,
                entry.means.trim_end_matches('.'),
                entry.right.as_str(),
                entry.repair,
            );
            assert!(page.contains(&row), "docs/reconciliation.md lacks:\n{row}");
        }
        let rows = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, Class::ALL.len(), "a row of no class");
    }
}
