//! Receiving: batches to a handler, acknowledged as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::member::{Member, Plan};
use crate::names::Names;
use crate::runtime::ThreadLease;
use crate::{Admin, BatchHandler, BusConfig, BusRuntime, Error, Group, Topic};

/// The longest handler deadline. The client's own limits for a listener lie above it (15 minutes), or
/// it would take a running handler for a failed one.
pub const HANDLER_DEADLINE_MAX: Duration = Duration::from_secs(600);

/// The largest batch: what the broker hands out in one answer when it is set up for it.
const BATCH_MAX: u32 = 256;

/// Between two looks at the member's health. A shorter outage shows itself by messages that are not
/// fetched.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// The least age of a member that cannot reach what others reach: joining takes up to 4.3 s (measured).
const MEMBER_AGE_MIN: Duration = Duration::from_secs(5);

/// How a group's messages are consumed by this process.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// The group.
    pub group: Group,
    /// What it subscribes to; plays no part for dead letters, whose topic belongs to the group.
    pub topics: Vec<Topic>,
    /// The most messages of one batch, 1 to 256.
    pub batch_max: u32,
    /// Batches that are handled at a time.
    pub threads: u32,
    /// When a handler is given up and its batch redelivered.
    pub handler_deadline: Duration,
    /// Redeliveries before the broker moves a message to the group's dead letters.
    pub max_redeliveries: i32,
}

impl ConsumerConfig {
    fn validate(&self) -> Result<(), Error> {
        let wrong = |setting, problem: String| Err(Error::Setting { setting, problem });
        if !(1..=BATCH_MAX).contains(&self.batch_max) {
            return wrong(
                "batch_max",
                format!("must be 1 to {BATCH_MAX}, is {}", self.batch_max),
            );
        }
        if self.threads == 0 {
            return wrong("threads", "must be at least 1".to_owned());
        }
        if self.handler_deadline.is_zero() || self.handler_deadline > HANDLER_DEADLINE_MAX {
            return wrong(
                "handler_deadline",
                "must be above 0 and at most 600 s".to_owned(),
            );
        }
        if self.max_redeliveries < 0 {
            return wrong("max_redeliveries", "must not be negative".to_owned());
        }
        Ok(())
    }
}

/// A running consumer of one group. To be ended by [`Consumer::shutdown`]; a dropped one goes on until
/// the bus' runtime ends.
pub struct Consumer {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    watcher: JoinHandle<()>,
}

struct Shared {
    plan: Plan,
    member: Mutex<Member>,
    paused: AtomicBool,
    _threads: ThreadLease,
}

impl Consumer {
    /// Starts consuming. Works without a broker: messages come once it is there. The first ones take
    /// 1.5 to 4.3 s (measured), for queues are shared out among the group's members before.
    ///
    /// # Errors
    /// [`Error::Setting`] for a wrong setting; retryable errors of the client.
    pub async fn start(
        runtime: &BusRuntime,
        bus: &BusConfig,
        config: ConsumerConfig,
        handler: Arc<dyn BatchHandler>,
    ) -> Result<Self, Error> {
        if config.topics.is_empty() {
            return Err(Error::Setting {
                setting: "topics",
                problem: "must not be empty".to_owned(),
            });
        }
        let names = Names::new(&bus.namespace);
        let topics = config
            .topics
            .iter()
            .map(|topic| names.topic(*topic))
            .collect();
        let group = names.group(config.group);
        Self::subscribe(runtime, bus, config, group, topics, handler).await
    }

    /// Starts draining the dead letters of a group, as the group `<group>-dlq`.
    ///
    /// # Errors
    /// As [`Consumer::start`].
    pub async fn start_dead_letters(
        runtime: &BusRuntime,
        bus: &BusConfig,
        config: ConsumerConfig,
        handler: Arc<dyn BatchHandler>,
    ) -> Result<Self, Error> {
        let names = Names::new(&bus.namespace);
        let topics = vec![names.dead_letter_topic(config.group)];
        let group = names.dead_letter_group(config.group);
        Self::subscribe(runtime, bus, config, group, topics, handler).await
    }

    async fn subscribe(
        runtime: &BusRuntime,
        bus: &BusConfig,
        config: ConsumerConfig,
        group: String,
        topics: Vec<String>,
        handler: Arc<dyn BatchHandler>,
    ) -> Result<Self, Error> {
        config.validate()?;
        let threads = runtime.lease_listener_threads(config.threads)?;
        let plan = Plan {
            runtime: runtime.client(),
            bus: bus.clone(),
            config,
            group,
            topics,
            handler,
            handle: Handle::current(),
        };
        let member = plan.join().await?;
        let shared = Arc::new(Shared {
            plan,
            member: Mutex::new(member),
            paused: AtomicBool::new(false),
            _threads: threads,
        });
        let (stop, stopped) = watch::channel(false);
        let watcher = tokio::spawn(Arc::clone(&shared).watch(stopped));
        Ok(Self {
            shared,
            stop,
            watcher,
        })
    }

    /// Stops fetching; what was fetched is still handled.
    pub async fn pause(&self) {
        let member = self.shared.member.lock().await;
        self.shared.paused.store(true, Ordering::Release);
        member.pause().await;
    }

    /// Fetches again.
    pub async fn resume(&self) {
        let member = self.shared.member.lock().await;
        self.shared.paused.store(false, Ordering::Release);
        member.resume().await;
    }

    /// Stops receiving, lets running handlers finish, acknowledges and leaves the group. Batches that
    /// were fetched but not begun stay unacknowledged and go to another member.
    pub async fn shutdown(self) {
        self.stop.send_replace(true);
        let limit = self.shared.plan.leave_limit();
        let leaving = async { self.shared.member.lock().await.leave(limit).await };
        // A member that was replaced may still have batches running, too.
        let (watched, ()) = tokio::join!(timeout(limit, self.watcher), leaving);
        if watched.is_err() {
            tracing::warn!("a replaced consumer did not leave its group in time");
        }
    }
}

impl Shared {
    /// Replaces a member that has lost its way to the broker, as soon as there is one.
    ///
    /// The client recovers by itself, but late: a question for messages that went down with its
    /// connection is asked again after 30 s, and after five failed connects the client refuses a broker,
    /// or a name server, for 30 s, whether or not it is back. A client that was made anew has neither.
    async fn watch(self: Arc<Self>, mut stopped: watch::Receiver<bool>) {
        let mut replaced = JoinSet::new();
        let mut outage = false;
        loop {
            tokio::select! {
                // Also when the consumer was dropped.
                _ = stopped.wait_for(|stop| *stop) => break,
                () = sleep(WATCH_INTERVAL) => {}
            }
            let mut member = self.member.lock().await;
            let reason = tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => break,
                reason = self.reason_to_rejoin(&mut member, &mut outage) => reason,
            };
            let Some(reason) = reason else {
                if !outage && !self.paused.load(Ordering::Acquire) {
                    // Not to be cut short: a queue could be taken and never asked.
                    member.share_queues().await;
                }
                continue;
            };
            match self.plan.join().await {
                Ok(new) => {
                    tracing::info!(group = self.plan.group, reason, "joined anew");
                    if self.paused.load(Ordering::Acquire) {
                        new.pause().await;
                    }
                    let mut old = std::mem::replace(&mut *member, new);
                    let limit = self.plan.leave_limit();
                    replaced.spawn(async move { old.leave(limit).await });
                }
                Err(error) => tracing::warn!(%error, "the group could not be joined anew"),
            }
        }
        while replaced.join_next().await.is_some() {}
    }

    async fn reason_to_rejoin(
        &self,
        member: &mut Member,
        outage: &mut bool,
    ) -> Option<&'static str> {
        let topic = self.plan.topics.first()?;
        let settled = member.since.elapsed() >= MEMBER_AGE_MIN;
        if member.reaches(topic).await {
            if std::mem::take(outage) {
                return Some("the broker is back");
            }
            let fetches = self.paused.load(Ordering::Acquire) || !member.has_stalled().await;
            return (settled && !fetches).then_some("messages wait that are not fetched");
        }
        *outage = true;
        let back = settled
            && Admin::reaches_afresh(Arc::clone(&self.plan.runtime), &self.plan.bus, topic).await;
        back.then(|| {
            *outage = false;
            "the broker is back"
        })
    }
}
