//! What PostgreSQL must be: durable, writable, at this program's schema, with room for connections.

use seckill_order_store::{Error, ServerFacts, Store};

use super::ASK_LIMIT;
use super::finding::{Area, Finding, Grade, unless};

/// The oldest server: the schema uses `NULLS NOT DISTINCT`, which came with 15.
const VERSION_MIN: u32 = 15;

/// From which part of its connections on somebody should look, in percent.
const CONNECTIONS_PERCENT_MAX: u64 = 80;

/// Asks the server and judges its answers.
pub async fn check(store: &Result<Store, Finding>) -> Vec<Finding> {
    let store = match store {
        Ok(store) => store,
        Err(away) => return vec![away.clone()],
    };
    let asked = async { (store.server_facts().await, store.check_schema().await) };
    let Ok((facts, schema)) = tokio::time::timeout(ASK_LIMIT, asked).await else {
        return vec![unanswered("no answer in time")];
    };
    let mut findings = match facts {
        Ok(facts) => judge(&facts),
        Err(error) => vec![unanswered(&error.to_string())],
    };
    findings.push(judge_schema(schema.err().as_ref()));
    findings
}

fn unanswered(why: &str) -> Finding {
    Finding::fail(
        Area::Postgres,
        "answers",
        why,
        "answers about its settings",
        "see SECKILL_DATABASE_URL",
    )
}

fn judge_schema(error: Option<&Error>) -> Finding {
    let (found, grade) = match error {
        None => ("this program's".to_owned(), Grade::Ok),
        Some(error) => (error.to_string(), Grade::Fail),
    };
    let hint = match error {
        Some(Error::SchemaDiffers { .. }) => {
            "a migration was changed after it was applied; compare the files with the release"
        }
        _ => "run `seckillctl migrate`",
    };
    Finding::of(
        grade,
        Area::Postgres,
        "schema",
        found,
        "every migration of this program, unchanged",
        hint,
    )
}

fn judge(facts: &ServerFacts) -> Vec<Finding> {
    let setting = |name: &str| facts.settings.get(name).map_or("", String::as_str);
    let is = |check: &str, wanted: &[&str], grade: Grade, hint: &str| {
        let found = setting(check);
        let grade = unless(wanted.contains(&found), grade);
        let wanted = wanted.first().copied().unwrap_or_default();
        Finding::of(grade, Area::Postgres, check, found, wanted, hint)
    };
    let durable = "set it in postgresql.conf: an order that was acknowledged must survive a crash";
    vec![
        version(facts),
        Finding::of(
            unless(!facts.in_recovery, Grade::Fail),
            Area::Postgres,
            "role",
            if facts.in_recovery {
                "standby"
            } else {
                "primary"
            },
            "primary",
            "SECKILL_DATABASE_URL leads to a standby; name the primary, or both hosts",
        ),
        is("fsync", &["on"], Grade::Fail, durable),
        is("full_page_writes", &["on"], Grade::Fail, durable),
        is(
            "synchronous_commit",
            &["on", "remote_apply", "remote_write", "local"],
            Grade::Fail,
            durable,
        ),
        is(
            "default_transaction_isolation",
            &["read committed"],
            Grade::Warn,
            "the services name their isolation themselves; other programs should not inherit another",
        ),
        is(
            "default_transaction_read_only",
            &["off"],
            Grade::Fail,
            "ALTER DATABASE … RESET default_transaction_read_only",
        ),
        is(
            "autovacuum",
            &["on"],
            Grade::Warn,
            "switch it on: outbox and tasks are updated all the time and bloat without it",
        ),
        connections(facts),
    ]
}

fn version(facts: &ServerFacts) -> Finding {
    let (major, minor) = (facts.version_num / 10_000, facts.version_num % 10_000);
    Finding::of(
        unless(major >= VERSION_MIN, Grade::Fail),
        Area::Postgres,
        "version",
        format!("{major}.{minor}"),
        format!("at least {VERSION_MIN}"),
        "upgrade the server",
    )
}

fn connections(facts: &ServerFacts) -> Finding {
    let number = |name: &str| {
        let setting = facts.settings.get(name);
        setting.and_then(|text| text.parse::<u64>().ok())
    };
    let reserved = number("superuser_reserved_connections").unwrap_or(0);
    let room = number("max_connections")
        .unwrap_or(0)
        .saturating_sub(reserved);
    let percent = facts
        .connections
        .saturating_mul(100)
        .checked_div(room)
        .unwrap_or(100);
    Finding::of(
        unless(percent < CONNECTIONS_PERCENT_MAX, Grade::Warn),
        Area::Postgres,
        "max_connections",
        format!("{} of {room} in use", facts.connections),
        format!("below {CONNECTIONS_PERCENT_MAX} %"),
        "raise max_connections, or lower SECKILL_DATABASE_POOL_SIZE of the services",
    )
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::TimestampMs;

    use super::*;

    fn good() -> ServerFacts {
        let settings = [
            ("autovacuum", "on"),
            ("default_transaction_isolation", "read committed"),
            ("default_transaction_read_only", "off"),
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("max_connections", "100"),
            ("superuser_reserved_connections", "3"),
            ("synchronous_commit", "on"),
        ];
        ServerFacts {
            version_num: 150_018,
            settings: settings
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            connections: 20,
            in_recovery: false,
            now: TimestampMs::new(0),
        }
    }

    fn bad(facts: &ServerFacts) -> Vec<(String, Grade)> {
        judge(facts)
            .into_iter()
            .filter(|found| found.verdict != Grade::Ok)
            .map(|found| (found.check, found.verdict))
            .collect()
    }

    #[test]
    fn each_answer_that_is_wrong_is_named_by_itself() {
        assert_eq!(bad(&good()), []);
        for (name, value, grade) in [
            ("autovacuum", "off", Grade::Warn),
            ("default_transaction_isolation", "serializable", Grade::Warn),
            ("default_transaction_read_only", "on", Grade::Fail),
            ("fsync", "off", Grade::Fail),
            ("full_page_writes", "off", Grade::Fail),
            ("max_connections", "28", Grade::Warn),
            ("synchronous_commit", "off", Grade::Fail),
        ] {
            let mut facts = good();
            facts.settings.insert(name.to_owned(), value.to_owned());
            assert_eq!(bad(&facts), [(name.to_owned(), grade)], "{name} = {value}");
        }
        let old = ServerFacts {
            version_num: 140_012,
            in_recovery: true,
            ..good()
        };
        let named = ["version", "role"].map(|check| (check.to_owned(), Grade::Fail));
        assert_eq!(bad(&old), named);
    }

    #[test]
    fn an_old_schema_leads_to_the_migration_and_a_changed_one_does_not() {
        let old = judge_schema(Some(&Error::Schema {
            found: 3,
            wanted: 10,
        }));
        assert_eq!(old.verdict, Grade::Fail);
        assert!(old.hint.contains("seckillctl migrate"), "{old:?}");
        let changed = judge_schema(Some(&Error::SchemaDiffers { version: 3 }));
        assert!(!changed.hint.contains("seckillctl migrate"), "{changed:?}");
        assert_eq!(judge_schema(None).verdict, Grade::Ok);
    }
}
