//! Stops the sale of one activity version whose data or deployment is damaged, and of no other.
//!
//! Counters that do not add up, keys of the wrong type and crossed slots are not cured by asking again,
//! and each further acceptance makes the repair harder. So the first such answer stops the version in this
//! front: callers are told that the system is busy, and operators get one ERROR. After a pause a single
//! call is let through; its answer decides whether the sale goes on or pauses again. Queries are never
//! stopped: what was accepted before can still be looked up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use seckill_state_machine::Scope;
use tracing::{error, info, warn};

/// Versions that may be stopped at once: some 300 bytes each, so below 2 MiB. With more than these
/// damaged it is Redis as a whole that operators look at, and those beyond are reported and not stopped.
const STOPPED_MAX: usize = 4_096;

/// The versions that are not sold at the moment.
pub(crate) struct Breaker {
    pause: Duration,
    stopped: Mutex<HashMap<Scope, Stop>>,
    /// How many entries there are: with none, which is nearly always, no call takes the lock.
    count: AtomicUsize,
}

/// One stopped version.
#[derive(Debug, Clone, Copy)]
struct Stop {
    /// When the next call is let through.
    until: Instant,
    /// Whether a call was let through and has no answer yet.
    probing: bool,
}

/// What a call may go on with.
pub(crate) struct Pass {
    /// The version whose fate hangs on this call's answer.
    probe: Option<(Arc<Breaker>, Scope)>,
}

impl Pass {
    /// The answer shows no damage.
    pub(crate) fn sound(&self) {
        if let Some((breaker, scope)) = &self.probe {
            breaker.resume(scope);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        // A probe without a verdict, for want of any answer from Redis: the next call is the next probe.
        if let Some((breaker, scope)) = self.probe.take()
            && let Some(stop) = breaker.stopped().get_mut(&scope)
        {
            stop.probing = false;
        }
    }
}

impl Breaker {
    pub(crate) fn new(pause: Duration) -> Arc<Self> {
        Arc::new(Self {
            pause,
            stopped: Mutex::new(HashMap::new()),
            count: AtomicUsize::new(0),
        })
    }

    fn stopped(&self) -> MutexGuard<'_, HashMap<Scope, Stop>> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a call go on, unless its version is stopped.
    pub(crate) fn admit(self: &Arc<Self>, scope: &Scope) -> Option<Pass> {
        self.admit_at(scope, Instant::now())
    }

    fn admit_at(self: &Arc<Self>, scope: &Scope, now: Instant) -> Option<Pass> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Some(Pass { probe: None });
        }
        let mut stopped = self.stopped();
        let Some(stop) = stopped.get_mut(scope) else {
            return Some(Pass { probe: None });
        };
        if stop.probing || now < stop.until {
            return None;
        }
        stop.probing = true;
        Some(Pass {
            probe: Some((Arc::clone(self), scope.clone())),
        })
    }

    /// Stops a version.
    pub(crate) fn damaged(&self, scope: &Scope, what: &str) {
        let pause_ms = u64::try_from(self.pause.as_millis()).unwrap_or(u64::MAX);
        macro_rules! line {
            ($level:ident, $text:literal) => {
                $level!(
                    activity_id = %scope.activity_id,
                    sku_id = %scope.sku_id,
                    activity_version = scope.version.get(),
                    pause_ms,
                    concat!("operators must look at this activity, ", $text, ": {}"),
                    what
                )
            };
        }
        match self.stop_at(scope, Instant::now()) {
            Stopping::Now => line!(error, "which is not sold"),
            Stopping::Again => line!(warn, "which is still not sold"),
            Stopping::Already => {}
            Stopping::TooMany => line!(error, "too many others to stop it, too"),
        }
    }

    fn stop_at(&self, scope: &Scope, now: Instant) -> Stopping {
        let until = now + self.pause;
        let mut stopped = self.stopped();
        if let Some(stop) = stopped.get_mut(scope) {
            // Without a probe it is the late answer of a call that had begun before the stop.
            if !stop.probing {
                return Stopping::Already;
            }
            *stop = Stop {
                until,
                probing: false,
            };
            return Stopping::Again;
        }
        if stopped.len() >= STOPPED_MAX {
            // Whose pause has run out is stopped again by its next call, if it is still damaged.
            stopped.retain(|_, stop| stop.probing || stop.until > now);
        }
        let room = stopped.len() < STOPPED_MAX;
        if room {
            let probing = false;
            stopped.insert(scope.clone(), Stop { until, probing });
        }
        self.count.store(stopped.len(), Ordering::Relaxed);
        if room {
            Stopping::Now
        } else {
            Stopping::TooMany
        }
    }

    fn resume(&self, scope: &Scope) {
        let mut stopped = self.stopped();
        if stopped.remove(scope).is_some() {
            info!(
                activity_id = %scope.activity_id,
                sku_id = %scope.sku_id,
                activity_version = scope.version.get(),
                "the activity is sound and sold again"
            );
        }
        self.count.store(stopped.len(), Ordering::Relaxed);
    }
}

/// What became of an order to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopping {
    /// It was on sale until now.
    Now,
    /// Its probe has found the damage still there.
    Again,
    /// It is stopped already.
    Already,
    /// There is no room.
    TooMany,
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::{ActivityId, ActivityVersion, SkuId};

    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);

    fn scope(activity: &str) -> Scope {
        Scope {
            activity_id: ActivityId::parse(activity).unwrap(),
            sku_id: SkuId::parse("sku").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        }
    }

    #[test]
    fn one_version_is_stopped_and_its_neighbour_sells() {
        let breaker = Breaker::new(PAUSE);
        let now = Instant::now();
        assert_eq!(breaker.stop_at(&scope("a"), now), Stopping::Now);
        assert!(breaker.admit_at(&scope("a"), now).is_none());
        let other = Scope {
            sku_id: SkuId::parse("other").unwrap(),
            ..scope("a")
        };
        assert!(breaker.admit_at(&other, now).is_some());
        assert!(breaker.admit_at(&scope("b"), now).is_some());
        // Calls that were on their way find the same damage.
        assert_eq!(breaker.stop_at(&scope("a"), now), Stopping::Already);
    }

    #[test]
    fn after_the_pause_one_call_decides() {
        let breaker = Breaker::new(PAUSE);
        let began = Instant::now();
        breaker.stop_at(&scope("a"), began);
        let later = began + PAUSE;
        let probe = breaker.admit_at(&scope("a"), later).unwrap();
        assert!(breaker.admit_at(&scope("a"), later).is_none());
        assert_eq!(breaker.stop_at(&scope("a"), later), Stopping::Again);
        drop(probe);
        assert!(breaker.admit_at(&scope("a"), later).is_none());

        let sound = breaker.admit_at(&scope("a"), later + PAUSE).unwrap();
        sound.sound();
        drop(sound);
        assert!(breaker.admit_at(&scope("a"), later + PAUSE).is_some());
        assert!(breaker.admit_at(&scope("a"), later + PAUSE).is_some());
        assert_eq!(breaker.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_probe_without_an_answer_leaves_it_to_the_next_call() {
        let breaker = Breaker::new(PAUSE);
        let began = Instant::now();
        breaker.stop_at(&scope("a"), began);
        drop(breaker.admit_at(&scope("a"), began + PAUSE).unwrap());
        assert!(breaker.admit_at(&scope("a"), began + PAUSE).is_some());
        // An answer to a call from before the stop says nothing about the time after it.
        Pass { probe: None }.sound();
        assert_eq!(breaker.count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_stops_are_bounded_and_those_whose_pause_is_over_make_room() {
        let breaker = Breaker::new(PAUSE);
        let now = Instant::now();
        for number in 0..STOPPED_MAX {
            let stopping = breaker.stop_at(&scope(&format!("a{number}")), now);
            assert_eq!(stopping, Stopping::Now);
        }
        assert_eq!(breaker.stop_at(&scope("b"), now), Stopping::TooMany);
        assert!(breaker.admit_at(&scope("b"), now).is_some());
        assert_eq!(breaker.stop_at(&scope("b"), now + PAUSE), Stopping::Now);
        assert_eq!(breaker.count.load(Ordering::Relaxed), 1);
    }
}
