//! Every executable ends when it is told to, under load, and leaves nothing behind.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use seckill_integration_tests::{AnswerBook, FrontClient, Plan, Sale, Sandbox, Service};
use seckill_test_support::{ServiceProcess, eventually};
use tokio::task::JoinSet;

use crate::harness::{SETTLES, SOON, is_accepted, orders};

/// The drain delay, the grace period and what a process takes to end, by the sandbox's timers.
const ENDS: Duration = Duration::from_secs(15);

/// Buyers who go on and on, each with a request id of their own, and repeat a call that got no answer
/// until it has one.
struct Load {
    buyers: JoinSet<()>,
    stop: Arc<AtomicBool>,
    client: Arc<Mutex<FrontClient>>,
    book: Arc<AnswerBook>,
    faults: Arc<AtomicUsize>,
}

impl Load {
    fn begin(client: FrontClient, sale: &Sale, buyers: usize) -> Self {
        let mut load = Self {
            buyers: JoinSet::new(),
            stop: Arc::default(),
            client: Arc::new(Mutex::new(client)),
            book: Arc::default(),
            faults: Arc::default(),
        };
        for buyer in 0..buyers {
            let (stop, client) = (Arc::clone(&load.stop), Arc::clone(&load.client));
            let (book, faults) = (Arc::clone(&load.book), Arc::clone(&load.faults));
            let sale = sale.clone();
            load.buyers.spawn(async move {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let user = format!("b{buyer}-{number}");
                    until_answered(&client, &sale, &user, &book, &faults).await;
                }
            });
        }
        load
    }

    fn go_through(&self, client: FrontClient) {
        *self.client.lock().unwrap() = client;
    }

    async fn accepted_beyond(&self, count: usize) {
        eventually(SOON, "further purchases", async || {
            let now = self.book.accepted().len();
            if now >= count {
                Ok(())
            } else {
                Err(format!("{now} of {count}"))
            }
        })
        .await;
    }

    async fn end(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.buyers.join_next().await {
            ended.unwrap();
        }
        self.book.accepted().len()
    }
}

async fn until_answered(
    client: &Mutex<FrontClient>,
    sale: &Sale,
    user: &str,
    book: &AnswerBook,
    faults: &AtomicUsize,
) {
    loop {
        let through = client.lock().unwrap().clone();
        match through.reserve(sale, user, user).await {
            Ok(answer) => {
                assert!(is_accepted(answer.code), "{user}: {answer:?}");
                book.note(user, user, &answer);
                // A thousand purchases a second load five processes on two cores well enough.
                tokio::time::sleep(Duration::from_millis(15)).await;
                return;
            }
            Err(_) => {
                faults.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn end_in_time(service: &ServiceProcess) {
    let began = Instant::now();
    service.terminate();
    let status = service.wait(ENDS).await;
    let took = began.elapsed();
    assert!(
        status.success(),
        "{} ended with {status} after {took:?}",
        service.name()
    );
    assert!(
        service.run_file().is_none(),
        "{} left its run file",
        service.name()
    );
    let log = service.log_text();
    assert!(
        log.contains("\"stopped\""),
        "{} did not end in order",
        service.name()
    );
    eprintln!("{} ended after {took:?}", service.name());
}

/// Ends each service in turn while buyers go on, starts it again, and proves in the end that every
/// purchase which was accepted is an order.
async fn in_turn_under_load(end: impl AsyncFn(&ServiceProcess)) {
    let sandbox = Sandbox::start().await;
    // A consumer's restart may take longer than a test's usual patience with what is undecided.
    let plan = Plan::new(100_000).term("reservation-ttl-ms", 30_000);
    let sale = sandbox.open(&plan).await;
    let services = sandbox.run_all().await;
    let load = Load::begin(sandbox.client(&services.front), &sale, 12);
    load.accepted_beyond(200).await;

    let mut restarted = Vec::new();
    let workers = [
        services.scanner,
        services.consumer,
        services.compensation,
        services.reconciler,
    ];
    for service in workers {
        end(&service).await;
        let before = load.book.accepted().len();
        restarted.push(service.restart().await);
        load.accepted_beyond(before + 100).await;
    }
    let faults = load.faults.load(Ordering::Relaxed);
    assert_eq!(faults, 0, "nobody but the front is in a caller's way");
    end(&services.front).await;
    let front = services.front.restart().await;
    let before = load.book.accepted().len();
    load.go_through(sandbox.client(&front));
    load.accepted_beyond(before + 200).await;
    let accepted = load.end().await;
    sandbox.assert_settles_consistent(SETTLES).await;
    let ordered = orders(&sandbox, &sale).await;
    assert_eq!(ordered, i64::try_from(accepted).unwrap());
    let audit = sandbox.audit(&sale, &["--require-settled"]).await;
    assert_eq!(audit.code, Some(0), "{audit:?}");
    for service in restarted.iter().chain([&front]) {
        service.stop(SOON).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_service_ends_under_load_and_nothing_is_lost() {
    in_turn_under_load(end_in_time).await;
}

/// SIGKILL at whatever instant it comes; callers of the front repeat what got no answer.
#[tokio::test(flavor = "multi_thread")]
async fn every_service_is_killed_under_load_and_nothing_is_lost() {
    in_turn_under_load(async |service| service.kill()).await;
}

/// The first signal begins a drain that would take a minute; the second ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_every_service_at_once() {
    let sandbox = Sandbox::builder()
        .env("SECKILL_DRAIN_DELAY_MS", 60_000)
        .start()
        .await;
    let services = sandbox.run_all().await;
    for service in services.all() {
        service.terminate();
    }
    for service in services.all() {
        service.wait_for_log("draining", SOON).await;
        service.wait_until_unready(SOON).await;
        service.terminate();
        let status = service.wait(Duration::from_secs(5)).await;
        assert_eq!(status.code(), Some(1), "{}", service.name());
    }
}

/// One-shot commands and `--help` need no servers.
#[tokio::test(flavor = "multi_thread")]
async fn every_executable_explains_itself() {
    let names = Service::ALL.iter().map(|service| service.name());
    for name in names.chain(["seckillctl"]) {
        for flag in ["--help", "--version"] {
            let finished = ServiceProcess::builder(name).arg(flag).run(SOON).await;
            assert_eq!(finished.code, Some(0), "{name} {flag}: {finished:?}");
            assert!(
                finished.stdout.contains(name),
                "{name} {flag}: {finished:?}"
            );
        }
    }
}
