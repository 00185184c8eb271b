use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// What a server tells that was started with the shipped file.
fn as_the_file() -> BTreeMap<String, String> {
    shipped::settings()
        .into_iter()
        .chain([("maxmemory", "100000".to_owned())])
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn good() -> NodeFacts {
    NodeFacts {
        label: String::new(),
        info: map(&[
            ("redis_version", "7.0.15"),
            ("role", "master"),
            ("cluster_enabled", "1"),
            ("connected_slaves", "1"),
            ("slave0", "ip=127.0.0.1,port=7,state=online,offset=5,lag=1"),
            ("slave_expires_tracked_keys", "0"),
            ("used_memory", "1000"),
            ("maxmemory", "100000"),
            ("evicted_keys", "0"),
            ("aof_last_write_status", "ok"),
        ]),
        config: Ok(as_the_file()),
        cluster: map(&[("cluster_state", "ok"), ("cluster_slots_ok", "16384")]),
    }
}

fn bad(facts: &NodeFacts, profile: Profile) -> Vec<(String, Grade)> {
    judge(facts, profile)
        .into_iter()
        .filter(|found| found.verdict != Grade::Ok)
        .map(|found| {
            assert!(!found.hint.is_empty(), "{found:?}");
            (found.check, found.verdict)
        })
        .collect()
}

#[test]
fn a_good_server_has_nothing_to_look_at() {
    assert_eq!(bad(&good(), Profile::Production), []);
    assert_eq!(judge_mode(&good(), true), None);
}

#[test]
fn each_answer_that_is_wrong_is_named_by_itself() {
    let info: [(&str, &str, &str, Grade); 8] = [
        ("redis_version", "6.2.9", "version", Grade::Fail),
        ("redis_version", "", "version", Grade::Fail),
        ("role", "slave", "role", Grade::Fail),
        ("slave0", "state=online,lag=11", "replicas", Grade::Fail),
        ("slave0", "state=wait_bgsave,lag=0", "replicas", Grade::Fail),
        ("evicted_keys", "1", "evicted_keys", Grade::Fail),
        ("used_memory", "80000", "used_memory", Grade::Warn),
        (
            "aof_last_write_status",
            "err",
            "aof_last_write_status",
            Grade::Fail,
        ),
    ];
    for (name, value, check, grade) in info {
        let mut facts = good();
        facts.info.insert(name.to_owned(), value.to_owned());
        let found = bad(&facts, Profile::Local);
        assert_eq!(found, [(check.to_owned(), grade)], "{name} = {value}");
    }
    let config: [(&str, &str, Grade); 11] = [
        ("appendfsync", "no", Grade::Fail),
        ("appendonly", "no", Grade::Fail),
        ("maxmemory-policy", "allkeys-lru", Grade::Fail),
        ("min-replicas-to-write", "0", Grade::Fail),
        ("min-replicas-max-lag", "0", Grade::Fail),
        ("min-replicas-max-lag", "60", Grade::Fail),
        ("slowlog-log-slower-than", "-1", Grade::Warn),
        ("slowlog-log-slower-than", "100000", Grade::Warn),
        ("latency-monitor-threshold", "0", Grade::Warn),
        ("no-appendfsync-on-rewrite", "yes", Grade::Fail),
        ("replica-read-only", "no", Grade::Fail),
    ];
    for (name, value, grade) in config {
        let mut facts = good();
        if let Ok(config) = &mut facts.config {
            config.insert(name.to_owned(), value.to_owned());
        }
        let found = bad(&facts, Profile::Local);
        assert_eq!(found, [(name.to_owned(), grade)], "{name} = {value}");
    }
}

/// Goal: no setting of the shipped file can be another one unnoticed. Method: each in turn.
#[test]
fn every_setting_of_the_shipped_file_is_missed_when_it_is_another() {
    for name in names() {
        let mut facts = good();
        let another = match name {
            "maxmemory" | "latency-monitor-threshold" => "0",
            _ => "another",
        };
        if let Ok(config) = &mut facts.config {
            config.insert(name.to_owned(), another.to_owned());
        }
        let named = bad(&facts, Profile::Production);
        let of_the_node = ["aclfile", "daemonize", "logfile", "port", "supervised"];
        if of_the_node.contains(&name) {
            assert_eq!(named, []);
            continue;
        }
        assert!(
            named.iter().any(|(check, _)| check == name),
            "{name}: {named:?}"
        );
        let is_advice = shipped::advice().any(|(advised, _)| advised == name);
        if is_advice {
            assert_eq!(named, [(name.to_owned(), Grade::Warn)]);
            // A single machine has one line for all of them, which names it.
            let named = bad(&facts, Profile::Local);
            assert_eq!(named, [("redis.conf".to_owned(), Grade::Warn)], "{name}");
        }
    }
}

/// A server of another version may lack a setting; nothing is claimed of it.
#[test]
fn a_setting_that_the_server_does_not_know_is_told_as_such() {
    let mut facts = good();
    if let Ok(config) = &mut facts.config {
        config.remove("latency-tracking");
    }
    let found = judge(&facts, Profile::Production);
    let line = found
        .iter()
        .find(|found| found.check == "redis.conf")
        .unwrap();
    assert_eq!(line.verdict, Grade::Ok);
    assert!(
        line.found
            .contains("not known to this server: latency-tracking"),
        "{line:?}"
    );
}

#[test]
fn a_machine_without_replicas_is_refused_in_production_alone() {
    let mut facts = good();
    facts
        .info
        .insert("connected_slaves".to_owned(), "0".to_owned());
    facts.info.remove("slave0");
    if let Ok(config) = &mut facts.config {
        config.insert("min-replicas-to-write".to_owned(), "0".to_owned());
        config.insert("maxmemory".to_owned(), "0".to_owned());
    }
    let checks = ["maxmemory", "min-replicas-to-write", "replicas"];
    for (profile, grade) in [
        (Profile::Production, Grade::Fail),
        (Profile::Local, Grade::Warn),
    ] {
        let wanted: Vec<(String, Grade)> = checks.map(|check| (check.to_owned(), grade)).into();
        assert_eq!(bad(&facts, profile), wanted);
    }
}

#[test]
fn a_damaged_cluster_and_a_url_of_the_wrong_kind_are_named() {
    let mut facts = good();
    facts.cluster = map(&[("cluster_state", "fail"), ("cluster_slots_ok", "10923")]);
    let named = ["cluster_state", "cluster_slots_ok"].map(|check| (check.to_owned(), Grade::Fail));
    assert_eq!(bad(&facts, Profile::Production), named);
    let wrong = judge_mode(&facts, false).unwrap();
    assert!(wrong.hint.contains("redis-cluster://"), "{wrong:?}");
    facts
        .info
        .insert("cluster_enabled".to_owned(), "0".to_owned());
    let wrong = judge_mode(&facts, true).unwrap();
    assert!(wrong.hint.contains("begin with redis://"), "{wrong:?}");
}

#[test]
fn settings_that_may_not_be_read_are_a_failure_and_not_a_silence() {
    let facts = NodeFacts {
        config: Err("NOPERM".to_owned()),
        ..good()
    };
    assert_eq!(
        bad(&facts, Profile::Production),
        [("settings".to_owned(), Grade::Fail)]
    );
}
