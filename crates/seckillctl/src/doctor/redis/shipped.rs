//! The shipped `deploy/redis/redis.conf`, read as data: the one place that says how Redis is to be set.
//!
//! What a guarantee rests on is judged by name in [`super::judge()`], with this file's values. All the rest
//! is advice: the server sells with other values too, only worse or with less to see. So a setting that is
//! added to the file is compared from then on, without a line here.

use std::collections::BTreeMap;

/// The file that every node of production is started with.
const FILE: &str = include_str!("../../../../../deploy/redis/redis.conf");

/// What differs from node to node, or follows from how the process is started.
const OF_THE_NODE: [&str; 5] = ["aclfile", "daemonize", "logfile", "port", "supervised"];

/// What a guarantee rests on; [`super::judge()`] has a judgement for each.
pub const REQUIRED: [&str; 9] = [
    "appendfsync",
    "appendonly",
    "latency-monitor-threshold",
    "maxmemory-policy",
    "min-replicas-max-lag",
    "min-replicas-to-write",
    "no-appendfsync-on-rewrite",
    "replica-read-only",
    "slowlog-log-slower-than",
];

/// Of these, more is as good.
const AT_LEAST: [&str; 6] = [
    "acllog-max-len",
    "maxclients",
    "repl-backlog-size",
    "repl-backlog-ttl",
    "slowlog-max-len",
    "tcp-backlog",
];

/// The settings of the file by name. A name that stands there several times has its values in a row, as
/// the server tells them.
pub fn settings() -> BTreeMap<&'static str, String> {
    let mut settings: BTreeMap<&str, String> = BTreeMap::new();
    let lines = FILE.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let known = settings.entry(name).or_default();
        if !known.is_empty() {
            known.push(' ');
        }
        known.push_str(value.trim());
    }
    settings
}

/// What the file sets a name to; nothing when it does not name it.
pub fn value(name: &str) -> String {
    settings().remove(name).unwrap_or_default()
}

/// The settings that are advice, with the file's values.
pub fn advice() -> impl Iterator<Item = (&'static str, String)> {
    let is_advice = |name: &str| !OF_THE_NODE.contains(&name) && !REQUIRED.contains(&name);
    settings()
        .into_iter()
        .filter(move |(name, _)| is_advice(name))
}

/// Whether a server's value is the file's, or as good.
pub fn agrees(name: &str, shipped: &str, found: &str) -> bool {
    let (shipped, found) = (words(shipped), words(found));
    if !AT_LEAST.contains(&name) {
        return shipped == found;
    }
    let number = |words: &[String]| words.first().and_then(|word| word.parse::<u64>().ok());
    number(&found) >= number(&shipped)
}

/// A value's words as `CONFIG GET` writes them: amounts of memory in bytes, replicas by their old name.
fn words(value: &str) -> Vec<String> {
    let word = |word: &str| {
        let word = word.trim_matches('"').to_lowercase();
        match word.as_str() {
            "replica" => "slave".to_owned(),
            _ => bytes(&word).map_or(word, |bytes| bytes.to_string()),
        }
    };
    value.split_whitespace().map(word).collect()
}

fn bytes(word: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 6] = [
        ("kb", 1 << 10),
        ("mb", 1 << 20),
        ("gb", 1 << 30),
        ("k", 1_000),
        ("m", 1_000_000),
        ("g", 1_000_000_000),
    ];
    let amount = |(unit, size): (&str, u64)| {
        let number = word.strip_suffix(unit)?.parse::<u64>().ok()?;
        number.checked_mul(size)
    };
    UNITS.into_iter().find_map(amount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_whole_and_every_requirement_stands_in_it() {
        let settings = settings();
        let lines = FILE
            .lines()
            .filter(|line| line.starts_with(char::is_alphabetic));
        // Three lines are one setting: the limits of three kinds of clients.
        assert_eq!(settings.len() + 2, lines.count());
        assert_eq!(settings["save"], "300 100000");
        assert_eq!(
            settings["client-output-buffer-limit"],
            "normal 0 0 0 replica 256mb 64mb 60 pubsub 8mb 2mb 60"
        );
        for name in OF_THE_NODE.iter().chain(&REQUIRED).chain(&AT_LEAST) {
            assert!(settings.contains_key(name), "{name} is not in the file");
        }
        assert_eq!(
            advice().count(),
            settings.len() - OF_THE_NODE.len() - REQUIRED.len()
        );
    }

    #[test]
    fn values_agree_as_the_server_writes_them() {
        for (name, shipped, found, wanted) in [
            ("proto-max-bulk-len", "16mb", "16777216", true),
            ("proto-max-bulk-len", "16mb", "536870912", false),
            ("save", "300 100000", "300 100000", true),
            ("save", "300 100000", "", false),
            (
                "client-output-buffer-limit",
                "normal 0 0 0 replica 1mb 64kb 60",
                "normal 0 0 0 slave 1048576 65536 60",
                true,
            ),
            ("masteruser", "replication", "", false),
            ("repl-backlog-size", "256mb", "536870912", true),
            ("repl-backlog-size", "256mb", "1048576", false),
            ("maxclients", "10000", "many", false),
        ] {
            assert_eq!(agrees(name, shipped, found), wanted, "{name} {found}");
        }
    }
}
