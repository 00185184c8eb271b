//! Several processes of one service, with the very same settings.

use seckill_integration_tests::{Plan, Sandbox, Service};
use seckill_test_support::remoting::{RemotingCommand, call};
use seckill_test_support::{TempDir, broker_addr};

use crate::harness::{SETTLES, SOON, buy_many, orders, reservations};

const GET_CONSUMER_LIST_BY_GROUP: i32 = 38;

/// The ids of a group's members, as the broker knows them.
fn members(sandbox: &Sandbox, group: &str) -> Vec<String> {
    let group = sandbox.namespace().full_name(group);
    let fields = [("consumerGroup", group.as_str())];
    let request = RemotingCommand::request(GET_CONSUMER_LIST_BY_GROUP, &fields);
    let answer = call(broker_addr().unwrap(), &request).unwrap();
    assert_eq!(answer.code, 0, "{answer:?}");
    let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    let ids = body["consumerIdList"].as_array().unwrap();
    let mut ids: Vec<String> = ids
        .iter()
        .map(|id| id.as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    ids.dedup();
    ids
}

/// MQ-15: three consumers and two fronts on one host, told apart by nothing in their settings.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_with_the_same_settings_share_the_work() {
    const USERS: usize = 500;
    let sandbox = Sandbox::start().await;
    let sale = sandbox.open(&Plan::new(2_000)).await;
    // Only where they leave their run files and logs is their own.
    let folders: Vec<TempDir> = (0..5).map(|_| TempDir::new("replica").unwrap()).collect();
    let replica = |service: Service, at: usize| {
        let folder = folders[at].path();
        sandbox.service(service).run_dir(folder).log_dir(folder)
    };
    let consumers = [
        replica(Service::Consumer, 0),
        replica(Service::Consumer, 1),
        replica(Service::Consumer, 2),
    ];
    let fronts = [replica(Service::Front, 3), replica(Service::Front, 4)];
    let (one, two, three, first, second, scanner, compensation) = tokio::join!(
        consumers[0].start(),
        consumers[1].start(),
        consumers[2].start(),
        fronts[0].start(),
        fronts[1].start(),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Compensation),
    );
    let (a, b) = (sandbox.client(&first), sandbox.client(&second));
    let (left, right) = tokio::join!(
        buy_many(&a, &sale, "left", USERS),
        buy_many(&b, &sale, "right", USERS),
    );
    assert_eq!(left.len() + right.len(), 2 * USERS);
    let ids = members(&sandbox, "order-consumer");
    assert_eq!(ids.len(), 3, "{ids:?}");
    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(
        orders(&sandbox, &sale).await,
        i64::try_from(2 * USERS).unwrap()
    );
    let ordered = reservations(&sandbox, &sale).await;
    assert!(
        ordered
            .values()
            .all(|fields| fields["status"] == "ORDER_CREATED")
    );
    for service in [&one, &two, &three, &first, &second, &scanner, &compensation] {
        service.stop(SOON).await;
    }
}
