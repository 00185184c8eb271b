//! A failover forgets acknowledged reservations (RC-09, S0-201), with figures.

use std::collections::BTreeMap;
use std::time::Instant;

use seckill_integration_tests::{Plan, Sale, Sandbox, Service};
use seckill_proto::v1::ReserveCode;
use seckill_test_support::{Loss, eventually};

use super::{ask, ask_until_answered, buy_until_accepted, names};
use crate::harness::{SETTLES, SOON, bucket, orders, tally};

/// Units, and buyers of each of the two rounds.
const UNITS: usize = 10;

/// What a sale is asked at its end.
struct Ends {
    /// How many decisions there are.
    decisions: String,
    /// How many recovery windows have been opened and ended.
    window: String,
}

impl Ends {
    fn of(sale: &Sale) -> Self {
        let of_sale = sale.sql();
        Self {
            decisions: format!("SELECT count(*) FROM reservation_decision WHERE {of_sale}"),
            window: format!(
                "SELECT count(*) FROM recovery_window \
                 WHERE opened_at IS NULL AND closed_at IS NOT NULL AND {of_sale}"
            ),
        }
    }

    async fn decided(&self, sandbox: &Sandbox, kind: &str) -> i64 {
        let query = format!("{} AND kind = '{kind}'", self.decisions);
        sandbox.database().number(&query).await
    }
}

/// Ten buyers are accepted, their messages are with the broker, and the failover forgets all of them. Ten
/// others buy the same units. PostgreSQL gives ten orders, none to anybody twice, and refuses the rest; the
/// reconciler replays that until Redis holds those ten orders and nothing else, and ends the recovery.
#[tokio::test(flavor = "multi_thread")]
async fn acceptances_that_a_failover_forgot_and_resold_never_oversell() {
    let sandbox = Sandbox::builder().replicated().start().await;
    let sale = sandbox.open(&Plan::new(10)).await;
    let ends = Ends::of(&sale);
    let (front, reconciler) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Reconciler)
    );
    let client = sandbox.client(&front);
    let pair = sandbox.redis_pair();
    known_to_the_reconciler(&sandbox, &sale).await;

    pair.hold_replication().await;
    for name in &names("forgotten", UNITS) {
        buy_until_accepted(&client, &sale, name).await;
    }
    all_are_sent(&sandbox, &sale).await;
    let lost = pair.lose_primary(Loss::Kill).await;
    let dead = Instant::now();
    assert!(lost > 0, "nothing was lost");
    for name in ["nobody-1", "nobody-2", "nobody-3"] {
        assert!(
            ask(&client, &sale, name).await.is_err(),
            "sold without a primary"
        );
    }
    pair.promote().await;
    let promoted = Instant::now();
    assert!(bucket(&sandbox, &sale, 0).await.reservations.is_empty());
    for name in &names("later", UNITS) {
        buy_until_accepted(&client, &sale, name).await;
    }
    let resold = promoted.elapsed();
    let late = ask_until_answered(&client, &sale, "too-late").await;
    assert_eq!(late.code(), ReserveCode::SoldOut);
    let decided = sandbox.database().number(&ends.decisions).await;
    assert_eq!(decided, 0, "nothing is decided yet");

    let (consumer, scanner, compensation) = tokio::join!(
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Compensation),
    );
    // They say what they find: orders whose reservations Redis has forgotten.
    for service in [&reconciler, &consumer, &compensation] {
        service.allow_errors("redis and postgresql differ");
    }
    until(&sandbox, "twenty decisions", &ends.decisions, 20).await;
    let all_decided = promoted.elapsed();
    sandbox.assert_settles_consistent(SETTLES).await;
    let consistent = promoted.elapsed();
    until(&sandbox, "the end of the recovery", &ends.window, 1).await;
    let over = promoted.elapsed();

    let (ordered, rejected) = (
        ends.decided(&sandbox, "ORDERED").await,
        ends.decided(&sandbox, "REJECTED").await,
    );
    assert_eq!((ordered, rejected), (10, 10));
    assert_eq!(orders(&sandbox, &sale).await, 10);
    nobody_has_two(&sandbox, &sale).await;
    surplus_is_given_back(&sandbox, &sale).await;
    sandbox.assert_settles_consistent(SETTLES).await;
    eprintln!(
        "failover: {UNITS} acceptances ({lost} bytes) lost; {:?} without a primary; of the time since the \
         promotion: {UNITS} units resold after {resold:?}, 20 decisions after {all_decided:?} ({ordered} \
         orders, {rejected} rejected and released), both sides agree after {consistent:?}, the recovery \
         over after {over:?}",
        promoted - dead,
    );
    for service in [&front, &consumer, &scanner, &compensation, &reconciler] {
        service.stop(SOON).await;
    }
}

/// The reconciler knows the server before it is lost: without that it has nothing to compare with.
async fn known_to_the_reconciler(sandbox: &Sandbox, sale: &Sale) {
    let seen = format!("SELECT count(*) FROM recovery_window WHERE {}", sale.sql());
    until(sandbox, "the first sight of the server", &seen, 1).await;
}

async fn until(sandbox: &Sandbox, what: &str, query: &str, wanted: i64) {
    eventually(SETTLES, what, async || {
        match sandbox.database().number(query).await {
            count if count == wanted => Ok(()),
            count => Err(count.to_string()),
        }
    })
    .await;
}

/// Redis holds the ten orders and no unit more, and everybody else's reservation is released.
async fn surplus_is_given_back(sandbox: &Sandbox, sale: &Sale) {
    let bucket = bucket(sandbox, sale, 0).await;
    assert_eq!(&*bucket.stock["available"], "0", "{:?}", bucket.stock);
    let states = tally(sandbox, sale).await;
    assert_eq!(
        states,
        BTreeMap::from([
            ("ORDER_CREATED".to_owned(), 10),
            ("RELEASED".to_owned(), 10)
        ])
    );
}

/// The front has sent everything: nothing is left for the scanner.
async fn all_are_sent(sandbox: &Sandbox, sale: &Sale) {
    let pending = sale.key(0, "send_pending");
    eventually(SOON, "the first sends", async || {
        let left = sandbox.redis().cli(&["ZCARD", &pending]).await.int();
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} are not sent"))
        }
    })
    .await;
}

async fn nobody_has_two(sandbox: &Sandbox, sale: &Sale) {
    let twice = format!(
        "SELECT count(*) FROM (SELECT user_id FROM orders WHERE state = 'ACTIVE' AND {} \
         GROUP BY user_id HAVING count(*) > 1) AS twice",
        sale.sql()
    );
    assert_eq!(sandbox.database().number(&twice).await, 0);
}

/// Without a loss a failover costs time and nothing else: the same request ids lead to the same
/// reservations, and all of them become orders.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_without_a_loss_keeps_every_reservation() {
    let sandbox = Sandbox::builder().replicated().start().await;
    let sale = sandbox.open(&Plan::new(30)).await;
    let services = sandbox.run_all().await;
    let client = sandbox.client(&services.front);
    let pair = sandbox.redis_pair();
    let mut held = Vec::new();
    for name in names("before", UNITS) {
        held.push((
            name.clone(),
            buy_until_accepted(&client, &sale, &name).await,
        ));
    }
    pair.caught_up().await;
    let lost = pair.lose_primary(Loss::Kill).await;
    let during = names("during", UNITS);
    for name in &during[..3] {
        assert!(ask(&client, &sale, name).await.is_err());
    }
    pair.promote().await;
    let promoted = Instant::now();
    for name in &during {
        buy_until_accepted(&client, &sale, name).await;
    }
    let back = promoted.elapsed();
    for (name, reservation) in &held {
        assert_eq!(buy_until_accepted(&client, &sale, name).await, *reservation);
    }
    pair.rejoin().await;
    for name in names("after", UNITS) {
        buy_until_accepted(&client, &sale, &name).await;
    }
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 30);
    eprintln!("failover: {lost} bytes lost, {UNITS} calls answered {back:?} after the promotion");
}
