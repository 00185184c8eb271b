//! Redis as it is run in production: with a replica, as a Cluster, with the shipped configuration and
//! users. What a failover, a hang, a lagging replica and a lost node do to a sale.

mod cluster;
mod failover;
mod hang;
mod last_unit;
mod replicas;
mod scripts;
mod users;

use std::time::{Duration, Instant};

use seckill_integration_tests::{FrontClient, Sale};
use seckill_proto::v1::{ReserveCode, ReserveResponse};
use seckill_test_support::eventually;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// The longest that a call may take: the front's own budget of 1.5 s, on a busy machine.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// A fault, as the contract wants it: not decided or unknown, with its reason, the request and a time to
/// come back; never a business outcome.
fn assert_fails_closed(status: &Status, request_id: &str) {
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert!(
        ["SYSTEM_BUSY", "OUTCOME_UNKNOWN"].contains(&&*info.reason),
        "{status:?}"
    );
    assert_eq!(info.metadata["request_id"], request_id);
    assert!(details.retry_info().is_some(), "{status:?}");
}

/// Asks once; the answer comes in time.
async fn ask(client: &FrontClient, sale: &Sale, name: &str) -> Result<ReserveResponse, Status> {
    let began = Instant::now();
    let answer = client.reserve(sale, name, name).await;
    assert!(began.elapsed() < CALL_LIMIT, "{:?}", began.elapsed());
    answer.inspect_err(|status| assert_fails_closed(status, name))
}

/// Asks under the same id until there is an answer.
async fn ask_until_answered(client: &FrontClient, sale: &Sale, name: &str) -> ReserveResponse {
    eventually(Duration::from_secs(20), "an answer", async || {
        ask(client, sale, name).await
    })
    .await
}

/// Asks under the same id until it is accepted, and by no other answer.
async fn buy_until_accepted(client: &FrontClient, sale: &Sale, name: &str) -> String {
    let answer = ask_until_answered(client, sale, name).await;
    assert_eq!(answer.code(), ReserveCode::Accepted, "{name}: {answer:?}");
    answer.reservation_id
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n}")).collect()
}
