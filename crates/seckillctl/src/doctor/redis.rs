//! What Redis must be: durable within a second, never evicting, writable, and not alone.
//!
//! The design's guarantees rest on some of its settings. An eviction loses a reservation without a trace,
//! an append-only file that is off loses everything with the process, and a primary that takes writes
//! without a replica loses them all with its machine. Those are requirements. Every other setting of the
//! shipped `redis.conf` is compared as well, as advice.

mod judge;
mod shipped;

use std::collections::BTreeMap;

use seckill_lua_scripts::{Error, Redis, RedisConfig, ServerNode};

use self::judge::{NodeFacts, judge, judge_mode};
use super::finding::{Area, Finding};
use super::{ASK_LIMIT, Profile, users};

/// Asks every server that takes writes, and judges the answers.
pub async fn check(
    redis: &Result<Redis, Finding>,
    config: &RedisConfig,
    profile: Profile,
) -> Vec<Finding> {
    let redis = match redis {
        Ok(redis) => redis,
        Err(away) => return vec![away.clone()],
    };
    match tokio::time::timeout(ASK_LIMIT, ask(redis, profile)).await {
        Ok(Ok(mut findings)) => {
            findings.push(users::knock(config, profile).await);
            findings
        }
        Ok(Err(error)) => vec![unanswered(&error.to_string())],
        Err(_) => vec![unanswered("no answer in time")],
    }
}

fn unanswered(why: &str) -> Finding {
    Finding::fail(
        Area::Redis,
        "answers",
        why,
        "answers to INFO and CLUSTER NODES",
        "see SECKILL_REDIS_URL, and whether its user may ask",
    )
}

async fn ask(redis: &Redis, profile: Profile) -> Result<Vec<Finding>, Error> {
    // Every server knows this, also one that is no cluster although the URL says so.
    let nodes = redis.server_nodes().await?;
    let several = nodes.len() > 1;
    let mut findings = Vec::new();
    for node in &nodes {
        let facts = facts(redis, node, several).await?;
        if let Some(wrong) = judge_mode(&facts, redis.expects_cluster()) {
            return Ok(vec![wrong]);
        }
        findings.extend(judge(&facts, profile));
        findings.extend(users::check(redis, node, &facts.label, profile).await);
    }
    Ok(findings)
}

async fn facts(redis: &Redis, node: &ServerNode, several: bool) -> Result<NodeFacts, Error> {
    let info = redis.server_info(node).await?;
    let is_cluster = info.get("cluster_enabled").is_some_and(|on| on == "1");
    let cluster = match is_cluster {
        true => redis.server_cluster(node).await?,
        false => BTreeMap::new(),
    };
    Ok(NodeFacts {
        label: match several {
            true => format!(" of {}", node.address),
            false => String::new(),
        },
        config: settings(redis, node)
            .await
            .map_err(|error| error.to_string()),
        info,
        cluster,
    })
}

/// The settings that are judged. They are asked for in one call, since each of some sixty would be a chance
/// to be too late on a busy server; what nobody judges, passwords among it, is dropped at once.
async fn settings(redis: &Redis, node: &ServerNode) -> Result<BTreeMap<String, String>, Error> {
    let judged = judge::names();
    let mut settings = redis.server_config(node, &["*"]).await?;
    settings.retain(|name, _| judged.contains(&name.as_str()));
    Ok(settings)
}
