//! What happens after the planting, the same for all damage: it is found within two rounds and classed
//! right, what can be repaired is repaired, and a second run finds nothing.

use std::collections::{BTreeMap, BTreeSet};

use seckill_integration_tests::{Sale, Sandbox, Service};
use seckill_settlement::Class;
use seckill_test_support::{ServiceProcess, eventually};

use super::bench::ByHand;
use crate::{SOON, rounds};

/// From one round to the next. Rounds must be further apart than the grace, so that two are enough.
const INTERVAL_MS: u64 = 2_000;

/// What is on its way while nothing else runs: nothing.
const GRACE_MS: u64 = 700;

/// Who acts in the name of operators.
const BY: [&str; 4] = ["--actor", "op", "--reason", "planted"];

/// What was planted in one sale.
pub struct Planted {
    pub sale: Sale,
    /// So many things of each of these.
    pub classes: Vec<Class>,
    pub each: usize,
    /// What follows from that in the same bucket.
    pub consequences: Vec<Class>,
}

/// One difference: its class, its activity, its bucket, its reservation if it has one.
type Found = BTreeSet<[String; 4]>;

/// The loops whose ticks are rounds, and the kind that each puts on record.
const LOOPS: [&str; 3] = ["expiry", "totals", "retention"];

/// Starts a reconciler whose rounds are further apart than its grace. Its number tells its rounds from
/// those of others.
pub async fn reconciler(sandbox: &Sandbox, instance: u32) -> ServiceProcess {
    let service = sandbox
        .service(Service::Reconciler)
        .instance(instance)
        .env("SECKILL_RECONCILER_GRACE_MS", GRACE_MS)
        .env("SECKILL_RECONCILER_SCAN_PAUSE_MS", 1)
        .env("SECKILL_RECONCILER_RETENTION_MARGIN_MS", 1_800_000);
    let intervals = ["EXPIRY", "TOTALS", "HOLDERS", "RETENTION"];
    let service = intervals.iter().fold(service, |service, loop_name| {
        let name = format!("SECKILL_RECONCILER_{loop_name}_INTERVAL_MS");
        service.env(&name, INTERVAL_MS)
    });
    service.start().await
}

/// What a reconciler has put on record in its first two rounds of everything.
async fn two_rounds(sandbox: &Sandbox, process: &ServiceProcess) -> Found {
    let [expiry, totals, retention] = LOOPS.map(|name| async move {
        eventually(SOON, "two rounds", async || {
            match rounds(process, name).await? {
                0 | 1 => Err(format!("{name} has not had two rounds")),
                _ => Ok(()),
            }
        })
        .await;
        // The third round is an interval away.
        let query = format!("SELECT {FOUND} FROM discrepancy AS d WHERE run_kind = '{name}'");
        sandbox.database().texts(&query).await
    });
    let (expiry, totals, retention, sweep) =
        tokio::join!(expiry, totals, retention, two_passes(sandbox, process));
    let all = [expiry, totals, retention, sweep].concat();
    all.into_iter()
        .filter_map(|row| row.try_into().ok())
        .collect()
}

const FOUND: &str = "d.kind, d.activity_id, d.bucket_id::text, coalesce(d.reservation_id, '')";

/// Every pass of the sweep is on record, version by version, so that what was found can be told by the
/// pass that found it.
async fn two_passes(sandbox: &Sandbox, process: &ServiceProcess) -> Vec<Vec<String>> {
    let instance = process.name();
    let passes = format!(
        "SELECT coalesce(min(passes), 0) FROM (SELECT (SELECT count(*) FROM reconciliation_run AS r \
         WHERE r.kind = 'holders' AND r.instance = '{instance}' AND r.finished_at IS NOT NULL \
         AND (r.activity_id, r.sku_id, r.version) = (a.activity_id, a.sku_id, a.version)) AS passes \
         FROM activity AS a WHERE a.archived_at IS NULL) AS p"
    );
    eventually(SOON, "two passes", async || {
        match sandbox.database().number(&passes).await {
            0 | 1 => Err("not every version had two passes".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    let query = format!(
        "SELECT {FOUND} FROM discrepancy AS d JOIN reconciliation_run AS f \
         ON f.run_id = d.first_run_id WHERE d.run_kind = 'holders' AND 2 >= (SELECT count(*) \
         FROM reconciliation_run AS r WHERE r.kind = f.kind AND r.instance = f.instance \
         AND (r.activity_id, r.sku_id, r.version) = (f.activity_id, f.sku_id, f.version) \
         AND r.started_at <= f.started_at)"
    );
    sandbox.database().texts(&query).await
}

/// Starts the first reconciler and checks what its first two rounds put on record: all that was planted,
/// each by its name, and nothing but what follows from it.
pub async fn find(sandbox: &Sandbox, planted: &[Planted]) -> ServiceProcess {
    let process = reconciler(sandbox, 2).await;
    process.allow_errors("redis and postgresql differ");
    process.allow_errors("cannot be repaired without a person");
    let found = two_rounds(sandbox, &process).await;
    let mut by_sale: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for [class, activity, _, _] in &found {
        let counts = by_sale.entry(activity).or_default();
        *counts.entry(class).or_default() += 1;
    }
    for one in planted {
        let activity = one.sale.activity_id.as_str();
        let counts = by_sale.remove(activity).unwrap_or_default();
        let wanted: BTreeMap<&str, usize> = one
            .classes
            .iter()
            .map(|class| (class.word(), one.each))
            .collect();
        let follows = |word: &str| one.consequences.iter().any(|class| class.word() == word);
        for (word, count) in &wanted {
            assert_eq!(counts.get(word), Some(count), "{word}: {counts:?}");
        }
        for word in counts.keys().filter(|word| !wanted.contains_key(**word)) {
            assert!(follows(word), "{word} of {activity}: {counts:?}");
        }
    }
    assert!(by_sale.is_empty(), "in no damaged sale: {by_sale:?}");
    process
}

/// Awaits that nothing is open which the services repair by themselves.
pub async fn repaired(sandbox: &Sandbox, but: &str) {
    let query = format!(
        "SELECT DISTINCT kind FROM discrepancy WHERE resolved_at IS NULL \
         AND repairable = 'AUTOMATIC' AND NOT {but}"
    );
    eventually(SOON, "what repairs itself is repaired", async || {
        let open = sandbox.database().texts(&query).await.concat();
        if open.is_empty() {
            Ok(())
        } else {
            Err(format!("{open:?}"))
        }
    })
    .await;
}

/// Applies whatever has a repair; says how many of which class were repaired.
pub async fn apply(sandbox: &Sandbox) -> BTreeMap<String, usize> {
    let arguments = ["reconcile", "apply", "--all", "--limit", "10000"];
    let output = sandbox.ctl(&[&arguments[..], &BY].concat()).await;
    let report = output.json();
    let differences = report["differences"].as_array().cloned();
    let mut repaired = BTreeMap::new();
    for line in differences.unwrap_or_default() {
        match line["outcome"].as_str() {
            Some("repaired" | "on_its_way") => {
                let class = line["class"].as_str().unwrap_or_default();
                *repaired.entry(class.to_owned()).or_default() += 1;
            }
            Some("needs_person" | "already_gone") => {}
            other => panic!("{other:?}: {line}"),
        }
    }
    repaired
}

/// Applies a second time: nothing is left to be done, and nothing is.
pub async fn apply_again(sandbox: &Sandbox) {
    let dump = sandbox.dump().await;
    let actions = "SELECT count(*) FROM reconciliation_action";
    let before = sandbox.database().number(actions).await;
    assert_eq!(apply(sandbox).await, BTreeMap::new());
    assert_eq!(sandbox.database().number(actions).await, before);
    assert!(sandbox.dump().await == dump, "a second apply changed Redis");
}

/// Mends by hand what only a person can, and says so.
pub async fn mend(sandbox: &Sandbox, by_hand: ByHand) {
    by_hand.run(sandbox).await;
    let open = "SELECT discrepancy_id::text FROM discrepancy WHERE resolved_at IS NULL";
    let open = sandbox.database().texts(open).await.concat().join(",");
    let arguments = ["reconcile", "resolve", "--id", &open];
    sandbox.ctl_ok(&[&arguments[..], &BY].concat()).await;
}

/// A fresh reconciler, which knows nothing, finds nothing in two rounds of everything, and does nothing.
pub async fn find_nothing(sandbox: &Sandbox) {
    let newest = "SELECT max(discrepancy_id) FROM discrepancy";
    let before = sandbox.database().number(newest).await;
    let actions = "SELECT count(*) FROM reconciliation_action";
    let done = sandbox.database().number(actions).await;
    let process = reconciler(sandbox, 3).await;
    two_rounds(sandbox, &process).await;
    let new = format!(
        "SELECT {FOUND}, d.detail FROM discrepancy AS d \
         WHERE resolved_at IS NULL OR discrepancy_id > {before}"
    );
    let new = sandbox.database().texts(&new).await;
    assert!(new.is_empty(), "{new:#?}");
    assert_eq!(sandbox.database().number(actions).await, done);
    process.stop(SOON).await;
}
