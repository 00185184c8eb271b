//! Whether the shipped users may do what their scripts do: read from the scripts and their table, so that
//! a new script or a new caller is not forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use seckill_integration_tests::RedisUsers;
use seckill_test_support::{PrivateRedis, TempDir};

/// A key of each kind.
const KINDS: [(&str, &str); 8] = [
    ("meta", "meta"),
    ("stock", "stock"),
    ("req", "req:000"),
    ("user", "user:u"),
    ("resv", "resv:r"),
    ("send_pending", "send_pending"),
    ("reservation_expiry", "reservation_expiry"),
    ("soldout", "soldout"),
];

/// Words in a variable's name and the kind of key it holds, the most telling first.
const WORDS: [(&str, &str); 12] = [
    ("index", "send_pending"),
    ("pending", "send_pending"),
    ("expiry", "reservation_expiry"),
    ("soldout", "soldout"),
    ("meta", "meta"),
    ("KEYS", "meta"),
    ("stock", "stock"),
    ("req", "req"),
    ("user", "user"),
    ("marker", "user"),
    ("other", "resv"),
    ("res", "resv"),
];

fn lua() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../lua")
}

fn key(kind: &str) -> String {
    let (_, suffix) = KINDS.iter().find(|(name, _)| *name == kind).unwrap();
    format!("seckill:{{a:x:s:x:v:1:b:0}}:{suffix}")
}

/// The scripts and the users that call them, by the table of `lua/README.md`.
fn table() -> BTreeMap<String, BTreeSet<&'static str>> {
    let text = std::fs::read_to_string(lua().join("README.md")).unwrap();
    let mut scripts = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| [`")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        // A script has six columns, a part three.
        if cells.len() < 8 {
            continue;
        }
        let name = cells[1].split('`').nth(1).unwrap().to_owned();
        let callers = cells[5].split(',').flat_map(|caller| users(caller.trim()));
        scripts.insert(name, callers.collect());
    }
    assert!(scripts.len() >= 6, "{scripts:?}");
    scripts
}

fn users(caller: &str) -> Vec<&'static str> {
    match caller {
        "reservation-front" => vec!["reservation-front"],
        "outbox-scanner" => vec!["outbox-scanner"],
        "order-consumer" => vec!["order-consumer"],
        "compensation-worker" => vec!["compensation-worker"],
        "reconciler" => vec!["reconciler"],
        "activity-control" => vec!["activity-controller", "seckillctl"],
        "seckillctl" => vec!["seckillctl"],
        other => panic!("the table of the scripts names {other:?}"),
    }
}

/// A script with the parts that are loaded in front of it.
fn source(name: &str) -> String {
    let mut text = std::fs::read_to_string(lua().join(format!("{name}.lua"))).unwrap();
    let parts: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("-- Parts: "))
        .flat_map(|parts| parts.trim_end_matches('.').split(", "))
        .map(|part| lua().join("parts").join(format!("{part}.lua")))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    text.extend(parts);
    text
}

/// The command and the kind of key of each call; `None` for any key.
fn calls(source: &str) -> BTreeSet<(String, Option<&'static str>)> {
    let mut found = BTreeSet::new();
    for after in source.split("call('").skip(1) {
        let (command, rest) = after.split_once('\'').unwrap();
        let argument: String = rest
            .trim_start_matches([',', ' '])
            .chars()
            .take_while(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '.'))
            .collect();
        let kind = WORDS.iter().find(|(word, _)| argument.contains(word));
        found.insert((command.to_owned(), kind.map(|(_, kind)| *kind)));
    }
    found
}

/// What a command needs after its key to be a command at all.
fn further(command: &str) -> &'static [&'static str] {
    match command {
        "HSET" | "HINCRBY" | "ZRANGEBYSCORE" => &["1", "1"],
        "ZADD" => &["1", "m"],
        "SET" | "HGET" | "HMGET" | "HEXISTS" | "HDEL" | "ZSCORE" | "ZREM" | "PEXPIREAT" => &["1"],
        _ => &[],
    }
}

async fn may(redis: &PrivateRedis, user: &str, command: &[String]) -> Result<(), String> {
    let mut asked = vec!["ACL".to_owned(), "DRYRUN".to_owned(), user.to_owned()];
    asked.extend(command.iter().cloned());
    let reply = redis.cli(&asked).await;
    match reply.error() {
        None if reply.text() == "OK" => Ok(()),
        _ => Err(format!("{reply:?}")),
    }
}

#[tokio::test]
async fn the_shipped_users_may_run_every_script_that_the_table_gives_them() {
    let folder = TempDir::new("script-users").unwrap();
    let users = RedisUsers::render(folder.path());
    let redis = PrivateRedis::start_as(&users.setup()).await;
    let mut refusals = Vec::new();
    let mut checked = 0;
    for (script, callers) in table() {
        let calls = calls(&source(&script));
        assert!(!calls.is_empty(), "{script} calls nothing");
        let kinds: BTreeSet<&str> = calls.iter().filter_map(|(_, kind)| *kind).collect();
        let all: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
        let mut commands: Vec<Vec<String>> = Vec::new();
        let mut whole = vec![
            "EVALSHA".to_owned(),
            "sha".to_owned(),
            kinds.len().to_string(),
        ];
        whole.extend(kinds.iter().map(|kind| key(kind)));
        commands.push(whole);
        for (command, kind) in &calls {
            if command == "TIME" {
                commands.push(vec![command.clone()]);
                continue;
            }
            let kinds = kind.map_or_else(|| all.clone(), |kind| vec![kind]);
            for kind in kinds {
                let mut whole = vec![command.clone(), key(kind)];
                whole.extend(further(command).iter().map(ToString::to_string));
                commands.push(whole);
            }
        }
        for caller in callers {
            for command in &commands {
                checked += 1;
                if let Err(refusal) = may(&redis, caller, command).await {
                    refusals.push(format!("{script}: {caller} {command:?}: {refusal}"));
                }
            }
        }
    }
    assert!(refusals.is_empty(), "{}", refusals.join("\n"));
    assert!(checked > 100, "{checked} commands were looked at");
}
