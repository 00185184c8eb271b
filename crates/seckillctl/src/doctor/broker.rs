//! What RocketMQ must be: reachable through its name server, with every topic, and read.

use seckill_message_bus::{Admin, BusRuntime, Error, Group, Topic, TopicState};
use seckill_service_kit::BrokerArgs;

use super::ASK_LIMIT;
use super::finding::{Area, Finding, Grade, unless};
use crate::connect;

/// What each group reads.
const SUBSCRIPTIONS: [(Group, Topic); 2] = [
    (Group::OrderConsumer, Topic::OrderRequest),
    (Group::CompensationWorker, Topic::OrderEvent),
];

/// Messages of backlog that are worth a look: a consumer decides thousands in a second, so that this
/// many mean that it is behind or away.
const LAG_MAX: u64 = 10_000;

/// Asks name server and brokers, and judges the answers.
///
/// # Errors
/// Only when a setting is wrong.
pub async fn check(
    args: &BrokerArgs,
    bus: Option<&BusRuntime>,
    is_on_sale: bool,
) -> anyhow::Result<Vec<Finding>> {
    let admin = connect::admin(args, bus).await?;
    let asked = tokio::time::timeout(ASK_LIMIT, ask(&admin, is_on_sale)).await;
    admin.shutdown().await;
    Ok(match asked {
        Ok(Ok(findings)) => findings,
        Ok(Err(error)) => vec![away(&error.to_string())],
        Err(_) => vec![away("no answer in time")],
    })
}

fn away(why: &str) -> Finding {
    Finding::fail(
        Area::Broker,
        "reachable",
        why,
        "a name server that knows a broker",
        "see SECKILL_ROCKETMQ_NAMESRV, and whether the broker has registered there",
    )
}

async fn ask(admin: &Admin, is_on_sale: bool) -> Result<Vec<Finding>, Error> {
    let brokers = admin.broker_addresses().await?;
    let mut findings = vec![Finding::of(
        Grade::Ok,
        Area::Broker,
        "reachable",
        brokers.join(", "),
        "a name server that knows a broker",
        "",
    )];
    for topic in admin.topic_states().await? {
        findings.push(judge_topic(&topic, brokers.len()));
    }
    // Groups hold on to a broker that is away, so that their lag cannot be read without one.
    for (group, topic) in SUBSCRIPTIONS {
        let online = admin.consumer_ids(group).await?.len();
        findings.push(judge_group(group, online, is_on_sale));
        findings.push(judge_lag(group, admin.lag(group, topic).await));
        findings.push(judge_dead_letters(
            group,
            admin.dead_letter_lag(group).await,
        ));
    }
    Ok(findings)
}

fn judge_topic(topic: &TopicState, brokers: usize) -> Finding {
    let right = topic.found.iter().filter(|found| **found >= topic.wanted);
    let found = match topic.found.as_slice() {
        [] => "missing".to_owned(),
        found => {
            let counts: Vec<String> = found.iter().map(ToString::to_string).collect();
            format!("{} queues", counts.join(" + "))
        }
    };
    Finding::of(
        unless(right.count() >= brokers, Grade::Fail),
        Area::Broker,
        format!("topic {}", topic.name),
        found,
        format!("{} queues on each of {brokers} brokers", topic.wanted),
        "run `seckillctl migrate`, which creates topics and queues that are missing",
    )
}

/// Without a sale an installation may well be at rest.
fn judge_group(group: Group, online: usize, is_on_sale: bool) -> Finding {
    let grade = if is_on_sale { Grade::Fail } else { Grade::Warn };
    Finding::of(
        unless(online > 0, grade),
        Area::Broker,
        format!("consumers of {group}"),
        online,
        "at least 1",
        format!("start the service {group}: what is reserved becomes no order without it"),
    )
}

fn judge_lag(group: Group, lag: Result<u64, Error>) -> Finding {
    let (found, grade) = match lag {
        Ok(lag) => (lag.to_string(), unless(lag <= LAG_MAX, Grade::Warn)),
        // A group that never came has no offsets to read.
        Err(error) => (error.to_string(), Grade::Warn),
    };
    Finding::of(
        grade,
        Area::Broker,
        format!("lag of {group}"),
        found,
        format!("at most {LAG_MAX} messages"),
        format!("look at the log of {group}, and add replicas if it only cannot keep up"),
    )
}

fn judge_dead_letters(group: Group, lag: Result<u64, Error>) -> Finding {
    let (found, grade) = match lag {
        Ok(lag) => (lag.to_string(), unless(lag == 0, Grade::Warn)),
        Err(error) => (error.to_string(), Grade::Warn),
    };
    Finding::of(
        grade,
        Area::Broker,
        format!("dead letters of {group}"),
        found,
        "0 messages that are not in PostgreSQL yet",
        format!("the service {group} moves them into dead_letter while it runs"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(found: &[u32]) -> TopicState {
        TopicState {
            name: "seckill-order-request".to_owned(),
            wanted: 16,
            found: found.to_vec(),
        }
    }

    #[test]
    fn a_topic_must_be_whole_on_every_broker() {
        assert_eq!(judge_topic(&topic(&[16, 16]), 2).verdict, Grade::Ok);
        for (found, brokers) in [(vec![], 1), (vec![16], 2), (vec![16, 8], 2), (vec![8], 1)] {
            let judged = judge_topic(&topic(&found), brokers);
            assert_eq!(judged.verdict, Grade::Fail, "{found:?} on {brokers}");
        }
        assert_eq!(judge_topic(&topic(&[]), 1).found, "missing");
    }

    #[test]
    fn absent_consumers_are_worse_during_a_sale() {
        let group = Group::OrderConsumer;
        assert_eq!(judge_group(group, 1, true).verdict, Grade::Ok);
        assert_eq!(judge_group(group, 0, true).verdict, Grade::Fail);
        assert_eq!(judge_group(group, 0, false).verdict, Grade::Warn);
    }

    #[test]
    fn a_backlog_is_worth_a_look() {
        let group = Group::OrderConsumer;
        assert_eq!(judge_lag(group, Ok(LAG_MAX)).verdict, Grade::Ok);
        assert_eq!(judge_lag(group, Ok(LAG_MAX + 1)).verdict, Grade::Warn);
        assert_eq!(judge_dead_letters(group, Ok(0)).verdict, Grade::Ok);
        assert_eq!(judge_dead_letters(group, Ok(1)).verdict, Grade::Warn);
    }
}
