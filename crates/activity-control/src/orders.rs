//! What an operator does to a single order.
//!
//! PostgreSQL alone is written: the cancellation, its task and its event are one transaction there, and
//! the compensation worker takes the units back to Redis. So an order can be cancelled while Redis is
//! away, and a crash right after it loses nothing.

use seckill_order_store::{CancelOutcome, Store};
use seckill_state_machine::{OrderId, ReservationId};

use crate::Error;

/// How an operator names an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderName {
    /// By its own id.
    Order(OrderId),
    /// By the reservation that it was made from.
    Reservation(ReservationId),
}

/// Cancels an order, once: a second call changes nothing and says so.
///
/// # Errors
/// Store errors. After one that leaves the outcome unknown, the same call may be made again.
pub async fn cancel_order(
    store: &Store,
    order: &OrderName,
    actor: &str,
    reason: &str,
) -> Result<CancelOutcome, Error> {
    let order_id = match order {
        OrderName::Order(order_id) => order_id.clone(),
        OrderName::Reservation(id) => {
            let Some(order_id) = store.order_of(id).await? else {
                return Ok(CancelOutcome::NotFound);
            };
            order_id
        }
    };
    Ok(store.cancel_order(&order_id, actor, reason).await?)
}
