//! The searches with every safeguard in place: small ones that every test run finishes, and large ones
//! for `make model`.

use crate::{Config, Request, Transfer};

/// A search that must find nothing.
pub struct Whole {
    /// What it is about; also the name of its test.
    pub name: &'static str,
    /// What is explored.
    pub config: Config,
}

fn whole(name: &'static str, config: Config) -> Whole {
    Whole { name, config }
}

/// Two users for some units of one bucket.
fn rivals(stock: u8) -> Config {
    Config::new(&[Request::one(0, 0), Request::one(1, 0)], &[stock])
}

/// One user with two requests.
fn twice() -> Config {
    Config::new(&[Request::one(0, 0), Request::one(0, 0)], &[2])
}

fn one() -> Config {
    Config::new(&[Request::one(0, 0)], &[1])
}

/// The same `request_id` twice, the second time for two units.
pub(crate) fn requantified() -> Config {
    let again = Request {
        same_id_as: Some(0),
        ..Request::units(2, 0, 0)
    };
    Config::new(&[Request::one(0, 0), again], &[3])
}

/// Three buyers of two buckets with one unit each.
pub(crate) fn two_buckets() -> Config {
    Config::new(
        &[Request::one(0, 0), Request::one(1, 0), Request::one(2, 1)],
        &[1, 1],
    )
}

/// A unit moves from one bucket to the other while both sell.
pub(crate) fn transferred() -> Config {
    Config {
        transfer: Some(Transfer {
            from: 0,
            to: 1,
            units: 1,
        }),
        ..Config::new(&[Request::one(0, 0), Request::one(1, 1)], &[1, 0])
    }
}

/// The searches of `make test`. Where callers repeat, patience holds (`overdue` is false), and where
/// patience may have passed at any time, they do not: both at once is for `make model`.
#[must_use]
pub fn small() -> Vec<Whole> {
    let mut all = callers();
    all.extend(repairs());
    all
}

/// About callers, the broker and a failover.
fn callers() -> Vec<Whole> {
    vec![
        whole(
            "two_buyers_of_one_unit_with_repeats_duplicates_and_a_failover",
            Config {
                calls: 2,
                copies: 2,
                failovers: 1,
                overdue: false,
                ..rivals(1)
            },
        ),
        whole(
            "two_buyers_of_one_unit_without_patience_and_a_failover",
            Config {
                failovers: 1,
                ..rivals(1)
            },
        ),
        whole(
            "one_buyer_with_two_requests_and_a_failover",
            Config {
                failovers: 1,
                parks: 1,
                overdue: false,
                ..twice()
            },
        ),
        whole(
            "two_buckets_with_one_unit_each_and_a_failover",
            Config {
                failovers: 1,
                overdue: false,
                ..two_buckets()
            },
        ),
        whole(
            "one_request_id_with_another_quantity_across_a_failover",
            Config {
                failovers: 1,
                ..requantified()
            },
        ),
        whole(
            "a_message_that_the_broker_loses_is_released",
            Config {
                drops: 1,
                failovers: 1,
                calls: 2,
                late_scanner: true,
                ..one()
            },
        ),
        whole(
            "a_healthy_sale_orders_whatever_dies",
            Config {
                overdue: false,
                calls: 2,
                copies: 2,
                workers: 2,
                late_scanner: true,
                ..rivals(1)
            },
        ),
    ]
}

/// About workers, reconcilers, operators and a total loss.
fn repairs() -> Vec<Whole> {
    vec![
        whole(
            "a_cancelled_order_sells_again_after_a_failover",
            Config {
                cancels: 1,
                failovers: 1,
                overdue: false,
                ..rivals(1)
            },
        ),
        whole(
            "two_workers_release_once_across_two_failovers",
            Config {
                calls: 2,
                workers: 2,
                parks: 1,
                failovers: 2,
                ..one()
            },
        ),
        whole(
            "two_late_reconcilers_repair_once_across_a_failover",
            Config {
                calls: 2,
                reconcilers: 2,
                cancels: 1,
                failovers: 1,
                ..one()
            },
        ),
        whole(
            "a_total_loss_is_rebuilt",
            Config {
                calls: 2,
                losses: 1,
                overdue: false,
                ..rivals(2)
            },
        ),
        whole(
            "a_bucket_transfer_across_a_failover",
            Config {
                failovers: 1,
                overdue: false,
                ..transferred()
            },
        ),
    ]
}

/// The searches of `make model`, from small to large; those that do not end within the budget say so.
#[must_use]
pub fn large() -> Vec<Whole> {
    let mut all = faults_together();
    all.extend(without_patience());
    all.extend(many());
    all
}

/// Several kinds of faults in one bucket.
fn faults_together() -> Vec<Whole> {
    vec![
        whole(
            "two buyers of one unit, two failovers",
            Config {
                overdue: false,
                failovers: 2,
                ..rivals(1)
            },
        ),
        whole(
            "a total loss and a failover",
            Config {
                losses: 1,
                failovers: 1,
                calls: 2,
                ..one()
            },
        ),
        whole(
            "two workers and two reconcilers, both late",
            Config {
                workers: 2,
                reconcilers: 2,
                parks: 1,
                failovers: 1,
                ..rivals(1)
            },
        ),
        whole(
            "quantity 2, a cancelled order and a failover",
            Config {
                overdue: false,
                cancels: 1,
                failovers: 1,
                ..Config::new(&[Request::units(2, 0, 0), Request::units(2, 1, 0)], &[3])
            },
        ),
    ]
}

/// Patience may have passed at any time, and callers repeat.
fn without_patience() -> Vec<Whole> {
    vec![
        whole(
            "two buyers of one unit, repeats, a failover, no patience",
            Config {
                calls: 2,
                failovers: 1,
                ..rivals(1)
            },
        ),
        whole(
            "one buyer twice, repeats, a parked message, a failover, no patience",
            Config {
                calls: 2,
                parks: 1,
                failovers: 1,
                ..twice()
            },
        ),
        whole(
            "a total loss, repeats, no patience",
            Config {
                calls: 2,
                losses: 1,
                ..rivals(2)
            },
        ),
    ]
}

/// Two buckets, and the largest search.
fn many() -> Vec<Whole> {
    let four = [
        Request::units(2, 0, 0),
        Request::one(1, 0),
        Request::one(1, 1),
        Request::one(2, 0),
    ];
    vec![
        whole(
            "a bucket transfer, two failovers",
            Config {
                overdue: false,
                failovers: 2,
                ..transferred()
            },
        ),
        whole(
            "a bucket transfer, a failover and a total loss",
            Config {
                overdue: false,
                failovers: 1,
                losses: 1,
                ..transferred()
            },
        ),
        whole(
            "two buckets, three buyers, two failovers",
            Config {
                overdue: false,
                failovers: 2,
                ..two_buckets()
            },
        ),
        whole(
            "four requests, three users, two buckets, stock 3, two failovers",
            Config {
                overdue: false,
                failovers: 2,
                ..Config::new(&four, &[2, 1])
            },
        ),
    ]
}
