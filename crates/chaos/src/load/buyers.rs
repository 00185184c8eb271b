//! Buyers: each asks, and repeats the same request to any front until an answer is final.

use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{BUYERS_MAX, Load, Offer, Purchase, PurchaseId, lock};

/// How a user's id begins. It occurs nowhere else, so that a log that holds it holds a user's id.
pub(crate) const USER_PREFIX: &str = "buyer7q";

/// Every fifth purchase is for two units.
const TWO_UNITS_PERCENT: u64 = 20;

/// Every third buyer of a further version has bought from an earlier one.
const RETURNING_PERCENT: u64 = 33;

/// Every fourth buyer asks once more though they know: a page that is loaded again.
const CURIOUS_PERCENT: u64 = 25;

/// Calls at once when everybody asks a last time.
const LAST_CALLS_AT_ONCE: usize = 16;

/// How often a last call is tried; nothing is broken any more.
const LAST_CALL_TRIES: usize = 20;

impl Load {
    /// A new buyer every so often, until the run closes.
    pub(super) async fn let_them_come(&self, per_second: u64) {
        let mut ticks = interval(Duration::from_micros(1_000_000 / per_second.max(1)));
        // A machine that stalls must not be met by a flood afterwards.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.shared.closing.cancelled() => return,
                _ = ticks.tick() => {}
            }
            if self.shared.tasks.len() > BUYERS_MAX {
                continue;
            }
            if let Some(id) = self.new_purchase() {
                let load = self.clone();
                self.shared.tasks.spawn_local(async move {
                    load.call(id, false).await;
                    load.insist(id).await;
                });
            }
        }
    }

    /// Opens a purchase of something that is on sale; nobody has been asked yet.
    pub(crate) fn new_purchase(&self) -> Option<PurchaseId> {
        let offers = lock(&self.shared.offers).clone();
        let offer = self.draw(|random| random.pick(&offers).cloned())?;
        let purchase = self.purchase_of(&offer);
        Some(self.shared.ledger.open(purchase))
    }

    /// The same of the sale that has the most units.
    pub(crate) fn purchase_of_plenty(&self) -> Option<PurchaseId> {
        let offers = lock(&self.shared.offers).clone();
        let offer = offers.iter().max_by_key(|offer| offer.stock)?;
        Some(self.shared.ledger.open(self.purchase_of(offer)))
    }

    fn purchase_of(&self, offer: &Offer) -> Purchase {
        self.draw(|random| {
            let number = random.next();
            let returning = random.percent(RETURNING_PERCENT);
            let earlier = random.pick(&offer.earlier).filter(|_| returning);
            let two = random.percent(TWO_UNITS_PERCENT);
            Purchase {
                sale: offer.sale.clone(),
                user: earlier
                    .cloned()
                    .unwrap_or_else(|| format!("{USER_PREFIX}{number:016x}")),
                request: format!("req-{:016x}", random.next()),
                quantity: if two { 2 } else { 1 },
                traceparent: format!(
                    "00-{:016x}{:016x}-{:016x}-01",
                    random.next() | 1,
                    random.next(),
                    random.next() | 1
                ),
                answers: Vec::new(),
            }
        })
    }

    /// Lets the buyer of a purchase go on until they know.
    pub(crate) fn follow(&self, id: PurchaseId) {
        let load = self.clone();
        self.shared
            .tasks
            .spawn_local(async move { load.insist(id).await });
    }

    /// Repeats until the last answer is final. A quarter then asks once more.
    async fn insist(&self, id: PurchaseId) {
        let knows = || {
            let purchase = self.shared.ledger.get(id);
            purchase.is_none_or(|one| one.answers.iter().any(|answer| answer.said.is_final()))
        };
        while !knows() {
            if self.pause(200, 900).await {
                return;
            }
            self.call(id, true).await;
        }
        let curious = self.draw(|random| random.percent(CURIOUS_PERCENT));
        if curious && !self.pause(300, 4_000).await {
            self.call(id, true).await;
        }
    }

    /// Waits for a while, and answers whether the run is over.
    async fn pause(&self, low_ms: u64, high_ms: u64) -> bool {
        let pause = self.draw(|random| random.between(low_ms, high_ms));
        let pause = Duration::from_millis(pause);
        timeout(pause, self.shared.over.cancelled()).await.is_ok()
    }

    /// An accepted purchase, any one of all so far.
    pub(crate) fn accepted_purchase(&self) -> Option<PurchaseId> {
        self.draw(|random| self.shared.ledger.any_accepted(random))
    }

    /// The reservation that a purchase was first accepted with.
    pub(crate) fn reservation_of(&self, id: PurchaseId) -> Option<String> {
        let purchase = self.shared.ledger.get(id)?;
        purchase.reservation().map(str::to_owned)
    }

    /// Everybody asks a last time, when all has settled: what they are told then must agree with what
    /// the stores hold.
    pub(crate) async fn ask_everybody_again(&self) {
        stream::iter(self.shared.ledger.ids())
            .map(|id| async move {
                for _ in 0..LAST_CALL_TRIES {
                    if self.call(id, true).await.is_final() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            })
            .buffer_unordered(LAST_CALLS_AT_ONCE)
            .collect::<()>()
            .await;
    }
}
