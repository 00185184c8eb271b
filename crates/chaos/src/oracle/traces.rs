//! I11: every record of a purchase carries the trace that its buyer began.

use std::collections::BTreeMap;

use super::records::Records;
use crate::load::{Purchase, trace_id};

pub(super) fn torn(purchases: &[Purchase], records: &Records) -> Vec<String> {
    // Reservation ids are derived, so that one purchase has one however often it was decided.
    let begun = purchases
        .iter()
        .filter_map(|purchase| Some((purchase.reservation()?, purchase.trace_id())));
    let begun: BTreeMap<&str, &str> = begun.collect();
    let in_redis = records.reservations.iter().filter_map(|(id, fields)| {
        let traceparent = fields.get("traceparent")?;
        Some((id.as_str(), traceparent.as_str(), "redis"))
    });
    let decisions = records.decisions.iter();
    let decided = decisions.map(|(id, one)| (id.as_str(), one.traceparent.as_str(), "decision"));
    let events = records.event_traces.iter();
    let told = events.map(|[id, traceparent]| (id.as_str(), traceparent.as_str(), "event"));
    let mut torn = Vec::new();
    for (id, traceparent, place) in in_redis.chain(decided).chain(told) {
        let found = trace_id(traceparent);
        if let Some(wanted) = begun.get(id)
            && *wanted != found
        {
            torn.push(format!(
                "I11 {id} began trace {wanted}, its {place} is of {found:?}"
            ));
        }
    }
    torn
}
