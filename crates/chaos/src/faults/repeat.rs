//! Requests that come again, as callers, their libraries and their enemies make them.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use super::Seen;
use crate::installation::Installation;
use crate::load::{Load, PurchaseId, Said};
use crate::plan::Again;

/// Calls at once: both fronts are asked the same in the same millisecond, more than once.
const AT_ONCE: usize = 6;

/// Longer than any fault of Redis lasts.
const PAUSE: Duration = Duration::from_secs(2);

pub(super) async fn make(load: &Load, installation: &Installation, again: Again) -> Seen {
    match again {
        Again::Burst => burst(load).await,
        Again::Late => late(load).await,
        Again::Stranger | Again::Quantity => {
            // A failover in between could decide the first request afresh, and the other one with it.
            let _control = installation.control.lock().await;
            impostor(load, again).await
        }
    }
}

/// A new request; only the first call does not call itself a repeat.
async fn burst(load: &Load) -> Seen {
    let purchase = load.purchase_of_plenty().ok_or("nothing is on sale")?;
    let calls = (0..AT_ONCE).map(|number| load.call(purchase, number > 0));
    let mut answers = join_all(calls).await;
    // Where no call brought certainty, its buyer goes on like any other.
    load.follow(purchase);
    if !answers.iter().any(Said::is_final) {
        // Another fault was in the way.
        sleep(PAUSE).await;
        answers.extend(join_all((0..AT_ONCE).map(|_| load.call(purchase, true))).await);
    }
    same(&answers, load, purchase)
}

async fn late(load: &Load) -> Seen {
    let purchase = load.accepted_purchase().ok_or("nothing was sold yet")?;
    let answers = join_all((0..AT_ONCE).map(|_| load.call(purchase, true))).await;
    same(&answers, load, purchase)
}

/// The effect is that more than one of the calls got the one reservation.
fn same(answers: &[Said], load: &Load, purchase: PurchaseId) -> Seen {
    let first = load.reservation_of(purchase);
    let same = answers.iter().filter(|said| {
        matches!(said, Said::Accepted { reservation, .. } if Some(reservation) == first.as_ref())
    });
    match same.count() {
        0 | 1 => Err(format!("{} answers were no acceptance", answers.len())),
        count => Ok(format!("{count} calls got the same reservation")),
    }
}

/// Somebody else's request id, or one's own with another quantity, must be turned away.
async fn impostor(load: &Load, again: Again) -> Seen {
    let purchase = load
        .ordered_purchase()
        .await
        .ok_or("nothing is an order yet")?;
    match load.call_as_impostor(purchase, again).await {
        Said::Refused { code: 16, .. } => Ok("the request id was in use".to_owned()),
        other => Err(format!("{other:?}")),
    }
}
