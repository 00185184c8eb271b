//! What a random sequence is made of: calls, and damage to what they depend on in between.

use proptest::prelude::*;
use proptest::sample::select;
use seckill_lua_scripts::Recovery;
use seckill_state_machine::{ActivityState, ReservationStatus};

use super::damage::{Damage, Place, any_place, fault};

/// A reservation, resolved against the state when its turn comes.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    Existing(usize),
    /// One that exists in this state, or in any where there is none.
    Standing(ReservationStatus, usize),
    Pool(usize),
}

/// A reservation as PostgreSQL knows it: a buyer's, with the id that belongs to it or another one.
#[derive(Debug, Clone)]
pub struct Known {
    pub user: usize,
    pub request: usize,
    pub id: Option<Target>,
    pub units: u32,
    pub order: u8,
    pub traced: bool,
    pub reserved_at: i64,
}

/// One step of a sequence.
#[derive(Debug, Clone)]
pub enum Op {
    Reserve {
        user: usize,
        request: usize,
        own_id: bool,
        target: Target,
        units: u32,
        max: u32,
        ttl: i64,
        grace: i64,
        room: u32,
        traced: bool,
        repeat: bool,
        window: bool,
        at: i64,
    },
    Compensate {
        target: Target,
        owner: bool,
        user: usize,
        waiting: Option<Known>,
        at: i64,
    },
    Cancel {
        target: Target,
        owner: bool,
        user: usize,
        order: u8,
        waiting: Option<Known>,
        at: i64,
    },
    Rebuild {
        known: Known,
        at: i64,
    },
    Tombstone {
        known: Known,
        cancelled: bool,
        at: i64,
    },
    RepairMarker {
        target: Target,
        owner: bool,
        user: usize,
        /// What the caller read: the truth, nothing, or something else.
        read: u8,
        at: i64,
    },
    Transition {
        target: Target,
        to: ReservationStatus,
        retry: Option<i64>,
        message: u8,
        order: u8,
        error: bool,
        at: i64,
    },
    Claim {
        target: Target,
        current: bool,
        lease: i64,
    },
    Preheat {
        stock: u64,
        at: i64,
    },
    Initialise {
        stock: u64,
        held: Option<u64>,
        at: i64,
    },
    SetState(ActivityState),
    SetRecovery(Recovery, Option<Recovery>),
    Extend {
        places: Vec<Place>,
        until: i64,
        at: i64,
    },
    Fault(Place, Damage),
}

pub fn buyer(index: usize) -> &'static str {
    ["u0", "u1", "u2"][index]
}

pub fn request_name(index: usize) -> &'static str {
    ["q0", "q1", "q2", "q3"][index]
}

pub fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        9 => (0_usize..12).prop_map(Target::Existing),
        1 => (0_usize..12).prop_map(Target::Pool),
    ]
}

/// One that mostly stands where the call needs it.
fn standing(status: ReservationStatus) -> impl Strategy<Value = Target> {
    prop_oneof![
        3 => (0_usize..12).prop_map(move |index| Target::Standing(status, index)),
        1 => target(),
    ]
}

/// Instants around both ends of the sale and near the retention.
fn instant() -> impl Strategy<Value = i64> {
    prop_oneof![
        12 => Just(5_000_i64),
        4 => select(vec![-1, 0, 1, 9_999, 10_000, 10_001]),
        2 => select(vec![49_999, 50_000, 89_999, 90_000, 99_999, 100_000]),
    ]
}

fn reserve() -> impl Strategy<Value = Op> {
    let who = (0_usize..3, requests(), prop::bool::weighted(0.85), target());
    let amounts = (
        prop_oneof![6 => Just(1_u32), 1 => Just(2), 1 => Just(3)],
        prop_oneof![1 => Just(1_u32), 5 => Just(3)],
        prop_oneof![8 => Just(10_000_i64), 2 => select(vec![-1, 0, 1, 90_000, 94_999, 95_000])],
        prop_oneof![8 => Just(2_000_i64), 1 => select(vec![-1, 0])],
        prop_oneof![4 => Just(4_096_u32), 1 => Just(0), 1 => Just(1)],
    );
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.1));
    (who, amounts, flags, instant()).prop_map(|(who, amounts, flags, at)| Op::Reserve {
        user: who.0,
        request: who.1,
        own_id: who.2,
        target: who.3,
        units: amounts.0,
        max: amounts.1,
        ttl: amounts.2,
        grace: amounts.3,
        room: amounts.4,
        traced: flags.0,
        repeat: flags.1,
        window: flags.2,
        at,
    })
}

/// Every state, and more often those that lead on.
fn steps_to() -> impl Strategy<Value = ReservationStatus> {
    prop_oneof![
        3 => select(ReservationStatus::ALL.to_vec()),
        1 => Just(ReservationStatus::SendUnknown),
        2 => Just(ReservationStatus::Enqueued),
        2 => Just(ReservationStatus::OrderCreated),
        2 => Just(ReservationStatus::ReleasePending),
    ]
}

fn step() -> impl Strategy<Value = Op> {
    let retry = prop_oneof![4 => Just(Some(77_i64)), 1 => Just(None), 1 => Just(Some(0))];
    let ids = (
        prop_oneof![4 => Just(1_u8), 2 => Just(0), 1 => Just(2)],
        prop_oneof![4 => orders(), 1 => Just(0_u8)],
    );
    (target(), steps_to(), retry, ids, any::<bool>(), instant()).prop_map(
        |(target, to, retry, ids, error, at)| Op::Transition {
            target,
            to,
            retry,
            message: ids.0,
            order: ids.1,
            error,
            at,
        },
    )
}

/// Mostly the first request, so that calls meet each other's reservations.
fn requests() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(0_usize), 1 => 0_usize..4]
}

/// Mostly the first order, for the same reason.
fn orders() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(1_u8), 1 => Just(2)]
}

fn known() -> impl Strategy<Value = Known> {
    let id = prop_oneof![9 => Just(None), 1 => target().prop_map(Some)];
    let units = prop_oneof![5 => Just(1_u32), 2 => Just(2), 1 => Just(4)];
    let at = prop_oneof![9 => Just(4_000_i64), 1 => Just(i64::MIN)];
    (
        0_usize..3,
        0_usize..4,
        id,
        units,
        1_u8..3,
        any::<bool>(),
        at,
    )
        .prop_map(
            |(user, request, id, units, order, traced, reserved_at)| Known {
                user,
                request,
                id,
                units,
                order,
                traced,
                reserved_at,
            },
        )
}

fn waiting() -> impl Strategy<Value = Option<Known>> {
    prop::option::weighted(0.6, known())
}

fn recovery() -> impl Strategy<Value = Recovery> {
    select(vec![Recovery::None, Recovery::Window, Recovery::Rebuild])
}

fn operation() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => reserve(),
        6 => step(),
        4 => (standing(ReservationStatus::ReleasePending), prop::bool::weighted(0.8), 0_usize..3,
              waiting(), instant())
            .prop_map(|(target, owner, user, waiting, at)| {
                Op::Compensate { target, owner, user, waiting, at }
            }),
        3 => (standing(ReservationStatus::OrderCreated), prop::bool::weighted(0.8), 0_usize..3,
              orders(), waiting(), instant())
            .prop_map(|(target, owner, user, order, waiting, at)| {
                Op::Cancel { target, owner, user, order, waiting, at }
            }),
        4 => (known(), instant()).prop_map(|(known, at)| Op::Rebuild { known, at }),
        3 => (known(), any::<bool>(), instant())
            .prop_map(|(known, cancelled, at)| Op::Tombstone { known, cancelled, at }),
        3 => (standing(ReservationStatus::OrderCreated), prop::bool::weighted(0.8), 0_usize..3,
              prop_oneof![5 => Just(0_u8), 1 => Just(1), 1 => Just(2)], instant())
            .prop_map(|(target, owner, user, read, at)| {
                Op::RepairMarker { target, owner, user, read, at }
            }),
        3 => (target(), prop::bool::weighted(0.8), select(vec![5_i64, 9_999]))
            .prop_map(|(target, current, lease)| Op::Claim { target, current, lease }),
        1 => (0_u64..5, instant()).prop_map(|(stock, at)| Op::Preheat { stock, at }),
        2 => (0_u64..5, prop::option::weighted(0.7, 0_u64..6), instant())
            .prop_map(|(stock, held, at)| Op::Initialise { stock, held, at }),
        1 => select(ActivityState::ALL.to_vec()).prop_map(Op::SetState),
        1 => (recovery(), prop::option::of(recovery()))
            .prop_map(|(recovery, expected)| Op::SetRecovery(recovery, expected)),
        1 => (prop::collection::vec(any_place(), 1..5), select(vec![50_000_i64, 100_001, 200_000]),
              instant())
            .prop_map(|(places, until, at)| Op::Extend { places, until, at }),
    ]
}

/// Rounds of zero to three faults and one call.
fn round() -> impl Strategy<Value = Vec<Op>> {
    let faults = prop_oneof![
        10 => prop::collection::vec(fault(), 0),
        3 => prop::collection::vec(fault(), 1),
        2 => prop::collection::vec(fault(), 2..=3),
    ];
    (faults, operation()).prop_map(|(mut ops, last)| {
        ops.push(last);
        ops
    })
}

/// A whole sequence.
pub fn sequence() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(round(), 1..=25).prop_map(|rounds| rounds.into_iter().flatten().collect())
}

/// A sequence in which nothing is ever damaged.
pub fn undamaged_sequence() -> impl Strategy<Value = Vec<Op>> {
    sequence().prop_map(|mut ops| {
        ops.retain(|op| !matches!(op, Op::Fault(..)));
        ops
    })
}
