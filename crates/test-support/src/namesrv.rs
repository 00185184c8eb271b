//! A name server of one's own in front of the shared one, and a namespace of one's own behind it.

use std::net::SocketAddr;
use std::str::FromStr;

use anyhow::{Context, ensure};
use bytes::Bytes;

use crate::database::unique_name;
use crate::fail::OrFail;
use crate::proxy::{Dir, FaultProxy, Framing};
use crate::remoting::{GET_BROKER_CLUSTER_INFO, RemotingCommand, call, quoted};
use crate::stack::TestStack;

/// Every topic that the name server knows.
const GET_ALL_TOPIC_LIST: i32 = 206;
/// Every group that a broker knows.
const GET_ALL_SUBSCRIPTION_GROUPS: i32 = 201;
const DELETE_TOPIC_IN_BROKER: i32 = 215;
const DELETE_TOPIC_IN_NAMESRV: i32 = 216;
const DELETE_SUBSCRIPTION_GROUP: i32 = 207;

/// Leads one test's clients to the shared broker through that test's own proxy.
///
/// Clients learn the broker's address from the name server. This one passes every question on to the
/// shared name server and replaces the broker's port in the answers, so that faults before the broker
/// hit one test alone.
#[derive(Debug)]
pub struct NamesrvProxy {
    namesrv: FaultProxy,
    broker: FaultProxy,
}

impl NamesrvProxy {
    /// Starts both proxies in front of the shared stack.
    ///
    /// # Panics
    ///
    /// When the shared stack has no broker.
    pub async fn start() -> Self {
        let namesrv_addr = TestStack::shared().namesrv_addr();
        let broker_addr = broker_of(namesrv_addr).or_fail("asking for the broker's address");
        let broker = FaultProxy::start(broker_addr, Framing::Remoting).await;
        let (real, own) = (broker_addr.to_string(), broker.addr().to_string());
        let rewrite = move |dir, bytes: Bytes| match dir {
            Dir::ToServer => bytes,
            Dir::ToClient => replace_address(bytes, &real, &own),
        };
        let namesrv = FaultProxy::start_rewriting(namesrv_addr, Framing::Remoting, rewrite).await;
        Self { namesrv, broker }
    }

    /// What clients are given as their name server.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.namesrv.addr()
    }

    /// The proxy before the name server.
    #[must_use]
    pub const fn namesrv(&self) -> &FaultProxy {
        &self.namesrv
    }

    /// The proxy before the broker.
    #[must_use]
    pub const fn broker(&self) -> &FaultProxy {
        &self.broker
    }
}

/// The address of the shared broker.
///
/// # Errors
///
/// When the name server does not know exactly one.
pub fn broker_addr() -> anyhow::Result<SocketAddr> {
    broker_of(TestStack::shared().namesrv_addr())
}

/// The address of the only broker that a name server knows.
fn broker_of(namesrv: SocketAddr) -> anyhow::Result<SocketAddr> {
    let request = RemotingCommand::request(GET_BROKER_CLUSTER_INFO, &[]);
    let answer = call(namesrv, &request)?;
    let addresses: Vec<SocketAddr> = quoted(&answer.body)
        .iter()
        .filter_map(|text| SocketAddr::from_str(text).ok())
        .collect();
    ensure!(addresses.len() == 1, "brokers at {addresses:?}");
    addresses.first().copied().context("no broker")
}

/// Both addresses must have the same length, so that lengths inside the frame stay right; the ports
/// of the stack and of the proxies have five digits.
fn replace_address(frame: Bytes, real: &str, own: &str) -> Bytes {
    if real.len() != own.len() {
        return frame;
    }
    let (real, own) = (real.as_bytes(), own.as_bytes());
    let mut changed = frame.to_vec();
    let mut at = 0;
    while at + real.len() <= changed.len() {
        if changed[at..].starts_with(real) {
            changed[at..at + own.len()].copy_from_slice(own);
            at += own.len();
        } else {
            at += 1;
        }
    }
    changed.into()
}

/// A prefix for the topics and groups of one test on the shared broker. What was made below it is
/// deleted with the handle, which must outlive the processes that use it.
#[derive(Debug)]
pub struct MqNamespace {
    name: String,
}

impl MqNamespace {
    /// A prefix that no other test has.
    #[must_use]
    pub fn unique() -> Self {
        Self {
            name: unique_name("t").replace('_', "-"),
        }
    }

    /// The prefix, without the hyphen that follows it in names.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// A topic's or group's full name.
    #[must_use]
    pub fn full_name(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    fn delete_all(&self, stack: &TestStack) -> anyhow::Result<()> {
        let namesrv = stack.namesrv_addr();
        let broker = broker_of(namesrv)?;
        for topic in self.ours(namesrv, GET_ALL_TOPIC_LIST)? {
            let fields = [("topic", topic.as_str())];
            for (server, code) in [
                (broker, DELETE_TOPIC_IN_BROKER),
                (namesrv, DELETE_TOPIC_IN_NAMESRV),
            ] {
                call(server, &RemotingCommand::request(code, &fields))?;
            }
        }
        for group in self.ours(broker, GET_ALL_SUBSCRIPTION_GROUPS)? {
            let fields = [("groupName", group.as_str()), ("cleanOffset", "true")];
            let request = RemotingCommand::request(DELETE_SUBSCRIPTION_GROUP, &fields);
            call(broker, &request)?;
        }
        Ok(())
    }

    /// The names in an answer that belong to this namespace, redelivery and dead-letter topics too.
    fn ours(&self, server: SocketAddr, question: i32) -> anyhow::Result<Vec<String>> {
        let answer = call(server, &RemotingCommand::request(question, &[]))?;
        let prefix = format!("{}-", self.name);
        let mut names = quoted(&answer.body);
        names.retain(|name| {
            name.rsplit('%')
                .next()
                .is_some_and(|plain| plain.starts_with(&prefix))
        });
        names.sort();
        names.dedup();
        Ok(names)
    }
}

impl Drop for MqNamespace {
    /// What stays behind costs the shared broker a little memory, and disturbs nobody.
    fn drop(&mut self) {
        // A test that never asked for the stack has made nothing on it.
        let Some(stack) = TestStack::in_use() else {
            return;
        };
        if let Err(error) = self.delete_all(stack) {
            eprintln!("topics of {} stay behind: {error:#}", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_brokers_address_changes() {
        let frame = Bytes::from_static(b"127.0.0.1:24000 127.0.0.1:24001 127.0.0.1:24000");
        let changed = replace_address(frame.clone(), "127.0.0.1:24000", "127.0.0.1:31999");
        assert_eq!(
            &changed[..],
            b"127.0.0.1:31999 127.0.0.1:24001 127.0.0.1:31999"
        );
        assert_eq!(
            replace_address(frame.clone(), "127.0.0.1:24000", "other"),
            frame
        );
    }

    #[test]
    fn namespaces_are_unique_and_valid_in_names() {
        let (one, other) = (MqNamespace::unique(), MqNamespace::unique());
        assert_ne!(one.as_str(), other.as_str());
        assert!(
            one.as_str()
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        );
    }
}
