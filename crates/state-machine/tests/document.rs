//! `docs/state-machine.md` says what the code does: its tables are compared cell by cell.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use seckill_state_machine::{
    DecisionKind, OrderState, ReservationStatus, Settlement, Verdict, settlement, transition,
};

const DOCUMENT: &str = include_str!("../../../docs/state-machine.md");

/// The rows of the table that follows a marker, without its two heading lines.
fn table(name: &str) -> Vec<Vec<String>> {
    let marker = format!("<!-- table: {name} -->\n");
    let (_, rest) = DOCUMENT
        .split_once(&marker)
        .expect("the marker is in the document");
    rest.lines()
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().replace('`', ""))
                .collect()
        })
        .collect()
}

#[test]
fn the_states_are_those_of_the_code() {
    let yes_no = |yes: bool| if yes { "yes" } else { "no" };
    let rows = table("states");
    assert_eq!(rows.len(), ReservationStatus::ALL.len());
    for (row, status) in rows.iter().zip(ReservationStatus::ALL) {
        assert_eq!(row[0], status.as_str());
        assert_eq!(row[1], yes_no(status.holds_units()), "{status}");
        assert_eq!(row[2], yes_no(status.is_settled()), "{status}");
    }
}

#[test]
fn the_transitions_are_those_of_the_code() {
    let rows = table("transitions");
    for from in ReservationStatus::ALL {
        let documented = rows.iter().find(|row| row[0] == from.as_str());
        let words: Vec<&str> = documented
            .map(|row| row[1].split_whitespace().collect())
            .unwrap_or_default();
        let coded: Vec<&str> = ReservationStatus::ALL
            .into_iter()
            .filter(|to| *to != from && transition(from, *to) == Verdict::Update)
            .map(ReservationStatus::as_str)
            .collect();
        assert_eq!(words, coded, "{from}");
    }
}

#[test]
fn the_settlements_are_those_of_the_code() {
    let facts = [
        (DecisionKind::Ordered, Some(OrderState::Active)),
        (DecisionKind::Ordered, Some(OrderState::Cancelled)),
        (DecisionKind::Rejected, None),
        (DecisionKind::Released, None),
    ];
    let words = |step: Settlement| match step {
        Settlement::Agreed => "agreed",
        Settlement::MarkOrdered => "mark ordered",
        Settlement::MarkRejected => "mark rejected",
        Settlement::Release => "release",
        Settlement::Cancel => "cancel",
        Settlement::Contradiction => "contradiction",
    };
    let rows = table("settlement");
    assert_eq!(rows.len(), ReservationStatus::ALL.len());
    for (row, status) in rows.iter().zip(ReservationStatus::ALL) {
        assert_eq!(row[0], status.as_str());
        for (cell, (decision, order)) in row[1..].iter().zip(facts) {
            assert_eq!(
                cell,
                words(settlement(decision, order, status)),
                "{status} {decision}"
            );
        }
    }
}
