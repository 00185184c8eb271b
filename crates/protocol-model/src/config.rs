//! What a search explores: who asks for what, which faults may happen how often, and which safeguards
//! are taken out.

use std::collections::BTreeSet;

/// One caller's business operation.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The buyer.
    pub user: u8,
    /// The buyer's bucket.
    pub bucket: u8,
    /// Units asked for.
    pub quantity: u8,
}

impl Request {
    /// One unit for a user of a bucket.
    #[must_use]
    pub const fn one(user: u8, bucket: u8) -> Self {
        Self {
            user,
            bucket,
            quantity: 1,
        }
    }
}

/// A part of the design without which something breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Safeguard {
    /// The worker records `RELEASED` in PostgreSQL before it moves Redis.
    Fence,
    /// The fence comes first, `RELEASE_PENDING` second.
    FenceBeforePending,
    /// PostgreSQL deducts only what its row holds.
    ConditionalStock,
    /// One active order per user.
    OneOrderPerUser,
    /// A decision that is already there wins.
    DecisionWins,
    /// The compensate script releases only `REJECTED` and `RELEASE_PENDING`.
    CompensateGuard,
    /// A missing reservation never adds stock.
    NothingForMissing,
    /// A rebuild takes its units from what is available.
    GuardedRebuild,
    /// Ordered reservations that Redis lost are rebuilt.
    Rebuild,
    /// PostgreSQL's decisions are replayed onto Redis.
    Settlement,
    /// The user marker is deleted only if it points to the released reservation.
    MarkerCheck,
    /// An ordered user's marker that is missing or names nothing held is repaired.
    MarkerRepair,
    /// Whoever settles records `ENQUEUED` before the outcome.
    EnqueuedFirst,
    /// The scanner sends what no front has sent.
    Scanner,
    /// An order deducts from its own bucket's row.
    RowPerBucket,
    /// Replay looks at the order's state as well as at the decision.
    OrderState,
    /// Handing a reservation over again reopens its closed task.
    ReopenTask,
    /// What is refused leaves nothing deducted.
    RefusedDeductsNothing,
    /// A marked repeat that would freshly be refused after a failover is told "unknown".
    RecoveryWindow,
    /// Parking a message opens its task in the same transaction.
    ParkOpensTask,
    /// A second initialisation writes stock only where it is missing.
    GuardedInitialise,
}

/// One search.
#[derive(Debug, Clone)]
pub struct Config {
    /// The callers' operations.
    pub requests: Vec<Request>,
    /// Units of each bucket.
    pub stock: Vec<u8>,
    /// Calls per request: 1 for no repeat.
    pub calls: u8,
    /// Failovers of any slot to any earlier state.
    pub failovers: u8,
    /// Total losses of a slot, followed by an initialisation.
    pub losses: u8,
    /// Orders that PostgreSQL may cancel.
    pub cancels: u8,
    /// Messages that may be parked undecided.
    pub parks: u8,
    /// Copies of one message in the broker at a time.
    pub copies: u8,
    /// Compensation workers at work at the same time, live or stale.
    pub workers: u8,
    /// Safeguards that are taken out.
    pub without: BTreeSet<Safeguard>,
}

impl Config {
    /// Requests and stock; no repeat, no fault, one worker.
    #[must_use]
    pub fn new(requests: &[Request], stock: &[u8]) -> Self {
        Self {
            requests: requests.to_vec(),
            stock: stock.to_vec(),
            calls: 1,
            failovers: 0,
            losses: 0,
            cancels: 0,
            parks: 0,
            copies: 1,
            workers: 1,
            without: BTreeSet::new(),
        }
    }

    /// Takes a safeguard out.
    #[must_use]
    pub fn without(mut self, safeguard: Safeguard) -> Self {
        self.without.insert(safeguard);
        self
    }

    /// Whether a safeguard is in place.
    #[must_use]
    pub fn has(&self, safeguard: Safeguard) -> bool {
        !self.without.contains(&safeguard)
    }
}
