//! Which fault is made when: a pure function of the seed.
//!
//! Faults of one resource follow each other in a lane; the lanes run side by side. Each round of about
//! half a minute deals the same deck in another order, and begins when every lane is done with the one
//! before: so every kind has its share also of a short run, and of one whose broker starts slowly.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::random::Random;

/// A round is about as long as two restarts of the broker on a busy machine take, and as much again.
const ROUND_MS: u64 = 31_000;

/// Replicas of each service.
pub(crate) const REPLICAS: usize = 2;

/// Services of an installation.
pub(crate) const SERVICES: usize = 5;

/// What is done to the installation. A kind is what shares are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// SIGKILL for a service, and a successor.
    Kill,
    /// SIGSTOP for a service, and SIGCONT.
    Pause,
    /// The way between the services and Redis.
    RedisLink,
    /// The way between the services and the broker.
    BrokerLink,
    /// The way between the services and PostgreSQL.
    PostgresLink,
    /// SIGKILL for the broker, and its restart.
    BrokerRestart,
    /// A crash or a fast stop of PostgreSQL, and its restart.
    PostgresRestart,
    /// The primary dies with writes that no replica has.
    RedisFailover,
    /// Requests that come again: many at once, late, from another, with another quantity.
    Repeat,
    /// Messages of long ago that come again.
    Replay,
}

/// What waits for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Lane {
    Processes,
    Redis,
    Broker,
    Postgres,
    Messages,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Self; 10] = [
        Self::Kill,
        Self::Pause,
        Self::RedisLink,
        Self::BrokerLink,
        Self::PostgresLink,
        Self::BrokerRestart,
        Self::PostgresRestart,
        Self::RedisFailover,
        Self::Repeat,
        Self::Replay,
    ];

    /// Its name in settings and reports.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::RedisLink => "redis_link",
            Self::BrokerLink => "broker_link",
            Self::PostgresLink => "postgres_link",
            Self::BrokerRestart => "broker_restart",
            Self::PostgresRestart => "postgres_restart",
            Self::RedisFailover => "redis_failover",
            Self::Repeat => "repeat",
            Self::Replay => "replay",
        }
    }

    /// Reads a name.
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.word() == word);
        found.ok_or_else(|| {
            let words: Vec<&str> = Self::ALL.iter().map(|kind| kind.word()).collect();
            format!("no kind of fault; there are {}", words.join(" "))
        })
    }

    const fn lane(self) -> Lane {
        match self {
            Self::Kill | Self::Pause => Lane::Processes,
            Self::RedisLink | Self::RedisFailover => Lane::Redis,
            Self::BrokerLink | Self::BrokerRestart => Lane::Broker,
            Self::PostgresLink | Self::PostgresRestart => Lane::Postgres,
            Self::Repeat | Self::Replay => Lane::Messages,
        }
    }

    /// How many of it a round has: 27 in all, so that even two are more than a twentieth.
    const fn cards(self) -> usize {
        match self {
            Self::BrokerRestart | Self::PostgresRestart | Self::RedisFailover => 2,
            _ => 3,
        }
    }
}

/// What happens to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Way {
    /// Connections are reset, new ones refused.
    Refuse,
    /// Connections are reset once.
    Cut,
    /// Answers are thrown away, then connections are reset.
    Swallow,
    /// Nothing passes, then connections are reset.
    BlackHole,
    /// Answers are late.
    Delay,
    /// Requests are kept back, and then all arrive at once.
    Hold,
}

impl Way {
    const ALL: [Self; 6] = [
        Self::Refuse,
        Self::Cut,
        Self::Swallow,
        Self::BlackHole,
        Self::Delay,
        Self::Hold,
    ];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Cut => "cut",
            Self::Swallow => "swallow",
            Self::BlackHole => "black_hole",
            Self::Delay => "delay",
            Self::Hold => "hold",
        }
    }
}

/// How a request comes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// A new request, several times at once.
    Burst,
    /// An old one, several times at once.
    Late,
    /// An old request's id, from another user.
    Stranger,
    /// An old request's id, with another quantity.
    Quantity,
}

/// A link by its far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Link {
    Redis,
    Broker,
    Postgres,
}

/// One fault with all that the seed decides about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Kill { replica: usize },
    Pause { replica: usize },
    Link(Link, Way),
    BrokerRestart,
    PostgresRestart { crash: bool },
    RedisFailover { unreplicated_ms: u64 },
    Repeat(Again),
    Replay { pick: u64 },
}

impl Action {
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Self::Kill { .. } => Kind::Kill,
            Self::Pause { .. } => Kind::Pause,
            Self::Link(Link::Redis, _) => Kind::RedisLink,
            Self::Link(Link::Broker, _) => Kind::BrokerLink,
            Self::Link(Link::Postgres, _) => Kind::PostgresLink,
            Self::BrokerRestart => Kind::BrokerRestart,
            Self::PostgresRestart { .. } => Kind::PostgresRestart,
            Self::RedisFailover { .. } => Kind::RedisFailover,
            Self::Repeat(_) => Kind::Repeat,
            Self::Replay { .. } => Kind::Replay,
        }
    }

    /// What tells faults of one kind apart.
    pub(crate) const fn way(self) -> &'static str {
        match self {
            Self::Link(_, way) => way.word(),
            Self::PostgresRestart { crash: true } => "crash",
            Self::PostgresRestart { crash: false } => "stop",
            Self::Repeat(Again::Burst) => "burst",
            Self::Repeat(Again::Late) => "late",
            Self::Repeat(Again::Stranger) => "stranger",
            Self::Repeat(Again::Quantity) => "quantity",
            Self::Kill { .. }
            | Self::Pause { .. }
            | Self::BrokerRestart
            | Self::RedisFailover { .. }
            | Self::Replay { .. } => "",
        }
    }
}

/// A fault and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Planned {
    /// When it begins; later when the one before it in its lane is not over.
    pub(crate) at: Duration,
    /// How long it lasts.
    pub(crate) lasts: Duration,
    pub(crate) action: Action,
}

/// The faults of a round, lane by lane and in order.
pub(crate) type Round = BTreeMap<Lane, Vec<Planned>>;

/// The faults of a run.
pub(crate) fn plan(seed: u64, length: Duration, kinds: &[Kind]) -> Vec<Round> {
    let length_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let rounds = ((length_ms + ROUND_MS / 2) / ROUND_MS).max(1);
    let round_ms = length_ms / rounds;
    let mut dealer = Dealer::new(seed);
    (0..rounds)
        .map(|round| dealer.round(round * round_ms, round_ms, kinds))
        .collect()
}

/// Decides the particulars. Replicas and ways are dealt in turn, so that all of them are hit.
struct Dealer {
    random: Random,
    replicas: Vec<usize>,
    ways: BTreeMap<Kind, Vec<Way>>,
    again: Vec<Again>,
}

impl Dealer {
    fn new(seed: u64) -> Self {
        Self {
            random: Random::fork(seed, "plan"),
            replicas: Vec::new(),
            ways: BTreeMap::new(),
            again: Vec::new(),
        }
    }

    fn round(&mut self, start_ms: u64, length_ms: u64, kinds: &[Kind]) -> Round {
        let mut decks: BTreeMap<Lane, Vec<Kind>> = BTreeMap::new();
        for kind in kinds {
            let deck = decks.entry(kind.lane()).or_default();
            deck.extend(std::iter::repeat_n(*kind, kind.cards()));
        }
        let mut round = Round::new();
        for (lane, mut deck) in decks {
            self.random.shuffle(&mut deck);
            let slot_ms = length_ms / u64::try_from(deck.len()).unwrap_or(1).max(1);
            let faults = round.entry(lane).or_default();
            for (slot, kind) in (0..).zip(deck) {
                let at = start_ms + slot * slot_ms + self.random.below(slot_ms / 4);
                faults.push(self.deal(kind, at));
            }
        }
        round
    }

    fn deal(&mut self, kind: Kind, at_ms: u64) -> Planned {
        let action = match kind {
            Kind::Kill => Action::Kill {
                replica: self.replica(),
            },
            Kind::Pause => Action::Pause {
                replica: self.replica(),
            },
            Kind::RedisLink => Action::Link(Link::Redis, self.way(kind)),
            Kind::BrokerLink => Action::Link(Link::Broker, self.way(kind)),
            Kind::PostgresLink => Action::Link(Link::Postgres, self.way(kind)),
            Kind::BrokerRestart => Action::BrokerRestart,
            Kind::PostgresRestart => Action::PostgresRestart {
                crash: self.random.percent(67),
            },
            Kind::RedisFailover => Action::RedisFailover {
                unreplicated_ms: self.random.between(300, 1_500),
            },
            Kind::Repeat => Action::Repeat(self.again()),
            Kind::Replay => Action::Replay {
                pick: self.random.next(),
            },
        };
        Planned {
            at: Duration::from_millis(at_ms),
            lasts: Duration::from_millis(self.lasts_ms(action)),
            action,
        }
    }

    /// Redis is what sells, so its faults are short. One pause in four outlives the leases of tasks
    /// and sends, five and six seconds here: the process wakes up believing that it still holds them.
    fn lasts_ms(&mut self, action: Action) -> u64 {
        match action {
            Action::Kill { .. } => self.random.between(0, 1_000),
            Action::Pause { .. } if self.random.percent(25) => self.random.between(6_500, 8_000),
            Action::Pause { .. } => self.random.between(400, 2_500),
            Action::Link(Link::Redis, _) => self.random.between(300, 1_300),
            Action::Link(Link::Broker, _) => self.random.between(500, 3_500),
            Action::Link(Link::Postgres, _) => self.random.between(500, 2_500),
            Action::BrokerRestart | Action::PostgresRestart { .. } => self.random.between(0, 1_000),
            Action::RedisFailover { .. } => self.random.between(50, 500),
            Action::Repeat(_) | Action::Replay { .. } => 0,
        }
    }

    fn replica(&mut self) -> usize {
        if self.replicas.is_empty() {
            self.replicas = (0..REPLICAS * SERVICES).collect();
            self.random.shuffle(&mut self.replicas);
        }
        self.replicas.pop().unwrap_or_default()
    }

    fn way(&mut self, kind: Kind) -> Way {
        let left = self.ways.entry(kind).or_default();
        if left.is_empty() {
            *left = Way::ALL.to_vec();
            self.random.shuffle(left);
        }
        left.pop().unwrap_or(Way::Cut)
    }

    fn again(&mut self) -> Again {
        if self.again.is_empty() {
            self.again = vec![Again::Burst, Again::Late, Again::Stranger, Again::Quantity];
            self.random.shuffle(&mut self.again);
        }
        self.again.pop().unwrap_or(Again::Late)
    }
}
