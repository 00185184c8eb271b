//! Three servers as one Redis Cluster.

use std::time::Duration;

use anyhow::ensure;

use super::{Dump, PrivateRedis};
use crate::eventually;
use crate::fail::OrFail;
use crate::ports::free_port;
use crate::resp::Value;

/// The slots of a cluster.
const SLOTS: u32 = 16_384;

/// How long the nodes may take to agree: gossip goes round once a second.
const FORM_DEADLINE: Duration = Duration::from_secs(30);

/// A private cluster of primaries without replicas.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<PrivateRedis>,
}

impl PrivateRedis {
    /// Starts three primaries that share the slots, and awaits their agreement.
    ///
    /// # Panics
    ///
    /// When they do not form a cluster.
    pub async fn start_cluster() -> RedisCluster {
        RedisCluster::form(3)
            .await
            .or_fail("forming a Redis Cluster")
    }
}

impl RedisCluster {
    async fn form(count: u32) -> anyhow::Result<Self> {
        let mut nodes = Vec::new();
        let mut bus_ports = Vec::new();
        for _ in 0..count {
            let bus_port = free_port()?.to_string();
            let arguments = [
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus_port,
                "--cluster-node-timeout",
                "2000",
            ];
            nodes.push(PrivateRedis::try_start(&arguments).await?);
            bus_ports.push(bus_port);
        }
        for (index, node) in (0..count).zip(&nodes) {
            let first = (SLOTS * index / count).to_string();
            let last = (SLOTS * (index + 1) / count - 1).to_string();
            // Distinct epochs from the start: the nodes would otherwise agree on them only by and by.
            let epoch = (index + 1).to_string();
            expect_ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await?;
            expect_ok(node, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await?;
        }
        let first_port = nodes[0].port().to_string();
        for node in &nodes[1..] {
            let meet = ["CLUSTER", "MEET", "127.0.0.1", &first_port, &bus_ports[0]];
            expect_ok(node, &meet).await?;
        }
        let known = format!("cluster_known_nodes:{count}\r\n");
        for node in &nodes {
            eventually(FORM_DEADLINE, "the cluster's agreement", async || {
                let info = node.cli(&["CLUSTER", "INFO"]).await.text();
                let agreed = info.contains("cluster_state:ok")
                    && info.contains("cluster_slots_ok:16384")
                    && info.contains(&known);
                if agreed { Ok(()) } else { Err(info) }
            })
            .await;
        }
        Ok(Self { nodes })
    }

    /// `redis-cluster://127.0.0.1:<port>?node=…`, naming every node.
    #[must_use]
    pub fn url(&self) -> String {
        let mut url = format!("redis-cluster://{}", self.nodes[0].address());
        for (index, node) in self.nodes.iter().enumerate().skip(1) {
            let separator = if index == 1 { '?' } else { '&' };
            url.push_str(&format!("{separator}node={}", node.address()));
        }
        url
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[PrivateRedis] {
        &self.nodes
    }

    /// The node that owns a key.
    ///
    /// # Panics
    ///
    /// When the cluster does not answer.
    pub async fn node_of(&self, key: &str) -> &PrivateRedis {
        let slot = self.nodes[0].cli(&["CLUSTER", "KEYSLOT", key]).await.int();
        let owner = (0..SLOTS)
            .zip(&self.nodes)
            .find(|(index, _)| {
                let count = i64::try_from(self.nodes.len()).unwrap_or(i64::MAX);
                slot < i64::from(SLOTS) * i64::from(index + 1) / count
            })
            .map(|(_, node)| node);
        owner.unwrap_or(&self.nodes[0])
    }

    /// Sends a command to the node that owns a key.
    ///
    /// # Panics
    ///
    /// When the node does not answer.
    pub async fn cli(&self, key: &str, arguments: &[&str]) -> Value {
        self.node_of(key).await.cli(arguments).await
    }

    /// The keys of all nodes.
    ///
    /// # Panics
    ///
    /// When a node does not answer.
    pub async fn dump(&self) -> Dump {
        let mut all = Dump::default();
        for node in &self.nodes {
            all.merge(node.dump().await);
        }
        all
    }
}

async fn expect_ok(node: &PrivateRedis, command: &[&str]) -> anyhow::Result<()> {
    let reply = node.cli(command).await;
    ensure!(
        reply == Value::Status("OK".to_owned()),
        "{command:?}: {reply:?}"
    );
    Ok(())
}
