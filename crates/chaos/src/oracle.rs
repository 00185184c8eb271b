//! What must hold when all has settled, by queries of this crate's own and by what the buyers were
//! told. None of the product's code judges itself here; its own audit is asked afterwards, and must
//! come to the same verdict.

mod buyers;
mod keys;
mod logs;
mod messages;
pub(crate) mod queries;
mod records;
mod stock;
mod traces;

use std::collections::BTreeMap;

use seckill_integration_tests::checks;
use serde::Serialize;

use crate::installation::Installation;
use crate::load::Load;
use crate::recorder::Recorder;
use crate::replicas::Replicas;

pub(crate) use records::Records;

/// What kind of wrong a violation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wrong {
    /// I1: more units in active orders than there are.
    Oversold,
    /// I5: an acceptance without an end, though a trace of it is left or no failover took it.
    Lost,
    /// I2, I4, I7: two of what there may be one of.
    Duplicated,
    /// I5: work that was not done within the bound.
    Stuck,
    /// Any other broken rule.
    Broken,
}

/// Every violation, by kind.
pub(crate) type Violations = BTreeMap<Wrong, Vec<String>>;

/// What the checks need.
pub(crate) struct Evidence<'a> {
    pub(crate) installation: &'a Installation,
    pub(crate) load: &'a Load,
    pub(crate) recorder: &'a Recorder,
    pub(crate) replicas: &'a Replicas,
    pub(crate) records: &'a Records,
}

/// All checks.
pub(crate) async fn judge(evidence: &Evidence<'_>) -> anyhow::Result<Violations> {
    let mut found = Violations::new();
    let mut add = |wrong: Wrong, texts: Vec<String>| {
        if !texts.is_empty() {
            found.entry(wrong).or_default().extend(texts);
        }
    };
    let records = evidence.records;
    let purchases = evidence.load.ledger().all();
    let failovers = evidence.installation.redis.failovers();
    add(
        Wrong::Oversold,
        stock::oversold(records, &evidence.load.all_offers()),
    );
    add(Wrong::Duplicated, stock::duplicated(records));
    add(Wrong::Broken, stock::differences(records));
    for (wrong, text) in buyers::judge(&purchases, records, &failovers) {
        add(wrong, vec![text]);
    }
    add(Wrong::Broken, keys::without_expiry(&records.dump));
    add(
        Wrong::Broken,
        messages::forgotten(&evidence.recorder.confirmed(), records),
    );
    add(Wrong::Broken, traces::torn(&purchases, records));
    add(Wrong::Broken, logs::leaks(evidence.replicas));
    // The rules that every end-to-end test asserts, too.
    add(Wrong::Broken, checks::redis_violations(&records.dump));
    let database = evidence.installation.database();
    add(Wrong::Broken, checks::postgres_violations(database).await);
    add(
        Wrong::Broken,
        checks::differences(&records.dump, database).await,
    );
    Ok(found)
}

/// What the product's own audit says, sale by sale; nothing when it finds nothing.
pub(crate) async fn audit(evidence: &Evidence<'_>) -> Vec<String> {
    let mut complaints = Vec::new();
    for offer in evidence.load.all_offers() {
        let version = offer.sale.version.to_string();
        let mut arguments = vec!["audit", "--require-settled"];
        arguments.extend(["--activity-id", &offer.sale.activity_id]);
        arguments.extend(["--sku-id", &offer.sale.sku_id]);
        arguments.extend(["--activity-version", &version]);
        let (code, output) = evidence.installation.try_ctl(&arguments).await;
        if code != Some(0) {
            let sale = &offer.sale;
            complaints.push(format!("{}/{version}: {code:?} {output}", sale.activity_id));
        }
    }
    complaints
}
