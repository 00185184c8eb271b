//! What the kit does on the shared stack: templates, namespaces, the way through the proxies.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends with the first thing that is not as expected"
)]

use std::time::Duration;

use seckill_test_support::remoting::{self, RemotingCommand, call};
use seckill_test_support::{
    Dir, FrameAction, Mode, MqNamespace, NamesrvProxy, TestDatabase, TestStack, broker_addr,
    eventually,
};

const SOON: Duration = Duration::from_secs(10);

const CREATE_TOPIC: i32 = 17;
const SYSTEM_ERROR: i32 = 1;
const TOPIC_NOT_EXIST: i32 = 17;

#[tokio::test]
async fn a_template_is_prepared_once_and_copied() {
    let name = format!("kit_{}", std::process::id());
    let prepare = async |url: String| {
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        client
            .batch_execute("CREATE TABLE t AS SELECT gen_random_uuid() AS id")
            .await?;
        Ok(())
    };
    let (one, other) = tokio::join!(
        TestDatabase::from_template(&name, prepare),
        TestDatabase::from_template(&name, prepare),
    );
    let id = "SELECT id FROM t";
    assert_eq!(one.texts(id).await, other.texts(id).await);
    one.execute("DELETE FROM t").await;
    assert_eq!(other.number("SELECT count(*) FROM t").await, 1);
    let template = format!("DROP DATABASE seckill_template_{name}");
    other.execute(&template).await;
}

fn create_topic(name: &str) {
    let fields = [
        ("topic", name),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "2"),
        ("writeQueueNums", "2"),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", "0"),
        ("order", "false"),
    ];
    let request = RemotingCommand::request(CREATE_TOPIC, &fields);
    let answer = call(broker_addr().unwrap(), &request).unwrap();
    assert_eq!(answer.code, 0, "{answer:?}");
}

fn route_of(topic: &str, namesrv: std::net::SocketAddr) -> RemotingCommand {
    let fields = [("topic", topic)];
    let request = RemotingCommand::request(remoting::GET_ROUTE_INFO_BY_TOPIC, &fields);
    call(namesrv, &request).unwrap()
}

async fn routed_topic(namespace: &MqNamespace) -> String {
    let topic = namespace.full_name("kit");
    create_topic(&topic);
    let namesrv = TestStack::shared().namesrv_addr();
    eventually(SOON, "the topic is routed", async || {
        let answer = route_of(&topic, namesrv);
        if answer.code == 0 {
            Ok(())
        } else {
            Err(format!("{answer:?}"))
        }
    })
    .await;
    topic
}

#[tokio::test]
async fn a_namespace_leaves_no_topic_behind() {
    let namespace = MqNamespace::unique();
    let topic = routed_topic(&namespace).await;
    drop(namespace);
    let answer = route_of(&topic, TestStack::shared().namesrv_addr());
    assert_eq!(answer.code, TOPIC_NOT_EXIST, "{answer:?}");
}

#[tokio::test]
async fn one_tests_clients_reach_the_broker_through_its_own_proxy() {
    let namespace = MqNamespace::unique();
    let topic = routed_topic(&namespace).await;
    let proxies = NamesrvProxy::start().await;
    let answer = route_of(&topic, proxies.addr());
    let body = String::from_utf8(answer.body.to_vec()).unwrap();
    let own = format!("\"{}\"", proxies.broker().addr());
    assert!(body.contains(&own), "{body}");
    assert!(
        !body.contains(&broker_addr().unwrap().to_string()),
        "{body}"
    );

    let send = || send_message(proxies.broker().addr(), &topic);
    assert_eq!(send().code, 0);
    for code in [
        remoting::FLUSH_DISK_TIMEOUT,
        remoting::SLAVE_NOT_AVAILABLE,
        remoting::FLUSH_SLAVE_TIMEOUT,
    ] {
        for stored in [true, false] {
            proxies
                .broker()
                .on_frame(remoting::answer_sends_with(code, stored));
            assert_eq!(send().code, code);
        }
    }
    // Of seven sends, the broker has the first one and the three whose answers were changed.
    proxies.broker().clear_hook();
    assert_eq!(stored_messages(&topic), 4);
    assert_eq!(proxies.broker().counters().malformed, 0);

    // Nothing else of the shared broker is disturbed.
    proxies.broker().set_mode(Mode::Refuse);
    proxies.broker().on_frame(|_: Dir, _, _| FrameAction::Drop);
    assert_eq!(send_message(broker_addr().unwrap(), &topic).code, 0);
}

fn send_message(broker: std::net::SocketAddr, topic: &str) -> RemotingCommand {
    let fields = [
        ("producerGroup", "kit"),
        ("topic", topic),
        ("defaultTopic", "TBW102"),
        ("defaultTopicQueueNums", "2"),
        ("queueId", "0"),
        ("sysFlag", "0"),
        ("bornTimestamp", "1764547200000"),
        ("flag", "0"),
        ("properties", ""),
        ("reconsumeTimes", "0"),
        ("unitMode", "false"),
        ("batch", "false"),
    ];
    let mut request = RemotingCommand::request(remoting::SEND_MESSAGE, &fields);
    request.body = "a body".into();
    let answer = call(broker, &request).unwrap();
    assert_ne!(answer.code, SYSTEM_ERROR, "{answer:?}");
    answer
}

fn stored_messages(topic: &str) -> i64 {
    const GET_MAX_OFFSET: i32 = 30;
    let fields = [("topic", topic), ("queueId", "0")];
    let request = RemotingCommand::request(GET_MAX_OFFSET, &fields);
    let answer = call(broker_addr().unwrap(), &request).unwrap();
    answer.ext_fields["offset"].parse().unwrap()
}
