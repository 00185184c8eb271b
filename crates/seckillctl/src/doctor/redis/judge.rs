//! From a server's answers to findings, without any I/O.

use std::collections::BTreeMap;

use super::shipped;
use crate::doctor::Profile;
use crate::doctor::finding::{Area, Finding, Grade, unless};

/// The oldest server on which every script runs: conditional expiry (`PEXPIREAT … NX`) came with 7.0.
const VERSION_MIN: (u32, u32) = (7, 0);

/// Replicas that a primary of production needs: with none, the loss of its machine is a total loss.
const REPLICAS_MIN: u64 = 1;

/// The longest silence of a replica, and the longest `min-replicas-max-lag`, in seconds: it bounds how
/// much of what was acknowledged a failover can lose.
const REPLICA_LAG_MAX_S: u64 = 10;

/// From which part of `maxmemory` on somebody should look, in percent: a full server refuses all.
const MEMORY_PERCENT_MAX: u64 = 80;

/// The slowest command that may go unrecorded, in microseconds: a script takes well below 2 ms.
const SLOWLOG_MAX_US: i64 = 10_000;

/// The slots of a cluster.
const SLOTS: &str = "16384";

/// What is asked of `CONFIG GET`: all of the shipped file, and the limit that each node has of its own.
pub fn names() -> Vec<&'static str> {
    let shipped = shipped::settings().into_keys();
    shipped.chain(["maxmemory"]).collect()
}

/// One server's answers.
#[derive(Debug)]
pub struct NodeFacts {
    /// ` of <address>` when there are several servers, else nothing.
    pub label: String,
    /// `INFO`.
    pub info: BTreeMap<String, String>,
    /// Settings, or why they cannot be read.
    pub config: Result<BTreeMap<String, String>, String>,
    /// `CLUSTER INFO`; empty when it is no cluster.
    pub cluster: BTreeMap<String, String>,
}

impl NodeFacts {
    fn info(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    fn count(&self, name: &str) -> u64 {
        self.info(name).parse().unwrap_or(0)
    }

    fn finding(
        &self,
        verdict: Grade,
        check: &str,
        found: impl ToString,
        wanted: impl ToString,
        hint: impl Into<String>,
    ) -> Finding {
        let check = format!("{check}{}", self.label);
        Finding::of(verdict, Area::Redis, check, found, wanted, hint)
    }

    fn replicas(&self) -> impl Iterator<Item = Replica<'_>> {
        self.info
            .iter()
            .filter(|(name, value)| {
                let number = name.strip_prefix("slave");
                number.is_some_and(|n| n.parse::<u32>().is_ok()) && value.contains("state=")
            })
            .map(|(_, value)| Replica::read(value))
    }
}

/// `ip=…,port=…,state=online,offset=…,lag=0`
struct Replica<'a> {
    state: &'a str,
    lag_s: u64,
}

impl<'a> Replica<'a> {
    fn read(line: &'a str) -> Self {
        let field = |name: &str| {
            line.split(',')
                .filter_map(|pair| pair.split_once('='))
                .find(|(found, _)| *found == name)
                .map_or("", |(_, value)| value)
        };
        Self {
            state: field("state"),
            lag_s: field("lag").parse().unwrap_or(u64::MAX),
        }
    }

    fn keeps_up(&self) -> bool {
        self.state == "online" && self.lag_s <= REPLICA_LAG_MAX_S
    }
}

/// A URL of the wrong kind makes all else meaningless.
pub fn judge_mode(facts: &NodeFacts, expects_cluster: bool) -> Option<Finding> {
    let is_cluster = facts.info("cluster_enabled") == "1";
    let (found, hint) = match (expects_cluster, is_cluster) {
        (true, false) => (
            "a single server",
            "SECKILL_REDIS_URL must begin with redis://",
        ),
        (false, true) => (
            "a node of a cluster",
            "SECKILL_REDIS_URL must begin with redis-cluster://",
        ),
        _ => return None,
    };
    let wanted = match expects_cluster {
        true => "a cluster, as the URL says",
        false => "a single server, as the URL says",
    };
    Some(facts.finding(Grade::Fail, "mode", found, wanted, hint))
}

/// Everything about one server.
pub fn judge(facts: &NodeFacts, profile: Profile) -> Vec<Finding> {
    let mut found = vec![version(facts), role(facts)];
    match &facts.config {
        Ok(config) => {
            found.extend(durability(facts, config));
            found.extend(memory_settings(facts, config, profile));
            found.extend(replication_settings(facts, config, profile));
            found.extend(watching(facts, config));
            found.extend(advice(facts, config, profile));
        }
        Err(why) => found.push(facts.finding(
            Grade::Fail,
            "settings",
            why,
            "an answer to CONFIG GET",
            "run the doctor as a user that may read settings (+config|get)",
        )),
    }
    found.push(last_write(facts));
    found.push(evictions(facts));
    found.extend(memory_use(facts));
    found.push(replicas(facts, profile));
    found.extend(cluster(facts));
    found
}

fn version(facts: &NodeFacts) -> Finding {
    let found = facts.info("redis_version");
    let mut parts = found.split('.').map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    facts.finding(
        unless(version >= VERSION_MIN, Grade::Fail),
        "version",
        found,
        format!("at least {}.{}", VERSION_MIN.0, VERSION_MIN.1),
        "upgrade the server: the scripts set expiries with options that older ones do not know",
    )
}

fn role(facts: &NodeFacts) -> Finding {
    let role = facts.info("role");
    facts.finding(
        unless(role == "master", Grade::Fail),
        "role",
        role,
        "master",
        "SECKILL_REDIS_URL leads to a replica; point it at the primary",
    )
}

fn setting<'a>(config: &'a BTreeMap<String, String>, name: &str) -> &'a str {
    config.get(name).map_or("", String::as_str)
}

/// A setting that must be as the shipped file has it.
fn as_shipped(
    facts: &NodeFacts,
    config: &BTreeMap<String, String>,
    name: &str,
    why: &str,
) -> Finding {
    let (found, wanted) = (setting(config, name), shipped::value(name));
    let agrees = shipped::agrees(name, &wanted, found);
    let hint = format!("CONFIG SET {name} {wanted}, and in redis.conf: {why}");
    facts.finding(unless(agrees, Grade::Fail), name, found, wanted, hint)
}

fn durability(facts: &NodeFacts, config: &BTreeMap<String, String>) -> [Finding; 4] {
    let sync = setting(config, "appendfsync");
    [
        as_shipped(
            facts,
            config,
            "appendonly",
            "without it a restart is a total loss",
        ),
        facts.finding(
            unless(matches!(sync, "everysec" | "always"), Grade::Fail),
            "appendfsync",
            sync,
            shipped::value("appendfsync"),
            "CONFIG SET appendfsync everysec: the design assumes that a crash loses one second",
        ),
        as_shipped(
            facts,
            config,
            "no-appendfsync-on-rewrite",
            "a crash during a rewrite would lose all that was written since its beginning",
        ),
        as_shipped(
            facts,
            config,
            "replica-read-only",
            "what a client that is left with a replica writes there is lost",
        ),
    ]
}

fn memory_settings(
    facts: &NodeFacts,
    config: &BTreeMap<String, String>,
    profile: Profile,
) -> [Finding; 2] {
    let limit = setting(config, "maxmemory");
    [
        as_shipped(
            facts,
            config,
            "maxmemory-policy",
            "an evicted reservation is lost without a trace",
        ),
        facts.finding(
            unless(limit != "0", Grade::Fail).unless_local(profile),
            "maxmemory",
            if limit == "0" { "no limit" } else { limit },
            "a limit below the machine's memory",
            "set maxmemory: a server that the kernel ends loses more than one that refuses",
        ),
    ]
}

fn replication_settings(
    facts: &NodeFacts,
    config: &BTreeMap<String, String>,
    profile: Profile,
) -> Vec<Finding> {
    let number = |name| setting(config, name).parse::<u64>().unwrap_or(0);
    let (wanted, lag) = (
        number("min-replicas-to-write"),
        number("min-replicas-max-lag"),
    );
    let has_replicas = facts.count("connected_slaves") > 0;
    // With replicas the setting costs nothing and bounds what a partition can lose; without any it
    // would refuse every write, so that a single machine must leave it off.
    let grade = match has_replicas {
        true => Grade::Fail,
        false => Grade::Fail.unless_local(profile),
    };
    let mut found = vec![facts.finding(
        unless(wanted >= 1, grade),
        "min-replicas-to-write",
        wanted,
        "at least 1",
        "CONFIG SET min-replicas-to-write 1: a primary that is cut off goes on selling otherwise",
    )];
    if wanted >= 1 {
        found.push(facts.finding(
            unless((1..=REPLICA_LAG_MAX_S).contains(&lag), Grade::Fail),
            "min-replicas-max-lag",
            lag,
            format!("1 to {REPLICA_LAG_MAX_S} s"),
            "0 switches min-replicas-to-write off, and a long one loses as much in a failover",
        ));
    }
    found
}

fn watching(facts: &NodeFacts, config: &BTreeMap<String, String>) -> [Finding; 2] {
    let slow: i64 = setting(config, "slowlog-log-slower-than")
        .parse()
        .unwrap_or(-1);
    let latency = setting(config, "latency-monitor-threshold");
    [
        facts.finding(
            unless((0..=SLOWLOG_MAX_US).contains(&slow), Grade::Warn),
            "slowlog-log-slower-than",
            slow,
            format!("0 to {SLOWLOG_MAX_US} µs"),
            "CONFIG SET slowlog-log-slower-than 2000: a slow command blocks every buyer",
        ),
        facts.finding(
            unless(!matches!(latency, "0" | ""), Grade::Warn),
            "latency-monitor-threshold",
            latency,
            "a number of milliseconds",
            "CONFIG SET latency-monitor-threshold 5: it tells forks and disks from slow scripts",
        ),
    ]
}

/// The rest of the shipped file: a line for each difference in production, one line for all of them on a
/// single machine, which has reasons of its own for most.
fn advice(facts: &NodeFacts, config: &BTreeMap<String, String>, profile: Profile) -> Vec<Finding> {
    let (mut same, mut unknown, mut differing) = (0, Vec::new(), Vec::new());
    for (name, wanted) in shipped::advice() {
        match config.get(name) {
            None => unknown.push(name),
            Some(found) if shipped::agrees(name, &wanted, found) => same += 1,
            Some(found) => differing.push((name, found, wanted)),
        }
    }
    let mut told = vec![format!("{same} as shipped")];
    if !unknown.is_empty() {
        told.push(format!("not known to this server: {}", unknown.join(", ")));
    }
    let is_local = profile == Profile::Local;
    if is_local && !differing.is_empty() {
        let texts = differing.iter().map(|(name, found, _)| {
            let found = if found.is_empty() { "nothing" } else { found };
            format!("{name} {found}")
        });
        told.push(format!("others: {}", texts.collect::<Vec<_>>().join(", ")));
    }
    let mut findings = vec![facts.finding(
        unless(!is_local || differing.is_empty(), Grade::Warn),
        "redis.conf",
        told.join("; "),
        "as deploy/redis/redis.conf has it",
        "compare with deploy/redis/redis.conf, which says why; --profile production names each",
    )];
    if !is_local {
        findings.extend(differing.into_iter().map(|(name, found, wanted)| {
            let hint = format!(
                "set {name} {wanted} in redis.conf, and by CONFIG SET or a restart; \
                 deploy/redis/redis.conf says why"
            );
            facts.finding(Grade::Warn, name, found, wanted, hint)
        }));
    }
    findings
}

fn last_write(facts: &NodeFacts) -> Finding {
    let status = facts.info("aof_last_write_status");
    facts.finding(
        unless(status != "err", Grade::Fail),
        "aof_last_write_status",
        if status.is_empty() { "unknown" } else { status },
        "ok",
        "the disk of the append-only file is full or broken: writes are refused until it is mended",
    )
}

fn evictions(facts: &NodeFacts) -> Finding {
    let evicted = facts.count("evicted_keys");
    facts.finding(
        unless(evicted == 0, Grade::Fail),
        "evicted_keys",
        evicted,
        0,
        "keys were thrown away: `seckillctl audit` tells what is missing, `reconcile plan` what mends it",
    )
}

fn memory_use(facts: &NodeFacts) -> Option<Finding> {
    let (used, limit) = (facts.count("used_memory"), facts.count("maxmemory"));
    let percent = used.saturating_mul(100).checked_div(limit)?;
    Some(facts.finding(
        unless(percent < MEMORY_PERCENT_MAX, Grade::Warn),
        "used_memory",
        format!("{percent} %"),
        format!("below {MEMORY_PERCENT_MAX} % of maxmemory"),
        "raise maxmemory or move activities: a full server refuses every reservation",
    ))
}

fn replicas(facts: &NodeFacts, profile: Profile) -> Finding {
    let connected = facts.count("connected_slaves");
    let fit = facts.replicas().filter(Replica::keeps_up).count() as u64;
    let (grade, hint) = if fit < connected {
        (Grade::Fail, "a replica is not online or lags behind")
    } else if fit < REPLICAS_MIN {
        let grade = Grade::Fail.unless_local(profile);
        (
            grade,
            "add a replica: the loss of this machine is a total loss",
        )
    } else {
        (Grade::Ok, "")
    };
    facts.finding(
        grade,
        "replicas",
        format!("{fit} of {connected} online and at most {REPLICA_LAG_MAX_S} s behind"),
        format!("at least {REPLICAS_MIN}, all of them"),
        hint,
    )
}

fn cluster(facts: &NodeFacts) -> Vec<Finding> {
    if facts.cluster.is_empty() {
        return Vec::new();
    }
    [
        ("cluster_state", "ok", "see CLUSTER NODES for what failed"),
        (
            "cluster_slots_ok",
            SLOTS,
            "assign the missing slots or bring their primaries back: their activities sell nothing",
        ),
    ]
    .into_iter()
    .map(|(name, wanted, hint)| {
        let found = setting(&facts.cluster, name);
        let grade = unless(found == wanted, Grade::Fail);
        facts.finding(grade, name, found, wanted, hint)
    })
    .collect()
}

#[cfg(test)]
mod tests;
