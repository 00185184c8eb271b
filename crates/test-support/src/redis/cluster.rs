//! Three primaries, with or without replicas, as one Redis Cluster.

use std::time::Duration;

use anyhow::{Context, ensure};

use super::{Dump, Loss, PrivateRedis, RedisSetup, SlotMigration};
use crate::eventually;
use crate::fail::OrFail;
use crate::ports::free_port;
use crate::resp::Value;

/// The slots of a cluster.
const SLOTS: u32 = 16_384;

/// The primaries of a cluster: the fewest that can outvote a lost one.
const PRIMARIES: usize = 3;

/// How long the nodes may take to agree: gossip goes round once a second.
const FORM_DEADLINE: Duration = Duration::from_secs(30);

/// How long a replica may take to be elected: the node timeout, and a second or two of votes.
const FAILOVER_DEADLINE: Duration = Duration::from_secs(30);

/// A private cluster.
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
        RedisCluster::form(0)
            .await
            .or_fail("forming a Redis Cluster")
    }

    /// Starts three primaries with a replica each, and awaits their agreement.
    ///
    /// # Panics
    ///
    /// When they do not form a cluster.
    pub async fn start_cluster_with_replicas() -> RedisCluster {
        RedisCluster::form(PRIMARIES)
            .await
            .or_fail("forming a Redis Cluster with replicas")
    }
}

impl RedisCluster {
    async fn form(replicas: usize) -> anyhow::Result<Self> {
        let mut nodes = Vec::new();
        let mut bus_ports = Vec::new();
        for _ in 0..PRIMARIES + replicas {
            let bus_port = free_port()?.to_string();
            let setup = RedisSetup {
                arguments: node_arguments(&bus_port).map(str::to_owned).to_vec(),
                ..RedisSetup::default()
            };
            nodes.push(PrivateRedis::try_start(&setup).await?);
            bus_ports.push(bus_port);
        }
        share_slots(&nodes[..PRIMARIES]).await?;
        let first_port = nodes[0].port().to_string();
        for node in &nodes[1..] {
            let meet = ["CLUSTER", "MEET", "127.0.0.1", &first_port, &bus_ports[0]];
            expect_ok(node, &meet).await?;
        }
        let cluster = Self { nodes };
        cluster.agree(FORM_DEADLINE).await;
        for (primary, replica) in cluster.nodes.iter().zip(&cluster.nodes[PRIMARIES..]) {
            let id = primary.cli(&["CLUSTER", "MYID"]).await.text();
            expect_ok(replica, &["CLUSTER", "REPLICATE", &id]).await?;
        }
        if replicas > 0 {
            cluster.agree(FORM_DEADLINE).await;
            cluster.replicas_follow(replicas).await;
        }
        Ok(cluster)
    }

    /// Awaits that all nodes that run see all others and every slot served.
    async fn agree(&self, deadline: Duration) {
        let known = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
        for node in self.running() {
            eventually(deadline, "the cluster's agreement", async || {
                let info = node.cli(&["CLUSTER", "INFO"]).await.text();
                let agreed = info.contains("cluster_state:ok")
                    && info.contains("cluster_slots_ok:16384")
                    && info.contains(&known);
                if agreed { Ok(()) } else { Err(info) }
            })
            .await;
        }
    }

    /// Awaits that so many replicas are in step with their primaries, and known to be.
    async fn replicas_follow(&self, count: usize) {
        eventually(FORM_DEADLINE, "the replicas' synchronisation", async || {
            let mut following = 0;
            for node in self.running() {
                let up = node.info("master_link_status").await.as_deref() == Some("up");
                following += usize::from(up);
                let view = node.cli(&["CLUSTER", "NODES"]).await.text();
                let known = view.lines().filter(|line| line.contains("slave ")).count();
                if known < count {
                    return Err(format!("{known} replicas are known"));
                }
            }
            if following == count {
                Ok(())
            } else {
                Err(format!("{following} of {count} replicas follow"))
            }
        })
        .await;
    }

    fn running(&self) -> impl Iterator<Item = &PrivateRedis> {
        self.nodes.iter().filter(|node| node.is_running())
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

    /// The nodes: the three that were primaries at the start, then their replicas in the same order.
    #[must_use]
    pub fn nodes(&self) -> &[PrivateRedis] {
        &self.nodes
    }

    /// First and last slot and the primary of each range, as the node with the newest view has it.
    ///
    /// # Panics
    ///
    /// When no node answers.
    async fn ranges(&self) -> Vec<(u16, u16, &PrivateRedis)> {
        let mut newest = None;
        for node in self.running() {
            let info = node.cli(&["CLUSTER", "INFO"]).await.text();
            let epoch = info
                .lines()
                .find_map(|line| line.strip_prefix("cluster_current_epoch:"))
                .and_then(|epoch| epoch.trim().parse::<u64>().ok());
            if newest.as_ref().is_none_or(|(best, _)| epoch > *best) {
                newest = Some((epoch, node));
            }
        }
        let (_, node) = newest
            .context("no node of the cluster runs")
            .or_fail("looking at the cluster");
        let slots = node.cli(&["CLUSTER", "SLOTS"]).await;
        let number = |value: &Value| u16::try_from(value.int()).or_fail("a slot or a port");
        slots
            .list()
            .iter()
            .filter_map(|range| {
                let range = range.list();
                let port = number(&range[2].list()[1]);
                let owner = self.nodes.iter().find(|node| node.port() == port)?;
                Some((number(&range[0]), number(&range[1]), owner))
            })
            .collect()
    }

    /// The slot of a key.
    ///
    /// # Panics
    ///
    /// When no node answers.
    pub async fn slot_of(&self, key: &str) -> u16 {
        let node = self
            .running()
            .next()
            .context("no node runs")
            .or_fail("looking at the cluster");
        let slot = node.cli(&["CLUSTER", "KEYSLOT", key]).await.int();
        u16::try_from(slot).or_fail("a slot")
    }

    /// The node that owns a key now.
    ///
    /// # Panics
    ///
    /// When the cluster does not answer, or nobody owns it.
    pub async fn node_of(&self, key: &str) -> &PrivateRedis {
        let slot = self.slot_of(key).await;
        let ranges = self.ranges().await;
        let owner = ranges
            .into_iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        owner
            .context("nobody owns the slot")
            .or_fail("looking at the cluster")
            .2
    }

    /// Sends a command to the node that owns a key.
    ///
    /// # Panics
    ///
    /// When the node does not answer.
    pub async fn cli(&self, key: &str, arguments: &[&str]) -> Value {
        self.node_of(key).await.cli(arguments).await
    }

    /// The keys of all primaries.
    ///
    /// # Panics
    ///
    /// When a node does not answer.
    pub async fn dump(&self) -> Dump {
        let mut seen = std::collections::BTreeSet::new();
        let mut all = Dump::default();
        for (_, _, owner) in self.ranges().await {
            if seen.insert(owner.port()) && owner.is_running() {
                all.merge(owner.dump().await);
            }
        }
        all
    }

    /// Awaits that the replica of a key's node has what the node has now.
    ///
    /// # Panics
    ///
    /// When it does not get it.
    pub async fn caught_up(&self, key: &str) {
        let owner = self.node_of(key).await;
        // WAIT would ask about the writes of its own connection, which has none.
        let offset = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
        let written = owner.info("master_repl_offset").await;
        let written = offset(written.as_deref());
        eventually(FORM_DEADLINE, "the replica catches up", async || {
            let replica = owner.info("slave0").await.unwrap_or_default();
            let reached = replica.split(',').find_map(|at| at.strip_prefix("offset="));
            if written.is_some() && offset(reached) >= written {
                Ok(())
            } else {
                Err(format!("{replica}, and not {written:?}"))
            }
        })
        .await;
    }

    /// Loses the node that owns a key and awaits the election of its replica. Answers the lost node.
    ///
    /// # Panics
    ///
    /// When no replica takes over.
    pub async fn fail_over(&self, key: &str, how: Loss) -> &PrivateRedis {
        let old = self.node_of(key).await;
        old.lose(how);
        self.taken_over(key, old).await;
        old
    }

    /// Awaits that another node than this one serves a key, and that all running nodes say so.
    ///
    /// # Panics
    ///
    /// When nobody takes over.
    pub async fn taken_over(&self, key: &str, old: &PrivateRedis) {
        eventually(FAILOVER_DEADLINE, "a replica takes over", async || {
            let owner = self.node_of(key).await;
            if owner.port() == old.port() {
                return Err("the lost node still owns the key".to_owned());
            }
            for node in self.running() {
                let info = node.cli(&["CLUSTER", "INFO"]).await.text();
                if !info.contains("cluster_state:ok") {
                    return Err(info);
                }
            }
            Ok(())
        })
        .await;
    }

    /// Begins to move the slot of a key to another primary.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    pub async fn migrate_slot_of(&self, key: &str) -> SlotMigration<'_> {
        let slot = self.slot_of(key).await;
        let source = self.node_of(key).await;
        let mut primaries: Vec<&PrivateRedis> = Vec::new();
        for (_, _, owner) in self.ranges().await {
            let known = primaries.iter().any(|node| node.port() == owner.port());
            if owner.port() != source.port() && !known {
                primaries.push(owner);
            }
        }
        let target = primaries
            .pop()
            .context("there is one primary alone")
            .or_fail("looking at the cluster");
        SlotMigration::begin(slot, source, target, primaries).await
    }
}

const fn node_arguments(bus_port: &str) -> [&str; 8] {
    [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        bus_port,
        "--cluster-node-timeout",
        "2000",
        // As shipped: the loss of one slot stops the activities of that slot alone.
        "--cluster-require-full-coverage",
        "no",
    ]
}

async fn share_slots(primaries: &[PrivateRedis]) -> anyhow::Result<()> {
    let count = u32::try_from(primaries.len())?;
    for (index, node) in (0..count).zip(primaries) {
        let first = (SLOTS * index / count).to_string();
        let last = (SLOTS * (index + 1) / count - 1).to_string();
        // Distinct epochs from the start: the nodes would otherwise agree on them only by and by.
        let epoch = (index + 1).to_string();
        expect_ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await?;
        expect_ok(node, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await?;
    }
    Ok(())
}

async fn expect_ok(node: &PrivateRedis, command: &[&str]) -> anyhow::Result<()> {
    let reply = node.cli(command).await;
    ensure!(
        reply == Value::Status("OK".to_owned()),
        "{command:?}: {reply:?}"
    );
    Ok(())
}
