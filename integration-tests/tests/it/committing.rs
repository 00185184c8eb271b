//! Commits that get lost, and a PostgreSQL that refuses for a while: nobody is rejected, and everybody
//! gets one order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use seckill_integration_tests::{Plan, Sandbox, Service};
use seckill_test_support::{Dir, FaultProxy, FrameAction, eventually};

use crate::harness::{SETTLES, SOON, all_reach, buy_many, orders, tally};

/// Which part of a commit does not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    Commit,
    Answer,
}

/// Cuts the connection at each of the next commits; returns how many are left to be cut.
fn cut_commits(proxy: &FaultProxy, lost: Lost, count: u32) -> Arc<AtomicU32> {
    let left = Arc::new(AtomicU32::new(count));
    let counter = Arc::clone(&left);
    proxy.on_frame(move |dir, _, frame| {
        let is_commit = match (dir, lost) {
            (Dir::ToServer, Lost::Commit) => frame.postgres_query() == Some("COMMIT"),
            (Dir::ToClient, Lost::Answer) => {
                frame.postgres_type() == Some(b'C') && frame.contains(b"COMMIT")
            }
            _ => false,
        };
        let taken = |left: u32| left.checked_sub(1);
        let order = Ordering::SeqCst;
        if is_commit && counter.fetch_update(order, order, taken).is_ok() {
            FrameAction::Cut
        } else {
            FrameAction::Forward
        }
    });
    left
}

/// PG-02. Goal: the consumer takes a commit without an answer for neither a success nor a failure: one
/// order each, and nothing is given back. Method: the connections of the consumer alone are cut at the
/// request to commit, then at its answer, while a worker and a reconciler stand by.
#[tokio::test(flavor = "multi_thread")]
async fn lost_commits_cost_nobody_an_order_and_give_nobody_two() {
    const WAVES: usize = 10;
    const WAVE: usize = 10;
    const CUTS: u32 = 8;
    let sandbox = Sandbox::builder().postgres_proxy().start().await;
    let direct = sandbox.database().url().to_owned();
    let past_the_proxy = |service| {
        let builder = sandbox.service(service);
        builder.env("SECKILL_DATABASE_URL", &direct)
    };
    let others = [
        past_the_proxy(Service::Front),
        past_the_proxy(Service::Scanner),
        past_the_proxy(Service::Compensation),
        past_the_proxy(Service::Reconciler),
    ];
    let (front, scanner, worker, reconciler, consumer) = tokio::join!(
        others[0].start(),
        others[1].start(),
        others[2].start(),
        others[3].start(),
        sandbox.run(Service::Consumer),
    );
    consumer.allow_errors("");
    let client = sandbox.client(&front);
    for lost in [Lost::Commit, Lost::Answer] {
        let plan = Plan::new(100).term("patience-ms", 120_000);
        let sale = sandbox.open(&plan).await;
        let left = cut_commits(sandbox.postgres_proxy(), lost, CUTS);
        for wave in 0..WAVES {
            buy_many(&client, &sale, &format!("{lost:?}-{wave}"), WAVE).await;
        }
        all_reach(&sandbox, &sale, "ORDER_CREATED", WAVES * WAVE).await;
        let cut = CUTS - left.load(Ordering::SeqCst);
        eprintln!("{lost:?}: {cut} connections cut");
        assert!(cut > 0, "{lost:?}: no commit was cut");
        sandbox.postgres_proxy().clear_hook();
        assert_eq!(orders(&sandbox, &sale).await, 100);
    }
    sandbox.assert_settles_consistent(SETTLES).await;
    for nothing in [
        "SELECT count(*) FROM compensation_task",
        "SELECT count(*) FROM reservation_decision WHERE kind <> 'ORDERED'",
        "SELECT count(*) FROM dead_letter",
    ] {
        assert_eq!(sandbox.database().number(nothing).await, 0, "{nothing}");
    }
    for service in [front, scanner, worker, reconciler, consumer] {
        service.stop(SOON).await;
    }
}

/// Makes the whole server take no writes, as one that was demoted does.
async fn set_read_only(sandbox: &Sandbox, on: bool) {
    let session = sandbox.database().client().await;
    let own = "SET default_transaction_read_only = off";
    session.batch_execute(own).await.unwrap();
    let change = if on {
        "ALTER SYSTEM SET default_transaction_read_only = on"
    } else {
        "ALTER SYSTEM RESET default_transaction_read_only"
    };
    session.batch_execute(change).await.unwrap();
    let reload = "SELECT pg_reload_conf()";
    session.batch_execute(reload).await.unwrap();
    let wanted = if on { "on" } else { "off" };
    eventually(SOON, "the setting", async || {
        let shown = "SHOW default_transaction_read_only";
        let found = sandbox.database().texts(shown).await[0][0].clone();
        if found == wanted { Ok(()) } else { Err(found) }
    })
    .await;
}

/// Makes every new order fail with this SQLSTATE, or heals that.
async fn fail_orders(sandbox: &Sandbox, sqlstate: Option<&str>) {
    let change = match sqlstate {
        Some(state) => format!(
            "CREATE FUNCTION no_orders() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '{state}'; END $$;
            CREATE TRIGGER no_orders BEFORE INSERT ON orders
                FOR EACH ROW EXECUTE FUNCTION no_orders()"
        ),
        None => "DROP TRIGGER no_orders ON orders; DROP FUNCTION no_orders".to_owned(),
    };
    sandbox.database().execute(&change).await;
}

/// PG-06, PG-11. Goal: a database that refuses for a reason of its own rejects nobody: messages wait, and
/// become orders when it is over. Method: the whole server turns read-only under the pools, then it lacks
/// a privilege, then space on its disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_refuses_for_a_while_rejects_nobody() {
    const BUYERS: usize = 10;
    const REFUSES: Duration = Duration::from_secs(4);
    let sandbox = Sandbox::builder().private_postgres().start().await;
    let services = sandbox.run_all().await;
    services.allow_errors("");
    let client = sandbox.client(&services.front);
    for cause in [None, Some("42501"), Some("53100")] {
        let plan = Plan::new(10)
            .term("patience-ms", 300_000)
            .term("reservation-ttl-ms", 60_000);
        let sale = sandbox.open(&plan).await;
        match cause {
            None => set_read_only(&sandbox, true).await,
            Some(_) => fail_orders(&sandbox, cause).await,
        }
        let name = cause.unwrap_or("readonly");
        buy_many(&client, &sale, name, BUYERS).await;
        all_reach(&sandbox, &sale, "ENQUEUED", BUYERS).await;
        let refused = Instant::now();
        while refused.elapsed() < REFUSES {
            let now = tally(&sandbox, &sale).await;
            assert_eq!(now.get("ENQUEUED"), Some(&BUYERS), "{name}: {now:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        match cause {
            None => set_read_only(&sandbox, false).await,
            Some(_) => fail_orders(&sandbox, None).await,
        }
        all_reach(&sandbox, &sale, "ORDER_CREATED", BUYERS).await;
        assert_eq!(orders(&sandbox, &sale).await, 10, "{name}");
    }
    sandbox.assert_settles_consistent(SETTLES).await;
    for nothing in [
        "SELECT count(*) FROM reservation_decision WHERE kind <> 'ORDERED'",
        "SELECT count(*) FROM compensation_task",
    ] {
        assert_eq!(sandbox.database().number(nothing).await, 0, "{nothing}");
    }
    for service in services.all() {
        service.stop(SOON).await;
    }
}
