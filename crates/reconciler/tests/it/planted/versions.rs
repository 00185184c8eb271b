//! Damage to whole versions: one difference of a class each.

use futures::StreamExt;
use seckill_integration_tests::{Plan, Sale, Sandbox};
use seckill_settlement::Class;

use super::bench::ByHand;
use super::drill::Planted;
use super::{EACH, Site, at};
use crate::SOON;

/// Commands of an operator that run at once.
const COMMANDS_AT_ONCE: usize = 4;

/// The damaged versions.
pub struct Damaged {
    on_sale: Vec<Sale>,
    ending: Vec<Sale>,
}

/// Makes the versions and damages them.
pub async fn damage(sandbox: &Sandbox, by_hand: &mut ByHand) -> Damaged {
    let plans = || futures::stream::iter((0..EACH).map(|_| Plan::new(10)));
    let on_sale: Vec<Sale> = plans()
        .map(|plan| async move { sandbox.open(&plan).await })
        .buffered(COMMANDS_AT_ONCE)
        .collect()
        .await;
    let ending: Vec<Sale> = plans()
        .map(|plan| async move { sandbox.create(&plan).await })
        .buffered(COMMANDS_AT_ONCE)
        .collect()
        .await;
    let orders = sell(sandbox, &on_sale).await;
    sandbox
        .database()
        .execute("DROP INDEX orders_one_active_per_user")
        .await;
    for (sale, orders) in on_sale.iter().zip(&orders) {
        for class in at(Site::Version) {
            damage_version(sandbox, class, sale, orders, by_hand).await;
        }
    }
    by_hand.postgres(
        "CREATE UNIQUE INDEX orders_one_active_per_user ON orders (activity_id, sku_id, user_id) \
         WHERE state = 'ACTIVE'",
    );
    for sale in &ending {
        for class in at(Site::Ending) {
            end(sandbox, class, sale).await;
        }
    }
    Damaged { on_sale, ending }
}

/// Three orders in each; their reservations.
async fn sell(sandbox: &Sandbox, sales: &[Sale]) -> Vec<[String; 3]> {
    let services = sandbox.run_all().await;
    let client = sandbox.client(&services.front);
    let mut orders = Vec::new();
    for sale in sales {
        let mut ids = [(); 3].map(|()| String::new());
        for (number, id) in ids.iter_mut().enumerate() {
            *id = client
                .buy(sale, &format!("u{number}"), &format!("q{number}"))
                .await;
        }
        orders.push(ids);
    }
    sandbox.settle(SOON).await;
    crate::stop(services).await;
    orders
}

async fn damage_version(
    sandbox: &Sandbox,
    class: Class,
    sale: &Sale,
    [first, second, third]: &[String; 3],
    by_hand: &mut ByHand,
) {
    let database = sandbox.database();
    match class {
        Class::PointerDiffers => {
            let pointer = format!("seckill:activity:{}:current_version", sale.activity_id);
            sandbox.redis().cli(&["DEL", &pointer]).await;
        }
        Class::DuplicateOrder => {
            let give = |of: &str| {
                format!(
                    "UPDATE orders SET user_id = (SELECT user_id FROM reservation_decision \
                     WHERE reservation_id = '{of}') WHERE reservation_id = '{second}'"
                )
            };
            database.execute(&give(first)).await;
            by_hand.postgres(give(second));
        }
        Class::OrderWithoutDecision => {
            let lose = format!(
                "CREATE TABLE IF NOT EXISTS lost_decisions (LIKE reservation_decision); \
                 INSERT INTO lost_decisions SELECT * FROM reservation_decision \
                 WHERE reservation_id = '{third}'; \
                 DELETE FROM reservation_decision WHERE reservation_id = '{third}'"
            );
            database.execute(&lose).await;
            by_hand.postgres(format!(
                "INSERT INTO reservation_decision SELECT * FROM lost_decisions \
                 WHERE reservation_id = '{third}'"
            ));
        }
        other => panic!("{other} is nothing of a version on sale"),
    }
}

/// Lets the retention of a version end soon that nobody has closed.
async fn end(sandbox: &Sandbox, class: Class, sale: &Sale) {
    assert_eq!(
        class,
        Class::OpenBeforeRetention,
        "nothing of an ending version"
    );
    let soon = format!(
        "UPDATE activity SET starts_at = date_trunc('second', now() - interval '2 minutes'), \
         ends_at = date_trunc('second', now() - interval '1 minute'), \
         retention_until = date_trunc('second', now() + interval '10 minutes') WHERE {}",
        sale.sql()
    );
    sandbox.database().execute(&soon).await;
}

impl Damaged {
    /// What was planted, and what follows from it.
    pub fn planted(&self) -> Vec<Planted> {
        let of = |sale: &Sale, classes: Vec<Class>, consequences: &[Class]| Planted {
            sale: sale.clone(),
            classes,
            each: 1,
            consequences: consequences.to_vec(),
        };
        let on_sale = self
            .on_sale
            .iter()
            .map(|sale| of(sale, at(Site::Version), &[Class::OrderedWithoutOrder]));
        let ending = self
            .ending
            .iter()
            .map(|sale| of(sale, at(Site::Ending), &[]));
        on_sale.chain(ending).collect()
    }

    /// Does what an operator does: opens again what lost its pointer, and closes what is over.
    pub async fn run_again(&self, sandbox: &Sandbox) {
        let open = self.on_sale.iter().map(|sale| (sale, "open"));
        let close = self.ending.iter().map(|sale| (sale, "close"));
        futures::stream::iter(open.chain(close))
            .for_each_concurrent(COMMANDS_AT_ONCE, |(sale, step)| async move {
                let done = sandbox.step(sale, step).await;
                assert_eq!(done.code, Some(0), "{step}: {done:?}");
            })
            .await;
    }
}
