//! PostgreSQL: decisions, orders, stock rows and compensation tasks; each method is one transaction.

use seckill_state_machine::{DecisionBook, DecisionKind, OrderState, Ruling, rule};

use crate::config::{BUCKETS, PerRequest};
use crate::domain::Domain;
use crate::transfer::Saga;
use crate::{Config, Safeguard};

/// An order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Order {
    /// Whether it counts.
    pub state: OrderState,
    /// Its units.
    pub quantity: u8,
}

/// A compensation task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Task {
    /// How often it was opened.
    pub generation: u8,
    /// Whether it is still to be done.
    pub open: bool,
}

/// The tables. Rows about a reservation stand at its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Postgres {
    /// Decisions.
    pub decisions: PerRequest<Option<DecisionKind>>,
    /// Orders.
    pub orders: PerRequest<Option<Order>>,
    /// Messages that were decided.
    pub inbox: PerRequest<bool>,
    /// Tasks.
    pub tasks: PerRequest<Task>,
    /// Units of each bucket row.
    pub total: [i8; BUCKETS],
    /// Units left in each bucket row.
    pub available: [i8; BUCKETS],
    /// The bucket transfer.
    pub saga: Saga,
    /// Whether a reservation ever had two decisions (I7).
    pub decided_twice: bool,
}

impl Postgres {
    /// Empty tables with full stock.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut total = [0; BUCKETS];
        for (row, units) in total.iter_mut().zip(&config.stock) {
            *row = units.cast_signed();
        }
        Self {
            decisions: PerRequest::default(),
            orders: PerRequest::default(),
            inbox: PerRequest::default(),
            tasks: PerRequest::default(),
            total,
            available: total,
            saga: Saga::None,
            decided_twice: false,
        }
    }

    /// The row that an order of a bucket deducts from.
    fn row(&self, config: &Config, bucket: usize) -> usize {
        if config.has(Safeguard::RowPerBucket) {
            return bucket;
        }
        // One counter for all: any row that still holds something serves any bucket.
        (0..BUCKETS)
            .find(|row| self.available[*row] > 0)
            .unwrap_or(0)
    }

    /// What the order transaction reads while the stock rows are locked. A safeguard is taken out by
    /// hiding what it would have shown.
    fn book(&self, config: &Config, domain: &Domain, request: u8, row: usize) -> DecisionBook {
        let mut book = DecisionBook::default();
        let sees_decisions =
            config.has(Safeguard::DecisionWins) && config.has(Safeguard::DecisionKey);
        for (message, at) in domain.messages.iter().zip(config.all_requests()) {
            let at = usize::from(config.reservation(at));
            if let Some(kind) = self.decisions[at].filter(|_| sees_decisions) {
                book.decided.insert(message.reservation_id.clone(), kind);
            }
            let active = self.orders[at].is_some_and(|order| order.state == OrderState::Active);
            if active && config.has(Safeguard::OneOrderPerUser) {
                book.note_order(message);
            }
        }
        let units = match config.has(Safeguard::ConditionalStock) {
            true => u64::try_from(self.available[row]).unwrap_or(0),
            false => u64::MAX,
        };
        let bucket = &domain.messages[usize::from(request)].bucket;
        book.available.insert(bucket.clone(), units);
        book
    }

    /// The order consumer's transaction for one message; the ruling is production's own function.
    /// Answers whether the message had been decided before.
    pub fn decide(&mut self, config: &Config, domain: &Domain, request: u8) -> bool {
        let reservation = config.reservation(request);
        let at = usize::from(reservation);
        let received = std::mem::replace(&mut self.inbox[at], true);
        if received && self.decisions[at].is_some() && config.has(Safeguard::Inbox) {
            return true;
        }
        let row = self.row(config, config.bucket(request));
        let quantity = config.request(request).quantity;
        let mut book = self.book(config, domain, request, row);
        match rule(&mut book, &domain.messages[usize::from(request)]) {
            Ruling::Create => {
                self.write_decision(at, DecisionKind::Ordered);
                let state = OrderState::Active;
                self.orders[at] = Some(Order { state, quantity });
                self.available[row] -= quantity.cast_signed();
            }
            Ruling::Reject(_) => {
                self.write_decision(at, DecisionKind::Rejected);
                let leaks = !config.has(Safeguard::RefusedDeductsNothing)
                    && self.available[row] >= quantity.cast_signed();
                if leaks {
                    self.available[row] -= quantity.cast_signed();
                }
                self.open_task(config, reservation);
            }
            Ruling::Already(_) => return true,
            Ruling::UnknownBucket => {}
        }
        false
    }

    fn write_decision(&mut self, at: usize, kind: DecisionKind) {
        self.decided_twice |= self.decisions[at].is_some_and(|old| old != kind);
        self.decisions[at] = Some(kind);
    }

    /// The fence: a decision `RELEASED`, unless one is there. Answers what stands.
    pub fn fence(&mut self, config: &Config, reservation: u8) -> DecisionKind {
        let at = usize::from(reservation);
        let standing = self.decisions[at].filter(|_| config.has(Safeguard::DecisionKey));
        if let Some(kind) = standing {
            return kind;
        }
        if config.has(Safeguard::Fence) {
            self.write_decision(at, DecisionKind::Released);
        }
        DecisionKind::Released
    }

    /// Opens a task, or opens a closed one again.
    pub fn open_task(&mut self, config: &Config, reservation: u8) {
        let task = &mut self.tasks[usize::from(reservation)];
        if task.generation == 0 || (!task.open && config.has(Safeguard::ReopenTask)) {
            task.generation += 1;
            task.open = true;
        }
    }

    /// Closes a task in the generation that was worked on.
    pub fn finish_task(&mut self, reservation: u8, generation: u8) {
        let task = &mut self.tasks[usize::from(reservation)];
        if task.generation == generation {
            task.open = false;
        }
    }

    /// Cancels an active order: its units are back, and a task tells Redis.
    pub fn cancel(&mut self, config: &Config, reservation: u8) {
        if let Some(order) = &mut self.orders[usize::from(reservation)] {
            order.state = OrderState::Cancelled;
            self.available[config.bucket(reservation)] += order.quantity.cast_signed();
            self.open_task(config, reservation);
        }
    }

    /// Whether a reservation has an active order.
    #[must_use]
    pub fn is_ordered(&self, reservation: usize) -> bool {
        self.orders[reservation].is_some_and(|order| order.state == OrderState::Active)
    }

    /// Units in active orders.
    #[must_use]
    pub fn sold(&self) -> i32 {
        self.orders
            .iter()
            .flatten()
            .filter(|order| order.state == OrderState::Active)
            .map(|order| i32::from(order.quantity))
            .sum()
    }
}
