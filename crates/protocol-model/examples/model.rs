//! `make model`: every search, with what it found. `MODEL_MINUTES` (10) is the time for the large ones,
//! `MODEL_VISITS` (40 million, some 8 GB) what one of them may visit. With `tables` as its argument it
//! prints the generated parts of `docs/protocol-model.md`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use seckill_protocol_model::{
    Budget, INTERLEAVINGS, INVARIANTS, Outcome, Protocol, REMOVALS, Removal, Whole,
    can_always_settle, invariants, large, search, small,
};

/// What the small searches may take: they end well before.
const SMALL: Budget = Budget {
    visits: 20_000_000,
    time: Duration::from_secs(600),
    report_every: None,
};
/// States of the walks that keep the graph.
const WALK_STATES_MAX: usize = 1_000_000;
const REPORT_EVERY: Duration = Duration::from_secs(10);

fn setting(name: &str, default: u32) -> u32 {
    match std::env::var(name) {
        Err(_) => default,
        Ok(text) => text.parse().unwrap_or_else(|_| {
            eprintln!("{name} is not a number: {default} is taken");
            default
        }),
    }
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("tables") {
        print_tables();
        return ExitCode::SUCCESS;
    }
    let minutes = Duration::from_secs(60) * setting("MODEL_MINUTES", 10);
    let visits = setting("MODEL_VISITS", 40_000_000);
    let names: Vec<&str> = INVARIANTS.iter().map(|(name, _)| *name).collect();
    println!("properties: {}", names.join("; "));

    println!("\nevery safeguard in place, small searches");
    let mut bad: usize = small().iter().map(|whole| judge(whole, SMALL)).sum();

    println!("\nI5 as an eventual property: every state can settle");
    bad += small().into_iter().map(walk).sum::<usize>();

    println!("\nsafeguard removed, violation found");
    bad += REMOVALS.iter().map(remove).sum::<usize>();

    println!("\ninterleavings");
    for run in INTERLEAVINGS {
        let ok = run.play(true).is_right && !run.play(false).is_right;
        println!("  {:<22} {}", run.id, verdict(ok));
        bad += usize::from(!ok);
    }

    println!("\nevery safeguard in place, large searches within {minutes:?}");
    let deadline = Instant::now() + minutes;
    let searches = large();
    for (at, whole) in searches.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let others = u32::try_from(searches.len() - at).unwrap_or(1);
        let budget = Budget {
            visits: visits as usize,
            time: left / others,
            report_every: Some(REPORT_EVERY),
        };
        bad += judge(whole, budget);
    }
    println!("\n{bad} unexpected");
    ExitCode::from(u8::from(bad > 0))
}

fn verdict(ok: bool) -> &'static str {
    if ok { "as it should be" } else { "WRONG" }
}

/// Prints one search with every safeguard; answers how many violations it found.
fn judge(whole: &Whole, budget: Budget) -> usize {
    let model = Protocol::new(whole.config.clone());
    let outcome = search(model, &invariants(""), budget);
    let Outcome {
        states,
        depth,
        wall,
        ..
    } = outcome;
    let extent = match (outcome.whole, outcome.violations.is_empty()) {
        (true, _) => "whole",
        (false, true) => "cut off by the budget, nothing found",
        (false, false) => "VIOLATION",
    };
    let wall = wall.as_secs_f64();
    println!(
        "  {:<66} {states:>10} states, depth {depth:>3}, {wall:>6.1} s, {extent}",
        whole.name
    );
    for (name, path) in &outcome.violations {
        println!("    {name} breaks:");
        path.iter().for_each(|step| println!("      {step}"));
    }
    outcome.violations.len()
}

fn walk(whole: Whole) -> usize {
    let reach = can_always_settle(&Protocol::new(whole.config), WALK_STATES_MAX);
    let found = match reach.whole {
        true => format!("{} states, {} stuck", reach.states, reach.stuck),
        false => "too large to keep".to_owned(),
    };
    println!("  {:<66} {found}", whole.name);
    if reach.whole { reach.stuck } else { 0 }
}

/// Prints one row of the table; answers 1 if the search did not find what it should.
fn remove(removal: &Removal) -> usize {
    let model = Protocol::new((removal.config)().without(&removal.without()));
    let outcome = search(model, &invariants(removal.breaks), SMALL);
    let found = outcome
        .violations
        .iter()
        .find(|(name, _)| name.starts_with(removal.breaks));
    let without: Vec<String> = removal.without().iter().map(|s| format!("{s:?}")).collect();
    let what = match found {
        Some((name, _)) => format!("{name}: {}", removal.story),
        None => "NOT FOUND".to_owned(),
    };
    println!("  {:<34} {what}", without.join(" and "));
    usize::from(found.is_none())
}

fn print_tables() {
    for removal in REMOVALS {
        println!("{}", removal.row());
    }
    for run in INTERLEAVINGS {
        println!("\n{}", run.section().trim_end());
    }
}
