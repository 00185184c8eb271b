//! Safeguards taken out, one by one: the search must find what each prevents.

use seckill_protocol_model::{
    Cover, Protocol, REMOVALS, Safeguard, Safeguard as S, invariants, search,
};

use crate::{SMALL, named_tests};

fn is_needed(safeguard: Safeguard) {
    let removal = REMOVALS
        .iter()
        .find(|row| row.without == safeguard)
        .unwrap();
    let config = (removal.config)();
    if let Cover::By(cover) = removal.cover {
        let alone = config.clone().without(&[safeguard]);
        let outcome = search(Protocol::new(alone), &invariants(""), SMALL);
        println!("covered by {cover:?}: {} states", outcome.states);
        assert!(outcome.whole, "{:?}", outcome.violations);
    }
    let model = Protocol::new(config.without(&removal.without()));
    let outcome = search(model, &invariants(removal.breaks), SMALL);
    println!("caught after {} states", outcome.states);
    let found: Vec<&str> = outcome.violations.iter().map(|(name, _)| *name).collect();
    assert!(
        found.iter().any(|name| name.starts_with(removal.breaks)),
        "{:?} should break {}, found {found:?}",
        removal.without(),
        removal.breaks
    );
}

#[test]
fn every_safeguard_has_its_row() {
    let rows: Vec<Safeguard> = REMOVALS.iter().map(|row| row.without).collect();
    for safeguard in Safeguard::ALL {
        assert!(rows.contains(safeguard), "{safeguard:?}");
    }
    assert_eq!(rows.len(), Safeguard::ALL.len());
}

/// Where the safeguard and its cover are both out, both are to blame: the cover alone breaks nothing.
#[test]
fn a_cover_alone_is_no_explanation() {
    for safeguard in [S::Inbox, S::EnqueuedFirst, S::Scanner] {
        let removal = REMOVALS
            .iter()
            .find(|row| row.without == safeguard)
            .unwrap();
        let Cover::By(cover) = removal.cover else {
            panic!("{safeguard:?} has no cover");
        };
        let model = Protocol::new((removal.config)().without(&[cover]));
        let outcome = search(model, &invariants(""), SMALL);
        assert!(outcome.whole, "{cover:?}: {:?}", outcome.violations);
    }
}

/// The searches of the table hold while nothing is taken out: what is found is due to the removal.
#[test]
fn nothing_is_found_where_nothing_is_taken_out() {
    for removal in REMOVALS {
        let model = Protocol::new((removal.config)());
        let outcome = search(model, &invariants(""), SMALL);
        assert!(
            outcome.whole,
            "{:?}: {:?}",
            removal.without, outcome.violations
        );
    }
}

named_tests! { is_needed:
    fn without_the_fence_a_late_message_orders_a_released_unit = S::Fence,
    fn with_release_pending_before_the_fence_an_order_loses_its_unit = S::FenceBeforePending,
    fn without_the_conditional_stock_a_resold_unit_oversells = S::ConditionalStock,
    fn without_one_order_per_user_a_failover_gives_a_user_two = S::OneOrderPerUser,
    fn without_the_decisions_key_there_are_two = S::DecisionKey,
    fn without_the_decision_winning_it_is_written_twice = S::DecisionWins,
    fn the_decisions_key_covers_for_the_inbox = S::Inbox,
    fn the_reconciler_covers_for_duplicates_that_do_not_settle = S::DuplicatesSettle,
    fn an_early_acknowledgement_loses_the_message = S::AckAfterCommit,
    fn without_the_first_result_a_repeat_is_contradicted = S::FirstResult,
    fn without_the_quantity_in_the_id_stock_and_order_differ = S::QuantityInId,
    fn a_sold_out_mark_with_something_left_locks_buyers_out = S::SoldOutAtZero,
    fn without_the_status_guard_a_stale_worker_releases_twice = S::CompensateGuard,
    fn adding_stock_for_a_missing_reservation_breaks_the_counters = S::NothingForMissing,
    fn marker_repair_covers_for_the_marker_check = S::MarkerCheck,
    fn without_marker_repair_an_ordered_user_has_no_marker = S::MarkerRepair,
    fn a_blind_rebuild_drives_the_counter_below_zero = S::GuardedRebuild,
    fn a_second_blind_initialisation_breaks_the_counters = S::GuardedInitialise,
    fn without_a_rebuild_a_lost_order_never_settles = S::Rebuild,
    fn without_tombstones_a_repeat_takes_a_unit_hostage = S::Tombstone,
    fn without_a_reconciler_a_decided_reservation_stays_open = S::Reconciler,
    fn without_a_hand_over_a_lost_message_keeps_its_unit = S::Overdue,
    fn without_patience_a_healthy_purchase_is_released = S::Patience,
    fn the_scanner_covers_for_recording_enqueued_first = S::EnqueuedFirst,
    fn patience_covers_for_the_scanner = S::Scanner,
    fn one_row_for_all_buckets_never_converges = S::RowPerBucket,
    fn replay_blind_to_a_cancelled_order_keeps_its_unit_for_ever = S::OrderState,
    fn a_closed_task_that_stays_closed_strands_what_a_failover_brings_back = S::ReopenTask,
    fn a_refusal_that_has_deducted_leaks_a_unit = S::RefusedDeductsNothing,
    fn without_the_recovery_window_a_buyer_is_refused_and_gets_the_order = S::RecoveryWindow,
    fn without_the_window_after_a_rebuild_the_same_happens = S::WindowAfterRebuild,
    fn a_parked_message_without_a_task_is_forgotten_by_a_failover = S::ParkOpensTask,
    fn a_transfer_that_is_not_replayed_never_balances = S::TransferReplay,
    fn a_transfer_without_records_adds_twice = S::TransferOnce,
}
