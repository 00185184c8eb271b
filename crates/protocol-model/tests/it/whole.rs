//! Every safeguard in place: the search visits every reachable state and finds nothing.

use seckill_protocol_model::{Config, Request};

use crate::{STATES_MAX, invariants, search};

fn holds(name: &str, config: Config) {
    let outcome = search(config, &invariants(""));
    println!("{name}: {} states", outcome.states);
    assert!(outcome.states < STATES_MAX, "the search was cut off");
    assert!(outcome.violations.is_empty(), "{:?}", outcome.violations);
}

#[test]
fn two_buyers_of_one_unit_with_repeats_duplicates_and_a_failover() {
    let mut config = Config::new(&[Request::one(0, 0), Request::one(1, 0)], &[1]);
    config.calls = 2;
    config.copies = 2;
    config.failovers = 1;
    holds("two buyers of one unit", config);
}

#[test]
fn one_buyer_with_two_requests_and_a_failover() {
    let mut config = Config::new(&[Request::one(0, 0), Request::one(0, 0)], &[2]);
    config.calls = 2;
    config.failovers = 1;
    config.parks = 1;
    holds("one buyer twice", config);
}

#[test]
fn two_buckets_with_one_unit_each_and_a_failover() {
    let mut config = Config::new(
        &[Request::one(0, 0), Request::one(1, 0), Request::one(2, 1)],
        &[1, 1],
    );
    config.failovers = 1;
    holds("two buckets", config);
}

#[test]
fn a_cancelled_order_sells_again_after_a_failover() {
    let mut config = Config::new(&[Request::one(0, 0), Request::one(1, 0)], &[1]);
    config.cancels = 1;
    config.failovers = 1;
    holds("cancelled order", config);
}

#[test]
fn two_workers_release_once_across_two_failovers() {
    let mut config = Config::new(&[Request::one(0, 0)], &[1]);
    config.calls = 2;
    config.workers = 2;
    config.parks = 1;
    config.failovers = 2;
    holds("two workers", config);
}

#[test]
fn a_total_loss_is_rebuilt() {
    let mut config = Config::new(&[Request::one(0, 0), Request::one(1, 0)], &[2]);
    config.losses = 1;
    config.calls = 2;
    holds("total loss", config);
}
