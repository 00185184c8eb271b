//! Damage to what the calls depend on.

use proptest::prelude::*;
use proptest::sample::select;

use super::plan::{Op, Target, buyer, request_name, target};

/// A key that is damaged.
#[derive(Debug, Clone)]
pub enum Place {
    Meta,
    Stock,
    Requests(usize),
    Marker(usize),
    Reservation(Target),
    SendPending,
    ReservationExpiry,
    SoldOut,
}

/// How.
#[derive(Debug, Clone)]
pub enum Damage {
    Lost,
    WrongType(usize),
    Text(String),
    Field(&'static str, String),
    /// A time relative to the sale's start.
    TimeField(&'static str, i64),
    FieldLost(&'static str),
    /// Counters that add up: units in all, and units left.
    Counters(u32, u32),
    Member(usize, i64),
    /// The key loses its expiry.
    Immortal,
}

impl Damage {
    /// Whether the key is made anew, without its expiry.
    pub const fn replaces(&self) -> bool {
        matches!(self, Self::WrongType(_) | Self::Text(_))
    }

    /// The commands that do it.
    pub fn commands(&self, key: &str, starts: i64) -> Vec<Vec<String>> {
        let command = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        match self {
            Self::Lost => vec![command(&["DEL", key])],
            Self::WrongType(kind) => {
                let write = match kind % 4 {
                    0 => command(&["SET", key, "{x}"]),
                    1 => command(&["HSET", key, "x", "y"]),
                    2 => command(&["ZADD", key, "1", "x"]),
                    _ => command(&["RPUSH", key, "x"]),
                };
                vec![command(&["DEL", key]), write]
            }
            Self::Text(text) => vec![command(&["SET", key, text])],
            Self::Field(field, value) => vec![command(&["HSET", key, field, value])],
            Self::TimeField(field, offset) => {
                vec![command(&[
                    "HSET",
                    key,
                    field,
                    &(starts + offset).to_string(),
                ])]
            }
            Self::Counters(initial, available) => {
                let reserved = (initial - available).to_string();
                let (initial, available) = (initial.to_string(), available.to_string());
                vec![command(&[
                    "HSET",
                    key,
                    "initial",
                    &initial,
                    "available",
                    &available,
                    "reserved",
                    &reserved,
                ])]
            }
            Self::Immortal => vec![command(&["PERSIST", key])],
            Self::FieldLost(field) => vec![command(&["HDEL", key, field])],
            Self::Member(index, score) => {
                let id = crate::world::derived(buyer(index % 3), request_name(index / 3 % 4));
                vec![command(&["ZADD", key, &score.to_string(), id.as_str()])]
            }
        }
    }
}

fn texts(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    select(words).prop_map(str::to_owned)
}

const JUNK: &[&str] = &[
    "",
    "0",
    "1",
    "2",
    "7",
    "-1",
    "01",
    "1.5",
    "1e3",
    "nan",
    "x",
    "1000000000000000",
    "0x1",
    " 1",
];

const RESERVATION: [&str; 9] = [
    "reservation_id",
    "request_id",
    "user_id",
    "quantity",
    "status",
    "message_id",
    "order_id",
    "send_attempts",
    "expires_at_ms",
];

const META: [&str; 9] = [
    "activity_id",
    "sku_id",
    "bucket_id",
    "version",
    "state",
    "starts_at_ms",
    "ends_at_ms",
    "retention_until_ms",
    "recovery",
];

const STOCK: [&str; 4] = ["initial", "available", "reserved", "released_total"];

fn meta_damage() -> impl Strategy<Value = Damage> {
    let set = |field, words| texts(words).prop_map(move |value| Damage::Field(field, value));
    prop_oneof![
        3 => set("recovery", &["", "window", "rebuild", "odd"]),
        3 => set("state", &["PREPARED", "ACTIVE", "PAUSED", "CLOSED", "x"]),
        2 => set("version", &["7", "8", ""]),
        1 => set("sku_id", &["S1", "S2"]),
        1 => set("bucket_id", &["0", "1"]),
        2 => (select(vec!["starts_at_ms", "ends_at_ms", "retention_until_ms"]),
              select(vec![-1_i64, 0, 5_000, 5_001, 10_000, 50_000, 100_000]))
            .prop_map(|(field, offset)| Damage::TimeField(field, offset)),
        1 => (select(vec!["starts_at_ms", "ends_at_ms", "retention_until_ms"]), texts(JUNK))
            .prop_map(|(field, value)| Damage::Field(field, value)),
        1 => select(META.to_vec()).prop_map(Damage::FieldLost),
    ]
}

fn stock_damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        5 => (0_u32..3).prop_map(|available| Damage::Counters(4, available)),
        4 => (select(STOCK.to_vec()), texts(JUNK)).prop_map(|(f, v)| Damage::Field(f, v)),
        1 => select(STOCK.to_vec()).prop_map(Damage::FieldLost),
    ]
}

fn reservation_damage() -> impl Strategy<Value = Damage> {
    let statuses = &[
        "RESERVED",
        "SEND_UNKNOWN",
        "ENQUEUED",
        "ORDER_CREATED",
        "REJECTED",
        "RELEASE_PENDING",
        "RELEASED",
        "ORDER_CANCELLED",
        "PAID",
        "",
    ];
    prop_oneof![
        6 => texts(statuses).prop_map(|value| Damage::Field("status", value)),
        2 => texts(&["u0", "u1", "u2"]).prop_map(|value| Damage::Field("user_id", value)),
        2 => texts(&["q0", "q1", "q2"]).prop_map(|value| Damage::Field("request_id", value)),
        2 => (select(vec!["quantity", "send_attempts"]), texts(JUNK))
            .prop_map(|(field, value)| Damage::Field(field, value)),
        1 => (select(vec!["message_id", "order_id", "reservation_id"]), texts(&["", "other", "order-1"]))
            .prop_map(|(field, value)| Damage::Field(field, value)),
        2 => select(RESERVATION.to_vec()).prop_map(Damage::FieldLost),
    ]
}

fn remembered_damage() -> impl Strategy<Value = (usize, Damage)> {
    let good = crate::world::derived("u0", "q0");
    let accepted = format!("0|{good}|3|QUEUED|u0|1");
    let held = format!("10|{good}|3||u1|1");
    let mut words: Vec<String> = [
        "",
        "abc|x|y|z|u1|1",
        "0|x|9|QUEUED",
        "0|x|1e3|QUEUED|u1|1",
        "0|x|9|QUEUED|u1|1",
        "0||9|QUEUED|u1|1",
        "15||0||u0|1",
        "15||0||u1|2",
        "11||4||u2|1",
        "16||9||u1|1",
        "15|x|0||u1|1",
        "15||00||u1|1",
        "15||0||u1|0",
        "15||0|QUEUED|u1|1",
        "99||0||u1|1",
        "15||0||u1|1|1",
        "21||0||u0|1",
    ]
    .iter()
    .map(ToString::to_string)
    .collect();
    words.extend([accepted, held]);
    (0_usize..4, select(words)).prop_map(|(index, value)| {
        let field = request_name(index);
        (index, Damage::Field(field, value))
    })
}

pub fn any_place() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place::Meta),
        Just(Place::Stock),
        (0_usize..4).prop_map(Place::Requests),
        (0_usize..3).prop_map(Place::Marker),
        target().prop_map(Place::Reservation),
        Just(Place::SendPending),
        Just(Place::ReservationExpiry),
        Just(Place::SoldOut),
    ]
}

fn marker_text() -> impl Strategy<Value = String> {
    let mut words = vec![String::new(), "a|b".to_owned(), "{x}".to_owned()];
    words.extend((0..3).map(|index| crate::world::derived(buyer(index), "q0").to_string()));
    select(words)
}

pub fn fault() -> impl Strategy<Value = Op> {
    let index = prop_oneof![Just(Place::SendPending), Just(Place::ReservationExpiry)];
    prop_oneof![
        4 => meta_damage().prop_map(|damage| Op::Fault(Place::Meta, damage)),
        4 => stock_damage().prop_map(|damage| Op::Fault(Place::Stock, damage)),
        4 => (target(), reservation_damage())
            .prop_map(|(target, damage)| Op::Fault(Place::Reservation(target), damage)),
        3 => remembered_damage().prop_map(|(i, damage)| Op::Fault(Place::Requests(i), damage)),
        3 => any_place().prop_map(|place| Op::Fault(place, Damage::Lost)),
        2 => Just(Op::Fault(Place::SendPending, Damage::Lost)),
        2 => target().prop_map(|target| Op::Fault(Place::Reservation(target), Damage::Lost)),
        1 => any_place().prop_map(|place| Op::Fault(place, Damage::Immortal)),
        2 => (any_place(), 0_usize..4).prop_map(|(p, kind)| Op::Fault(p, Damage::WrongType(kind))),
        2 => (0_usize..3, marker_text())
            .prop_map(|(user, text)| Op::Fault(Place::Marker(user), Damage::Text(text))),
        1 => Just(Op::Fault(Place::SoldOut, Damage::Text("1".to_owned()))),
        2 => (index, 0_usize..12, select(vec![1_i64, 5]))
            .prop_map(|(place, member, score)| Op::Fault(place, Damage::Member(member, score))),
    ]
}
