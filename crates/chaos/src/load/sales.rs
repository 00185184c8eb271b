//! Activities, made by an operator's command: small and large, in one bucket or more, version after
//! version.
//!
//! The second version of an activity is sold to buyers of the first one, too. Who has an order from
//! it gets a reservation all the same and is rejected later: one active order a user.

use std::time::Duration;

use anyhow::Context;
use seckill_integration_tests::Sale;
use tokio::time::timeout;

use super::{Load, lock};
use crate::random::Random;

/// Sales that are open at a time. The first one always has enough for everybody, so that the run
/// tells an outage from a sale that is sold out.
const SALES_AT_ONCE: u64 = 3;

/// Units of the sale that does not sell out: 15 buyers a second for 25 seconds, of two units each.
const PLENTY: u64 = 1_000;

/// Most units of one call.
const QUANTITY_MAX: u64 = 2;

/// How long an operator's step is tried again: the machine may be busy, but no fault is in its way.
const TRIES: usize = 3;

/// An activity on sale.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) sale: Sale,
    pub(crate) stock: u64,
    /// Who may come back from an earlier version.
    pub(super) earlier: Vec<String>,
}

impl Offer {
    #[cfg(test)]
    pub(crate) const fn new(sale: Sale, stock: u64) -> Self {
        Self {
            sale,
            stock,
            earlier: Vec::new(),
        }
    }
}

/// What the next sale of a row is.
struct Terms {
    activity_id: String,
    stock: u64,
    buckets: u64,
}

impl Load {
    /// Opens the first sale of each row, and lets each row go on by itself.
    pub(super) async fn open_sales(&self) -> anyhow::Result<()> {
        for row in 0..SALES_AT_ONCE {
            let mut random = Random::fork(self.shared.seed, &format!("row {row}"));
            let terms = terms(row, 0, &mut random);
            let first = self.open_sale(&terms, Vec::new()).await?;
            let load = self.clone();
            let row = async move { load.go_on(row, random, terms, first).await };
            self.shared.tasks.spawn_local(row);
        }
        Ok(())
    }

    /// Sells for a while, then goes on to the next sale of the row, until the run closes.
    async fn go_on(&self, row: u64, mut random: Random, mut terms: Terms, mut offer: Offer) {
        for number in 1.. {
            let life = Duration::from_millis(random.between(12_000, 25_000));
            if timeout(life, self.shared.closing.cancelled()).await.is_ok() {
                return;
            }
            let is_version = row > 0 && random.percent(50);
            if !is_version {
                terms = self::terms(row, number, &mut random);
            }
            let next = if is_version {
                self.close_sale(&offer).await;
                let earlier = self.shared.ledger.buyers_of(&offer.sale);
                self.open_sale(&terms, earlier).await
            } else {
                // First the new one, so that something is always on sale.
                let next = self.open_sale(&terms, Vec::new()).await;
                self.close_sale(&offer).await;
                next
            };
            match next {
                Ok(next) => offer = next,
                Err(error) => {
                    self.complain(format!("opening {}: {error:#}", terms.activity_id));
                    return;
                }
            }
        }
    }

    async fn open_sale(&self, terms: &Terms, earlier: Vec<String>) -> anyhow::Result<Offer> {
        let installation = &self.shared.installation;
        let _control = installation.control.lock().await;
        let numbers = [
            ("--stock", terms.stock),
            ("--buckets", terms.buckets),
            ("--max-quantity", QUANTITY_MAX),
            ("--reservation-ttl-ms", 4_000),
            ("--patience-ms", 8_000),
        ]
        .map(|(flag, value)| (flag, value.to_string()));
        let mut create = vec!["activity", "create"];
        create.extend(["--activity-id", &terms.activity_id, "--sku-id", "sku-1"]);
        for (flag, value) in &numbers {
            create.extend([*flag, value.as_str()]);
        }
        let created = installation.ctl(&create).await?;
        let version = find_number(&created, "version").context("a sale without a version")?;
        let sale = Sale {
            activity_id: terms.activity_id.clone(),
            sku_id: "sku-1".to_owned(),
            version,
        };
        self.step(&sale, "preheat").await?;
        self.step(&sale, "open").await?;
        // What a failover may take away now would only be an operator's to rebuild.
        installation.redis.await_replica().await;
        let offer = Offer {
            sale,
            stock: terms.stock,
            earlier,
        };
        lock(&self.shared.offers).push(offer.clone());
        Ok(offer)
    }

    /// Sends no more buyers there, and closes it.
    async fn close_sale(&self, offer: &Offer) {
        lock(&self.shared.offers).retain(|other| other.sale != offer.sale);
        lock(&self.shared.sold).push(offer.clone());
        let _control = self.shared.installation.control.lock().await;
        if let Err(error) = self.step(&offer.sale, "close").await {
            self.complain(format!("closing {:?}: {error:#}", offer.sale));
        }
    }

    /// A step that may be run again until it succeeds, as an operator would.
    async fn step(&self, sale: &Sale, step: &str) -> anyhow::Result<()> {
        let version = sale.version.to_string();
        let mut arguments = vec!["activity", step];
        arguments.extend(["--activity-id", &sale.activity_id, "--sku-id", &sale.sku_id]);
        arguments.extend(["--activity-version", &version]);
        let mut outcome = Ok(());
        for _ in 0..TRIES {
            outcome = self.shared.installation.ctl(&arguments).await.map(|_| ());
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }
}

fn terms(row: u64, number: u64, random: &mut Random) -> Terms {
    let small = random.pick(&[15, 40, 150]).copied().unwrap_or(15);
    Terms {
        activity_id: format!("chaos-{row}-{number}"),
        stock: if row == 0 { PLENTY } else { small },
        buckets: random.between(1, 3),
    }
}

/// A number by its name, at whatever depth the output has it.
fn find_number(value: &serde_json::Value, name: &str) -> Option<u64> {
    let fields = value.as_object()?;
    let here = fields.get(name).and_then(serde_json::Value::as_u64);
    here.or_else(|| fields.values().find_map(|inner| find_number(inner, name)))
}
