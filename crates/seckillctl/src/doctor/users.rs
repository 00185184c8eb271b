//! Redis's users: one a service, with the commands and keys that it needs and no others.
//!
//! Rules can be written in many ways, so that they are not compared as text: the server itself is asked
//! what it would let each user do (`ACL DRYRUN`). Whether it lets anybody in is tried by knocking.

use seckill_lua_scripts::{Error, Redis, RedisConfig, ServerNode};
use secrecy::{ExposeSecret, SecretString};

use super::Profile;
use super::finding::{Area, Finding, Grade, unless};

type Command = &'static [&'static str];

/// Any script's digest: whether it is loaded does not matter to the question.
const SHA: &str = "0000000000000000000000000000000000000000";

// Keys of some bucket, one a kind.
const META: &str = "seckill:{a:a:s:s:v:1:b:0}:meta";
const STOCK: &str = "seckill:{a:a:s:s:v:1:b:0}:stock";
const RESV: &str = "seckill:{a:a:s:s:v:1:b:0}:resv:r";
const USER: &str = "seckill:{a:a:s:s:v:1:b:0}:user:u";
const ANSWERS: &str = "seckill:{a:a:s:s:v:1:b:0}:req:000";
const PENDING: &str = "seckill:{a:a:s:s:v:1:b:0}:send_pending";
const POINTER: &str = "seckill:activity:a:current_version";

/// What no service may: each of these could undo a sale, or read what is not the system's.
const FORBIDDEN: [Command; 10] = [
    &["FLUSHALL"],
    &["FLUSHDB"],
    &["CONFIG", "SET", "appendonly", "no"],
    &["ACL", "SETUSER", "intruder"],
    &["SHUTDOWN", "NOSAVE"],
    &["DEBUG", "SLEEP", "0"],
    &["KEYS", "*"],
    &["DEL", STOCK],
    &["GET", "another-system:key"],
    &["SET", "another-system:key", "1"],
];

/// A service's user: what it does all the time, and what it must not although others may.
struct Rights {
    user: &'static str,
    needed: &'static [Command],
    forbidden: &'static [Command],
}

/// The users of the shipped `deploy/redis/users.acl` that services and operators log in as.
const SERVICES: [Rights; 6] = [
    Rights {
        user: "reservation-front",
        needed: &[
            &["EVALSHA", SHA, "1", STOCK],
            &["HSET", STOCK, "available", "1"],
            &["SET", USER, "r"],
            &["GET", POINTER],
        ],
        forbidden: &[&["HSET", META, "state", "ACTIVE"], &["SCAN", "0"]],
    },
    Rights {
        user: "outbox-scanner",
        needed: &[
            &["EVALSHA", SHA, "1", RESV],
            &["ZRANGEBYSCORE", PENDING, "-inf", "1"],
            &["ZADD", PENDING, "1", "r"],
        ],
        forbidden: &[&["HSET", STOCK, "available", "1"], &["SET", USER, "r"]],
    },
    Rights {
        user: "order-consumer",
        needed: &[
            &["EVALSHA", SHA, "1", STOCK],
            &["HSET", STOCK, "available", "1"],
            &["SET", USER, "r"],
            &["PUBLISH", "seckill:soldout", "t"],
        ],
        forbidden: &[&["HSET", META, "state", "ACTIVE"], &["SCAN", "0"]],
    },
    Rights {
        user: "compensation-worker",
        needed: &[
            &["EVALSHA", SHA, "1", STOCK],
            &["HSET", STOCK, "available", "1"],
            &["DEL", USER],
            &["PUBLISH", "seckill:soldout", "t"],
        ],
        forbidden: &[&["HSET", META, "state", "ACTIVE"], &["SCAN", "0"]],
    },
    Rights {
        user: "reconciler",
        needed: &[
            &["EVALSHA", SHA, "1", STOCK],
            &["HSET", META, "recovery", "window"],
            &["SCAN", "0"],
            &["PEXPIREAT", STOCK, "1"],
        ],
        forbidden: &[&["SET", POINTER, "1"]],
    },
    Rights {
        user: "seckillctl",
        needed: &[
            &["EVALSHA", SHA, "1", STOCK],
            &["HSET", META, "state", "ACTIVE"],
            &["SET", POINTER, "1"],
            &["HDEL", ANSWERS, "q"],
        ],
        forbidden: &[],
    },
];

/// Asks one server about its users.
pub async fn check(
    redis: &Redis,
    node: &ServerNode,
    label: &str,
    profile: Profile,
) -> Vec<Finding> {
    let asked = match redis.server_users(node).await {
        Ok(users) => judge(redis, node, &users, profile).await,
        Err(error) => Err(error),
    };
    let mut findings = asked.unwrap_or_else(|error| {
        let hint = "run the doctor as a user that may ask (+acl|users +acl|dryrun)";
        let wanted = "an answer to ACL USERS and ACL DRYRUN";
        let grade = Grade::Fail.unless_local(profile);
        vec![Finding::of(
            grade,
            Area::Redis,
            "users",
            error,
            wanted,
            hint,
        )]
    });
    for finding in &mut findings {
        finding.check.push_str(label);
    }
    findings
}

async fn judge(
    redis: &Redis,
    node: &ServerNode,
    users: &[String],
    profile: Profile,
) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for Rights {
        user,
        needed,
        forbidden,
    } in SERVICES
    {
        let check = format!("user {user}");
        if !users.iter().any(|name| name == user) {
            findings.push(Finding::of(
                Grade::Fail.unless_local(profile),
                Area::Redis,
                check,
                "missing",
                "a user with the rights of deploy/redis/users.acl",
                "load deploy/redis/users.acl, and let the service log in as this user",
            ));
            continue;
        }
        let refused = commands(redis, node, user, needed, false).await?;
        let mut allowed = commands(redis, node, user, &FORBIDDEN, true).await?;
        allowed.extend(commands(redis, node, user, forbidden, true).await?);
        findings.push(judge_rights(check, &refused, &allowed));
    }
    Ok(findings)
}

/// Those of the commands that the user may run, or may not.
async fn commands(
    redis: &Redis,
    node: &ServerNode,
    user: &str,
    commands: &[Command],
    allowed: bool,
) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    for command in commands {
        if redis.server_would_allow(node, user, command).await? == allowed {
            let words: Vec<&str> = command.iter().take(2).copied().collect();
            found.push(words.join(" "));
        }
    }
    Ok(found)
}

fn judge_rights(check: String, refused: &[String], allowed: &[String]) -> Finding {
    const GOOD: &str = "what it needs and no more";
    let mut found = Vec::new();
    if !refused.is_empty() {
        found.push(format!("may not {}", refused.join(", ")));
    }
    if !allowed.is_empty() {
        found.push(format!("may {}", allowed.join(", ")));
    }
    if found.is_empty() {
        found.push(GOOD.to_owned());
    }
    Finding::of(
        unless(refused.is_empty() && allowed.is_empty(), Grade::Fail),
        Area::Redis,
        check,
        found.join("; "),
        GOOD,
        "load its rules from deploy/redis/users.acl again",
    )
}

/// Whether somebody without a name and a password gets in: tried, since what the default user may do is
/// not everybody's to read.
pub async fn knock(config: &RedisConfig, profile: Profile) -> Finding {
    let nameless = RedisConfig {
        url: without_user(&config.url),
        ..config.clone()
    };
    let is_open = match Redis::connect(&nameless).await {
        Ok(redis) => {
            let answer = redis.ping().await;
            redis.quit().await;
            answer.is_ok()
        }
        Err(_) => false,
    };
    Finding::of(
        unless(!is_open, Grade::Fail).unless_local(profile),
        Area::Redis,
        "login without a password",
        if is_open { "let in" } else { "refused" },
        "refused",
        "ACL SETUSER default off, once every service has a user of its own",
    )
}

/// The URL without what stands before the last `@`.
fn without_user(url: &SecretString) -> SecretString {
    let text = url.expose_secret();
    let nameless = match text.split_once("://") {
        None => text.to_owned(),
        Some((scheme, rest)) => {
            let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
            format!("{scheme}://{place}")
        }
    };
    nameless.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_and_too_many_rights_are_both_named() {
        let both = judge_rights(
            "user x".to_owned(),
            &["EVALSHA".to_owned()],
            &["FLUSHALL".to_owned()],
        );
        assert_eq!(both.verdict, Grade::Fail);
        assert_eq!(both.found, "may not EVALSHA; may FLUSHALL");
        let none = judge_rights("user x".to_owned(), &[], &[]);
        assert_eq!(none.verdict, Grade::Ok);
    }

    #[test]
    fn who_knocks_has_no_name() {
        for (url, nameless) in [
            ("redis://h:1/2", "redis://h:1/2"),
            ("redis://u:p@ss@h:1", "redis://h:1"),
            (
                "redis-cluster://:p@h:1?node=i:2",
                "redis-cluster://h:1?node=i:2",
            ),
        ] {
            let found = without_user(&url.to_owned().into());
            assert_eq!(found.expose_secret(), nameless);
        }
    }
}
