//! `docs/state-machine.md` says what the code does: its tables are compared cell by cell.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use seckill_state_machine::{
    DecisionKind, OrderState, Replay, ReservationStatus, Verdict, replay, transition,
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

/// The facts that PostgreSQL can hold, in the order of the document's columns.
const FACTS: [(DecisionKind, Option<OrderState>); 4] = [
    (DecisionKind::Ordered, Some(OrderState::Active)),
    (DecisionKind::Ordered, Some(OrderState::Cancelled)),
    (DecisionKind::Rejected, None),
    (DecisionKind::Released, None),
];

#[test]
fn the_steps_of_replay_are_those_of_the_code() {
    let states: Vec<Option<ReservationStatus>> = std::iter::once(None)
        .chain(ReservationStatus::ALL.map(Some))
        .collect();
    let rows = table("replay");
    assert_eq!(rows.len(), states.len());
    for (row, redis) in rows.iter().zip(states) {
        assert_eq!(row[0], redis.map_or("nothing", ReservationStatus::as_str));
        assert_eq!(row.len(), 1 + FACTS.len());
        for (cell, (decision, order)) in row[1..].iter().zip(FACTS) {
            let step = replay(decision, order, redis);
            assert_eq!(cell, step.as_str(), "{redis:?} {decision}");
        }
    }
}

#[test]
fn every_step_of_replay_is_explained() {
    let explained: Vec<String> = table("steps")
        .into_iter()
        .map(|row| row[0].clone())
        .collect();
    let steps: Vec<&str> = Replay::ALL.into_iter().map(Replay::as_str).collect();
    assert_eq!(explained, steps);
}
