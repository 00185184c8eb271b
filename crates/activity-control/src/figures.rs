//! A sale in a few numbers, each by a query of its own: what a report states next to the audit.

use std::collections::BTreeSet;

use seckill_state_machine::{OrderState, ReservationId, Scope};
use serde::Serialize;

use crate::Error;
use crate::control::Control;

/// Decisions read in one page.
const DECISIONS_PER_PAGE: i64 = 1_000;

/// What the stores hold of a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Active orders in PostgreSQL.
    pub orders: u64,
    /// Units of active orders beyond a bucket's stock, over all buckets.
    pub oversold: u64,
    /// Orders too many of one user, reservation or request.
    pub duplicate_orders: u64,
    /// Units on sale in Redis.
    pub available: u64,
    /// Units held in Redis.
    pub reserved: u64,
}

impl Control {
    /// The numbers of a version.
    ///
    /// # Errors
    /// [`Error::Unknown`] when it does not exist, and errors of the stores.
    pub async fn figures(&self, scope: &Scope) -> Result<Figures, Error> {
        let activity = self.activity(scope).await?;
        let mut figures = Figures {
            duplicate_orders: self.store.duplicate_orders(scope).await?,
            ..Figures::default()
        };
        for bucket in self.store.bucket_totals(scope).await? {
            figures.orders += bucket.active_orders;
            figures.oversold += bucket.active_units.saturating_sub(bucket.total);
        }
        for side in self.sides(&activity).await? {
            let counters = side.stock.map(|stock| stock.counters);
            figures.available += counters.map_or(0, |counters| counters.available);
            figures.reserved += counters.map_or(0, |counters| counters.reserved);
        }
        Ok(figures)
    }

    /// Every reservation with an active order; about 80 bytes each.
    ///
    /// # Errors
    /// Store errors.
    pub async fn ordered_reservations(
        &self,
        scope: &Scope,
    ) -> Result<BTreeSet<ReservationId>, Error> {
        let mut ordered = BTreeSet::new();
        let mut after = None;
        loop {
            let page = self
                .store
                .decisions_page(scope, after.as_ref(), DECISIONS_PER_PAGE)
                .await?;
            let Some(last) = page.last() else {
                return Ok(ordered);
            };
            after = Some(last.reservation_id.clone());
            let active = page
                .into_iter()
                .filter(|decision| matches!(decision.order, Some((_, OrderState::Active))));
            ordered.extend(active.map(|decision| decision.reservation_id));
        }
    }
}
