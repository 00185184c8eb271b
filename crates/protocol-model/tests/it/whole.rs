//! Every safeguard in place: the search visits every reachable state and finds nothing.

use seckill_protocol_model::{Protocol, invariants, search, small};

use crate::{SMALL, named_tests};

fn finds_nothing(name: &str) {
    let whole = small()
        .into_iter()
        .find(|whole| whole.name == name)
        .unwrap();
    let outcome = search(Protocol::new(whole.config), &invariants(""), SMALL);
    println!(
        "{name}: {} states, depth {}, {:.1} s",
        outcome.states,
        outcome.depth,
        outcome.wall.as_secs_f64()
    );
    for (invariant, path) in &outcome.violations {
        let steps: Vec<String> = path.iter().map(ToString::to_string).collect();
        println!("{invariant} breaks:\n  {}", steps.join("\n  "));
    }
    assert!(
        outcome.violations.is_empty(),
        "an invariant breaks, see above"
    );
    assert!(outcome.whole, "the search was cut off");
}

named_tests! { finds_nothing:
    fn two_buyers_of_one_unit_with_repeats_duplicates_and_a_failover
    fn two_buyers_of_one_unit_without_patience_and_a_failover
    fn one_buyer_with_two_requests_and_a_failover
    fn two_buckets_with_one_unit_each_and_a_failover
    fn a_cancelled_order_sells_again_after_a_failover
    fn two_workers_release_once_across_two_failovers
    fn two_late_reconcilers_repair_once_across_a_failover
    fn a_total_loss_is_rebuilt
    fn one_request_id_with_another_quantity_across_a_failover
    fn a_message_that_the_broker_loses_is_released
    fn a_bucket_transfer_across_a_failover
    fn a_healthy_sale_orders_whatever_dies
}
