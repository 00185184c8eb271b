//! The shortest runs that broke an earlier wording of the design, step by step (M1 to M12).
//!
//! Each is played twice: with every safeguard, where all must be well whatever the system does
//! afterwards, and without the one that closes it, where the named invariant must break.

use std::fmt::Write as _;
use std::time::Duration;

use seckill_state_machine::ReservationStatus;
use stateright::Model;

use crate::Safeguard as S;
use crate::search::{Budget, search};
use crate::whole::requantified;
use crate::{Action, Config, End, INVARIANTS, Protocol, Request, Safeguard, State};

/// One run.
pub struct Interleaving {
    /// The name of the run, as in the design's notes.
    pub id: &'static str,
    /// What happens.
    pub story: &'static str,
    /// The safeguard that closes it.
    pub closed_by: Safeguard,
    /// What is to be seen.
    pub verdict: Verdict,
    /// Requests and stock.
    pub config: fn() -> Config,
    /// The steps.
    pub steps: fn() -> Vec<Action>,
}

/// How right is told from wrong.
#[derive(Clone, Copy)]
pub enum Verdict {
    /// This invariant breaks in the run, or when the system is left alone afterwards.
    Invariant(&'static str),
    /// This must be so right after the run: nothing breaks for ever, but it takes longer.
    AtOnce(&'static str, fn(&Config, &State) -> bool),
}

/// What a run led to.
pub struct Play {
    /// The steps that were not possible, counted from 0: a guard was in their way.
    pub impossible: Vec<usize>,
    /// Whether the verdict is that all is well.
    pub is_right: bool,
    /// Invariants broken, in the run or afterwards.
    pub broken: Vec<&'static str>,
}

impl Interleaving {
    /// Plays the run, with or without the safeguard that closes it.
    #[must_use]
    pub fn play(&self, safe: bool) -> Play {
        let mut config = (self.config)();
        if !safe {
            config.without.insert(self.closed_by);
        }
        let model = Protocol::new(config.clone());
        let mut state = State::new(&config);
        let mut impossible = Vec::new();
        let mut broken = Vec::new();
        for (at, step) in (self.steps)().into_iter().enumerate() {
            let mut possible = Vec::new();
            model.actions(&state, &mut possible);
            match model.next_state(&state, step) {
                Some(next) if possible.contains(&step) => state = next,
                _ => impossible.push(at),
            }
            let breaks = INVARIANTS
                .iter()
                .filter(|(_, holds)| !holds(&model, &state));
            broken.extend(breaks.map(|(name, _)| *name));
        }
        let at_once = match self.verdict {
            Verdict::Invariant(_) => true,
            Verdict::AtOnce(_, holds) => holds(&config, &state),
        };
        let rest = search(Protocol::left_alone(config, state), &[], AFTERWARDS);
        broken.extend(rest.violations.iter().map(|(name, _)| *name));
        Play {
            impossible,
            is_right: at_once && broken.is_empty(),
            broken,
        }
    }

    /// The section of `docs/protocol-model.md`.
    #[must_use]
    pub fn section(&self) -> String {
        let config = (self.config)();
        let mut text = format!("### {}\n\n{}.\n\nGiven:", self.id, self.story);
        for (at, request) in config.requests.iter().enumerate() {
            let (user, bucket, quantity) = (request.user, request.bucket, request.quantity);
            let id = match request.same_id_as {
                Some(earlier) => format!(", the `request_id` of r{}", earlier + 1),
                None => String::new(),
            };
            let _ = write!(text, " r{} (u{user}, b{bucket}, {quantity}{id}),", at + 1);
        }
        let stock: Vec<String> = (config.stock.iter().enumerate())
            .map(|(bucket, units)| format!("b{bucket} has {units}"))
            .collect();
        let _ = write!(text, " {}.\n\n", stock.join(", "));
        let (with, without) = (self.play(true).impossible, self.play(false).impossible);
        for (at, step) in (self.steps)().into_iter().enumerate() {
            let remark = match (with.contains(&at), without.contains(&at)) {
                (false, false) => "",
                (true, _) => " (the safeguard does not let this happen)",
                (_, true) => " (the safeguard itself)",
            };
            let _ = writeln!(text, "{}. {step}{remark}", at + 1);
        }
        let verdict = match self.verdict {
            Verdict::Invariant(name) => format!("{name} breaks"),
            Verdict::AtOnce(words, _) => format!("it is not so that {words}"),
        };
        let _ = write!(text, "\nWithout `{:?}` {verdict}.\n", self.closed_by);
        text
    }
}

/// Left alone, a run of at most four requests has a few thousand states.
const AFTERWARDS: Budget = Budget {
    visits: 1_000_000,
    time: Duration::from_secs(60),
    report_every: None,
};

const fn call(request: u8) -> Action {
    Action::Call {
        request,
        reply_lost: false,
    }
}

const fn unanswered(request: u8) -> Action {
    Action::Call {
        request,
        reply_lost: true,
    }
}

const fn send(request: u8) -> Action {
    Action::Send {
        request,
        dies: false,
    }
}

const fn consume(request: u8, end: End) -> Action {
    Action::Consume { request, end }
}

const fn failover(to: usize) -> Action {
    Action::Failover { slot: 0, to }
}

/// A purchase from the call to the settled order.
const fn purchase(request: u8) -> [Action; 3] {
    [call(request), send(request), consume(request, End::Settles)]
}

/// A release from the hand-over to the closed task: fence, pending, compensate, close.
const fn release(request: u8) -> [Action; 6] {
    let work = Action::Work(0);
    [
        Action::HandOver(request),
        Action::Claim(request),
        work,
        work,
        work,
        work,
    ]
}

fn steps<const N: usize>(parts: [&[Action]; N]) -> Vec<Action> {
    parts.concat()
}

fn with_failover(requests: &[Request], stock: &[u8]) -> Config {
    Config {
        failovers: 1,
        calls: 2,
        ..Config::new(requests, stock)
    }
}

fn one() -> Config {
    with_failover(&[Request::one(0, 0)], &[1])
}

fn rivals() -> Config {
    with_failover(&[Request::one(0, 0), Request::one(1, 0)], &[1])
}

fn twice() -> Config {
    with_failover(&[Request::one(0, 0), Request::one(0, 0)], &[2])
}

/// Every run; where a note names two ways, both.
#[rustfmt::skip]
pub const INTERLEAVINGS: &[Interleaving] = &[
    Interleaving {
        id: "M1",
        story: "Two buckets share one stock row: r2 takes the unit that b0 forgot and is ordered with b1's, so that r1 can never be rebuilt and b1 shows a unit that is not there",
        closed_by: S::RowPerBucket,
        verdict: Verdict::Invariant("I5"),
        config: || with_failover(&[Request::one(0, 0), Request::one(1, 0)], &[1, 1]),
        steps: || steps([&purchase(0), &[failover(0)], &purchase(1)]),
    },
    Interleaving {
        id: "M2",
        story: "An order is cancelled and the worker dies: the decision still says ordered, and so does Redis",
        closed_by: S::OrderState,
        verdict: Verdict::Invariant("I5"),
        config: || Config { cancels: 1, ..one() },
        steps: || steps([&purchase(0), &[Action::Cancel(0), Action::Claim(0), Action::WorkerDies(0)]]),
    },
    Interleaving {
        id: "M2 by a failover",
        story: "A failover undoes the cancel script after its task was closed",
        closed_by: S::ReopenTask,
        verdict: Verdict::Invariant("I5"),
        config: || Config { cancels: 1, ..one() },
        steps: || steps([&purchase(0), &[Action::Cancel(0)], &release(0)[1..], &[failover(2)]]),
    },
    Interleaving {
        id: "M3",
        story: "A failover brings `RELEASE_PENDING` back after the task was closed",
        closed_by: S::ReopenTask,
        verdict: Verdict::Invariant("I5"),
        config: one,
        steps: || steps([&[unanswered(0)], &release(0), &[failover(2)]]),
    },
    Interleaving {
        id: "M3 by a repeat",
        story: "A failover forgets a released reservation and a repeat makes it again; its task is closed",
        closed_by: S::ReopenTask,
        verdict: Verdict::Invariant("I5"),
        config: one,
        steps: || steps([&[unanswered(0)], &release(0), &[failover(0), call(0)]]),
    },
    Interleaving {
        id: "M4",
        story: "A failover forgets an ordered reservation of one unit, and its `request_id` comes again with two",
        closed_by: S::QuantityInId,
        verdict: Verdict::Invariant("I5"),
        config: || Config { failovers: 1, ..requantified() },
        steps: || steps([&purchase(0), &[failover(0), call(1)]]),
    },
    Interleaving {
        id: "M5",
        story: "A failover forgets an ordered reservation, and its user asks again: the stock is deducted before the order is refused",
        closed_by: S::RefusedDeductsNothing,
        verdict: Verdict::Invariant("I5"),
        config: twice,
        steps: || steps([&purchase(0), &[failover(0)], &purchase(1)]),
    },
    Interleaving {
        id: "M6",
        story: "A rebuild takes a unit that was resold meanwhile",
        closed_by: S::GuardedRebuild,
        verdict: Verdict::Invariant("I3"),
        config: rivals,
        steps: || steps([&purchase(0), &[failover(0), call(1), Action::Reconcile(0)]]),
    },
    Interleaving {
        id: "M6 by an initialiser",
        story: "After a total loss a second operator initialises the bucket that the first has opened",
        closed_by: S::GuardedInitialise,
        verdict: Verdict::Invariant("I3"),
        config: || Config { losses: 1, ..one() },
        steps: || {
            let initialise = Action::Initialise(0);
            vec![Action::Lose(0), initialise, Action::Resume(0), call(0), initialise]
        },
    },
    Interleaving {
        id: "M7",
        story: "r1's message is stored, its reply is lost and Redis forgets it; r2 takes the unit, r1's repeat is told that all is sold, and then r1 gets the order",
        closed_by: S::RecoveryWindow,
        verdict: Verdict::Invariant("I9"),
        config: || Config { late_scanner: true, ..rivals() },
        steps: || steps([
            &[unanswered(0), Action::Scan(0), send(0), failover(0), call(1), call(0)],
            &[consume(0, End::Settles)],
        ]),
    },
    Interleaving {
        id: "M8",
        story: "A message is parked undecided and Redis forgets its reservation",
        closed_by: S::ParkOpensTask,
        verdict: Verdict::Invariant("I5"),
        config: || Config { parks: 1, ..one() },
        steps: || steps([&[call(0), send(0), Action::Park(0), failover(0)]]),
    },
    Interleaving {
        id: "M9",
        story: "A consumer commits and dies; the message comes again and is a duplicate",
        closed_by: S::DuplicatesSettle,
        verdict: Verdict::AtOnce("Redis says `ORDER_CREATED` once the duplicate is handled", |config, state| {
            state.status(config, 0) == Some(ReservationStatus::OrderCreated)
        }),
        config: one,
        steps: || steps([&[call(0), send(0), consume(0, End::Dies), consume(0, End::Settles)]]),
    },
    Interleaving {
        id: "M10",
        story: "A failover forgets a released reservation; after a clean replay its repeat takes the unit once more, and r2 is refused",
        closed_by: S::Tombstone,
        verdict: Verdict::Invariant("I4"),
        config: rivals,
        steps: || steps([
            &[unanswered(0)],
            &release(0),
            &[failover(0), Action::Reconcile(0), Action::CloseWindow(0), call(0), call(1)],
        ]),
    },
    Interleaving {
        id: "M11",
        story: "A rebuild leaves the user's marker at r2, which is then refused and released: the ordered user has no marker",
        closed_by: S::MarkerRepair,
        verdict: Verdict::Invariant("I5"),
        config: twice,
        steps: || steps([&purchase(0), &[failover(0), call(1), Action::Reconcile(0), send(1), consume(1, End::Settles)]]),
    },
    Interleaving {
        id: "M12",
        story: "Two units of three are taken and the next buyer wants two: the last unit is marked as sold",
        closed_by: S::SoldOutAtZero,
        verdict: Verdict::Invariant("S1"),
        config: || Config::new(&[Request::units(2, 0, 0), Request::units(2, 1, 0), Request::one(2, 0)], &[3]),
        steps: || steps([&[call(0), call(1), call(2)]]),
    },
];
