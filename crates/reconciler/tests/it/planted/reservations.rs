//! Damage to single reservations.

use seckill_integration_tests::{FrontClient, Plan, Sandbox, Service};
use seckill_settlement::Class;
use seckill_test_support::{ServiceProcess, eventually};

use super::bench::{Bench, ByHand, Purchase, id};
use super::drill::Planted;
use super::{EACH, Site, at};
use crate::SOON;

/// Nobody gives up what is undecided in these sales.
const LONG_MS: u64 = 3_600_000;

/// What is undecided for so long is given up.
const SHORT_MS: u64 = 400;

/// The sales whose reservations are damaged.
pub struct Benches<'a> {
    /// Settled orders.
    orders: Bench<'a>,
    /// The same; PostgreSQL loses these.
    books: Bench<'a>,
    /// Reservations that PostgreSQL has rejected and Redis has released.
    ended: Bench<'a>,
    /// The same; these cannot be released again.
    refused: Bench<'a>,
    /// Reservations that nobody has decided about.
    open: Bench<'a>,
    /// The same, beyond their patience.
    late: Bench<'a>,
}

/// What follows from damage to reservations for the sums of their bucket.
const SUMS: [Class; 3] = [
    Class::HoldersDiffer,
    Class::HeldBelowOrders,
    Class::UnitsUnaccounted,
];

/// Six sales with their purchases; nothing runs any more.
pub async fn benches(sandbox: &Sandbox) -> Benches<'_> {
    let plan = || Plan::new(1_000).term("patience-ms", LONG_MS);
    let mut orders = Bench::open(sandbox, &plan()).await;
    let mut books = Bench::open(sandbox, &plan()).await;
    let mut ended = Bench::open(sandbox, &plan()).await;
    let mut refused = Bench::open(sandbox, &plan()).await;
    let mut open = Bench::open(sandbox, &plan()).await;
    let short = plan()
        .term("patience-ms", SHORT_MS)
        .term("reservation-ttl-ms", SHORT_MS);
    let mut late = Bench::open(sandbox, &short).await;
    let front = sandbox.run(Service::Front).await;
    let client = sandbox.client(&front);
    decided(
        sandbox,
        &client,
        [&mut orders, &mut books],
        [&mut ended, &mut refused],
    )
    .await;
    late.buy(&client, at(Site::Late).len() * EACH).await;
    open.buy(&client, at(Site::Open).len() * EACH).await;
    sent(&open).await;
    sent(&late).await;
    due(&late).await;
    // Patience has counted until now; without a consumer it stands still from here on.
    sandbox.let_patience_count().await;
    front.stop(SOON).await;
    Benches {
        orders,
        books,
        ended,
        refused,
        open,
        late,
    }
}

/// Purchases that become orders, and purchases that PostgreSQL has no stock for.
async fn decided(
    sandbox: &Sandbox,
    client: &FrontClient,
    [orders, books]: [&mut Bench<'_>; 2],
    rejected: [&mut Bench<'_>; 2],
) {
    let services: [ServiceProcess; 3] = tokio::join!(
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation),
    )
    .into();
    // One more, which stays whole.
    orders.buy(client, at(Site::Order).len() * EACH + 1).await;
    books.buy(client, EACH).await;
    let counts = [at(Site::Ended).len() * EACH, EACH];
    for (bench, count) in rejected.into_iter().zip(counts) {
        stock(bench, 0).await;
        bench.buy(client, count).await;
        sandbox.settle(SOON).await;
        stock(bench, 1_000).await;
    }
    sandbox.settle(SOON).await;
    for service in services {
        service.stop(SOON).await;
    }
}

/// Sets what PostgreSQL can sell.
async fn stock(bench: &Bench<'_>, units: u32) {
    let sale = bench.sale.sql();
    let set =
        format!("UPDATE activity_stock SET total = {units}, available = {units} WHERE {sale}");
    bench.sandbox.database().execute(&set).await;
}

/// Awaits that the front has noted every first send.
async fn sent(bench: &Bench<'_>) {
    eventually(SOON, "everything is sent", async || {
        for purchase in &bench.bought {
            let status = ["HGET", &bench.resv(&purchase.id), "status"];
            let status = bench.sandbox.redis().cli(&status).await.text();
            if status != "ENQUEUED" {
                return Err(status);
            }
        }
        Ok(())
    })
    .await;
}

/// Awaits that the time of every reservation is up.
async fn due(bench: &Bench<'_>) {
    let redis = bench.sandbox.redis();
    eventually(SOON, "everything is due", async || {
        let time = redis.cli(&["TIME"]).await.texts();
        let now = format!("{}000", time[0]);
        let index = bench.key("reservation_expiry");
        let due = redis.cli(&["ZCOUNT", &index, "-inf", &now]).await.int();
        if usize::try_from(due) == Ok(bench.bought.len()) {
            Ok(())
        } else {
            Err(format!("{due} are due"))
        }
    })
    .await;
}

impl Benches<'_> {
    /// Damages everything; says what was planted where.
    pub async fn damage(&mut self, by_hand: &mut ByHand) -> Vec<Planted> {
        for class in at(Site::Order) {
            for purchase in self.orders.take() {
                damage_order(&self.orders, class, &purchase, by_hand).await;
            }
        }
        for class in at(Site::Stranger) {
            for number in 1..=EACH {
                plant_stranger(&mut self.orders, class, number, by_hand).await;
            }
        }
        for class in at(Site::Ended) {
            for purchase in self.ended.take() {
                damage_ended(&self.ended, class, &purchase, by_hand).await;
            }
        }
        for class in at(Site::Open) {
            for purchase in self.open.take() {
                damage_open(&self.open, class, &purchase, by_hand).await;
            }
        }
        for class in at(Site::Late) {
            for purchase in self.late.take() {
                damage_open(&self.late, class, &purchase, by_hand).await;
            }
        }
        lose_orders(&self.books, by_hand).await;
        for purchase in self.refused.take() {
            hold_again(&self.refused, &purchase).await;
        }
        self.planted()
    }

    fn planted(&self) -> Vec<Planted> {
        let of = |bench: &Bench<'_>, classes: Vec<Class>, consequences: &[Class]| Planted {
            sale: bench.sale.clone(),
            classes,
            each: EACH,
            consequences: consequences.to_vec(),
        };
        let books = [Class::PostgresNotConserved, Class::UnitsUnaccounted];
        // The worker finds what it cannot release; until then it is not released.
        let refused = [Class::NotReleased, SUMS[0], SUMS[2]];
        vec![
            of(
                &self.orders,
                [at(Site::Order), at(Site::Stranger)].concat(),
                &SUMS,
            ),
            of(&self.books, at(Site::Books), &books),
            of(&self.ended, at(Site::Ended), &SUMS),
            of(&self.refused, Vec::new(), &refused),
            of(&self.open, at(Site::Open), &[]),
            of(&self.late, at(Site::Late), &SUMS[2..]),
        ]
    }

    /// The sale whose releases are refused.
    pub fn refused(&self) -> String {
        self.refused.sale.sql()
    }

    /// Sets the counters right that say of these reservations that they hold nothing.
    pub async fn allow_release(&self) {
        self.refused.hold(i64::try_from(EACH).unwrap()).await;
    }
}

/// Damage to a reservation that PostgreSQL holds as an order.
async fn damage_order(bench: &Bench<'_>, class: Class, purchase: &Purchase, by_hand: &mut ByHand) {
    let Purchase { id, user, request } = purchase;
    let resv = bench.resv(id);
    match class {
        Class::ReservationMissing => {
            bench.redis(&["DEL", &resv]).await;
            bench.unmark(user).await;
            bench.hold(-1).await;
        }
        Class::NotSettled => {
            bench.set(id, &["status", "ENQUEUED", "order_id", ""]).await;
            bench.index("reservation_expiry", id).await;
        }
        Class::NotRestocked => cancel(bench, id).await,
        Class::MarkerMissing => bench.unmark(user).await,
        Class::MarkerElsewhere => bench.mark(user, &"z".repeat(26)).await,
        Class::ReleasedInRedisOnly => {
            bench.set(id, &["status", "RELEASED"]).await;
            bench.unmark(user).await;
            bench.hold(-1).await;
            by_hand.redis(&["HSET", &resv, "status", "ORDER_CREATED"]);
            by_hand.redis.push(bench.marking(user, id));
            by_hand.redis.extend(bench.moving(1));
        }
        Class::IdentityDiffers => {
            bench.set(id, &["request_id", "of-somebody-else"]).await;
            by_hand.redis(&["HSET", &resv, "request_id", request]);
        }
        Class::IndexLeftOver => bench.index("reservation_expiry", id).await,
        Class::KeyWithoutExpiry => bench.redis(&["PERSIST", &resv]).await,
        Class::Unreadable => {
            bench.set(id, &["quantity", "many"]).await;
            by_hand.redis(&["HSET", &resv, "quantity", "1"]);
        }
        Class::CachedResultUnreadable => {
            bench.remember(request, "gibberish").await;
        }
        Class::CachedResultDiffers => {
            let packed = format!("0|{}|0|QUEUED|{user}|1", "z".repeat(26));
            bench.remember(request, &packed).await;
        }
        other => panic!("{other} is nothing of an order"),
    }
}

/// A cancellation that PostgreSQL has committed and Redis has not been told of.
async fn cancel(bench: &Bench<'_>, id: &str) {
    let (this, sale) = (format!("reservation_id = '{id}'"), bench.sale.sql());
    let statements = format!(
        "UPDATE orders SET state = 'CANCELLED', cancelled_at = now(), cancel_reason = 'planted' \
         WHERE {this}; \
         INSERT INTO stock_ledger \
         (activity_id, sku_id, version, bucket_id, kind, delta, reservation_id) \
         SELECT activity_id, sku_id, version, bucket_id, 'CANCELLED', quantity, reservation_id \
         FROM orders WHERE {this}; \
         UPDATE activity_stock SET available = available + 1, sold = sold - 1 WHERE {sale}"
    );
    bench.sandbox.database().execute(&statements).await;
}

/// Something in Redis that PostgreSQL has never heard of.
async fn plant_stranger(bench: &mut Bench<'_>, class: Class, number: usize, by_hand: &mut ByHand) {
    match class {
        Class::ReleasedWithoutDecision => drop(bench.craft("RELEASED", &[]).await),
        Class::OrderedWithoutOrder => {
            let order = ["order_id", "nobodys"];
            let Purchase { id, user, .. } = bench.craft("ORDER_CREATED", &order).await;
            bench.mark(&user, &id).await;
            bench.hold(1).await;
            by_hand.redis(&["DEL", &bench.resv(&id), &bench.marker(&user)]);
            by_hand.redis.extend(bench.moving(-1));
        }
        Class::ForeignScope => {
            let crafted = bench.craft("RELEASED", &["sku_id", "another"]).await;
            by_hand.redis(&["DEL", &bench.resv(&crafted.id)]);
        }
        Class::MarkerStray => {
            let user = format!("stray-{number}");
            bench.mark(&user, &id('w', number)).await;
        }
        Class::IndexStray => {
            bench.index("send_pending", &id('x', number)).await;
        }
        other => panic!("{other} is no stranger"),
    }
}

/// Damage to a reservation that PostgreSQL has rejected and Redis has released.
async fn damage_ended(bench: &Bench<'_>, class: Class, purchase: &Purchase, by_hand: &mut ByHand) {
    let Purchase { id, user, .. } = purchase;
    let resv = bench.resv(id);
    match class {
        Class::TombstoneMissing => bench.redis(&["DEL", &resv]).await,
        Class::NotReleased => {
            hold_again(bench, purchase).await;
            bench.hold(1).await;
        }
        Class::Contradiction => {
            let ordered = ["status", "ORDER_CREATED", "order_id", "nobodys"];
            bench.set(id, &ordered).await;
            bench.mark(user, id).await;
            bench.hold(1).await;
            by_hand.redis(&["HSET", &resv, "status", "RELEASED", "order_id", ""]);
            by_hand.redis(&["DEL", &bench.marker(user)]);
            by_hand.redis.extend(bench.moving(-1));
        }
        other => panic!("{other} is nothing of a released reservation"),
    }
}

/// A release that Redis has lost, but for the counters.
async fn hold_again(bench: &Bench<'_>, purchase: &Purchase) {
    bench
        .set(&purchase.id, &["status", "RELEASE_PENDING"])
        .await;
    bench.mark(&purchase.user, &purchase.id).await;
    bench.index("reservation_expiry", &purchase.id).await;
}

/// Damage to a reservation that nobody has decided about.
async fn damage_open(bench: &Bench<'_>, class: Class, purchase: &Purchase, by_hand: &mut ByHand) {
    let id = &purchase.id;
    match class {
        Class::NotInSendPending => bench.set(id, &["status", "RESERVED"]).await,
        Class::ReservedAhead => {
            let (resv, field) = (bench.resv(id), "reserved_at_ms");
            let at = bench.sandbox.redis().cli(&["HGET", &resv, field]).await;
            by_hand.redis(&["HSET", &resv, field, &at.text()]);
            bench.redis(&["HINCRBY", &resv, field, "600000"]).await;
        }
        Class::NotInExpiry => {
            let index = bench.key("reservation_expiry");
            bench.redis(&["ZREM", &index, id]).await;
        }
        // Somebody has handed it over, and no worker has come.
        Class::Overdue => {
            let sale = &bench.sale;
            let task = format!(
                "INSERT INTO compensation_task (reservation_id, request_id, user_id, activity_id, \
                 sku_id, version, bucket_id, quantity, reserved_at, origin, next_attempt_at, \
                 updated_by) VALUES ('{id}', '{}', '{}', '{}', '{}', {}, 0, 1, now(), 'OVERDUE', \
                 now(), 'planted')",
                purchase.request, purchase.user, sale.activity_id, sale.sku_id, sale.version
            );
            bench.sandbox.database().execute(&task).await;
        }
        other => panic!("{other} is nothing of an open reservation"),
    }
}

/// PostgreSQL loses orders, and not the decisions that made them.
async fn lose_orders(bench: &Bench<'_>, by_hand: &mut ByHand) {
    let sale = bench.sale.sql();
    let lose = format!(
        "CREATE TABLE lost_orders AS SELECT * FROM orders WHERE {sale}; \
         DELETE FROM orders WHERE {sale}"
    );
    bench.sandbox.database().execute(&lose).await;
    by_hand.postgres("INSERT INTO orders SELECT * FROM lost_orders; DROP TABLE lost_orders");
}
