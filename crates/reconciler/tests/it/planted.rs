//! Planted damage: twenty of each kind, all found within two rounds and classed right, the repairable
//! ones repaired.

use std::collections::BTreeMap;

use seckill_integration_tests::{FrontClient, Plan, Sale, Sandbox, Service};
use seckill_test_support::{PrivateRedis, eventually};

use crate::{SOON, reconciler_with};

/// Of each kind.
const EACH: usize = 20;

/// What follows from other damage in the same bucket.
const CONSEQUENCES: [&str; 3] = ["holders_differ", "held_below_orders", "units_unaccounted"];

/// Later than any retention.
const FAR: &str = "4000000000000";

struct Bench<'a> {
    sandbox: &'a Sandbox,
    sale: Sale,
    bought: Vec<(String, String)>,
    next: usize,
    crafted: usize,
}

impl<'a> Bench<'a> {
    /// A sale of one bucket with so many settled purchases.
    async fn sold(sandbox: &'a Sandbox, client: &FrontClient, prefix: &str, count: usize) -> Self {
        let plan = Plan::new(1_000).term("patience-ms", 3_600_000);
        let sale = sandbox.open(&plan).await;
        let mut bought = Vec::new();
        for number in 0..count {
            let (user, request) = (format!("{prefix}-u{number}"), format!("{prefix}-q{number}"));
            let id = client.buy(&sale, &user, &request).await;
            bought.push((id, user));
        }
        Self {
            sandbox,
            sale,
            bought,
            next: 0,
            crafted: 0,
        }
    }

    fn redis(&self) -> &PrivateRedis {
        self.sandbox.redis()
    }

    fn key(&self, suffix: &str) -> String {
        self.sale.key(0, suffix)
    }

    fn resv(&self, id: &str) -> String {
        self.key(&format!("resv:{id}"))
    }

    /// The next purchases, each to be damaged once.
    fn take(&mut self) -> Vec<(String, String)> {
        let taken = self.bought[self.next..self.next + EACH].to_vec();
        self.next += EACH;
        taken
    }

    /// Moves units between the counters, as the writes that a failover takes back would have.
    async fn hold(&self, units: i64) {
        let stock = self.key("stock");
        let (up, down) = (units.to_string(), (-units).to_string());
        self.redis()
            .cli(&["HINCRBY", &stock, "reserved", &up])
            .await;
        self.redis()
            .cli(&["HINCRBY", &stock, "available", &down])
            .await;
    }

    async fn set(&self, id: &str, fields: &[&str]) {
        let key = self.resv(id);
        let mut command = vec!["HSET", key.as_str()];
        command.extend(fields);
        self.redis().cli(&command).await;
    }

    /// A record that no script wrote, copied from a purchase under another id.
    async fn craft(&mut self, status: &str, further: &[&str]) -> (String, String) {
        self.crafted += 1;
        let digits: String = format!("{:03}", self.crafted)
            .bytes()
            .map(|digit| char::from(b'a' + digit - b'0'))
            .collect();
        let (id, user) = (
            format!("{digits:y>26}"),
            format!("crafted-{}", self.crafted),
        );
        // The last purchase's own record is whole.
        let source = self.resv(&self.bought[self.bought.len() - 1].0);
        let target = self.resv(&id);
        self.redis().cli(&["COPY", &source, &target]).await;
        let (message, request) = (
            format!("reserve-order:{id}:v1"),
            format!("cq{}", self.crafted),
        );
        let mut fields = vec![
            "reservation_id",
            &id,
            "message_id",
            &message,
            "request_id",
            &request,
            "user_id",
            &user,
            "status",
            status,
            "order_id",
            "",
        ];
        fields.extend(further);
        self.set(&id, &fields).await;
        (id, user)
    }

    async fn mark(&self, user: &str, id: &str) {
        let key = self.key(&format!("user:{user}"));
        self.redis().cli(&["SET", &key, id, "PXAT", FAR]).await;
    }

    async fn unmark(&self, user: &str) {
        let key = self.key(&format!("user:{user}"));
        self.redis().cli(&["DEL", &key]).await;
    }

    async fn index(&self, index: &str, id: &str) {
        let key = self.key(index);
        self.redis().cli(&["ZADD", &key, FAR, id]).await;
        self.redis().cli(&["PEXPIREAT", &key, FAR]).await;
    }

    async fn cache(&self, request: &str, packed: &str) {
        let shard = fnv1a_32(request.as_bytes()) % 256;
        let key = self.key(&format!("req:{shard:03}"));
        self.redis().cli(&["HSET", &key, request, packed]).await;
    }
}

/// The contract's hash, by its definition and not by the code under test.
fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// Damage to reservations that PostgreSQL holds as orders.
async fn damage_orders(bench: &mut Bench<'_>) -> Vec<&'static str> {
    for (id, user) in bench.take() {
        bench.redis().cli(&["DEL", &bench.resv(&id)]).await;
        bench.unmark(&user).await;
        bench.hold(-1).await;
    }
    for (id, _) in bench.take() {
        bench
            .set(&id, &["status", "ENQUEUED", "order_id", ""])
            .await;
        bench.index("reservation_expiry", &id).await;
    }
    for (_, user) in bench.take() {
        bench.unmark(&user).await;
    }
    for (_, user) in bench.take() {
        bench.mark(&user, &"z".repeat(26)).await;
    }
    for (id, user) in bench.take() {
        bench.set(&id, &["status", "RELEASED"]).await;
        bench.unmark(&user).await;
        bench.hold(-1).await;
    }
    for (id, _) in bench.take() {
        bench.set(&id, &["request_id", "of-somebody-else"]).await;
    }
    for (id, _) in bench.take() {
        bench.index("reservation_expiry", &id).await;
    }
    for (id, _) in bench.take() {
        bench.redis().cli(&["PERSIST", &bench.resv(&id)]).await;
    }
    for (id, _) in bench.take() {
        bench.set(&id, &["quantity", "many"]).await;
    }
    for (_, user) in bench.take() {
        let request = user.replace("-u", "-q");
        bench.cache(&request, "gibberish").await;
    }
    for (_, user) in bench.take() {
        let request = user.replace("-u", "-q");
        let packed = format!("0|{}|0|QUEUED|{user}|1", "z".repeat(26));
        bench.cache(&request, &packed).await;
    }
    vec![
        "reservation_missing",
        "not_settled",
        "marker_missing",
        "marker_elsewhere",
        "released_in_redis_only",
        "identity_differs",
        "index_left_over",
        "key_without_expiry",
        "unreadable",
        "cached_result_unreadable",
        "cached_result_differs",
    ]
}

/// Things in Redis that PostgreSQL has never heard of.
async fn plant_strangers(bench: &mut Bench<'_>) -> Vec<&'static str> {
    for (number, letter) in (0..EACH).zip('a'..) {
        bench.craft("RELEASED", &[]).await;
        let (id, user) = bench.craft("ORDER_CREATED", &["order_id", "nobodys"]).await;
        bench.mark(&user, &id).await;
        bench.hold(1).await;
        let (id, user) = bench.craft("ENQUEUED", &[]).await;
        bench.mark(&user, &id).await;
        bench.hold(1).await;
        let (id, user) = bench.craft("RESERVED", &[]).await;
        bench.mark(&user, &id).await;
        bench.index("reservation_expiry", &id).await;
        bench.hold(1).await;
        bench.craft("RELEASED", &["sku_id", "another"]).await;
        let digits = letter.to_string();
        bench
            .mark(&format!("stray-{number}"), &digits.repeat(26))
            .await;
        bench.index("send_pending", &format!("{digits:x>26}")).await;
    }
    vec![
        "released_without_decision",
        "ordered_without_order",
        "not_in_expiry_index",
        "not_in_send_pending",
        "foreign_scope",
        "marker_stray",
        "index_stray",
    ]
}

/// Reservations that PostgreSQL has rejected and Redis has released, each damaged in one way.
async fn damage_ended(bench: &mut Bench<'_>) -> Vec<&'static str> {
    for (id, _) in bench.take() {
        bench.redis().cli(&["DEL", &bench.resv(&id)]).await;
    }
    for (id, user) in bench.take() {
        bench.set(&id, &["status", "RELEASE_PENDING"]).await;
        bench.mark(&user, &id).await;
        bench.index("reservation_expiry", &id).await;
        bench.hold(1).await;
    }
    for (id, user) in bench.take() {
        bench
            .set(&id, &["status", "ORDER_CREATED", "order_id", "nobodys"])
            .await;
        bench.mark(&user, &id).await;
        bench.hold(1).await;
    }
    vec!["tombstone_missing", "not_released", "contradiction"]
}

/// Damage to whole buckets, one sale of twenty buckets for each kind.
async fn damage_buckets(sandbox: &Sandbox) -> Vec<(&'static str, Sale)> {
    let redis = sandbox.redis();
    let mut planted = Vec::new();
    for kind in [
        "stock_missing",
        "meta_missing",
        "meta_differs",
        "state_differs",
        "initial_differs",
        "redis_not_conserved",
        "soldout_stale",
        "foreign_key",
    ] {
        let sale = sandbox.open(&Plan::new(100).buckets(20)).await;
        for bucket in 0..20 {
            let key = |suffix: &str| sale.key(bucket, suffix);
            let (stock, meta) = (key("stock"), key("meta"));
            match kind {
                "stock_missing" => drop(redis.cli(&["DEL", &stock]).await),
                "meta_missing" => drop(redis.cli(&["DEL", &meta]).await),
                "meta_differs" => {
                    redis.cli(&["HSET", &meta, "reservation_ttl_ms", "7"]).await;
                }
                "state_differs" => drop(redis.cli(&["HSET", &meta, "state", "PAUSED"]).await),
                "initial_differs" => {
                    redis.cli(&["HINCRBY", &stock, "initial", "1"]).await;
                    redis.cli(&["HINCRBY", &stock, "available", "1"]).await;
                }
                "redis_not_conserved" => {
                    redis.cli(&["HINCRBY", &stock, "available", "1"]).await;
                }
                "soldout_stale" => {
                    redis.cli(&["SET", &key("soldout"), "1", "PXAT", FAR]).await;
                }
                _ => drop(redis.cli(&["SET", &key("spare"), "1", "PXAT", FAR]).await),
            }
        }
        planted.push((kind, sale));
    }
    planted
}

/// How many things each class was put on record for, by now or before.
async fn classed(sandbox: &Sandbox, sale: &Sale) -> BTreeMap<String, usize> {
    let query = format!(
        "SELECT kind, count(DISTINCT (bucket_id, reservation_id))::text FROM discrepancy \
         WHERE {} GROUP BY kind",
        sale.sql()
    );
    let rows = sandbox.database().texts(&query).await;
    rows.into_iter()
        .map(|row| (row[0].clone(), row[1].parse().unwrap_or_default()))
        .collect()
}

async fn all_are_found(sandbox: &Sandbox, sale: &Sale, kinds: &[&str]) {
    let mut wanted: BTreeMap<&str, usize> = BTreeMap::new();
    for kind in kinds {
        *wanted.entry(kind).or_default() += EACH;
    }
    eventually(SOON, "all planted damage is found", async || {
        let found = classed(sandbox, sale).await;
        let short = wanted
            .iter()
            .filter(|(kind, count)| found.get(**kind).copied().unwrap_or_default() < **count);
        match short.count() {
            0 => Ok(()),
            _ => Err(format!("{found:?}")),
        }
    })
    .await;
    let found = classed(sandbox, sale).await;
    for (kind, count) in &found {
        let expected = wanted.get(kind.as_str()).copied();
        assert!(
            expected == Some(*count) || CONSEQUENCES.contains(&kind.as_str()),
            "{kind}: {count} instead of {expected:?}; {found:?}"
        );
    }
}

/// Goal: acceptance 3, for what concerns single reservations. Method: three benches of purchases, each
/// purchase damaged in one way, behind services that have stopped; the reconciler alone repairs.
#[tokio::test(flavor = "multi_thread")]
async fn damage_to_reservations_is_found_classed_and_repaired() {
    let sandbox = Sandbox::start().await;
    // No reconciler: it would find the damage while it is being done.
    let (front, scanner, consumer, worker) = tokio::join!(
        sandbox.run(Service::Front),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation),
    );
    let client = sandbox.client(&front);
    let mut orders = Bench::sold(&sandbox, &client, "a", 11 * EACH).await;
    sandbox.settle(SOON).await;
    let mut ended = Bench::sold(&sandbox, &client, "e", 0).await;
    let (sale, all) = (ended.sale.sql(), 3 * EACH);
    let database = sandbox.database();
    let none = format!("UPDATE activity_stock SET total = 0, available = 0 WHERE {sale}");
    database.execute(&none).await;
    for number in 0..all {
        let (user, request) = (format!("e-u{number}"), format!("e-q{number}"));
        let id = client.buy(&ended.sale, &user, &request).await;
        ended.bought.push((id, user));
    }
    sandbox.settle(SOON).await;
    let back = format!("UPDATE activity_stock SET total = 1000, available = 1000 WHERE {sale}");
    database.execute(&back).await;
    for service in [front, scanner, consumer, worker] {
        service.stop(SOON).await;
    }

    let mut kinds = damage_orders(&mut orders).await;
    kinds.extend(plant_strangers(&mut orders).await);
    let ends = damage_ended(&mut ended).await;
    let process = reconciler_with(&sandbox, 3_000).await;
    process.allow_errors("redis and postgresql differ");
    process.allow_errors("cannot be repaired without a person");
    let worker = sandbox.run(Service::Compensation).await;
    worker.allow_errors("redis and postgresql differ");
    all_are_found(&sandbox, &orders.sale, &kinds).await;
    all_are_found(&sandbox, &ended.sale, &ends).await;
    for kind in [
        "reservation_missing",
        "not_settled",
        "marker_missing",
        "marker_elsewhere",
        "index_left_over",
        "key_without_expiry",
        "not_in_send_pending",
        "tombstone_missing",
        "not_released",
    ] {
        gone(&sandbox, kind).await;
    }
    let unrecorded = "SELECT count(*) FROM discrepancy AS d WHERE repairable = 'AUTOMATIC' \
                      AND kind IN ('reservation_missing', 'tombstone_missing', 'marker_missing') \
                      AND reservation_id IS NOT NULL AND NOT EXISTS (SELECT FROM \
                      reconciliation_action AS a WHERE a.discrepancy_id = d.discrepancy_id \
                      AND a.actor = 'reconciler')";
    assert_eq!(database.number(unrecorded).await, 0);
    for service in [worker, process] {
        service.stop(SOON).await;
    }
}

/// Goal: acceptance 3, for what concerns whole buckets.
#[tokio::test(flavor = "multi_thread")]
async fn damage_to_buckets_is_found_classed_and_a_lost_state_replayed() {
    let sandbox = Sandbox::start().await;
    let planted = damage_buckets(&sandbox).await;
    let process = reconciler_with(&sandbox, 1_500).await;
    process.allow_errors("redis and postgresql differ");
    for (kind, sale) in &planted {
        all_are_found(&sandbox, sale, &[kind]).await;
    }
    gone(&sandbox, "state_differs").await;
    process.stop(SOON).await;
}

/// Awaits that nothing of a class is open.
async fn gone(sandbox: &Sandbox, kind: &str) {
    let query =
        format!("SELECT count(*) FROM discrepancy WHERE resolved_at IS NULL AND kind = '{kind}'");
    eventually(SOON, kind, async || {
        match sandbox.database().number(&query).await {
            0 => Ok(()),
            open => Err(format!("{open} open")),
        }
    })
    .await;
}
