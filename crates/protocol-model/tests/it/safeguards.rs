//! Safeguards taken out, one by one: the search must find what each prevents. Where another safeguard
//! covers for one, both are taken out.

use seckill_protocol_model::{Config, Request, Safeguard};

use crate::{invariants, search};

/// The search without some safeguards breaks the named invariant.
fn breaks(without: &[Safeguard], config: &Config, invariant: &str) {
    let mut config = config.clone();
    config.without.extend(without);
    let outcome = search(config, &invariants(invariant));
    println!("without {without:?}: {} states", outcome.states);
    let found: Vec<&str> = outcome.violations.iter().map(|(name, _)| *name).collect();
    assert!(
        found.iter().any(|name| name.starts_with(invariant)),
        "{without:?} should break {invariant}, found {found:?}"
    );
}

/// One request with a stock of one.
fn one() -> Config {
    Config::new(&[Request::one(0, 0)], &[1])
}

/// Two users for one unit.
fn rivals() -> Config {
    Config::new(&[Request::one(0, 0), Request::one(1, 0)], &[1])
}

/// One user with two requests for two units.
fn twice() -> Config {
    Config::new(&[Request::one(0, 0), Request::one(0, 0)], &[2])
}

const FAILOVER: fn(Config) -> Config = |config| Config {
    failovers: 1,
    ..config
};

#[test]
fn without_the_fence_a_late_message_orders_a_released_unit() {
    breaks(&[Safeguard::Fence], &one(), "I6");
}

#[test]
fn with_release_pending_before_the_fence_an_order_loses_its_unit() {
    breaks(&[Safeguard::FenceBeforePending], &one(), "I5");
}

#[test]
fn without_the_conditional_stock_a_resold_unit_oversells() {
    breaks(&[Safeguard::ConditionalStock], &FAILOVER(rivals()), "I1");
}

#[test]
fn without_one_order_per_user_a_failover_gives_a_user_two() {
    breaks(&[Safeguard::OneOrderPerUser], &FAILOVER(twice()), "I2");
}

#[test]
fn without_the_decision_winning_it_is_written_twice() {
    breaks(&[Safeguard::DecisionWins], &one(), "I7");
}

#[test]
fn without_the_status_guard_a_stale_worker_releases_twice() {
    let config = Config {
        workers: 2,
        ..one()
    };
    breaks(&[Safeguard::CompensateGuard], &config, "I3");
}

#[test]
fn adding_stock_for_a_missing_reservation_breaks_the_counters() {
    breaks(&[Safeguard::NothingForMissing], &FAILOVER(one()), "I3");
}

#[test]
fn a_blind_rebuild_drives_the_counter_below_zero() {
    breaks(&[Safeguard::GuardedRebuild], &FAILOVER(rivals()), "I3");
}

#[test]
fn without_a_rebuild_a_lost_order_never_settles() {
    breaks(&[Safeguard::Rebuild], &FAILOVER(one()), "I5");
}

#[test]
fn without_settlement_a_decided_reservation_stays_open() {
    breaks(&[Safeguard::Settlement], &one(), "I5");
}

#[test]
fn one_row_for_all_buckets_never_converges() {
    let requests = [Request::one(0, 0), Request::one(1, 0), Request::one(2, 1)];
    breaks(
        &[Safeguard::RowPerBucket],
        &FAILOVER(Config::new(&requests, &[1, 1])),
        "I5",
    );
}

#[test]
fn replay_blind_to_a_cancelled_order_keeps_its_unit_for_ever() {
    breaks(
        &[Safeguard::OrderState],
        &Config {
            cancels: 1,
            ..one()
        },
        "I5",
    );
}

#[test]
fn a_closed_task_that_stays_closed_strands_what_a_failover_brings_back() {
    breaks(&[Safeguard::ReopenTask], &FAILOVER(one()), "I5");
}

#[test]
fn a_refusal_that_has_deducted_leaks_a_unit() {
    breaks(
        &[Safeguard::RefusedDeductsNothing],
        &FAILOVER(twice()),
        "I5",
    );
}

#[test]
fn without_the_recovery_window_a_buyer_is_refused_and_gets_the_order() {
    let config = Config {
        calls: 2,
        ..FAILOVER(rivals())
    };
    breaks(&[Safeguard::RecoveryWindow], &config, "I9");
}

#[test]
fn a_second_blind_initialisation_breaks_the_counters() {
    let config = Config { losses: 1, ..one() };
    breaks(&[Safeguard::GuardedInitialise], &config, "I3");
}

/// The search finds nothing without a safeguard, because another one covers for it; without both it
/// does.
fn is_covered(safeguard: Safeguard, cover: Safeguard, config: &Config, invariant: &str) {
    let alone = search(config.clone().without(safeguard), &invariants(""));
    assert!(
        alone.violations.is_empty(),
        "{safeguard:?} alone: {:?}",
        alone.violations
    );
    breaks(&[safeguard, cover], config, invariant);
}

#[test]
fn marker_repair_covers_for_the_marker_check() {
    is_covered(
        Safeguard::MarkerCheck,
        Safeguard::MarkerRepair,
        &FAILOVER(twice()),
        "I5",
    );
}

#[test]
fn the_scanner_covers_for_recording_enqueued_first() {
    is_covered(Safeguard::EnqueuedFirst, Safeguard::Scanner, &one(), "I5");
}

#[test]
fn a_parked_message_without_a_task_is_forgotten_by_a_failover() {
    // Nothing is held in Redis afterwards, so what remains is a message that nobody decides.
    let config = Config {
        parks: 1,
        ..FAILOVER(one())
    };
    breaks(&[Safeguard::ParkOpensTask], &config, "I5");
}
