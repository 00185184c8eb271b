//! Planted damage: twenty things of every class, all found within two rounds and classed right; what can
//! be repaired is, by the services, by an operator's command or by hand; then a fresh reconciler finds
//! nothing, and a second command does nothing.
//!
//! A round is one that a check has gone through, whatever time it took. Rounds lie further apart here
//! than the grace, as the sweep's do by default, so that the second one counts what the first one saw.

mod bench;
mod buckets;
mod drill;
mod reservations;
mod versions;

use std::collections::BTreeMap;

use seckill_integration_tests::{Sandbox, Service};
use seckill_settlement::Class;
use seckill_test_support::{ServiceProcess, eventually};

use crate::SOON;
use bench::ByHand;
use drill::{apply, apply_again, find, find_nothing, mend, repaired};

/// Of each class.
const EACH: usize = 20;

/// Where damage of a class is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Site {
    /// A settled order's reservation.
    Order,
    /// Something in Redis that PostgreSQL does not know.
    Stranger,
    /// A reservation that was rejected and released.
    Ended,
    /// The same, met by the compensation worker and not by a round.
    Refused,
    /// A reservation that nobody has decided about.
    Open,
    /// The same, beyond its patience.
    Late,
    /// PostgreSQL's orders.
    Books,
    /// A bucket as a whole.
    Bucket,
    /// A version on sale as a whole.
    Version,
    /// A version whose retention ends.
    Ending,
}

/// Where each class is planted. There is none that cannot be: what a constraint of PostgreSQL makes
/// impossible is planted in a database that has lost the constraint.
const fn site(class: Class) -> Site {
    use Class as C;
    match class {
        C::ReservationMissing
        | C::NotSettled
        | C::NotRestocked
        | C::MarkerMissing
        | C::MarkerElsewhere
        | C::ReleasedInRedisOnly
        | C::IdentityDiffers
        | C::IndexLeftOver
        | C::KeyWithoutExpiry
        | C::Unreadable
        | C::CachedResultUnreadable
        | C::CachedResultDiffers => Site::Order,
        C::ReleasedWithoutDecision
        | C::OrderedWithoutOrder
        | C::ForeignScope
        | C::MarkerStray
        | C::IndexStray => Site::Stranger,
        C::TombstoneMissing | C::NotReleased | C::Contradiction => Site::Ended,
        C::ReleaseRefused => Site::Refused,
        C::NotInSendPending | C::ReservedAhead => Site::Open,
        C::NotInExpiry | C::Overdue => Site::Late,
        C::DecisionWithoutOrder => Site::Books,
        C::StockMissing
        | C::MetaMissing
        | C::MetaDiffers
        | C::StateDiffers
        | C::InitialDiffers
        | C::RedisNotConserved
        | C::HeldBelowOrders
        | C::UnitsUnaccounted
        | C::HoldersDiffer
        | C::SoldOutStale
        | C::ForeignKey
        | C::PostgresNotConserved => Site::Bucket,
        C::PointerDiffers | C::DuplicateOrder | C::OrderWithoutDecision => Site::Version,
        C::OpenBeforeRetention => Site::Ending,
    }
}

/// The classes of a site; each of them must be planted there, or its planting panics.
fn at(here: Site) -> Vec<Class> {
    let all = Class::ALL.iter().copied();
    all.filter(|class| site(*class) == here).collect()
}

/// What an operator's command repairs of what was planted there, by class.
fn commanded(sites: &[Site]) -> BTreeMap<String, usize> {
    let classes = sites.iter().flat_map(|here| at(*here));
    classes
        .filter(|class| class.has_command() && !class.is_automatic())
        .map(|class| (class.word().to_owned(), EACH))
        .collect()
}

/// Goal: acceptance 3, for what concerns single reservations. Method: six sales of purchases, each
/// purchase damaged in one way, behind services that have stopped; a reconciler finds it alone, then
/// the others come back one by one.
#[tokio::test(flavor = "multi_thread")]
async fn damage_to_reservations_is_found_classed_and_mended() {
    let sandbox = Sandbox::start().await;
    let mut benches = reservations::benches(&sandbox).await;
    let mut by_hand = ByHand::default();
    let planted = benches.damage(&mut by_hand).await;
    let process = find(&sandbox, &planted).await;

    let worker = sandbox.run(Service::Compensation).await;
    worker.allow_errors("redis and postgresql differ");
    repaired(&sandbox, &benches.refused()).await;
    let refused = format!(
        "SELECT count(*) FROM discrepancy WHERE resolved_at IS NULL AND kind = '{}'",
        Class::ReleaseRefused
    );
    is_number(&sandbox, &refused, EACH).await;
    benches.allow_release().await;
    is_number(&sandbox, &refused, 0).await;
    repaired(&sandbox, "false").await;
    process.stop(SOON).await;

    let sites = [Site::Order, Site::Stranger, Site::Ended];
    assert_eq!(apply(&sandbox).await, commanded(&sites));
    let open = "SELECT count(*) FROM compensation_task WHERE closed_at IS NULL";
    is_number(&sandbox, open, 0).await;
    apply_again(&sandbox).await;
    mend(&sandbox, by_hand).await;

    let (consumer, scanner) = tokio::join!(
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Scanner)
    );
    sandbox.settle(SOON).await;
    find_nothing(&sandbox).await;
    sandbox.assert_settles_consistent(SOON).await;
    for service in [worker, consumer, scanner] {
        service.stop(SOON).await;
    }
}

/// Goal: acceptance 3, for what concerns whole buckets. Method: a sale of twenty buckets for each class.
#[tokio::test(flavor = "multi_thread")]
async fn damage_to_buckets_is_found_classed_and_mended() {
    let sandbox = Sandbox::start().await;
    let mut by_hand = ByHand::default();
    let damaged = buckets::damage(&sandbox, &mut by_hand).await;
    let process = find(&sandbox, &damaged.planted()).await;
    repaired(&sandbox, "false").await;
    process.stop(SOON).await;
    assert_eq!(apply(&sandbox).await, commanded(&[Site::Bucket]));
    apply_again(&sandbox).await;
    damaged.rebuild(&sandbox).await;
    mend(&sandbox, by_hand).await;
    let services = tokio::join!(
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Compensation),
    );
    sandbox.settle(SOON).await;
    find_nothing(&sandbox).await;
    sandbox.assert_settles_consistent(SOON).await;
    for service in <[ServiceProcess; 3]>::from(services) {
        service.stop(SOON).await;
    }
}

/// Goal: acceptance 3, for what concerns whole versions, one difference of a class each. Method: twenty
/// activities on sale, and twenty that were never opened and whose retention ends. PostgreSQL's
/// constraints make some of it impossible; its database has lost them here.
#[tokio::test(flavor = "multi_thread")]
async fn damage_to_versions_is_found_classed_and_mended() {
    let sandbox = Sandbox::start().await;
    let mut by_hand = ByHand::default();
    let damaged = versions::damage(&sandbox, &mut by_hand).await;
    let process = find(&sandbox, &damaged.planted()).await;
    process.stop(SOON).await;
    let sites = [Site::Version, Site::Ending];
    assert_eq!(apply(&sandbox).await, commanded(&sites));
    apply_again(&sandbox).await;
    damaged.run_again(&sandbox).await;
    mend(&sandbox, by_hand).await;
    find_nothing(&sandbox).await;
    sandbox.assert_settles_consistent(SOON).await;
}

/// Awaits that a query counts so many.
async fn is_number(sandbox: &Sandbox, query: &str, wanted: usize) {
    eventually(SOON, query, async || {
        let number = sandbox.database().number(query).await;
        if usize::try_from(number).is_ok_and(|number| number == wanted) {
            Ok(())
        } else {
            Err(format!("{number} instead of {wanted}"))
        }
    })
    .await;
}
