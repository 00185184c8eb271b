//! M1 to M12: with the safeguard the run ends well, without it it does not.

use seckill_protocol_model::{INTERLEAVINGS, Verdict};

use crate::named_tests;

fn is_closed(id: &str) {
    let run = INTERLEAVINGS.iter().find(|run| run.id == id).unwrap();
    let safe = run.play(true);
    assert!(
        safe.is_right,
        "{id} with {:?}: {:?}",
        run.closed_by, safe.broken
    );
    let broken = run.play(false);
    assert!(!broken.is_right, "{id} without {:?}", run.closed_by);
    if let Verdict::Invariant(name) = run.verdict {
        assert!(
            broken.broken.iter().any(|found| found.starts_with(name)),
            "{id} breaks {:?}",
            broken.broken
        );
    }
    // Only the safeguard itself stands between the two runs.
    assert!(
        safe.impossible.is_empty() || broken.impossible.is_empty(),
        "{id}"
    );
}

named_tests! { is_closed:
    fn m1_one_counter_for_two_buckets_never_converges = "M1",
    fn m2_a_cancelled_order_goes_back_on_sale_after_the_worker_died = "M2",
    fn m2_a_failover_that_undoes_the_cancel_script_is_made_up_for = "M2 by a failover",
    fn m3_a_failover_back_to_release_pending_reopens_the_task = "M3",
    fn m3_a_repeat_that_makes_a_released_reservation_again_reopens_the_task = "M3 by a repeat",
    fn m4_another_quantity_is_another_reservation = "M4",
    fn m5_a_refused_order_leaves_nothing_deducted = "M5",
    fn m6_a_rebuild_takes_nothing_that_was_resold = "M6",
    fn m6_a_second_initialiser_changes_nothing = "M6 by an initialiser",
    fn m7_a_repeat_after_a_failover_is_not_refused_before_its_order = "M7",
    fn m8_a_parked_message_whose_reservation_is_forgotten_is_decided = "M8",
    fn m9_a_duplicate_settles_again = "M9",
    fn m10_a_repeat_of_what_was_released_takes_no_unit = "M10",
    fn m11_an_ordered_user_keeps_a_marker = "M11",
    fn m12_sold_out_is_marked_only_at_zero = "M12",
}
