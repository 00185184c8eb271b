//! Late messages, lost settlements and messages that never get through, against the fence.

use std::time::{Duration, Instant};

use seckill_integration_tests::{Plan, Sandbox, Service};
use seckill_proto::v1::ReserveCode;
use seckill_test_support::eventually;

use crate::harness::{
    SETTLES, SOON, all_reach, bucket, buy_many, fall_back, give_up, orders, reaches, remember,
    resend, reservations, tally,
};

async fn decisions(sandbox: &Sandbox, id: &str) -> Vec<Vec<String>> {
    let query = format!("SELECT kind FROM reservation_decision WHERE reservation_id = '{id}'");
    sandbox.database().texts(&query).await
}

async fn task_results(sandbox: &Sandbox, id: &str) -> Vec<Vec<String>> {
    let query = format!("SELECT result FROM compensation_task WHERE reservation_id = '{id}'");
    sandbox.database().texts(&query).await
}

async fn parked(sandbox: &Sandbox, reason: &str) -> Vec<String> {
    let query = format!(
        "SELECT reservation_id FROM dead_letter WHERE reason = '{reason}' ORDER BY reservation_id"
    );
    sandbox.database().texts(&query).await.concat()
}

/// MQ-02. Goal: a message that arrives after its reservation was released, whose unit somebody else has
/// bought, creates nothing, is acknowledged, and its rejection is on record; and so again a day later.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_arrives_after_the_release_creates_nothing() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(1)).await;
    // The broker never hears of the first purchase.
    let deaf = sandbox
        .service(Service::Front)
        .env("SECKILL_ROCKETMQ_NAMESRV", "127.0.0.1:9")
        .allow_errors("")
        .start()
        .await;
    let late = sandbox.client(&deaf).buy(&sale, "u1", "q1").await;
    deaf.kill();
    let held = reservations(&sandbox, &sale).await[&late].clone();
    let second_front = sandbox.service(Service::Front).instance(2);
    let (front, scanner, consumer, worker) = tokio::join!(
        second_front.start(),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation),
    );
    scanner.pause();
    give_up(&sandbox, &held).await;
    reaches(&sandbox, &sale, &late, "RELEASED").await;
    let client = sandbox.client(&front);
    let bought = client.buy(&sale, "u2", "q2").await;
    scanner.resume();
    reaches(&sandbox, &sale, &bought, "ORDER_CREATED").await;

    for _ in 0..2 {
        resend(&sandbox, &held);
        sandbox.assert_settles_consistent(SETTLES).await;
    }
    assert_eq!(decisions(&sandbox, &late).await, [["RELEASED"]]);
    let recorded = format!(
        "SELECT count(*) FROM inbox WHERE message_id = '{}'",
        held["message_id"]
    );
    assert_eq!(sandbox.database().number(&recorded).await, 1);
    assert_eq!(orders(&sandbox, &sale).await, 1);
    let stock = bucket(&sandbox, &sale, 0).await.stock;
    assert_eq!(
        (&*stock["available"], &*stock["released_total"]),
        ("0", "1")
    );
    let letters = "SELECT count(*) FROM dead_letter";
    assert_eq!(sandbox.database().number(letters).await, 0);
    for service in [&front, &scanner, &consumer, &worker] {
        service.stop(SOON).await;
    }
}

/// M9. Goal: a duplicate settles again what a failover has undone, although the inbox knows it. Method:
/// nobody else could: the event was relayed long ago and no reconciler runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_settles_again_what_was_lost() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(3)).await;
    let front = sandbox.run(Service::Front).await;
    let client = sandbox.client(&front);
    let before = client.buy(&sale, "u1", "q1").await;
    all_reach(&sandbox, &sale, "ENQUEUED", 1).await;
    remember(&sandbox).await;
    let after = client.buy(&sale, "u2", "q2").await;
    let (scanner, consumer, worker) = tokio::join!(
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation),
    );
    sandbox.settle(SETTLES).await;
    let held = reservations(&sandbox, &sale).await;

    fall_back(&sandbox).await;
    assert_eq!(
        tally(&sandbox, &sale).await,
        [("ENQUEUED".to_owned(), 1)].into()
    );
    for id in [&before, &after] {
        resend(&sandbox, &held[id]);
    }
    // The one that Redis has is settled, the one that it lost is rebuilt.
    all_reach(&sandbox, &sale, "ORDER_CREATED", 2).await;
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 2);
    for service in [&front, &scanner, &consumer, &worker] {
        service.stop(SOON).await;
    }
}

/// M3. Goal: a release that a failover undoes after its task was closed is made again, and its unit comes
/// back once. Method: Redis falls back to before the release; a late message finds the fence.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_a_failover_undoes_is_made_again() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(2)).await;
    let front = sandbox.run(Service::Front).await;
    let id = sandbox.client(&front).buy(&sale, "u1", "q1").await;
    all_reach(&sandbox, &sale, "ENQUEUED", 1).await;
    let held = reservations(&sandbox, &sale).await[&id].clone();
    remember(&sandbox).await;
    let worker = sandbox.run(Service::Compensation).await;
    give_up(&sandbox, &held).await;
    reaches(&sandbox, &sale, &id, "RELEASED").await;
    eventually(SOON, "the task's end", async || {
        let results = task_results(&sandbox, &id).await;
        if results == [["released"]] {
            Ok(())
        } else {
            Err(format!("{results:?}"))
        }
    })
    .await;

    fall_back(&sandbox).await;
    assert_eq!(
        tally(&sandbox, &sale).await,
        [("ENQUEUED".to_owned(), 1)].into()
    );
    // Its message has waited in the queue all the while.
    let consumer = sandbox.run(Service::Consumer).await;
    reaches(&sandbox, &sale, &id, "RELEASED").await;
    sandbox.assert_settles_consistent(SETTLES).await;
    let stock = bucket(&sandbox, &sale, 0).await.stock;
    assert_eq!(
        (&*stock["available"], &*stock["released_total"]),
        ("2", "1")
    );
    assert_eq!(orders(&sandbox, &sale).await, 0);
    for service in [&front, &consumer, &worker] {
        service.stop(SOON).await;
    }
}

/// Goal: a unit that a failover made Redis sell twice goes back to the order that lost it, and not to
/// whoever asks next. Method: the second buyer's refusal is released by the same worker that has found
/// the order waiting, while a third buyer asks all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_resold_unit_goes_back_to_its_order_and_not_to_the_next_buyer() {
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(1)).await;
    remember(&sandbox).await;
    let (front, scanner, consumer) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Consumer),
    );
    let client = sandbox.client(&front);
    let first = client.buy(&sale, "u1", "q1").await;
    all_reach(&sandbox, &sale, "ORDER_CREATED", 1).await;
    fall_back(&sandbox).await;
    let second = client.buy(&sale, "u2", "q2").await;
    reaches(&sandbox, &sale, &second, "REJECTED").await;
    // Somebody else is at the release, for as long as it takes to find the order waiting.
    let lease = format!(
        "UPDATE compensation_task
        SET lease_until = now() + interval '1 hour', lease_token = gen_random_uuid()
        WHERE reservation_id = '{second}'"
    );
    sandbox.database().execute(&lease).await;
    let worker = sandbox.run(Service::Compensation).await;
    eventually(SETTLES, "the order's own task has tried", async || {
        let tried = format!(
            "SELECT count(*) FROM compensation_task
            WHERE reservation_id = '{first}' AND closed_at IS NULL AND last_error IS NOT NULL"
        );
        match sandbox.database().number(&tried).await {
            1 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    let release = "UPDATE compensation_task SET lease_until = NULL, lease_token = NULL";
    sandbox.database().execute(release).await;
    let (began, mut asked) = (Instant::now(), 0);
    while tally(&sandbox, &sale).await.get("ORDER_CREATED").copied() != Some(1) {
        let answer = client.reserve(&sale, "u3", &format!("q3-{asked}")).await;
        assert_eq!(answer.unwrap().code(), ReserveCode::SoldOut, "try {asked}");
        asked += 1;
        assert!(began.elapsed() < SETTLES, "the order is not back");
    }
    reaches(&sandbox, &sale, &first, "ORDER_CREATED").await;
    sandbox.assert_settles_consistent(SETTLES).await;
    let now = tally(&sandbox, &sale).await;
    let wanted = [("ORDER_CREATED".to_owned(), 1), ("RELEASED".to_owned(), 1)];
    assert_eq!(now, wanted.into());
    for service in [&front, &scanner, &consumer, &worker] {
        service.stop(SOON).await;
    }
}

/// Makes PostgreSQL refuse one user's orders for a reason of its own, as a bad trigger does.
async fn refuse_orders_of(sandbox: &Sandbox, user: &str) {
    let trigger = format!(
        "CREATE FUNCTION refuse_order() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
        CREATE TRIGGER refuse_order BEFORE INSERT ON orders
            FOR EACH ROW WHEN (NEW.user_id = '{user}') EXECUTE FUNCTION refuse_order()"
    );
    sandbox.database().execute(&trigger).await;
}

/// MQ-13. Goal: a message that fails until its attempts are exhausted is kept with its ids, and its
/// reservation ends, fenced and released; the others of its batch are ordered at once. When the cause is
/// gone and an operator sends it again, it has no second effect.
#[tokio::test(flavor = "multi_thread")]
async fn exhausted_attempts_end_in_a_release_and_a_later_redrive_changes_nothing() {
    const GOOD: usize = 20;
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(100)).await;
    sandbox.let_patience_count().await;
    refuse_orders_of(&sandbox, "unlucky").await;
    let front = sandbox.run(Service::Front).await;
    let client = sandbox.client(&front);
    let id = client.buy(&sale, "unlucky", "q1").await;
    buy_many(&client, &sale, "u", GOOD).await;
    all_reach(&sandbox, &sale, "ENQUEUED", GOOD + 1).await;
    let held = reservations(&sandbox, &sale).await[&id].clone();
    let began = Instant::now();
    let one_attempt = sandbox
        .service(Service::Consumer)
        .env("SECKILL_ORDER_CONSUMER_ATTEMPTS_MAX", 1)
        .allow_errors("parked a message");
    let (scanner, worker, consumer) = tokio::join!(
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Compensation),
        one_attempt.start(),
    );
    eventually(SOON, "the orders of the others", async || {
        match orders(&sandbox, &sale).await {
            count if count == GOOD as i64 => Ok(()),
            count => Err(count.to_string()),
        }
    })
    .await;
    eventually(SETTLES, "the letter", async || {
        let letters = parked(&sandbox, "attempts_exhausted").await;
        if letters == [id.clone()] {
            Ok(())
        } else {
            Err(format!("{letters:?}"))
        }
    })
    .await;
    let letter = "SELECT message_key, error FROM dead_letter";
    let letter = sandbox.database().texts(letter).await.concat();
    assert_eq!(letter[0], held["message_id"]);
    assert!(letter[1].contains("not this one"), "{letter:?}");
    reaches(&sandbox, &sale, &id, "RELEASED").await;
    println!("ended after {:?}", began.elapsed());
    assert_eq!(decisions(&sandbox, &id).await, [["RELEASED"]]);

    let cure = "DROP TRIGGER refuse_order ON orders";
    sandbox.database().execute(cure).await;
    resend(&sandbox, &held);
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, GOOD as i64);
    let stock = bucket(&sandbox, &sale, 0).await.stock;
    assert_eq!(stock["released_total"], "1");
    for service in [&front, &scanner, &worker, &consumer] {
        service.stop(SOON).await;
    }
}

/// MQ-13. Goal: what the broker itself gives up on is drained and kept, and each reservation behind it
/// ends: one whose message is sent again and ordered within its patience is settled by its task, the
/// other one is fenced and released. Method: the stock row stays locked until both letters are there.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_gives_up_on_ends_ordered_or_released() {
    let sandbox = Sandbox::builder()
        .env("SECKILL_DATABASE_LOCK_TIMEOUT_MS", 500)
        .env("SECKILL_ORDER_CONSUMER_PATIENCE_MS", 1_000)
        .env("SECKILL_ORDER_CONSUMER_REDELIVERIES_MAX", 1)
        .start()
        .await;
    let plan = Plan::new(10)
        .term("patience-ms", 20_000)
        .term("reservation-ttl-ms", 120_000);
    let sale = sandbox.open(&plan).await;
    sandbox.let_patience_count().await;
    let (front, scanner, worker, consumer) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Compensation),
        sandbox.run(Service::Consumer),
    );
    consumer.allow_errors("parked a message");
    let holder = sandbox.database().client().await;
    let lock = format!(
        "BEGIN; SELECT 1 FROM activity_stock WHERE {} FOR UPDATE",
        sale.sql()
    );
    holder.batch_execute(&lock).await.unwrap();
    let client = sandbox.client(&front);
    let redriven = client.buy(&sale, "u1", "q1").await;
    let left = client.buy(&sale, "u2", "q2").await;
    let mut both = vec![redriven.clone(), left.clone()];
    both.sort();
    eventually(SETTLES, "both letters", async || {
        let letters = parked(&sandbox, "redeliveries_exhausted").await;
        if letters == both {
            Ok(())
        } else {
            Err(format!("{letters:?}"))
        }
    })
    .await;
    let held = reservations(&sandbox, &sale).await;
    assert_eq!(held[&left]["status"], "ENQUEUED", "patience is not over");
    // The settlement that follows the redriven one's order is lost: its task makes up for it.
    remember(&sandbox).await;
    holder.batch_execute("ROLLBACK").await.unwrap();
    resend(&sandbox, &held[&redriven]);
    reaches(&sandbox, &sale, &redriven, "ORDER_CREATED").await;
    eventually(SOON, "its event", async || {
        let unpublished = "SELECT count(*) FROM outbox WHERE published_at IS NULL";
        match sandbox.database().number(unpublished).await {
            0 => Ok(()),
            count => Err(count.to_string()),
        }
    })
    .await;
    fall_back(&sandbox).await;
    reaches(&sandbox, &sale, &redriven, "ORDER_CREATED").await;
    reaches(&sandbox, &sale, &left, "RELEASED").await;
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(task_results(&sandbox, &redriven).await, [["ordered"]]);
    assert_eq!(task_results(&sandbox, &left).await, [["released"]]);
    assert_eq!(orders(&sandbox, &sale).await, 1);
    for service in [&front, &scanner, &worker, &consumer] {
        service.stop(SOON).await;
    }
}

/// BIZ-08. Goal: while every consumer is down nothing is given back, however long the time limit of a
/// reservation is over; then each of them is an order. Method: everything else runs, for twice the
/// patience, which must not run meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn expired_reservations_stay_held_while_nobody_can_verify_them() {
    const EARLY: usize = 30;
    const DOWN: Duration = Duration::from_secs(10);
    let sandbox = Sandbox::start().await;
    let plan = Plan::new(40)
        .term("reservation-ttl-ms", 1_000)
        .term("patience-ms", 5_000);
    let sale = sandbox.open(&plan).await;
    let (front, scanner, worker, reconciler) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Compensation),
        sandbox.run(Service::Reconciler),
    );
    reconciler.allow_errors("redis and postgresql differ");
    let client = sandbox.client(&front);
    buy_many(&client, &sale, "early", EARLY).await;
    let down = Instant::now();
    while down.elapsed() < DOWN {
        let now = tally(&sandbox, &sale).await;
        assert!(
            !now.contains_key("RELEASED") && !now.contains_key("RELEASE_PENDING"),
            "{now:?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    buy_many(&client, &sale, "rest", 10).await;
    let refused = client.reserve(&sale, "late", "late").await.unwrap();
    assert_eq!(refused.code(), ReserveCode::SoldOut);
    let consumer = sandbox.run(Service::Consumer).await;
    all_reach(&sandbox, &sale, "ORDER_CREATED", EARLY + 10).await;
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 40);
    for service in [&front, &scanner, &worker, &reconciler, &consumer] {
        service.stop(SOON).await;
    }
}
