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

#[tokio::test]
async fn a_failover_loses_what_was_held_back_and_nothing_else() {
    for how in [Loss::Kill, Loss::Hang] {
        let pair = RedisPair::start().await;
        let mut client = RedisConnection::open(pair.proxy().addr()).await.unwrap();
        client.call(&["SET", "kept", "v"]).await.unwrap();
        let (reply, lost) = pair
            .fail_over_losing(how, async || client.call(&["SET", "doomed", "v"]).await)
            .await;
        assert_eq!(reply.unwrap(), Value::Status("OK".to_owned()));
        assert!(lost > 0, "nothing was lost");
        let mut client = RedisConnection::open(pair.proxy().addr()).await.unwrap();
        assert_eq!(client.call(&["GET", "kept"]).await.unwrap().text(), "v");
        assert!(client.call(&["GET", "doomed"]).await.unwrap().is_nil());
        client.call(&["SET", "later", "v"]).await.unwrap();
        pair.rejoin().await;
        pair.caught_up().await;
        let replica = pair.replica();
        assert_eq!(replica.cli(&["GET", "later"]).await.text(), "v");
        assert!(replica.cli(&["GET", "doomed"]).await.is_nil());
    }
}

#[tokio::test]
async fn a_planned_switch_leaves_old_connections_with_a_replica() {
    let pair = RedisPair::start().await;
    let mut stays = RedisConnection::open(pair.proxy().addr()).await.unwrap();
    stays.call(&["SET", "k", "v"]).await.unwrap();
    pair.switch().await;
    let refused = stays.call(&["SET", "k", "w"]).await.unwrap();
    assert!(refused.error().unwrap().starts_with("READONLY"));
    let mut fresh = RedisConnection::open(pair.proxy().addr()).await.unwrap();
    assert_eq!(fresh.call(&["GET", "k"]).await.unwrap().text(), "v");
    assert_eq!(fresh.call(&["SET", "k", "w"]).await.unwrap().text(), "OK");
}

#[tokio::test]
async fn a_cluster_elects_a_replica_when_a_primary_is_lost() {
    let cluster = PrivateRedis::start_cluster_with_replicas().await;
    cluster.cli("k", &["SET", "k", "v"]).await;
    cluster.caught_up("k").await;
    let old = cluster.fail_over("k", Loss::Hang).await;
    let new = cluster.node_of("k").await;
    assert_ne!(new.port(), old.port());
    assert_eq!(cluster.cli("k", &["GET", "k"]).await.text(), "v");
    assert_eq!(cluster.dump().await.0.len(), 1);
    old.resume();
    eventually_replica(old).await;
}

async fn eventually_replica(node: &PrivateRedis) {
    crate::eventually(START_DEADLINE, "it becomes a replica", async || match node
        .info("role")
        .await
        .as_deref()
    {
        Some("slave") => Ok(()),
        other => Err(format!("its role is {other:?}")),
    })
    .await;
}

#[tokio::test]
async fn a_moving_slot_is_answered_as_far_as_it_has_moved() {
    let cluster = PrivateRedis::start_cluster().await;
    let keys = ["{t}:1", "{t}:2"];
    for key in keys {
        cluster.cli(key, &["SET", key, "v"]).await;
    }
    let source = cluster.node_of("{t}").await;
    let both = async || {
        let reply = source.cli(&["MGET", keys[0], keys[1]]).await;
        reply.error().unwrap_or("served").to_owned()
    };
    let migration = cluster.migrate_slot_of("{t}").await;
    assert_eq!(both().await, "served");
    let some = migration.keys().await.into_iter().take(1);
    migration.move_keys(&some.collect::<Vec<_>>()).await;
    assert!(both().await.starts_with("TRYAGAIN"));
    migration.move_all().await;
    assert!(both().await.starts_with("ASK"));
    migration.finish().await;
    assert!(both().await.starts_with("MOVED"));
    let owner = cluster.node_of("{t}").await;
    assert_ne!(owner.port(), source.port());
    assert_eq!(owner.cli(&["GET", keys[1]]).await.text(), "v");
}
