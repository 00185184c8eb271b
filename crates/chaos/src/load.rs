//! The sale: activities come and go, buyers come and repeat until they know.

mod buyers;
mod calls;
mod cancels;
mod ledger;
mod sales;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use seckill_integration_tests::FrontClient;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::installation::Installation;
use crate::random::Random;
use crate::replicas::Replicas;

pub(crate) use buyers::USER_PREFIX;
pub(crate) use ledger::{Answer, Ledger, Purchase, PurchaseId, Said, trace_id};
pub(crate) use sales::Offer;

/// How many buyers may be under way. At 15 a second each may take half a minute.
const BUYERS_MAX: usize = 500;

/// A handle on everything that buys; cheap to clone.
#[derive(Clone)]
pub(crate) struct Load {
    shared: Arc<Shared>,
}

struct Shared {
    installation: Arc<Installation>,
    replicas: Arc<Replicas>,
    seed: u64,
    ledger: Ledger,
    offers: Mutex<Vec<Offer>>,
    sold: Mutex<Vec<Offer>>,
    random: Mutex<Random>,
    clients: Mutex<BTreeMap<SocketAddr, FrontClient>>,
    /// No new buyer, sale or cancellation from then on.
    closing: CancellationToken,
    /// Buyers who still do not know give up from then on.
    over: CancellationToken,
    tasks: TaskTracker,
    problems: Mutex<Vec<String>>,
}

impl Load {
    pub(crate) fn new(installation: Arc<Installation>, replicas: Arc<Replicas>, seed: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                installation,
                replicas,
                seed,
                ledger: Ledger::default(),
                offers: Mutex::default(),
                sold: Mutex::default(),
                random: Mutex::new(Random::fork(seed, "load")),
                clients: Mutex::default(),
                closing: CancellationToken::new(),
                over: CancellationToken::new(),
                tasks: TaskTracker::new(),
                problems: Mutex::default(),
            }),
        }
    }

    /// Opens the first sales and lets buyers come.
    pub(crate) async fn start(&self, buyers_per_second: u64) -> anyhow::Result<()> {
        self.open_sales().await?;
        let buyers = self.clone();
        let arrivals = async move { buyers.let_them_come(buyers_per_second).await };
        self.shared.tasks.spawn_local(arrivals);
        let operator = self.clone();
        self.shared
            .tasks
            .spawn_local(async move { operator.cancel_orders().await });
        Ok(())
    }

    /// No new buyers; those who are under way go on.
    pub(crate) fn close(&self) {
        self.shared.closing.cancel();
        self.shared.tasks.close();
    }

    /// Whether nobody is under way any more.
    pub(crate) fn is_quiet(&self) -> bool {
        self.shared.tasks.is_empty()
    }

    /// Those who still do not know give up; awaits their end.
    pub(crate) async fn end(&self) {
        self.shared.over.cancel();
        self.shared.tasks.wait().await;
    }

    /// Everything that was asked and answered.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// Every sale of the run.
    pub(crate) fn all_offers(&self) -> Vec<Offer> {
        let mut all = lock(&self.shared.sold).clone();
        all.extend(lock(&self.shared.offers).iter().cloned());
        all
    }

    /// What an operator's command complained about.
    pub(crate) fn problems(&self) -> Vec<String> {
        lock(&self.shared.problems).clone()
    }

    fn complain(&self, problem: String) {
        lock(&self.shared.problems).push(problem);
    }

    fn draw<T>(&self, with: impl FnOnce(&mut Random) -> T) -> T {
        with(&mut lock(&self.shared.random))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
