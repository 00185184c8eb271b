//! Faults of the database: none of them may reject, lose or double an order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use seckill_order_store::{Decided, ErrorKind, Store};
use seckill_state_machine::{OrderRequest, RejectReason};
use seckill_test_support::{
    Dir, FaultProxy, FrameAction, Framing, Mode, PrivatePostgres, TestDatabase, eventually,
};

use crate::fixture::{Fixture, PATIENCE, config, fresh, one, sale, scope, settings, user};

const USER_HAS_ORDER: Decided = Decided::Rejected {
    reason: RejectReason::UserHasOrder,
    fresh: true,
};

fn foreign_order(user: &str) -> String {
    format!(
        "INSERT INTO orders (reservation_id, request_id, user_id, activity_id, sku_id, version,
            bucket_id, quantity, updated_by)
        VALUES ('foreign-{user}', 'foreign-{user}', '{user}', 'spring', 'phone', 1, 0, 1, 'psql')"
    )
}

/// A trigger that fails inserts into a table with the given SQLSTATE.
fn failing(table: &str, sqlstate: &str, constraint: &str) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'made by the test'
            USING ERRCODE = '{sqlstate}', CONSTRAINT = '{constraint}'; END $$;
        CREATE TRIGGER fail BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION fail()"
    )
}

async fn decisions(sale: &Fixture) -> i64 {
    sale.db
        .number("SELECT count(*) FROM reservation_decision")
        .await
}

#[tokio::test]
async fn an_order_from_another_channel_rejects_without_poisoning_what_follows() {
    let sale = sale(5, 1).await;
    sale.db.execute(&foreign_order("u1")).await;
    let batch = [sale.request(1), sale.request(2)];
    let answers = sale.store.decide(&batch).await.unwrap();
    assert_eq!(answers[0], USER_HAS_ORDER);
    assert!(fresh(&answers[1]));
    assert_eq!(sale.stock().await, (4, 1));
    assert!(fresh(&sale.decide(&sale.request(3)).await));
    assert_eq!(sale.store.open_tasks(None).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_nobody_could_see_yet_rejects_its_twin_and_nobody_else() {
    let sale = sale(1, 1).await;
    let other = sale.db.client().await;
    other.batch_execute("BEGIN").await.unwrap();
    other.batch_execute(&foreign_order("u1")).await.unwrap();
    // The batch rules u1 first. Its unit must be u2's, once u1's other order is known.
    let deciding = tokio::spawn({
        let (store, batch) = (sale.store.clone(), [sale.request(1), sale.request(2)]);
        async move { store.decide(&batch).await }
    });
    sale.await_lock_waits(1).await;
    other.batch_execute("COMMIT").await.unwrap();
    let answers = deciding.await.unwrap().unwrap();
    assert_eq!(answers[0], USER_HAS_ORDER);
    assert!(fresh(&answers[1]), "{answers:?}");
    assert_eq!(sale.stock().await, (0, 1));
}

#[tokio::test]
async fn a_constraint_that_says_no_rejects_a_lone_request_and_fails_a_batch() {
    let sale = sale(5, 1).await;
    sale.db
        .execute(&failing("orders", "23505", "orders_one_active_per_user"))
        .await;
    let error = sale
        .store
        .decide(&[sale.request(1), sale.request(2)])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(decisions(&sale).await, 0);
    assert_eq!(sale.decide(&sale.request(1)).await, USER_HAS_ORDER);
    assert_eq!(sale.stock().await, (5, 0));
    // A constraint that no rule of ours stands behind rejects nothing.
    sale.db.execute("DROP TRIGGER fail ON orders").await;
    sale.db
        .execute(&failing("orders", "23514", "somebody_elses"))
        .await;
    let error = sale.store.decide(&[sale.request(2)]).await.unwrap_err();
    assert_eq!(error.cause().unwrap().constraint(), Some("somebody_elses"));
    assert_eq!(decisions(&sale).await, 1);
}

#[tokio::test]
async fn an_order_without_a_decision_is_never_sold_twice() {
    let sale = sale(5, 1).await;
    let asked = sale.request(1);
    let planted =
        foreign_order("elsewhere").replacen("foreign-elsewhere", asked.reservation_id.as_str(), 1);
    sale.db.execute(&planted).await;
    let error = sale.store.decide(&[asked]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retryable);
    assert_eq!(sale.stock().await, (5, 0));
    assert_eq!(decisions(&sale).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_failure_of_the_server_is_taken_for_a_refusal() {
    let sale = sale(30, 1).await;
    let batch: Vec<_> = (0..3).map(|n| sale.request(n)).collect();
    // PG-11: cancelled, lock wait, privilege, resources, read-only, disk, internal, data.
    let states = [
        "57014", "55P03", "42501", "53100", "53200", "53300", "25006", "58030", "XX000", "22003",
        "23502", "P0001",
    ];
    for table in [
        "inbox",
        "reservation_decision",
        "orders",
        "outbox",
        "stock_ledger",
    ] {
        for state in states {
            sale.db.execute(&failing(table, state, "")).await;
            let error = sale.store.decide(&batch).await.unwrap_err();
            let expected = if state == "22003" {
                // A value that the server cannot take now it does not take later either.
                ErrorKind::Invalid
            } else {
                ErrorKind::Retryable
            };
            assert_eq!(error.kind(), expected, "{state} on {table}: {error}");
            assert_eq!(error.cause().unwrap().sqlstate(), Some(state));
            sale.db
                .execute(&format!("DROP TRIGGER fail ON {table}"))
                .await;
        }
    }
    assert_eq!(decisions(&sale).await, 0);
    assert_eq!(sale.stock().await, (30, 0));
    assert!(sale.store.decide(&batch).await.unwrap().iter().all(fresh));
    sale.assert_conserved().await;
}

#[tokio::test]
async fn waiting_too_long_for_the_stock_row_is_no_refusal() {
    let sale = sale(10, 1).await;
    let batch: Vec<_> = (0..10).map(|n| sale.request(n)).collect();
    let holder = sale.db.client().await;
    holder
        .batch_execute("BEGIN; SELECT FROM activity_stock FOR UPDATE")
        .await
        .unwrap();
    let impatient = sale.store_with(|c| c.lock_timeout = Duration::from_millis(100));
    let error = impatient.decide(&batch).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retryable);
    assert_eq!(error.cause().unwrap().sqlstate(), Some("55P03"));
    let slow = sale.store_with(|c| c.statement_timeout = Duration::from_millis(200));
    let error = slow.decide(&batch).await.unwrap_err();
    assert_eq!(error.cause().unwrap().sqlstate(), Some("57014"));
    assert_eq!(decisions(&sale).await, 0);
    holder.batch_execute("ROLLBACK").await.unwrap();
    // The very sessions that failed work again.
    assert!(
        impatient
            .decide(&batch[..5])
            .await
            .unwrap()
            .iter()
            .all(fresh)
    );
    assert!(slow.decide(&batch[5..]).await.unwrap().iter().all(fresh));
    assert_eq!(sale.stock().await, (0, 10));
}

#[tokio::test]
async fn a_commit_that_the_server_refuses_is_known_to_be_rolled_back() {
    let sale = sale(5, 1).await;
    sale.db
        .execute(
            "CREATE FUNCTION fail_late() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION 'at commit' USING ERRCODE = '53100'; END $$;
            CREATE CONSTRAINT TRIGGER fail_late AFTER INSERT ON orders
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail_late()",
        )
        .await;
    let error = sale.store.decide(&[sale.request(1)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retryable, "{error}");
    assert_eq!(decisions(&sale).await, 0);
    sale.db.execute("DROP TRIGGER fail_late ON orders").await;
    assert!(fresh(&sale.decide(&sale.request(1)).await));
}

/// A store behind a proxy that cuts the connection at the n-th commit, before or after it is done.
async fn cutting_store(sale: &Fixture, answer_only: bool, cuts: u32) -> (Store, FaultProxy) {
    let proxy = FaultProxy::start(sale.db.server_addr(), Framing::Postgres).await;
    let left = Arc::new(AtomicU32::new(cuts));
    proxy.on_frame(move |dir, _, frame| {
        let hit = match dir {
            Dir::ToServer => !answer_only && frame.postgres_query() == Some("COMMIT"),
            Dir::ToClient => {
                answer_only && frame.postgres_type() == Some(b'C') && frame.contains(b"COMMIT")
            }
        };
        let again = |left: u32| left.checked_sub(1);
        if hit
            && left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, again)
                .is_ok()
        {
            FrameAction::Cut
        } else {
            FrameAction::Forward
        }
    });
    let mut settings = config(&sale.db.url_via(proxy.port()));
    settings.statement_timeout = Duration::from_secs(3);
    (Store::connect(&settings).unwrap(), proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_unknown_and_its_repeat_finds_the_one_order() {
    let sale = sale(200, 1).await;
    let (store, _proxy) = cutting_store(&sale, true, 50).await;
    for n in 0..50 {
        let asked = sale.request(n);
        let error = store
            .decide(std::slice::from_ref(&asked))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        // It was committed, and the repeat says so.
        let again = sale.decide(&asked).await;
        assert!(
            matches!(again, Decided::Ordered { fresh: false, .. }),
            "{again:?}"
        );
    }
    assert_eq!(sale.stock().await, (150, 50));
    sale.assert_conserved().await;
    assert!(fresh(&one(store.decide(&[sale.request(99)]).await)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_never_arrived_is_unknown_and_its_repeat_makes_the_order() {
    let sale = sale(200, 1).await;
    let (store, _proxy) = cutting_store(&sale, false, 50).await;
    for n in 0..50 {
        let asked = sale.request(n);
        let error = store
            .decide(std::slice::from_ref(&asked))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        assert!(fresh(&sale.decide(&asked).await));
    }
    assert_eq!(sale.stock().await, (150, 50));
    sale.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_falls_silent_ends_the_call_and_the_pool_recovers() {
    let sale = sale(10, 1).await;
    let proxy = FaultProxy::start(sale.db.server_addr(), Framing::Postgres).await;
    let mut settings = config(&sale.db.url_via(proxy.port()));
    settings.statement_timeout = Duration::from_millis(300);
    settings.acquire_timeout = Duration::from_millis(500);
    let store = Store::connect(&settings).unwrap();
    store.ping().await.unwrap();
    proxy.set_mode(Mode::BlackHole);
    let error = store.decide(&[sale.request(1)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retryable, "{error}");
    // A commit into the silence is unknown.
    proxy.set_mode(Mode::Forward);
    proxy.on_frame(|dir, _, frame| {
        if dir == Dir::ToServer && frame.postgres_query() == Some("COMMIT") {
            FrameAction::Drop
        } else {
            FrameAction::Forward
        }
    });
    let error = store.decide(&[sale.request(1)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    proxy.clear_hook();
    eventually(PATIENCE, "the pool recovers", async || {
        store
            .decide(&[sale.request(1)])
            .await
            .map(|answers| assert!(fresh(&answers[0])))
    })
    .await;
    sale.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_leaves_no_transaction_behind() {
    let sale = sale(700, 1).await;
    let holder = sale.db.client().await;
    holder
        .batch_execute("BEGIN; SELECT FROM activity_stock FOR UPDATE")
        .await
        .unwrap();
    // PG-03: callers leave while their statements wait for the row that the test holds.
    let store = sale.store_with(|c| {
        c.application_name = "leaver".to_owned();
        c.pool_size = 4;
    });
    let mut leavers = Vec::new();
    for n in 0..4 {
        let (store, asked) = (store.clone(), sale.request(n));
        leavers.push(tokio::spawn(async move { store.decide(&[asked]).await }));
    }
    sale.await_lock_waits(4).await;
    let left_at = Instant::now();
    for leaver in leavers {
        leaver.abort();
        assert!(leaver.await.unwrap_err().is_cancelled());
    }
    eventually(PATIENCE, "the sessions of the leavers end", async || {
        let query = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'leaver'";
        match sale.db.number(query).await {
            0 => Ok(()),
            sessions => Err(format!("{sessions} sessions")),
        }
    })
    .await;
    // Well before the lock's own limit of 5 s: they were cancelled, not timed out.
    assert!(left_at.elapsed() < Duration::from_secs(3));
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(decisions(&sale).await, 0);

    // Normal work with callers that leave at any moment; whatever was answered is visible elsewhere.
    let mut answered = 0;
    for n in 0..500 {
        let asked = sale.request(n);
        let patience = Duration::from_micros(if n % 3 == 0 {
            400 * (n % 11)
        } else {
            30_000_000
        });
        let call = store.decide(std::slice::from_ref(&asked));
        if let Ok(answer) = tokio::time::timeout(patience, call).await {
            let Decided::Ordered { .. } = one(answer) else {
                panic!()
            };
            answered += 1;
            let seen = sale.store.decisions(&[asked.reservation_id]).await.unwrap();
            assert_eq!(seen.len(), 1);
        }
    }
    assert!(answered >= 333, "{answered}");
    let stuck = sale.db.number(
        "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    );
    assert_eq!(stuck.await, 0);
    sale.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_turned_read_only_is_left_and_found_again() {
    let server = PrivatePostgres::start().await;
    let db = TestDatabase::create_in(&server).await;
    seckill_order_store::migrate(&db.url().into())
        .await
        .unwrap();
    let store = Store::connect(&config(db.url())).unwrap();
    store
        .create_activity(&settings(&scope(1), 20, 1))
        .await
        .unwrap();
    let sale = Fixture {
        db,
        store,
        scope: scope(1),
    };
    assert!(fresh(&sale.decide(&sale.request(1)).await));

    // PG-06, the small version: sessions that are open turn read-only under the pool.
    sale.db
        .execute("ALTER SYSTEM SET default_transaction_read_only = on")
        .await;
    sale.db.execute("SELECT pg_reload_conf()").await;
    eventually(PATIENCE, "writes are refused", async || {
        match sale.store.decide(&[sale.request(2)]).await {
            Err(error) if error.kind() == ErrorKind::Retryable => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let already: i64 = decisions(&sale).await;
    for n in 3..10 {
        let error = sale.store.decide(&[sale.request(n)]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retryable, "{error}");
    }
    assert_eq!(decisions(&sale).await, already);
    let client = sale.db.client().await;
    client
        .batch_execute("SET default_transaction_read_only = off")
        .await
        .unwrap();
    client
        .batch_execute("ALTER SYSTEM RESET default_transaction_read_only")
        .await
        .unwrap();
    sale.db.execute("SELECT pg_reload_conf()").await;
    let batch: Vec<OrderRequest> = (2..10).map(|n| sale.request(n)).collect();
    eventually(PATIENCE, "writes work again", async || {
        sale.store.decide(&batch).await.map(|_| ())
    })
    .await;
    sale.assert_conserved().await;

    // A restart in between: idle connections are dead, the next calls get new ones.
    server.restart().await;
    eventually(PATIENCE, "the pool is connected again", async || {
        sale.store.decide(&[sale.request(11)]).await.map(|_| ())
    })
    .await;
    sale.assert_conserved().await;
}

#[tokio::test]
async fn nothing_that_is_logged_of_an_error_names_a_user() {
    let sale = sale(5, 1).await;
    sale.db
        .execute(
            "CREATE FUNCTION unveil() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '23505', DETAIL = NEW.user_id; END $$;
            CREATE TRIGGER unveil BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION unveil()",
        )
        .await;
    let mut asked = sale.request(1);
    asked.user_id = seckill_state_machine::UserId::parse("alice-in-person").unwrap();
    let error = sale.store.decide(&[asked]).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    let logged = format!("{error} {error:?} {source}");
    assert!(!logged.contains("alice"), "{logged}");
    assert_ne!(user(1).as_str(), "alice-in-person");
}
