//! I5 as an eventual property: whatever has happened, the system's own steps lead to a settled state.

use seckill_protocol_model::{Config, Protocol, Request, Safeguard, can_always_settle, small};

/// The graph is kept, so that only the smaller ones of the searches fit: some 100 bytes a state.
const STATES_MAX: usize = 400_000;

#[test]
fn every_state_of_the_small_searches_can_settle() {
    let mut walked = 0;
    for whole in small() {
        let reach = can_always_settle(&Protocol::new(whole.config), STATES_MAX);
        if !reach.whole {
            println!("{}: too large for this walk", whole.name);
            continue;
        }
        println!("{}: {} states", whole.name, reach.states);
        assert_eq!(reach.stuck, 0, "{}: {:?}", whole.name, reach.path);
        walked += 1;
    }
    assert!(
        walked >= 5,
        "only {walked} of the searches are small enough"
    );
}

/// What this walk sees and the search for ends does not: without the reconciler a lost settlement is
/// stuck, although the caller may still repeat and so nothing has come to an end.
#[test]
fn a_state_without_a_way_out_is_found() {
    let config = Config {
        calls: 2,
        ..Config::new(&[Request::one(0, 0)], &[1])
    };
    let stuck = can_always_settle(
        &Protocol::new(config.without(&[Safeguard::Reconciler])),
        STATES_MAX,
    );
    assert!(stuck.whole);
    assert!(stuck.stuck > 0);
    assert!(!stuck.path.is_empty());
}
