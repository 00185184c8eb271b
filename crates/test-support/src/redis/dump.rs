//! The whole content of a server as a value, to compare states before and after.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::bail;

use crate::resp::{RedisConnection, Value};

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A string.
    Text(String),
    /// A hash.
    Hash(BTreeMap<String, String>),
    /// A sorted set: member and score, as the server prints it.
    SortedSet(BTreeMap<String, String>),
    /// A set.
    Set(BTreeSet<String>),
    /// A list.
    List(Vec<String>),
}

/// One key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its content.
    pub content: Content,
    /// When it expires, in milliseconds since 1970; `None` for a key that never does.
    pub expires_at_ms: Option<i64>,
}

/// All keys of a server, sorted. Compares by value, so that two of them show what a call changed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Dump(pub BTreeMap<String, Entry>);

impl Dump {
    /// Reads everything with three round trips. The server must be idle: a key that vanishes in
    /// between is left out, but one that changes shows a mixture.
    pub(crate) async fn read(connection: &mut RedisConnection) -> anyhow::Result<Self> {
        let keys = connection.call(&["KEYS", "*"]).await?.texts();
        let heads = keys
            .iter()
            .flat_map(|key| {
                [
                    vec!["TYPE", key.as_str()],
                    vec!["PEXPIRETIME", key.as_str()],
                ]
            })
            .collect::<Vec<_>>();
        let heads = connection.pipeline(&heads).await?;
        let mut reads = Vec::new();
        for (key, head) in keys.iter().zip(heads.chunks(2)) {
            let Some(command) = read_command(&head[0].text(), key)? else {
                continue;
            };
            reads.push((key, head, command));
        }
        let commands: Vec<_> = reads
            .iter()
            .map(|(_, _, command)| command.clone())
            .collect();
        let contents = connection.pipeline(&commands).await?;
        let mut dump = Self::default();
        for ((key, head, _), content) in reads.iter().zip(contents) {
            if has_vanished(&content) {
                continue;
            }
            let expires_at_ms = Some(head[1].int()).filter(|at| *at >= 0);
            let content = content_of(&head[0].text(), &content);
            dump.0.insert(
                (*key).clone(),
                Entry {
                    content,
                    expires_at_ms,
                },
            );
        }
        Ok(dump)
    }

    /// The content of one key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Content> {
        self.0.get(key).map(|entry| &entry.content)
    }

    /// The fields of a hash; empty when there is no such hash.
    #[must_use]
    pub fn hash(&self, key: &str) -> BTreeMap<String, String> {
        match self.get(key) {
            Some(Content::Hash(fields)) => fields.clone(),
            _ => BTreeMap::new(),
        }
    }

    /// The names of keys that never expire.
    #[must_use]
    pub fn keys_without_expiry(&self) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(_, entry)| entry.expires_at_ms.is_none())
            .map(|(key, _)| key.as_str())
            .collect()
    }

    /// Adds what another server holds, for a cluster.
    pub(crate) fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

impl fmt::Debug for Dump {
    /// One key a line: a failed comparison of two dumps stays readable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, entry) in &self.0 {
            let expiry = entry
                .expires_at_ms
                .map_or_else(|| "never".to_owned(), |at| at.to_string());
            writeln!(f, "{key} (expires {expiry}) {:?}", entry.content)?;
        }
        Ok(())
    }
}

fn read_command<'a>(kind: &str, key: &'a str) -> anyhow::Result<Option<Vec<&'a str>>> {
    Ok(Some(match kind {
        "string" => vec!["GET", key],
        "hash" => vec!["HGETALL", key],
        "zset" => vec!["ZRANGE", key, "0", "-1", "WITHSCORES"],
        "set" => vec!["SMEMBERS", key],
        "list" => vec!["LRANGE", key, "0", "-1"],
        "none" => return Ok(None),
        other => bail!("{key} is a {other}, which no test uses"),
    }))
}

/// Whether a key was deleted after its type had been read. No key holds an empty collection.
fn has_vanished(content: &Value) -> bool {
    match content {
        Value::Nil => true,
        Value::List(items) => items.is_empty(),
        _ => false,
    }
}

fn content_of(kind: &str, value: &Value) -> Content {
    match kind {
        "hash" => Content::Hash(pairs(value)),
        "zset" => Content::SortedSet(pairs(value)),
        "set" => Content::Set(value.texts().into_iter().collect()),
        "list" => Content::List(value.texts()),
        _ => Content::Text(value.text()),
    }
}

fn pairs(value: &Value) -> BTreeMap<String, String> {
    value
        .list()
        .chunks_exact(2)
        .map(|pair| (pair[0].text(), pair[1].text()))
        .collect()
}
