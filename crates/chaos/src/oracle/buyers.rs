//! What buyers were told, against what became of it: I4, I5, I9.
//!
//! | told | and the stores hold | verdict |
//! | --- | --- | --- |
//! | accepted | an order, or a decision that gave the units back | right |
//! | accepted | nothing, and a failover lost writes of that time | right: it is decided afresh |
//! | accepted | nothing otherwise | lost |
//! | accepted under two ids | anything | duplicated |
//! | refused, and accepted by no later call | an order | broken: a no that was none |
//! | anything | an order that the last repeat does not name | broken |
//! | nothing certain, in the end | anything | stuck |

use std::collections::BTreeMap;

use seckill_proto::v1::ReservationStatus;

use super::Wrong;
use super::records::Records;
use crate::clock::Moment;
use crate::installation::Failover;
use crate::load::{Answer, Purchase, Said};

/// Codes that say that something is broken, and never come from a healthy script.
const BROKEN_CODES: [i32; 3] = [18, 19, 20];

/// The refusal that speaks of another reservation than the one asked for.
const ALREADY_RESERVED: i32 = 10;

/// How far the replica may be behind without being held back.
const LAG_MS: Moment = 1_000;

/// A purchase by what the stores know of it: who, which request, how many.
type Key = (String, String, i64);

/// Every violation.
pub(super) fn judge(
    purchases: &[Purchase],
    records: &Records,
    failovers: &[Failover],
) -> Vec<(Wrong, String)> {
    let asked = purchases
        .iter()
        .map(|purchase| (key_of(purchase), purchase));
    let asked: BTreeMap<Key, &Purchase> = asked.collect();
    let mut found = unasked(&asked, records);
    for purchase in purchases {
        found.extend(judge_one(purchase, records, failovers));
    }
    found
}

fn key_of(purchase: &Purchase) -> Key {
    let quantity = i64::from(purchase.quantity);
    (purchase.user.clone(), purchase.request.clone(), quantity)
}

/// I9: no decision exists under ids that nobody has used.
fn unasked(asked: &BTreeMap<Key, &Purchase>, records: &Records) -> Vec<(Wrong, String)> {
    let decisions = records.decisions.iter();
    let strangers = decisions.filter(|(_, decision)| {
        let key = (
            decision.user.clone(),
            decision.request.clone(),
            decision.quantity,
        );
        !asked.contains_key(&key)
    });
    strangers
        .map(|(id, decision)| {
            let text = format!("I9 {id}: nobody asked for {}", decision.request);
            (Wrong::Broken, text)
        })
        .collect()
}

fn judge_one(
    purchase: &Purchase,
    records: &Records,
    failovers: &[Failover],
) -> Vec<(Wrong, String)> {
    let mut found = Vec::new();
    let request = &purchase.request;
    let mut say = |wrong: Wrong, text: String| found.push((wrong, format!("{request} {text}")));
    let accepted = purchase.reservation();
    for answer in &purchase.answers {
        match &answer.said {
            Said::Accepted { reservation, .. } if accepted != Some(reservation.as_str()) => say(
                Wrong::Duplicated,
                format!("I4 was accepted as {accepted:?} and as {reservation}"),
            ),
            Said::Refused { code, .. } if BROKEN_CODES.contains(code) => {
                say(Wrong::Broken, format!("was answered with code {code}"));
            }
            Said::Accepted { .. } | Said::Refused { .. } | Said::Unknown(_) => {}
        }
    }
    let key = key_of(purchase);
    let order = records.orders.iter().find(|order| {
        (&order.user, &order.request, order.quantity) == (&key.0, &key.1, key.2)
            && order.activity == purchase.sale.activity_id
            && order.version == purchase.sale.version.to_string()
    });
    match (order, accepted) {
        (Some(order), _) => {
            if let Some(answer) = purchase
                .answers
                .iter()
                .find(|one| denies(one, purchase, &order.reservation))
            {
                say(
                    Wrong::Broken,
                    format!(
                        "I9 was told {:?} at {} ms and has an order",
                        answer.said, answer.answered
                    ),
                );
            }
            let wanted = if order.is_active() {
                ReservationStatus::OrderCreated
            } else {
                ReservationStatus::OrderCancelled
            };
            say_last(purchase, Some((&order.reservation, wanted)), &mut say);
        }
        (None, Some(id)) => match records.decisions.get(id) {
            Some(_) => say_last(purchase, None, &mut say),
            None if records.reservations.contains_key(id) => say(
                Wrong::Lost,
                format!("I5 {id} is in redis and was never decided"),
            ),
            None if is_excused(purchase, failovers) => {}
            None => say(
                Wrong::Lost,
                format!("I5 {id} left no trace, and no failover took it"),
            ),
        },
        (None, None) => say_last(purchase, None, &mut say),
    }
    found
}

/// Whether an answer is a no although there is this reservation.
///
/// A refusal need not be remembered, so a call that was answered later may have been accepted anew.
/// One that was answered as a repeat was not: then the reservation was there before the refusal.
fn denies(answer: &Answer, purchase: &Purchase, ours: &str) -> bool {
    let is_no = match &answer.said {
        Said::Refused { code, reservation } => *code != ALREADY_RESERVED || reservation != ours,
        Said::Accepted { .. } | Said::Unknown(_) => false,
    };
    let may_be_newer = |other: &Answer| match &other.said {
        Said::Accepted { replay, .. } => !replay,
        Said::Unknown(_) => true,
        Said::Refused { .. } => false,
    };
    let mut later = purchase
        .answers
        .iter()
        .filter(|other| other.answered >= answer.asked);
    is_no && !later.any(may_be_newer)
}

/// The last answer, given when all had settled: final, and for an order with its id and state.
fn say_last(
    purchase: &Purchase,
    order: Option<(&str, ReservationStatus)>,
    say: &mut impl FnMut(Wrong, String),
) {
    let last = purchase.answers.last().map(|answer| &answer.said);
    match (last, order) {
        (None | Some(Said::Unknown(_)), _) => {
            say(Wrong::Stuck, format!("I9 was never answered: {last:?}"));
        }
        (
            Some(Said::Accepted {
                reservation,
                status,
                ..
            }),
            Some((id, wanted)),
        ) if reservation != id || *status != i32::from(wanted) => {
            say(
                Wrong::Broken,
                format!("I4 {id} is {wanted:?}, and was last answered {last:?}"),
            );
        }
        (Some(Said::Accepted { status, .. }), None)
            if *status == i32::from(ReservationStatus::OrderCreated) =>
        {
            say(
                Wrong::Broken,
                "I9 was told of an order that is not there".to_owned(),
            );
        }
        (Some(Said::Accepted { .. } | Said::Refused { .. }), _) => {}
    }
}

/// Whether every acceptance that a buyer was told may have been lost by a failover: it was written
/// when the replica got nothing any more, or could lag, and before the primary died.
fn is_excused(purchase: &Purchase, failovers: &[Failover]) -> bool {
    let accepted = purchase.answers.iter();
    let mut accepted = accepted.filter(|answer| matches!(answer.said, Said::Accepted { .. }));
    accepted.all(|answer| {
        failovers.iter().any(|failover| {
            answer.answered + LAG_MS >= failover.cut_off && answer.asked <= failover.died
        })
    })
}

#[cfg(test)]
mod tests;
