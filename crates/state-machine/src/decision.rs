//! The order decision: which requests of a batch become orders.
//!
//! PostgreSQL's transaction locks the stock rows, reads what is already decided into a
//! [`DecisionBook`], and asks [`rule`] request by request, in order. The book is updated by every
//! ruling, so that the second request of one user in one batch sees the first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{
    ActivityId, BucketScope, OrderRequest, RequestId, ReservationId, Scope, SkuId, UserId,
};

/// The one decision of a reservation (I7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum DecisionKind {
    /// It became an order.
    Ordered,
    /// The rules said no.
    Rejected,
    /// It was fenced: it can never become an order.
    Released,
}

/// Why a request did not become an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RejectReason {
    /// PostgreSQL's bucket row holds fewer units than asked for.
    StockExhausted,
    /// The user has an active order for this activity and SKU.
    UserHasOrder,
    /// The request id already stands on an order of this version.
    RequestIdUsed,
}

/// A word that names no decision or reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown decision or reason")]
pub struct UnknownDecision;

macro_rules! words {
    ($name:ident { $($variant:ident = $text:literal),* }) => {
        impl $name {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The word that PostgreSQL stores.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownDecision;
            fn from_str(text: &str) -> Result<Self, UnknownDecision> {
                Self::ALL.iter().copied().find(|v| v.as_str() == text).ok_or(UnknownDecision)
            }
        }
    };
}

words!(DecisionKind { Ordered = "ORDERED", Rejected = "REJECTED", Released = "RELEASED" });
words!(RejectReason {
    StockExhausted = "STOCK_EXHAUSTED",
    UserHasOrder = "USER_HAS_ORDER",
    RequestIdUsed = "REQUEST_ID_USED"
});

/// What the store knows while the stock rows are locked.
#[derive(Debug, Clone, Default)]
pub struct DecisionBook {
    /// Reservations that are already decided.
    pub decided: BTreeMap<ReservationId, DecisionKind>,
    /// Units left, by bucket row. A bucket without a row is not here.
    pub available: BTreeMap<BucketScope, u64>,
    /// Users with an active order, by activity and SKU (over all versions and buckets).
    pub users_with_order: BTreeSet<(ActivityId, SkuId, UserId)>,
    /// Request ids that stand on an order, by version.
    pub request_ids_used: BTreeSet<(Scope, RequestId)>,
}

impl DecisionBook {
    fn user_key(request: &OrderRequest) -> (ActivityId, SkuId, UserId) {
        let scope = &request.bucket.scope;
        (
            scope.activity_id.clone(),
            scope.sku_id.clone(),
            request.user_id.clone(),
        )
    }

    /// Notes that a user has an active order.
    pub fn note_order(&mut self, request: &OrderRequest) {
        self.users_with_order.insert(Self::user_key(request));
        self.request_ids_used
            .insert((request.bucket.scope.clone(), request.request_id.clone()));
    }
}

/// What is to be done with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ruling {
    /// Create the order and deduct the units.
    Create,
    /// Record the refusal; nothing is deducted.
    Reject(RejectReason),
    /// Decided before; repeat its settlement.
    Already(DecisionKind),
    /// No such stock row: nothing can be decided, the message is parked.
    UnknownBucket,
}

/// Rules on one request and enters the ruling in the book.
///
/// An existing decision always wins (a late message never turns a released unit into an order, I6).
/// The user check comes before the stock check, so that a buyer who already has an order is told
/// so, also when nothing is left.
pub fn rule(book: &mut DecisionBook, request: &OrderRequest) -> Ruling {
    if let Some(kind) = book.decided.get(&request.reservation_id) {
        return Ruling::Already(*kind);
    }
    let Some(available) = book.available.get(&request.bucket).copied() else {
        return Ruling::UnknownBucket;
    };
    let refusal = refusal(book, request, available);
    let decision = match refusal {
        Some(_) => DecisionKind::Rejected,
        None => DecisionKind::Ordered,
    };
    book.decided
        .insert(request.reservation_id.clone(), decision);
    match refusal {
        Some(reason) => Ruling::Reject(reason),
        None => {
            let left = available - u64::from(request.quantity.get());
            book.available.insert(request.bucket.clone(), left);
            book.note_order(request);
            Ruling::Create
        }
    }
}

fn refusal(book: &DecisionBook, request: &OrderRequest, available: u64) -> Option<RejectReason> {
    if book
        .users_with_order
        .contains(&DecisionBook::user_key(request))
    {
        return Some(RejectReason::UserHasOrder);
    }
    let request_key = (request.bucket.scope.clone(), request.request_id.clone());
    if book.request_ids_used.contains(&request_key) {
        return Some(RejectReason::RequestIdUsed);
    }
    (available < u64::from(request.quantity.get())).then_some(RejectReason::StockExhausted)
}

#[cfg(test)]
mod tests;
