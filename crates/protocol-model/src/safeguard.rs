//! The parts of the design without which something breaks.

macro_rules! safeguards {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A part of the design that a search can do without, to see what it prevents.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Safeguard {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Safeguard {
            /// Every safeguard.
            pub const ALL: &[Self] = &[$(Self::$name,)+];
        }
    };
}

safeguards! {
    /// The worker records `RELEASED` in PostgreSQL before it moves Redis.
    Fence,
    /// The fence comes first, `RELEASE_PENDING` second.
    FenceBeforePending,
    /// PostgreSQL deducts only what its row holds.
    ConditionalStock,
    /// One active order per user.
    OneOrderPerUser,
    /// The decision's primary key: two transactions cannot both write one.
    DecisionKey,
    /// A decision that the order transaction finds wins over its own.
    DecisionWins,
    /// A message is decided once.
    Inbox,
    /// A message that was decided before settles Redis again.
    DuplicatesSettle,
    /// A message is acknowledged after its transaction.
    AckAfterCommit,
    /// A repeat is answered with its first result.
    FirstResult,
    /// The quantity is part of the reservation id.
    QuantityInId,
    /// `soldout` is marked only when nothing is left.
    SoldOutAtZero,
    /// The compensate script releases only `REJECTED` and `RELEASE_PENDING`.
    CompensateGuard,
    /// A missing reservation never adds stock.
    NothingForMissing,
    /// The user marker is deleted only if it points to the released reservation.
    MarkerCheck,
    /// An ordered user's marker that is missing or names nothing held is repaired.
    MarkerRepair,
    /// A rebuild takes its units from what is available.
    GuardedRebuild,
    /// An initialisation writes stock only where it is missing.
    GuardedInitialise,
    /// Ordered reservations that Redis lost are rebuilt.
    Rebuild,
    /// Decided reservations that Redis lost get a tombstone.
    Tombstone,
    /// Somebody compares both sides and replays PostgreSQL's decisions onto Redis.
    Reconciler,
    /// What stays undecided for longer than patience is handed over.
    Overdue,
    /// Nothing is handed over before patience has passed.
    Patience,
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
    /// A version that was rebuilt after a total loss opens into the recovery window.
    WindowAfterRebuild,
    /// Parking a message opens its task in the same transaction.
    ParkOpensTask,
    /// Each step of a bucket transfer is replayed from PostgreSQL after a failover.
    TransferReplay,
    /// Each side of a bucket transfer remembers that it has done its step.
    TransferOnce,
}
