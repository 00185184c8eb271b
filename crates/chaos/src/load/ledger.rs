//! What each buyer asked for and what they were told, answer by answer.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use seckill_integration_tests::Sale;
use seckill_proto::v1::{ReserveCode, ReserveResponse};
use tonic::Status;

use crate::clock::Moment;
use crate::random::Random;

/// A purchase by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PurchaseId(usize);

/// What a call was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// A reservation, the first time or again.
    Accepted {
        reservation: String,
        status: i32,
        replay: bool,
    },
    /// A final no, by its code.
    Refused { code: i32, reservation: String },
    /// Nothing certain: to be repeated under the same ids.
    Unknown(String),
}

impl Said {
    pub(crate) fn of(answer: Result<ReserveResponse, Status>) -> Self {
        match answer {
            Ok(response) if response.code == i32::from(ReserveCode::Accepted) => Self::Accepted {
                reservation: response.reservation_id,
                status: response.status,
                replay: response.replay,
            },
            Ok(response) if response.retryable => Self::Unknown(format!("code {}", response.code)),
            Ok(response) => Self::Refused {
                code: response.code,
                reservation: response.reservation_id,
            },
            Err(status) => Self::Unknown(format!("{:?}", status.code())),
        }
    }

    pub(crate) const fn is_final(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }
}

/// An answer and when it was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) asked: Moment,
    pub(crate) answered: Moment,
    pub(crate) said: Said,
}

/// One request of one buyer.
#[derive(Debug, Clone)]
pub(crate) struct Purchase {
    pub(crate) sale: Sale,
    pub(crate) user: String,
    pub(crate) request: String,
    pub(crate) quantity: u32,
    pub(crate) traceparent: String,
    pub(crate) answers: Vec<Answer>,
}

impl Purchase {
    /// The reservation that it was first accepted with.
    pub(crate) fn reservation(&self) -> Option<&str> {
        self.answers.iter().find_map(|answer| match &answer.said {
            Said::Accepted { reservation, .. } => Some(reservation.as_str()),
            Said::Refused { .. } | Said::Unknown(_) => None,
        })
    }

    /// The trace that all of its calls belong to.
    pub(crate) fn trace_id(&self) -> &str {
        trace_id(&self.traceparent)
    }
}

/// The second part of a `traceparent`.
pub(crate) fn trace_id(traceparent: &str) -> &str {
    traceparent.split('-').nth(1).unwrap_or_default()
}

#[derive(Debug, Default)]
struct Book {
    purchases: Vec<Purchase>,
    accepted: Vec<PurchaseId>,
    calls: u64,
    unknown: u64,
    seconds: BTreeSet<u64>,
}

/// All purchases of the run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    book: Mutex<Book>,
}

impl Ledger {
    fn with<T>(&self, act: impl FnOnce(&mut Book) -> T) -> T {
        act(&mut self.book.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn open(&self, purchase: Purchase) -> PurchaseId {
        self.with(|book| {
            book.purchases.push(purchase);
            PurchaseId(book.purchases.len() - 1)
        })
    }

    pub(crate) fn note(&self, id: PurchaseId, answer: Answer) {
        self.with(|book| {
            book.calls += 1;
            match &answer.said {
                Said::Accepted { replay: false, .. } => {
                    book.seconds.insert(answer.answered / 1_000);
                }
                Said::Unknown(_) => book.unknown += 1,
                Said::Accepted { .. } | Said::Refused { .. } => {}
            }
            if let Some(purchase) = book.purchases.get_mut(id.0) {
                let is_first = purchase.reservation().is_none();
                if is_first && matches!(answer.said, Said::Accepted { .. }) {
                    book.accepted.push(id);
                }
                purchase.answers.push(answer);
            }
        });
    }

    pub(crate) fn get(&self, id: PurchaseId) -> Option<Purchase> {
        self.with(|book| book.purchases.get(id.0).cloned())
    }

    /// An accepted purchase, any one of all so far.
    pub(crate) fn any_accepted(&self, random: &mut Random) -> Option<PurchaseId> {
        self.with(|book| random.pick(&book.accepted).copied())
    }

    /// One of the last accepted purchases.
    pub(crate) fn late_accepted(&self, among: usize, random: &mut Random) -> Option<PurchaseId> {
        self.with(|book| {
            let first = book.accepted.len().saturating_sub(among);
            random.pick(book.accepted.get(first..)?).copied()
        })
    }

    /// The users who were accepted in a sale.
    pub(crate) fn buyers_of(&self, sale: &Sale) -> Vec<String> {
        self.with(|book| {
            let ids = book.accepted.iter();
            let purchases = ids.filter_map(|id| book.purchases.get(id.0));
            let ours = purchases.filter(|purchase| purchase.sale == *sale);
            ours.map(|purchase| purchase.user.clone()).collect()
        })
    }

    /// The numbers of all purchases.
    pub(crate) fn ids(&self) -> Vec<PurchaseId> {
        self.with(|book| (0..book.purchases.len()).map(PurchaseId).collect())
    }

    /// All purchases.
    pub(crate) fn all(&self) -> Vec<Purchase> {
        self.with(|book| book.purchases.clone())
    }

    /// How many calls were answered or given up.
    pub(crate) fn calls(&self) -> u64 {
        self.with(|book| book.calls)
    }

    /// How many of them brought no certainty.
    pub(crate) fn unknown(&self) -> u64 {
        self.with(|book| book.unknown)
    }

    /// The seconds of a time in which somebody was newly accepted.
    pub(crate) fn seconds_accepting(&self, time: Range<Moment>) -> u64 {
        let seconds = time.start / 1_000..time.end / 1_000;
        let seconds = self.with(|book| book.seconds.range(seconds).count());
        u64::try_from(seconds).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn purchase() -> Purchase {
        Purchase {
            sale: Sale {
                activity_id: "a".to_owned(),
                sku_id: "s".to_owned(),
                version: 1,
            },
            user: "u".to_owned(),
            request: "r".to_owned(),
            quantity: 1,
            traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
            answers: Vec::new(),
        }
    }

    fn accepted(at: Moment, replay: bool) -> Answer {
        Answer {
            asked: at,
            answered: at,
            said: Said::Accepted {
                reservation: "res".to_owned(),
                status: 1,
                replay,
            },
        }
    }

    #[test]
    fn only_new_acceptances_make_a_second_of_sale() {
        let ledger = Ledger::default();
        let id = ledger.open(purchase());
        ledger.note(id, accepted(1_200, false));
        ledger.note(id, accepted(1_900, false));
        ledger.note(id, accepted(2_500, true));
        ledger.note(id, accepted(9_000, false));
        assert_eq!(ledger.seconds_accepting(1_000..9_000), 1);
        assert_eq!((ledger.calls(), ledger.unknown()), (4, 0));
        let found = ledger.any_accepted(&mut Random::new(1));
        assert_eq!(found, Some(id));
        assert_eq!(ledger.get(id).unwrap().reservation(), Some("res"));
    }

    #[test]
    fn a_refusal_that_may_be_repeated_is_no_answer() {
        let busy = ReserveResponse {
            code: 17,
            retryable: true,
            ..ReserveResponse::default()
        };
        assert!(!Said::of(Ok(busy)).is_final());
        assert!(!Said::of(Err(Status::unavailable("busy"))).is_final());
        assert_eq!(purchase().trace_id(), "0af7651916cd43dd8448eb211c80319c");
    }
}
