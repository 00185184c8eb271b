//! One bucket in Redis: what the scripts read and write, as plain rules.
//!
//! A reservation id is derived from its request, so that a reservation is known here by the number of
//! the request that it is for. Every method is one script: it runs whole or not at all.

use seckill_state_machine::{ReservationStatus, Verdict, transition};

use crate::config::{PerRequest, USERS};
use crate::transfer::Mark;
use crate::{Config, Safeguard};

/// What the reserve script answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The units are held by this request's reservation.
    Accepted,
    /// Sold out, or the user holds another reservation.
    Refused,
    /// The `request_id` was used with another quantity.
    Conflict,
    /// Cannot be told now.
    Unknown,
}

/// A reservation's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reservation {
    /// Where it stands.
    pub status: ReservationStatus,
    /// Its units.
    pub quantity: u8,
}

/// The cached answer to a `request_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CachedResult {
    /// The first answer.
    pub reply: Reply,
    /// The quantity that was asked for.
    pub quantity: u8,
}

/// What the meta key says about a failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// Nothing: both sides were seen to agree.
    Empty,
    /// A failover may have lost answers that callers heard.
    Window,
    /// Initialised after a total loss, closed until an operator opens it.
    Rebuild,
}

/// The keys of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Units the bucket was given; `None` after a total loss.
    pub initial: Option<i8>,
    /// Units for sale.
    pub available: i8,
    /// Units held.
    pub reserved: i8,
    /// Reservations.
    pub reservations: PerRequest<Option<Reservation>>,
    /// Cached answers, by `request_id`.
    pub results: PerRequest<Option<CachedResult>>,
    /// User markers, by user.
    pub markers: [Option<u8>; USERS],
    /// Members of `send_pending`.
    pub send_pending: PerRequest<bool>,
    /// The `soldout` key.
    pub soldout: bool,
    /// The meta key's `recovery`.
    pub recovery: Recovery,
    /// This bucket's part in the transfer.
    pub transfer: Mark,
}

impl Slot {
    /// A freshly preheated bucket.
    #[must_use]
    pub fn preheated(stock: i8) -> Self {
        Self {
            initial: Some(stock),
            available: stock,
            reserved: 0,
            reservations: PerRequest::default(),
            results: PerRequest::default(),
            markers: [None; USERS],
            send_pending: PerRequest::default(),
            soldout: false,
            recovery: Recovery::Empty,
            transfer: Mark::None,
        }
    }

    /// Where a reservation stands.
    #[must_use]
    pub fn status(&self, reservation: u8) -> Option<ReservationStatus> {
        self.reservations[usize::from(reservation)].map(|record| record.status)
    }

    fn holds(&self, reservation: u8) -> bool {
        self.status(reservation)
            .is_some_and(ReservationStatus::holds_units)
    }

    /// The reserve script, in the order of checks of the design.
    pub fn reserve(&mut self, config: &Config, request: u8, repeat: bool) -> Reply {
        let reservation = config.reservation(request);
        let (user, quantity) = (
            config.request(request).user,
            config.request(request).quantity,
        );
        let cached = &mut self.results[config.request_id(request)];
        let remembers = config.has(Safeguard::FirstResult);
        if let Some(first) = cached.filter(|_| remembers) {
            return match first.quantity == quantity {
                true => first.reply,
                false => Reply::Conflict,
            };
        }
        if self.initial.is_none() || self.recovery == Recovery::Rebuild {
            return Reply::Unknown;
        }
        let mut answer = |reply| {
            *cached = Some(CachedResult { reply, quantity });
            reply
        };
        if self.reservations[usize::from(reservation)].is_some() && remembers {
            return answer(Reply::Accepted);
        }
        let short = self.soldout || self.available < quantity.cast_signed();
        let has_another = self.markers[usize::from(user)].is_some();
        if has_another || short {
            if repeat && self.recovery == Recovery::Window && config.has(Safeguard::RecoveryWindow)
            {
                return Reply::Unknown;
            }
            self.soldout |= short && (self.available == 0 || !config.has(Safeguard::SoldOutAtZero));
            return answer(Reply::Refused);
        }
        let reply = answer(Reply::Accepted);
        self.hold(reservation, quantity, ReservationStatus::Reserved);
        self.markers[usize::from(user)] = Some(reservation);
        self.send_pending[usize::from(reservation)] = true;
        reply
    }

    fn hold(&mut self, reservation: u8, quantity: u8, status: ReservationStatus) {
        self.available -= quantity.cast_signed();
        self.reserved += quantity.cast_signed();
        self.soldout = self.available == 0;
        self.reservations[usize::from(reservation)] = Some(Reservation { status, quantity });
    }

    /// The transition script.
    pub fn transition(&mut self, reservation: u8, to: ReservationStatus) {
        let at = usize::from(reservation);
        if let Some(record) = &mut self.reservations[at]
            && transition(record.status, to) == Verdict::Update
        {
            record.status = to;
            self.send_pending[at] = to == ReservationStatus::SendUnknown;
        }
    }

    /// The compensate script.
    pub fn compensate(&mut self, config: &Config, reservation: u8) {
        let releasable = match self.status(reservation) {
            None => !config.has(Safeguard::NothingForMissing),
            Some(ReservationStatus::Rejected | ReservationStatus::ReleasePending) => true,
            Some(_) => !config.has(Safeguard::CompensateGuard),
        };
        if releasable {
            self.give_back(config, reservation, ReservationStatus::Released);
        }
    }

    /// The cancel script.
    pub fn cancel(&mut self, config: &Config, reservation: u8) {
        if self.status(reservation) == Some(ReservationStatus::OrderCreated) {
            self.give_back(config, reservation, ReservationStatus::OrderCancelled);
        }
    }

    fn give_back(&mut self, config: &Config, reservation: u8, status: ReservationStatus) {
        let at = usize::from(reservation);
        let quantity = match self.reservations[at] {
            Some(record) => record.quantity,
            None => config.request(reservation).quantity,
        };
        self.reservations[at] = Some(Reservation { status, quantity });
        self.available += quantity.cast_signed();
        self.reserved -= quantity.cast_signed();
        self.soldout = false;
        self.send_pending[at] = false;
        let marker = &mut self.markers[usize::from(config.request(reservation).user)];
        if *marker == Some(reservation) || !config.has(Safeguard::MarkerCheck) {
            *marker = None;
        }
    }

    /// Whether [`Slot::rebuild`] would write.
    #[must_use]
    pub fn can_rebuild(&self, config: &Config, reservation: u8, quantity: u8) -> bool {
        let fits = self.available >= quantity.cast_signed();
        self.initial.is_some()
            && self.status(reservation).is_none()
            && (fits || !config.has(Safeguard::GuardedRebuild))
    }

    /// The rebuild script: an ordered reservation that Redis lost.
    pub fn rebuild(&mut self, config: &Config, reservation: u8, quantity: u8) {
        if !self.can_rebuild(config, reservation, quantity) {
            return;
        }
        self.hold(reservation, quantity, ReservationStatus::OrderCreated);
        self.results[config.request_id(reservation)] = Some(CachedResult {
            reply: Reply::Accepted,
            quantity,
        });
        let marker = &mut self.markers[usize::from(config.request(reservation).user)];
        if marker.is_none() {
            *marker = Some(reservation);
        }
    }

    /// Whether an ordered reservation's user has a marker that names nothing held.
    #[must_use]
    pub fn marker_is_broken(&self, config: &Config, reservation: u8) -> bool {
        let marker = self.markers[usize::from(config.request(reservation).user)];
        self.status(reservation) == Some(ReservationStatus::OrderCreated)
            && !marker.is_some_and(|named| self.holds(named))
    }

    /// The marker repair script.
    pub fn repair_marker(&mut self, config: &Config, reservation: u8) {
        if self.marker_is_broken(config, reservation) {
            self.markers[usize::from(config.request(reservation).user)] = Some(reservation);
        }
    }

    /// The tombstone script: a decided reservation that Redis lost cannot take units again.
    pub fn write_tombstone(&mut self, config: &Config, reservation: u8, status: ReservationStatus) {
        let record = &mut self.reservations[usize::from(reservation)];
        if record.is_some() || self.initial.is_none() {
            return;
        }
        let quantity = config.request(reservation).quantity;
        *record = Some(Reservation { status, quantity });
        self.results[config.request_id(reservation)].get_or_insert(CachedResult {
            reply: Reply::Accepted,
            quantity,
        });
    }

    /// The initialisation script after a total loss. The units and the part in a transfer are those
    /// that PostgreSQL holds.
    pub fn initialise(&mut self, config: &Config, units: i8, transfer: Mark) {
        if self.initial.is_none() || !config.has(Safeguard::GuardedInitialise) {
            self.initial = Some(units);
            self.available = units;
            self.reserved = 0;
            self.transfer = transfer;
            self.recovery = Recovery::Rebuild;
        }
    }

    /// What is left after a total loss.
    #[must_use]
    pub fn lost() -> Self {
        Self {
            initial: None,
            ..Self::preheated(0)
        }
    }

    /// Units of the reservations that hold some.
    #[must_use]
    pub fn held(&self) -> i8 {
        self.reservations
            .iter()
            .flatten()
            .filter(|record| record.status.holds_units())
            .map(|record| record.quantity.cast_signed())
            .sum()
    }
}
