//! I8: what the broker has confirmed was decided or parked, and not only read.

use std::collections::BTreeSet;

use super::records::Records;

pub(super) fn forgotten(confirmed: &BTreeSet<String>, records: &Records) -> Vec<String> {
    let parked: BTreeSet<&str> = records
        .parked
        .iter()
        .flat_map(|[reservation, message]| [reservation.as_str(), message.as_str()])
        .collect();
    let forgotten = confirmed.iter().filter(|id| {
        let message = format!("reserve-order:{id}:v1");
        !records.decisions.contains_key(*id)
            && !parked.contains(id.as_str())
            && !parked.contains(message.as_str())
    });
    forgotten
        .map(|id| format!("I8 the order request of {id} was taken by the broker and never decided"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_was_read_without_effect_is_seen() {
        let confirmed = BTreeSet::from(["r1".to_owned(), "r2".to_owned()]);
        let mut records = Records::default();
        assert_eq!(forgotten(&confirmed, &records).len(), 2);
        records
            .parked
            .push([String::new(), "reserve-order:r1:v1".to_owned()]);
        assert_eq!(forgotten(&confirmed, &records).len(), 1);
    }
}
