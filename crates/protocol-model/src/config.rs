//! What a search explores: who asks for what, which faults may happen how often, and which safeguards
//! are taken out.

use std::collections::BTreeSet;

use crate::Safeguard;

/// The most requests of one search. States are arrays of this length: no allocation per state.
pub const REQUESTS: usize = 4;
/// The most users.
pub const USERS: usize = 3;
/// The most buckets.
pub const BUCKETS: usize = 2;

/// One value for each request, or for each reservation that a request stands for.
pub type PerRequest<T> = [T; REQUESTS];

/// One caller's business operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The buyer.
    pub user: u8,
    /// The buyer's bucket.
    pub bucket: u8,
    /// Units asked for.
    pub quantity: u8,
    /// The earlier request whose `request_id` this one carries again, with another quantity.
    pub same_id_as: Option<u8>,
}

impl Request {
    /// One unit for a user of a bucket.
    #[must_use]
    pub const fn one(user: u8, bucket: u8) -> Self {
        Self::units(1, user, bucket)
    }

    /// Some units for a user of a bucket.
    #[must_use]
    pub const fn units(quantity: u8, user: u8, bucket: u8) -> Self {
        Self {
            user,
            bucket,
            quantity,
            same_id_as: None,
        }
    }
}

/// Stock that is moved from one bucket to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The donor.
    pub from: u8,
    /// The receiver.
    pub to: u8,
    /// Units moved.
    pub units: u8,
}

/// One search.
#[derive(Debug, Clone)]
pub struct Config {
    /// The callers' operations.
    pub requests: Vec<Request>,
    /// Units of each bucket.
    pub stock: Vec<u8>,
    /// A bucket transfer that may start at any time.
    pub transfer: Option<Transfer>,
    /// Calls per request: 1 for no repeat.
    pub calls: u8,
    /// Failovers of any slot to any earlier state.
    pub failovers: u8,
    /// Total losses of a slot, followed by an operator's rebuild.
    pub losses: u8,
    /// Orders that an operator may cancel.
    pub cancels: u8,
    /// Messages that may be parked undecided.
    pub parks: u8,
    /// Messages that the broker may lose after it has accepted them.
    pub drops: u8,
    /// Copies of one message in the broker at a time.
    pub copies: u8,
    /// Compensation workers at work at the same time, live or stale.
    pub workers: u8,
    /// Reconcilers that act on what they read earlier; with 0, reading and acting are one step.
    pub reconcilers: u8,
    /// Whether a scanner may send much later than it claimed; else claiming and sending are one step.
    pub late_scanner: bool,
    /// Whether patience may pass while a message is still on its way, as in a long outage.
    pub overdue: bool,
    /// Safeguards that are taken out.
    pub without: BTreeSet<Safeguard>,
}

impl Config {
    /// Requests and stock; no repeat, no fault but dying processes and passing time, one worker.
    ///
    /// # Panics
    /// If there are more requests, users or buckets than a state has room for.
    #[must_use]
    pub fn new(requests: &[Request], stock: &[u8]) -> Self {
        assert!(requests.len() <= REQUESTS && stock.len() <= BUCKETS);
        assert!(requests.iter().all(|r| usize::from(r.user) < USERS));
        Self {
            requests: requests.to_vec(),
            stock: stock.to_vec(),
            transfer: None,
            calls: 1,
            failovers: 0,
            losses: 0,
            cancels: 0,
            parks: 0,
            drops: 0,
            copies: 1,
            workers: 1,
            reconcilers: 0,
            late_scanner: false,
            overdue: true,
            without: BTreeSet::new(),
        }
    }

    /// Takes safeguards out.
    #[must_use]
    pub fn without(mut self, safeguards: &[Safeguard]) -> Self {
        self.without.extend(safeguards);
        self
    }

    /// Whether a safeguard is in place.
    #[must_use]
    pub fn has(&self, safeguard: Safeguard) -> bool {
        !self.without.contains(&safeguard)
    }

    /// The `request_id` of a request.
    #[must_use]
    pub fn request_id(&self, request: u8) -> usize {
        usize::from(self.request(request).same_id_as.unwrap_or(request))
    }

    /// The reservation that a request is for: derived from the request, and so one number with it.
    #[must_use]
    pub fn reservation(&self, request: u8) -> u8 {
        match self.request(request).same_id_as {
            Some(earlier) if !self.has(Safeguard::QuantityInId) => earlier,
            _ => request,
        }
    }

    /// The request whose message a sender makes of a reservation.
    #[must_use]
    pub fn message(&self, reservation: u8, quantity: u8) -> u8 {
        self.all_requests()
            .find(|r| self.reservation(*r) == reservation && self.request(*r).quantity == quantity)
            .unwrap_or(reservation)
    }

    /// A request by its number.
    #[must_use]
    pub fn request(&self, request: u8) -> &Request {
        &self.requests[usize::from(request)]
    }

    /// The bucket of a request, as an index.
    #[must_use]
    pub fn bucket(&self, request: u8) -> usize {
        usize::from(self.request(request).bucket)
    }

    /// The numbers of all requests.
    pub fn all_requests(&self) -> impl Iterator<Item = u8> + use<> {
        (0..).take(self.requests.len())
    }

    /// Whether nothing goes wrong but processes that die: every purchase must then be served.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let faults = self.failovers + self.losses + self.parks + self.drops;
        faults == 0 && !self.overdue
    }
}
