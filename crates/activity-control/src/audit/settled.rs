//! Whether work is still on its way: the other half of "done", beside the ledger.

use futures::{StreamExt as _, TryStreamExt as _};
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::Index;
use seckill_message_bus::{Admin, Group, Topic};
use seckill_state_machine::{Activity, Scope};
use serde::Serialize;

use crate::Error;
use crate::control::{BUCKETS_AT_ONCE, Control};

/// What every group of the system reads.
const SUBSCRIPTIONS: [(Group, Topic); 2] = [
    (Group::OrderConsumer, Topic::OrderRequest),
    (Group::CompensationWorker, Topic::OrderEvent),
];

/// Messages that a group has not finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lag {
    /// The group.
    pub group: &'static str,
    /// The topic.
    pub topic: &'static str,
    /// How many.
    pub messages: u64,
}

/// What is still on its way. Outbox and lag are those of the whole system: an event bears no
/// activity until it is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Settledness {
    /// Reservations whose order request may have to be sent.
    pub send_pending: u64,
    /// Reservations that are neither ordered nor released.
    pub reservation_expiry: u64,
    /// Events that are not published.
    pub outbox: u64,
    /// Compensation tasks of the version that are open.
    pub tasks: u64,
    /// Messages that are not finished; `None` when the broker was not asked.
    pub lag: Option<Vec<Lag>>,
}

impl Settledness {
    /// Everything that is open, added up.
    #[must_use]
    pub fn open(&self) -> u64 {
        let lag: u64 = self.lag.iter().flatten().map(|lag| lag.messages).sum();
        self.send_pending + self.reservation_expiry + self.outbox + self.tasks + lag
    }

    /// The counts in words.
    #[must_use]
    pub fn words(&self) -> String {
        let messages = match &self.lag {
            None => "messages unknown".to_owned(),
            Some(lag) => {
                let sum: u64 = lag.iter().map(|lag| lag.messages).sum();
                format!("{sum} messages")
            }
        };
        format!(
            "{} to send, {} undecided, {} events to publish, {} compensation tasks, {messages}",
            self.send_pending, self.reservation_expiry, self.outbox, self.tasks
        )
    }

    /// Whether nothing is open and everything was asked.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.lag.is_some() && self.open() == 0
    }
}

impl Control {
    /// Counts what is open of a version; without `admin`, whatever the broker holds stays unknown.
    ///
    /// # Errors
    /// [`Error::Unknown`] when it does not exist, and errors of the stores and the broker.
    pub async fn settledness(
        &self,
        scope: &Scope,
        admin: Option<&Admin>,
    ) -> Result<Settledness, Error> {
        let activity = self.activity(scope).await?;
        let (send_pending, reservation_expiry) = self.index_lengths(&activity).await?;
        let outbox = self.store.outbox_unpublished().await?;
        let tasks = self.store.open_tasks(Some(scope)).await?;
        let lag = match admin {
            None => None,
            Some(admin) => {
                let mut lag = Vec::with_capacity(SUBSCRIPTIONS.len());
                for (group, topic) in SUBSCRIPTIONS {
                    let messages = admin.lag(group, topic).await?;
                    lag.push(Lag {
                        group: group.name(),
                        topic: topic.name(),
                        messages,
                    });
                }
                Some(lag)
            }
        };
        Ok(Settledness {
            send_pending,
            reservation_expiry,
            outbox,
            tasks,
            lag,
        })
    }

    /// The lengths of both indexes, over all buckets.
    pub(crate) async fn index_lengths(&self, activity: &Activity) -> Result<(u64, u64), Error> {
        let scope = &activity.settings.scope;
        let lengths = activity
            .settings
            .bucket_count
            .buckets()
            .map(|bucket_id| async move {
                let keys = BucketKeys::new(&scope.bucket(bucket_id));
                let pending = self.redis.index_len(&keys, Index::SendPending).await?;
                let expiry = self
                    .redis
                    .index_len(&keys, Index::ReservationExpiry)
                    .await?;
                Ok::<_, Error>((pending, expiry))
            });
        futures::stream::iter(lengths)
            .buffer_unordered(BUCKETS_AT_ONCE)
            .try_fold((0, 0), |sum, (pending, expiry)| async move {
                Ok((sum.0 + pending, sum.1 + expiry))
            })
            .await
    }
}
