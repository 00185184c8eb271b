//! One bucket in Redis: what the scripts read and write, as plain rules.
//!
//! Reservations are numbered by request: the reservation id is derived from the request, so that a
//! request and its reservation are one number here.

use seckill_state_machine::{ReservationStatus, Verdict, transition};

use crate::{Config, Request, Safeguard};

/// What the reserve script answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reply {
    /// A unit is held by this request's reservation.
    Accepted,
    /// Sold out, or the user holds another reservation.
    Refused,
    /// Cannot be told now.
    Unknown,
}

/// The state of one bucket's keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Units the bucket was given; `None` after a total loss.
    pub initial: Option<i8>,
    /// Units for sale.
    pub available: i8,
    /// Units held.
    pub reserved: i8,
    /// Reservations by request.
    pub reservations: Vec<Option<ReservationStatus>>,
    /// Cached answers by request.
    pub results: Vec<Option<Reply>>,
    /// User markers by user.
    pub markers: Vec<Option<u8>>,
    /// Members of `send_pending` by request.
    pub send_pending: Vec<bool>,
    /// Whether the recovery window is open.
    pub window: bool,
}

impl Slot {
    /// A freshly preheated bucket.
    #[must_use]
    pub fn preheated(stock: u8, requests: usize, users: usize) -> Self {
        let stock = stock.cast_signed();
        Self {
            initial: Some(stock),
            available: stock,
            reserved: 0,
            reservations: vec![None; requests],
            results: vec![None; requests],
            markers: vec![None; users],
            send_pending: vec![false; requests],
            window: false,
        }
    }

    /// The reserve script.
    pub fn reserve(&mut self, config: &Config, request: u8, repeat: bool) -> Reply {
        let at = usize::from(request);
        let Request { user, quantity, .. } = config.requests[at];
        if let Some(result) = self.results[at] {
            return result;
        }
        if self.initial.is_none() {
            return Reply::Unknown;
        }
        if self.reservations[at].is_some() {
            self.results[at] = Some(Reply::Accepted);
            return Reply::Accepted;
        }
        let quantity = quantity.cast_signed();
        let refused = self.markers[usize::from(user)].is_some() || self.available < quantity;
        if refused {
            if repeat && self.window && config.has(Safeguard::RecoveryWindow) {
                return Reply::Unknown;
            }
            self.results[at] = Some(Reply::Refused);
            return Reply::Refused;
        }
        self.available -= quantity;
        self.reserved += quantity;
        self.reservations[at] = Some(ReservationStatus::Reserved);
        self.markers[usize::from(user)] = Some(request);
        self.send_pending[at] = true;
        self.results[at] = Some(Reply::Accepted);
        Reply::Accepted
    }

    /// The transition script.
    pub fn transition(&mut self, request: u8, to: ReservationStatus) {
        let at = usize::from(request);
        let Some(from) = self.reservations[at] else {
            return;
        };
        if transition(from, to) == Verdict::Update {
            self.reservations[at] = Some(to);
            self.send_pending[at] = to == ReservationStatus::SendUnknown;
        }
    }

    /// The compensate script.
    pub fn compensate(&mut self, config: &Config, request: u8) {
        let at = usize::from(request);
        let releasable = match self.reservations[at] {
            None => !config.has(Safeguard::NothingForMissing),
            Some(ReservationStatus::Rejected | ReservationStatus::ReleasePending) => true,
            Some(_) => !config.has(Safeguard::CompensateGuard),
        };
        if releasable {
            self.reservations[at] = Some(ReservationStatus::Released);
            self.give_back(config, request);
        }
    }

    /// The cancel script.
    pub fn cancel(&mut self, config: &Config, request: u8) {
        let at = usize::from(request);
        if self.reservations[at] == Some(ReservationStatus::OrderCreated) {
            self.reservations[at] = Some(ReservationStatus::OrderCancelled);
            self.give_back(config, request);
        }
    }

    fn give_back(&mut self, config: &Config, request: u8) {
        let at = usize::from(request);
        let Request { user, quantity, .. } = config.requests[at];
        self.available += quantity.cast_signed();
        self.reserved -= quantity.cast_signed();
        self.send_pending[at] = false;
        let marker = &mut self.markers[usize::from(user)];
        if *marker == Some(request) || !config.has(Safeguard::MarkerCheck) {
            *marker = None;
        }
    }

    /// Whether [`Slot::rebuild`] would write.
    #[must_use]
    pub fn can_rebuild(&self, config: &Config, request: u8) -> bool {
        let at = usize::from(request);
        let fits = self.available >= config.requests[at].quantity.cast_signed();
        self.initial.is_some()
            && self.reservations[at].is_none()
            && (fits || !config.has(Safeguard::GuardedRebuild))
    }

    /// The rebuild script: an ordered reservation that Redis lost.
    pub fn rebuild(&mut self, config: &Config, request: u8) {
        if !self.can_rebuild(config, request) {
            return;
        }
        let at = usize::from(request);
        let Request { user, quantity, .. } = config.requests[at];
        self.available -= quantity.cast_signed();
        self.reserved += quantity.cast_signed();
        self.reservations[at] = Some(ReservationStatus::OrderCreated);
        self.results[at] = Some(Reply::Accepted);
        let marker = &mut self.markers[usize::from(user)];
        if marker.is_none() {
            *marker = Some(request);
        }
    }

    /// Whether an ordered reservation's user has a marker that names nothing held.
    #[must_use]
    pub fn marker_is_broken(&self, config: &Config, request: u8) -> bool {
        let user = usize::from(config.requests[usize::from(request)].user);
        let held =
            |r: u8| self.reservations[usize::from(r)].is_some_and(ReservationStatus::holds_units);
        self.reservations[usize::from(request)] == Some(ReservationStatus::OrderCreated)
            && !self.markers[user].is_some_and(held)
    }

    /// The marker repair script.
    pub fn repair_marker(&mut self, config: &Config, request: u8) {
        if self.marker_is_broken(config, request) {
            let user = usize::from(config.requests[usize::from(request)].user);
            self.markers[user] = Some(request);
        }
    }

    /// The tombstone script: a decided reservation that Redis lost cannot take a unit again.
    pub fn write_tombstone(&mut self, request: u8, status: ReservationStatus) {
        let at = usize::from(request);
        if self.reservations[at].is_none() {
            self.reservations[at] = Some(status);
            self.results[at] = Some(Reply::Accepted);
        }
    }

    /// Total loss of the slot's keys.
    pub fn lose(&mut self) {
        let (requests, users) = (self.reservations.len(), self.markers.len());
        *self = Self {
            initial: None,
            ..Self::preheated(0, requests, users)
        };
    }

    /// The initialisation script after a total loss.
    pub fn initialise(&mut self, config: &Config, stock: u8) {
        if self.initial.is_none() || !config.has(Safeguard::GuardedInitialise) {
            self.initial = Some(stock.cast_signed());
            self.available = stock.cast_signed();
            self.reserved = 0;
            self.window = true;
        }
    }

    /// Units held by reservations that hold some.
    #[must_use]
    pub fn held(&self, config: &Config) -> i8 {
        self.reservations
            .iter()
            .zip(&config.requests)
            .filter(|(status, _)| status.is_some_and(ReservationStatus::holds_units))
            .map(|(_, request)| request.quantity.cast_signed())
            .sum()
    }
}
