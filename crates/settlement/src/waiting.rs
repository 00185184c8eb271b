//! Orders whose reservation Redis lost and whose bucket has nothing available to rebuild it from.
//!
//! A unit that is given back goes to such an order in the very script that gives it back, else buyers
//! would take each one first. To ask PostgreSQL for the waiting orders of a bucket before each release
//! would cost every release a search; this set only remembers those that a replay has just found
//! waiting. It lives in the process and may forget: each waiting order has an open task, whose next
//! attempt, by any replica, tries the rebuild and fills that replica's set, and the reconciler's replay
//! opens that task for orders that nobody has tried yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use seckill_lua_scripts::OrderedReservation;
use seckill_state_machine::{
    BucketScope, OrderId, OrderRequest, Quantity, ReservationId, Traceparent,
};
use tokio::time::Instant;

use crate::facts::ordered;

/// Most orders that are remembered: at half a kilobyte each they take five megabytes. More than that
/// only wait for their own tasks.
pub const WAITING_MAX: usize = 10_000;

/// How long one is remembered after it was last found waiting. Its task is tried again after a minute
/// at most, by some replica; one that this process has not seen waiting for ten is most likely back.
const REMEMBERED: Duration = Duration::from_secs(600);

/// An order that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingOrder {
    /// Its reservation, as its order request tells it.
    pub request: OrderRequest,
    /// Its id.
    pub order_id: OrderId,
}

impl WaitingOrder {
    /// As the scripts that give units back take it.
    #[must_use]
    pub fn reservation(&self) -> OrderedReservation<'_> {
        ordered(&self.request, &self.order_id)
    }
}

/// The set. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct Waiting {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    by_bucket: BTreeMap<BucketScope, VecDeque<(WaitingOrder, Instant)>>,
    count: usize,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers an order, as the last of its bucket unless it is there already. When the set is full,
    /// it stays out.
    pub fn note(&self, order: WaitingOrder) {
        let mut inner = self.lock();
        let id = &order.request.reservation_id;
        let now = Instant::now();
        if let Some(queue) = inner.by_bucket.get_mut(&order.request.bucket) {
            let known = queue
                .iter_mut()
                .find(|(known, _)| known.request.reservation_id == *id);
            if let Some((_, seen)) = known {
                *seen = now;
                return;
            }
        }
        if inner.count == WAITING_MAX {
            inner.forget_stale(now);
        }
        if inner.count < WAITING_MAX {
            inner.count += 1;
            let bucket = order.request.bucket.clone();
            inner
                .by_bucket
                .entry(bucket)
                .or_default()
                .push_back((order, now));
        }
    }

    /// The order of a bucket whose turn it is. It stays, and goes to the end: one that does not fit
    /// must not keep the units from the others.
    #[must_use]
    pub fn next(&self, bucket: &BucketScope) -> Option<WaitingOrder> {
        let mut inner = self.lock();
        let now = Instant::now();
        loop {
            let queue = inner.by_bucket.get_mut(bucket)?;
            match queue.pop_front() {
                None => {
                    inner.by_bucket.remove(bucket);
                    return None;
                }
                Some((_, seen)) if now.duration_since(seen) >= REMEMBERED => inner.count -= 1,
                Some((order, seen)) => {
                    queue.push_back((order.clone(), seen));
                    return Some(order);
                }
            }
        }
    }

    /// Forgets an order that got the units of another one in a script.
    pub fn rebuilt(&self, order: &WaitingOrder) {
        let request = &order.request;
        self.forget(&request.bucket, &request.reservation_id);
        tracing::info!(
            reservation_id = %request.reservation_id,
            bucket = %request.bucket,
            trace_id = request.traceparent.as_ref().map(Traceparent::trace_id),
            "freed units went to an order that waited for its rebuild"
        );
    }

    /// Forgets an order that would have fitted into the units that were just freed and did not get them:
    /// it is back already, or ended, by another replica. If it does wait, its task notes it again.
    pub fn declined(&self, order: &WaitingOrder, freed: Quantity) {
        let request = &order.request;
        if request.quantity <= freed {
            self.forget(&request.bucket, &request.reservation_id);
        }
    }

    /// Forgets an order that is back, or that is none any more.
    pub fn forget(&self, bucket: &BucketScope, reservation_id: &ReservationId) {
        let mut inner = self.lock();
        let Some(queue) = inner.by_bucket.get_mut(bucket) else {
            return;
        };
        let before = queue.len();
        queue.retain(|(order, _)| order.request.reservation_id != *reservation_id);
        let gone = before - queue.len();
        if queue.is_empty() {
            inner.by_bucket.remove(bucket);
        }
        inner.count -= gone;
    }

    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().count
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Inner {
    fn forget_stale(&mut self, now: Instant) {
        for queue in self.by_bucket.values_mut() {
            queue.retain(|(_, seen)| now.duration_since(*seen) < REMEMBERED);
        }
        self.by_bucket.retain(|_, queue| !queue.is_empty());
        self.count = self.by_bucket.values().map(VecDeque::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::request;

    fn order(bucket: u32, letter: char) -> WaitingOrder {
        WaitingOrder {
            request: request(bucket, letter),
            order_id: OrderId::parse("o1").unwrap(),
        }
    }

    fn turn(waiting: &Waiting, bucket: u32) -> Option<char> {
        let bucket = request(bucket, 'x').bucket;
        let order = waiting.next(&bucket)?;
        order.request.reservation_id.as_str().chars().next()
    }

    #[tokio::test]
    async fn units_are_offered_in_turn_and_within_the_bucket_alone() {
        let waiting = Waiting::default();
        for letter in ['a', 'b', 'a'] {
            waiting.note(order(0, letter));
        }
        waiting.note(order(1, 'c'));
        assert_eq!(waiting.len(), 3);
        let turns: Vec<_> = (0..3).map(|_| turn(&waiting, 0)).collect();
        assert_eq!(turns, [Some('a'), Some('b'), Some('a')]);
        let bucket = request(0, 'a').bucket;
        waiting.forget(&bucket, &request(0, 'a').reservation_id);
        waiting.forget(&bucket, &request(0, 'a').reservation_id);
        assert_eq!(turn(&waiting, 0), Some('b'));
        waiting.forget(&bucket, &request(0, 'b').reservation_id);
        assert_eq!((turn(&waiting, 0), turn(&waiting, 1)), (None, Some('c')));
        assert_eq!(waiting.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_nobody_finds_waiting_any_more_is_forgotten() {
        let waiting = Waiting::default();
        waiting.note(order(0, 'a'));
        waiting.note(order(0, 'b'));
        tokio::time::advance(REMEMBERED / 2).await;
        waiting.note(order(0, 'b'));
        tokio::time::advance(REMEMBERED / 2).await;
        assert_eq!(turn(&waiting, 0), Some('b'));
        assert_eq!(waiting.len(), 1);
        tokio::time::advance(REMEMBERED / 2).await;
        assert_eq!(turn(&waiting, 0), None);
        assert!(waiting.is_empty());
        assert!(waiting.lock().by_bucket.is_empty(), "an empty queue stayed");
    }

    /// Goal: an order that is back already, by another replica, does not take every second turn from those
    /// that wait; one that is too large keeps its place.
    #[tokio::test]
    async fn an_order_that_declined_units_that_fit_is_forgotten() {
        let waiting = Waiting::default();
        let large = WaitingOrder {
            request: OrderRequest {
                quantity: Quantity::new(2).unwrap(),
                ..request(0, 'a')
            },
            ..order(0, 'a')
        };
        waiting.note(large.clone());
        waiting.note(order(0, 'b'));
        waiting.declined(&large, Quantity::ONE);
        assert_eq!(waiting.len(), 2);
        waiting.declined(&large, Quantity::new(2).unwrap());
        assert_eq!(
            (turn(&waiting, 0), turn(&waiting, 0)),
            (Some('b'), Some('b'))
        );
        waiting.declined(&order(0, 'b'), Quantity::ONE);
        assert!(waiting.is_empty());
    }
}
