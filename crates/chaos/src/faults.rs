//! Makes the planned faults, one file for each kind, and sees whether they had an effect.
//!
//! Only a fault whose effect was observed counts: a process that is gone, a connection that was
//! reset, bytes that did not arrive, a primary that moved, a repeat that was answered as one, a message
//! that was taken from the queue once more. A fault that met nobody is listed apart.

mod broker_restart;
mod kill;
mod link;
mod pause;
mod postgres_restart;
mod redis_failover;
mod repeat;
mod replay;

use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::Moment;
use crate::installation::Installation;
use crate::load::Load;
use crate::plan::{Action, Kind, Planned};
use crate::recorder::Recorder;
use crate::replicas::Replicas;

use replay::Place;

/// What a fault did: evidence of its effect, or why none was seen.
pub(crate) type Seen = Result<String, String>;

/// A fault that is over.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) kind: Kind,
    pub(crate) way: &'static str,
    pub(crate) from: Moment,
    pub(crate) to: Moment,
    pub(crate) seen: Seen,
    /// For a message that was sent again: where it lies.
    place: Option<Place>,
}

impl Made {
    #[cfg(test)]
    pub(crate) const fn new(kind: Kind, seen: Seen) -> Self {
        Self {
            kind,
            way: "",
            from: 0,
            to: 1,
            seen,
            place: None,
        }
    }
}

/// Makes faults.
#[derive(Clone)]
pub(crate) struct Injector {
    pub(crate) installation: Arc<Installation>,
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) load: Load,
    pub(crate) recorder: Recorder,
    made: Arc<Mutex<Vec<Made>>>,
}

impl Injector {
    pub(crate) fn new(
        installation: Arc<Installation>,
        replicas: Arc<Replicas>,
        load: Load,
        recorder: Recorder,
    ) -> Self {
        Self {
            installation,
            replicas,
            load,
            recorder,
            made: Arc::default(),
        }
    }

    /// Makes a lane's faults one after the other, each not before its time.
    pub(crate) async fn run(self, faults: Vec<Planned>, began: Moment) {
        let clock = self.installation.clock;
        for fault in faults {
            clock.sleep_until(began, fault.at).await;
            let from = clock.now();
            let (seen, place) = Box::pin(self.make(fault)).await;
            let made = Made {
                kind: fault.action.kind(),
                way: fault.action.way(),
                from,
                to: clock.now(),
                seen,
                place,
            };
            self.made
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(made);
        }
    }

    async fn make(&self, fault: Planned) -> (Seen, Option<Place>) {
        if let Action::Replay { pick } = fault.action {
            return match replay::make(&self.installation, &self.recorder, pick).await {
                Ok(place) => (Ok(format!("{place:?}")), Some(place)),
                Err(reason) => (Err(reason), None),
            };
        }
        (self.make_now(fault).await, None)
    }

    /// Faults whose effect shows while they last.
    async fn make_now(&self, fault: Planned) -> Seen {
        let installation = &self.installation;
        match fault.action {
            Action::Kill { replica } => kill::make(self.replica(replica)?, fault.lasts).await,
            Action::Pause { replica } => pause::make(self.replica(replica)?, fault.lasts).await,
            Action::Link(link, way) => link::make(installation.proxy(link), way, fault.lasts).await,
            Action::BrokerRestart => broker_restart::make(&installation.broker, fault.lasts).await,
            Action::PostgresRestart { crash } => {
                postgres_restart::make(installation, crash, fault.lasts).await
            }
            Action::RedisFailover { unreplicated_ms } => {
                redis_failover::make(installation, unreplicated_ms, fault.lasts).await
            }
            Action::Repeat(again) => repeat::make(&self.load, installation, again).await,
            Action::Replay { .. } => Err("shows only later".to_owned()),
        }
    }

    fn replica(&self, index: usize) -> Result<&crate::replicas::Replica, String> {
        self.replicas.get(index).map_err(|error| error.to_string())
    }

    /// Looks whether the messages that were sent again were delivered, now that all has settled.
    pub(crate) async fn look_at_replays(&self) {
        let mut made = self.made();
        for fault in &mut made {
            if let Some(place) = &fault.place {
                fault.seen = place.seen().await;
            }
        }
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = made;
    }

    /// All faults so far.
    pub(crate) fn made(&self) -> Vec<Made> {
        self.made
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
