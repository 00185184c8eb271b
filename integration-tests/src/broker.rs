//! What the shared broker says about a namespace, asked in its own protocol.

use anyhow::Context;
use seckill_test_support::remoting::{RemotingCommand, call};
use seckill_test_support::{MqNamespace, broker_addr};

/// Offsets of a group, queue by queue.
const GET_CONSUME_STATS: i32 = 208;

/// The broker's code for a group that has never been seen, or has not consumed yet.
const SUCCESS: i32 = 0;

/// Messages of a topic that a group has not acknowledged. A group that nobody has started has no
/// offsets, and so no lag: its messages show as open reservations.
///
/// # Errors
///
/// When the broker does not answer.
pub fn lag(namespace: &MqNamespace, topic: &str, group: &str) -> anyhow::Result<i64> {
    let (topic, group) = (namespace.full_name(topic), namespace.full_name(group));
    let fields = [("consumerGroup", group.as_str()), ("topic", topic.as_str())];
    let request = RemotingCommand::request(GET_CONSUME_STATS, &fields);
    let answer = call(broker_addr()?, &request)?;
    if answer.code != SUCCESS {
        return Ok(0);
    }
    let body = String::from_utf8(answer.body.to_vec()).context("offsets as text")?;
    let behind = numbers(&body, "brokerOffset")?;
    let reached = numbers(&body, "consumerOffset")?;
    // A queue that was never read from has offset -1.
    let lags = behind
        .iter()
        .zip(&reached)
        .map(|(last, read)| last - (*read).max(0));
    Ok(lags.sum())
}

/// The values of a field wherever it stands. The body is not JSON: its keys are objects.
fn numbers(body: &str, field: &str) -> anyhow::Result<Vec<i64>> {
    let marker = format!("\"{field}\":");
    body.split(&marker)
        .skip(1)
        .map(|rest| {
            let end = rest
                .find(|sign: char| sign != '-' && !sign.is_ascii_digit())
                .unwrap_or(rest.len());
            rest[..end]
                .parse()
                .with_context(|| format!("{field} in {body}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_found_between_keys_that_are_objects() {
        let body = concat!(
            r#"{"consumeTps":0.0,"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:"#,
            r#"{"brokerOffset":12,"consumerOffset":-1,"lastTimestamp":0,"pullOffset":5},"#,
            r#"{"brokerName":"b","queueId":1,"topic":"t"}:{"brokerOffset":3,"consumerOffset":3}}}"#,
        );
        assert_eq!(numbers(body, "brokerOffset").unwrap(), [12, 3]);
        assert_eq!(numbers(body, "consumerOffset").unwrap(), [-1, 3]);
    }
}
