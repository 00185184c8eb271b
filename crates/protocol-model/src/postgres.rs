//! PostgreSQL: decisions, orders, stock rows and compensation tasks; each method one transaction.

use seckill_state_machine::{
    ActivityId, ActivityVersion, BucketId, BucketScope, DecisionBook, DecisionKind, OrderRequest,
    OrderState, Quantity, RequestId, ReservationId, Ruling, Scope, SkuId, TimestampMs, UserId,
    rule,
};

use crate::{Config, Safeguard};

/// A compensation task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Task {
    /// How often it was opened.
    pub generation: u8,
    /// Whether it is still to be done.
    pub open: bool,
}

/// The tables.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Postgres {
    /// Decisions by request.
    pub decisions: Vec<Option<DecisionKind>>,
    /// Orders by request.
    pub orders: Vec<Option<OrderState>>,
    /// Units left, by bucket row.
    pub available: Vec<i8>,
    /// Tasks by request.
    pub tasks: Vec<Task>,
    /// Whether a decision was ever overwritten (I7).
    pub overwritten: bool,
}

impl Postgres {
    /// Empty tables with full stock.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let requests = config.requests.len();
        Self {
            decisions: vec![None; requests],
            orders: vec![None; requests],
            available: config
                .stock
                .iter()
                .map(|units| units.cast_signed())
                .collect(),
            tasks: vec![Task::default(); requests],
            overwritten: false,
        }
    }

    /// The row that an order of a bucket deducts from.
    fn row(&self, config: &Config, bucket: u8) -> usize {
        if config.has(Safeguard::RowPerBucket) {
            return usize::from(bucket);
        }
        // One counter for all: any row that still holds something serves any bucket.
        (0..self.available.len())
            .find(|row| self.available[*row] > 0)
            .unwrap_or(0)
    }

    /// The order consumer's transaction for one message. The ruling is production's own function; a
    /// safeguard is taken out by hiding from it what it would have seen.
    pub fn decide(&mut self, config: &Config, domain: &Domain, request: u8) {
        let at = usize::from(request);
        let spec = config.requests[at];
        let row = self.row(config, spec.bucket);
        let mut book = DecisionBook::default();
        if config.has(Safeguard::DecisionWins) {
            for (index, decision) in self.decisions.iter().enumerate() {
                if let Some(kind) = decision {
                    book.decided
                        .insert(domain.requests[index].reservation_id.clone(), *kind);
                }
            }
        }
        if config.has(Safeguard::OneOrderPerUser) {
            for (index, order) in self.orders.iter().enumerate() {
                if *order == Some(OrderState::Active) {
                    book.note_order(&domain.requests[index]);
                }
            }
        }
        let units = match config.has(Safeguard::ConditionalStock) {
            true => u64::try_from(self.available[row]).unwrap_or(0),
            false => u64::MAX,
        };
        book.available
            .insert(domain.requests[at].bucket.clone(), units);
        let quantity = spec.quantity.cast_signed();
        match rule(&mut book, &domain.requests[at]) {
            Ruling::Create => {
                self.write_decision(at, DecisionKind::Ordered);
                self.orders[at] = Some(OrderState::Active);
                self.available[row] -= quantity;
            }
            Ruling::Reject(_) => {
                self.write_decision(at, DecisionKind::Rejected);
                if !config.has(Safeguard::RefusedDeductsNothing) && self.available[row] >= quantity
                {
                    self.available[row] -= quantity;
                }
                self.open_task(config, request);
            }
            Ruling::Already(_) | Ruling::UnknownBucket => {}
        }
    }

    fn write_decision(&mut self, at: usize, kind: DecisionKind) {
        if self.decisions[at].is_some_and(|old| old != kind) {
            self.overwritten = true;
        }
        self.decisions[at] = Some(kind);
    }

    /// The fence: a decision `RELEASED`, unless one is there. Answers what stands.
    pub fn fence(&mut self, config: &Config, request: u8) -> DecisionKind {
        let at = usize::from(request);
        match self.decisions[at] {
            Some(kind) => kind,
            None if config.has(Safeguard::Fence) => {
                self.write_decision(at, DecisionKind::Released);
                DecisionKind::Released
            }
            None => DecisionKind::Released,
        }
    }

    /// Opens a task, or opens a closed one again.
    pub fn open_task(&mut self, config: &Config, request: u8) {
        let task = &mut self.tasks[usize::from(request)];
        if task.generation == 0 || (!task.open && config.has(Safeguard::ReopenTask)) {
            task.generation += 1;
            task.open = true;
        }
    }

    /// Closes a task in the generation that was worked on.
    pub fn finish_task(&mut self, request: u8, generation: u8) {
        let task = &mut self.tasks[usize::from(request)];
        if task.generation == generation {
            task.open = false;
        }
    }

    /// Cancels an active order and takes its units back.
    pub fn cancel(&mut self, config: &Config, request: u8) {
        let at = usize::from(request);
        let spec = config.requests[at];
        self.orders[at] = Some(OrderState::Cancelled);
        self.available[usize::from(spec.bucket)] += spec.quantity.cast_signed();
    }

    /// Units in active orders of a bucket.
    #[must_use]
    pub fn sold(&self, config: &Config, bucket: usize) -> i8 {
        self.orders
            .iter()
            .zip(&config.requests)
            .filter(|(order, request)| {
                **order == Some(OrderState::Active) && usize::from(request.bucket) == bucket
            })
            .map(|(_, request)| request.quantity.cast_signed())
            .sum()
    }
}

/// The requests as the domain values that production's functions take.
#[derive(Debug)]
pub struct Domain {
    /// By request.
    pub requests: Vec<OrderRequest>,
}

impl Domain {
    /// Builds the values of a configuration.
    ///
    /// # Panics
    /// Never: every text below is a valid id.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "constants and small numbers, valid by construction"
    )]
    pub fn new(config: &Config) -> Self {
        let scope = Scope {
            activity_id: ActivityId::parse("a").expect("valid id"),
            sku_id: SkuId::parse("s").expect("valid id"),
            version: ActivityVersion::new(1).expect("in range"),
        };
        let requests = config.requests.iter().enumerate().map(|(index, request)| {
            let letter = char::from(b'a' + u8::try_from(index).expect("few requests"));
            let bucket_id = BucketId::new(u32::from(request.bucket)).expect("in range");
            OrderRequest {
                reservation_id: ReservationId::parse(letter.to_string().repeat(26))
                    .expect("valid id"),
                request_id: RequestId::parse(format!("q{index}")).expect("valid id"),
                user_id: UserId::parse(format!("u{}", request.user)).expect("valid id"),
                bucket: BucketScope {
                    scope: scope.clone(),
                    bucket_id,
                },
                quantity: Quantity::new(u32::from(request.quantity)).expect("in range"),
                reserved_at_ms: TimestampMs::new(0),
                traceparent: None,
            }
        });
        Self {
            requests: requests.collect(),
        }
    }
}
