//! What the servers say about themselves, for whoever checks an installation.
//!
//! Nothing on the way of a purchase asks any of this. Settings are asked for by name, never all of them:
//! some of them are passwords.

use std::collections::BTreeMap;

use fred::types::Value;
use seckill_state_machine::TimestampMs;

use crate::reads::server_time;
use crate::{Error, Redis};

/// A server that takes writes: the only one, or one of a cluster's primaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerNode {
    /// Where the cluster says it is; empty for the server that the URL names.
    pub address: String,
    /// A slot that it owns; none when there is but one server.
    slot: Option<u16>,
}

impl Redis {
    /// Whether the URL says that it is a cluster.
    #[must_use]
    pub fn expects_cluster(&self) -> bool {
        self.is_clustered()
    }

    /// Every server that takes writes, in the order of their slots.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn server_nodes(&self) -> Result<Vec<ServerNode>, Error> {
        if !self.is_clustered() {
            let address = String::new();
            return Ok(vec![ServerNode {
                address,
                slot: None,
            }]);
        }
        let reply = self.command("CLUSTER NODES", None, Vec::new()).await?;
        let mut nodes = primaries(&text("cluster nodes", reply)?);
        nodes.sort_by_key(|node| node.slot);
        Ok(nodes)
    }

    /// `INFO`, as pairs.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn server_info(&self, node: &ServerNode) -> Result<BTreeMap<String, String>, Error> {
        let reply = self.command("INFO", node.slot, Vec::new()).await?;
        Ok(pairs(&text("info", reply)?))
    }

    /// `CLUSTER INFO`, as pairs.
    ///
    /// # Errors
    /// Without an answer; a server without a cluster refuses.
    pub async fn server_cluster(
        &self,
        node: &ServerNode,
    ) -> Result<BTreeMap<String, String>, Error> {
        let reply = self.command("CLUSTER INFO", node.slot, Vec::new()).await?;
        Ok(pairs(&text("cluster info", reply)?))
    }

    /// Settings by name. One that the server does not know is left out.
    ///
    /// # Errors
    /// Without an answer, or when this user may not read settings.
    pub async fn server_config(
        &self,
        node: &ServerNode,
        names: &[&'static str],
    ) -> Result<BTreeMap<String, String>, Error> {
        let mut found = BTreeMap::new();
        for name in names {
            let arguments = vec![Value::from(*name)];
            let reply = self.command("CONFIG GET", node.slot, arguments).await?;
            let pairs: BTreeMap<String, String> = reply
                .convert()
                .map_err(|error| Error::malformed("config", error.to_string()))?;
            found.extend(pairs);
        }
        Ok(found)
    }

    /// The names of the server's users.
    ///
    /// # Errors
    /// Without an answer, or when this user may not read them.
    pub async fn server_users(&self, node: &ServerNode) -> Result<Vec<String>, Error> {
        let reply = self.command("ACL USERS", node.slot, Vec::new()).await?;
        reply
            .convert()
            .map_err(|error| Error::malformed("acl users", error.to_string()))
    }

    /// Whether the server would let a user run a command.
    ///
    /// # Errors
    /// Without an answer, or when this user may not ask.
    pub async fn server_would_allow(
        &self,
        node: &ServerNode,
        name: &str,
        command: &[&str],
    ) -> Result<bool, Error> {
        let mut arguments = vec![Value::from(name)];
        arguments.extend(command.iter().copied().map(Value::from));
        let reply = self.command("ACL DRYRUN", node.slot, arguments).await?;
        Ok(text("acl dryrun", reply)? == "OK")
    }

    /// A server's clock.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn server_clock(&self, node: &ServerNode) -> Result<TimestampMs, Error> {
        server_time(self.command("TIME", node.slot, Vec::new()).await?)
    }
}

fn text(what: &'static str, reply: Value) -> Result<String, Error> {
    reply
        .into_string()
        .ok_or_else(|| Error::malformed(what, "no text"))
}

/// `name:value` lines; headings and blank lines are left out.
fn pairs(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.trim_end().split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The lines of primaries that own slots:
/// `<id> <ip:port@bus[,host]> <flags> <primary> <ping> <pong> <epoch> <link> <slot>[-<slot>] …`
fn primaries(text: &str) -> Vec<ServerNode> {
    text.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (address, flags) = (fields.get(1)?, fields.get(2)?);
            let is_primary = flags.split(',').any(|flag| flag == "master");
            let first = fields.get(8)?.split('-').next()?;
            let slot = first.parse().ok().filter(|_| is_primary)?;
            let address = address.split('@').next().unwrap_or(address);
            Some(ServerNode {
                address: address.to_owned(),
                slot: Some(slot),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_primaries_with_slots_are_asked() {
        let nodes = "a 127.0.0.1:7001@17001,host master - 0 1 2 connected 5461-10922\n\
                     b 127.0.0.1:7000@17000 myself,master - 0 1 1 connected 0-5460 [93->-c]\n\
                     c 127.0.0.1:7003@17003 slave b 0 1 1 connected\n\
                     d 127.0.0.1:7004@17004 master - 0 1 3 connected\n";
        let mut found = primaries(nodes);
        found.sort_by_key(|node| node.slot);
        let shown: Vec<(&str, Option<u16>)> = found
            .iter()
            .map(|node| (node.address.as_str(), node.slot))
            .collect();
        assert_eq!(
            shown,
            [("127.0.0.1:7000", Some(0)), ("127.0.0.1:7001", Some(5_461))]
        );
    }

    #[test]
    fn info_is_read_without_its_headings() {
        let info = pairs("# Server\r\nredis_version:7.0.15\r\n\r\nslave0:ip=1,port=2:3\r\n");
        assert_eq!(info.len(), 2);
        assert_eq!(info["redis_version"], "7.0.15");
        assert_eq!(info["slave0"], "ip=1,port=2:3");
    }
}
