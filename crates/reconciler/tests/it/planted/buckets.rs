//! Damage to whole buckets: a sale of twenty of them for each class.

use seckill_integration_tests::{FrontClient, Plan, Sale, Sandbox, Service};
use seckill_settlement::Class;

use super::bench::ByHand;
use super::drill::Planted;
use super::{EACH, Site, at};
use crate::SOON;

/// Buckets of a sale, one for each thing.
const BUCKETS: u32 = 20;

/// The expiry of a key that no script writes: within the retention of any sale.
const LIFE_MS: &str = "3600000";

/// The damaged sales.
pub struct Damaged(Vec<(Class, Sale)>);

impl Damaged {
    /// What was planted, and what follows from it.
    pub fn planted(&self) -> Vec<Planted> {
        let planted = self.0.iter().map(|(class, sale)| Planted {
            sale: sale.clone(),
            classes: vec![*class],
            each: EACH,
            consequences: match class {
                // Units that are held by nobody, or by too many.
                Class::HeldBelowOrders | Class::UnitsUnaccounted => vec![Class::HoldersDiffer],
                _ => Vec::new(),
            },
        });
        planted.collect()
    }

    /// Does what an operator does about buckets that Redis has lost.
    pub async fn rebuild(&self, sandbox: &Sandbox) {
        let lost = [Class::StockMissing, Class::MetaMissing];
        for (_, sale) in self.0.iter().filter(|(class, _)| lost.contains(class)) {
            let version = sale.version.to_string();
            let rebuild = [
                "activity",
                "rebuild",
                "--activity-id",
                &sale.activity_id,
                "--sku-id",
                &sale.sku_id,
                "--activity-version",
                &version,
                "--actor",
                "op",
                "--reason",
                "planted",
                "--recheck-ms",
                "50",
            ];
            sandbox.ctl_ok(&rebuild).await;
            let resumed = sandbox.step(sale, "resume").await;
            assert_eq!(resumed.code, Some(0), "{resumed:?}");
        }
    }
}

/// Opens the sales and damages each of their buckets.
pub async fn damage(sandbox: &Sandbox, by_hand: &mut ByHand) -> Damaged {
    assert_eq!(usize::try_from(BUCKETS), Ok(EACH));
    let mut damaged = Vec::new();
    for class in at(Site::Bucket) {
        let plan = Plan::new(100)
            .buckets(BUCKETS)
            .term("patience-ms", 3_600_000)
            // An open reservation of one unit would explain two that are held.
            .term("max-quantity", 2);
        damaged.push((class, sandbox.open(&plan).await));
    }
    sell(sandbox, &damaged).await;
    for (class, sale) in &damaged {
        for bucket in 0..BUCKETS {
            damage_bucket(sandbox, *class, sale, bucket, by_hand).await;
        }
    }
    Damaged(damaged)
}

/// An order in each bucket where units are sold again, an open reservation in each where one is held
/// too many.
async fn sell(sandbox: &Sandbox, sales: &[(Class, Sale)]) {
    let of = |class: Class| sales.iter().find(|(of, _)| *of == class);
    let (front, consumer) =
        tokio::join!(sandbox.run(Service::Front), sandbox.run(Service::Consumer));
    let client = sandbox.client(&front);
    if let Some((_, sale)) = of(Class::HeldBelowOrders) {
        buy_in_every_bucket(&client, sale).await;
    }
    // The events of the orders stay unpublished until a scanner comes.
    let scanner = sandbox.run(Service::Scanner).await;
    let worker = sandbox.run(Service::Compensation).await;
    sandbox.settle(SOON).await;
    consumer.stop(SOON).await;
    if let Some((_, sale)) = of(Class::HoldersDiffer) {
        buy_in_every_bucket(&client, sale).await;
    }
    for service in [front, scanner, worker] {
        service.stop(SOON).await;
    }
}

async fn buy_in_every_bucket(client: &FrontClient, sale: &Sale) {
    for bucket in 0..BUCKETS {
        let mut users = (0..).map(|number: u32| format!("u{number}"));
        let user = users.find(|user| bucket_of(sale, user) == bucket).unwrap();
        client.buy(sale, &user, &format!("{user}-q")).await;
    }
}

/// By the contract, and not by the code under test.
fn bucket_of(sale: &Sale, user: &str) -> u32 {
    let text = [&sale.activity_id, &sale.sku_id, user].join("\0");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    u32::try_from(hash % u64::from(BUCKETS)).unwrap()
}

/// Adds to fields of a hash, and notes what takes it back.
async fn add(sandbox: &Sandbox, key: &str, changes: &[(&str, i64)], by_hand: &mut ByHand) {
    for (field, by) in changes {
        let change = |by: i64| ["HINCRBY", key, field, &by.to_string()].map(str::to_owned);
        sandbox.redis().cli(&change(*by)).await;
        by_hand.redis.push(change(-by).to_vec());
    }
}

async fn damage_bucket(
    sandbox: &Sandbox,
    class: Class,
    sale: &Sale,
    bucket: u32,
    by_hand: &mut ByHand,
) {
    let redis = sandbox.redis();
    let key = |suffix: &str| sale.key(bucket, suffix);
    let (stock, meta) = (key("stock"), key("meta"));
    match class {
        Class::StockMissing => drop(redis.cli(&["DEL", &stock]).await),
        Class::MetaMissing => drop(redis.cli(&["DEL", &meta]).await),
        Class::MetaDiffers => {
            let changes = [("reservation_ttl_ms", 7)];
            add(sandbox, &meta, &changes, by_hand).await;
        }
        Class::StateDiffers => drop(redis.cli(&["HSET", &meta, "state", "PAUSED"]).await),
        Class::InitialDiffers => {
            let changes = [("initial", 1), ("available", 1)];
            add(sandbox, &stock, &changes, by_hand).await;
        }
        Class::RedisNotConserved => add(sandbox, &stock, &[("available", 1)], by_hand).await,
        Class::HeldBelowOrders => {
            let changes = [("available", 1), ("reserved", -1)];
            add(sandbox, &stock, &changes, by_hand).await;
        }
        Class::UnitsUnaccounted | Class::HoldersDiffer => {
            let changes = [("available", -1), ("reserved", 1)];
            add(sandbox, &stock, &changes, by_hand).await;
        }
        Class::SoldOutStale => {
            let mark = key("soldout");
            redis.cli(&["SET", &mark, "1", "PX", LIFE_MS]).await;
        }
        Class::ForeignKey => {
            let spare = key("spare");
            redis.cli(&["SET", &spare, "1", "PX", LIFE_MS]).await;
            by_hand.redis(&["DEL", &spare]);
        }
        Class::PostgresNotConserved => {
            let row = format!("{} AND bucket_id = {bucket}", sale.sql());
            let set = |available: &str, sold: &str| {
                format!(
                    "UPDATE activity_stock SET available = available {available}, \
                     sold = sold {sold} WHERE {row}"
                )
            };
            sandbox.database().execute(&set("- 1", "+ 1")).await;
            by_hand.postgres(set("+ 1", "- 1"));
        }
        other => panic!("{other} is nothing of a bucket"),
    }
}
