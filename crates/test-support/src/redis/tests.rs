use std::collections::BTreeMap;

use super::*;

#[tokio::test]
async fn servers_are_private_and_survive_a_restart_on_their_port() {
    let (one, other) = tokio::join!(
        PrivateRedis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]),
        PrivateRedis::start(),
    );
    assert_ne!(one.port(), other.port());
    one.cli(&["SET", "k", "v"]).await;
    other.cli(&["SET", "k", "w"]).await;
    one.kill();
    other.kill();
    assert!(one.connection().await.is_err());
    one.restart().await;
    other.restart().await;
    assert_eq!(one.cli(&["GET", "k"]).await.text(), "v");
    assert!(other.cli(&["GET", "k"]).await.is_nil());
    one.stop().await;
    one.restart().await;
    assert_eq!(one.cli(&["GET", "k"]).await.text(), "v");
}

#[tokio::test]
async fn a_paused_server_answers_when_it_resumes() {
    let redis = PrivateRedis::start().await;
    let mut connection = redis.connection().await.unwrap();
    redis.pause();
    let call = connection.call(&["INCR", "n"]);
    assert!(timeout(Duration::from_millis(100), call).await.is_err());
    redis.resume();
    assert_eq!(connection.read().await.unwrap().int(), 1);
}

#[tokio::test]
async fn a_dump_shows_type_content_and_expiry_of_every_key() {
    let redis = PrivateRedis::start().await;
    let empty = redis.dump().await;
    assert!(empty.0.is_empty());
    for command in [
        &["SET", "text", "v", "PXAT", "4102444800000"][..],
        &["SET", "odd", "a\r\n|b"],
        &["HSET", "hash", "b", "2", "a", "1"],
        &["ZADD", "zset", "1764547200123", "m"],
        &["SADD", "set", "x"],
        &["RPUSH", "list", "1", "0"],
    ] {
        redis.cli(command).await;
    }
    redis.cli(&[&b"SET"[..], b"bytes", b"\xff\x00"]).await;
    let dump = redis.dump().await;
    assert_eq!(dump.0["text"].expires_at_ms, Some(4_102_444_800_000));
    assert_eq!(dump.get("odd"), Some(&Content::Text("a\r\n|b".to_owned())));
    let fields = [("a", "1"), ("b", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(dump.hash("hash"), BTreeMap::from(fields));
    let member = [("m".to_owned(), "1764547200123".to_owned())];
    assert_eq!(dump.get("zset"), Some(&Content::SortedSet(member.into())));
    assert_eq!(
        dump.get("bytes"),
        Some(&Content::Text("\\xff\\x00".to_owned()))
    );
    assert_eq!(dump.keys_without_expiry().len(), 6);
    assert_eq!(dump, redis.dump().await);
    redis.cli(&["PEXPIREAT", "hash", "4102444800001"]).await;
    assert_ne!(dump, redis.dump().await);
}

#[tokio::test]
async fn a_replica_follows_its_primary() {
    let (primary, replica) = tokio::join!(PrivateRedis::start(), PrivateRedis::start());
    primary.cli(&["SET", "k", "v"]).await;
    replica.replica_of(&primary).await;
    assert_eq!(replica.cli(&["GET", "k"]).await.text(), "v");
}

#[tokio::test]
async fn a_cluster_serves_every_slot_from_three_nodes() {
    let cluster = PrivateRedis::start_cluster().await;
    let mut ports = std::collections::BTreeSet::new();
    for index in 0..50 {
        let key = format!("{{k{index}}}");
        let reply = cluster.cli(&key, &["SET", &key, "v"]).await;
        assert_eq!(reply, Value::Status("OK".to_owned()));
        ports.insert(cluster.node_of(&key).await.port());
    }
    assert_eq!(ports.len(), 3);
    assert_eq!(cluster.dump().await.0.len(), 50);
    let url = cluster.url();
    assert!(
        cluster
            .nodes()
            .iter()
            .all(|node| url.contains(&node.port().to_string()))
    );
}
