//! Sees that another server serves a bucket.
//!
//! A server is known by the history that it writes, its replication id. Its run id would not do: a
//! primary that is demoted and promoted again has it still. A history that is on record as a former one
//! is no news: whoever sees it looks from behind a divided network, or is left with a server that has
//! been replaced. It counts only when nobody sees the one on record any more, for an operator may have
//! gone back to the old server. Else two reconcilers with different views would open the window in
//! turns for as long as they differ.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    Error as RedisError, ErrorKind as RedisErrorKind, Recovery as InMeta, Redis, Server,
};
use seckill_order_store::{RecoveryWindow, ServerNames, Store};
use seckill_state_machine::{Activity, BucketId, BucketScope};

use super::Error;

/// Buckets asked for their server at once.
const BUCKETS_AT_ONCE: usize = 32;

/// Looks without a sighting after which a server counts as gone. At the default of 2 s that is 6 s,
/// less than the 10 s for which the fronts assume a window by themselves.
const LOOKS_UNTIL_LOST: u32 = 3;

/// What a look at one server says.
#[derive(Debug, PartialEq, Eq)]
enum Sight {
    /// It is the one on record.
    Same,
    /// It is the one on record, under another name.
    Renamed,
    /// It is another one, or has lost writes.
    Other,
}

impl Sight {
    fn of(known: &RecoveryWindow, seen: &Server) -> Self {
        if known.replication_id == seen.replication_id {
            return Self::Same;
        }
        // The process goes on, and was not promoted: nothing was lost. An older reconciler notes no
        // history.
        let goes_on = !seen.took_over || known.replication_id.is_empty();
        if known.run_id == seen.run_id && goes_on {
            Self::Renamed
        } else {
            Self::Other
        }
    }
}

/// Looks at the servers of all buckets.
pub struct Lookout {
    redis: Redis,
    store: Store,
    interval: Duration,
}

impl Lookout {
    /// That looks once an interval.
    pub const fn new(redis: Redis, store: Store, interval: Duration) -> Self {
        Self {
            redis,
            store,
            interval,
        }
    }

    /// Asks each bucket's server who it is, and opens the windows of those that are others.
    ///
    /// # Errors
    /// The first failure, after every bucket had its turn.
    pub async fn look(&self, activity: &Activity) -> Result<(), Error> {
        let scope = &activity.settings.scope;
        let known: HashMap<BucketScope, RecoveryWindow> = self
            .store
            .recovery_windows(scope)
            .await?
            .into_iter()
            .map(|window| (window.bucket.clone(), window))
            .collect();
        let mut sights = Vec::new();
        for bucket_id in activity.settings.bucket_count.buckets() {
            let bucket = scope.bucket(bucket_id);
            let known = known.get(&bucket);
            sights.push(self.bucket(bucket, known));
        }
        let mut sights = futures::stream::iter(sights).buffer_unordered(BUCKETS_AT_ONCE);
        let (mut seen, mut failure) = (Vec::new(), None);
        while let Some(sight) = sights.next().await {
            match sight {
                Ok(sight) => seen.extend(sight),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if !seen.is_empty() {
            self.store.sighted(scope, &seen).await?;
        }
        failure.map_or(Ok(()), Err)
    }

    /// Returns what is to be noted as seen.
    async fn bucket(
        &self,
        bucket: BucketScope,
        known: Option<&RecoveryWindow>,
    ) -> Result<Option<(BucketId, String)>, Error> {
        let keys = BucketKeys::new(&bucket);
        let server = self.redis.who_serves(&keys).await?;
        if !server.is_primary {
            return Ok(None);
        }
        let names = names(&server);
        let Some(known) = known else {
            self.store.saw_server(&bucket, names).await?;
            return Ok(None);
        };
        match Sight::of(known, &server) {
            Sight::Same => {
                // One replica may have written meta just after another one had ended the window. It
                // is opened again, and ends as any other.
                if known.opened_at_ms.is_none() && self.is_held(&keys).await? {
                    let reason = "meta says so and none is on record";
                    self.open(&bucket, names, reason).await?;
                }
                let noted = Duration::from_millis(known.sighted_ms_ago.try_into().unwrap_or(0));
                // Well before the next look, or a sighting might be two looks old.
                let is_due = noted >= self.interval / 2;
                Ok(is_due.then(|| (bucket.bucket_id, server.replication_id.clone())))
            }
            Sight::Renamed => {
                let before = &known.replication_id;
                self.store.rename_server(&bucket, before, names).await?;
                Ok(None)
            }
            Sight::Other => {
                let reason = format!(
                    "run id {}, replication id {} instead of {}, {}",
                    server.run_id, server.replication_id, known.run_id, known.replication_id
                );
                if self.open(&bucket, names, &reason).await? {
                    tracing::warn!(%bucket, reason, "another redis serves a bucket: its recovery begins");
                }
                Ok(None)
            }
        }
    }

    async fn open(
        &self,
        bucket: &BucketScope,
        server: ServerNames<'_>,
        reason: &str,
    ) -> Result<bool, Error> {
        let lost_after = self.interval * LOOKS_UNTIL_LOST;
        let opening = self.store.open_window(bucket, server, reason, lost_after);
        Ok(opening.await?)
    }

    /// Whether the bucket's meta says that a window is open; damage is told with the totals.
    async fn is_held(&self, keys: &BucketKeys) -> Result<bool, RedisError> {
        match self.redis.meta(keys).await {
            Err(error) if error.kind() == RedisErrorKind::Broken => Ok(false),
            meta => Ok(meta?.is_some_and(|meta| meta.recovery == InMeta::Window)),
        }
    }
}

fn names(server: &Server) -> ServerNames<'_> {
    ServerNames {
        run_id: &server.run_id,
        replication_id: &server.replication_id,
    }
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::{ActivityId, ActivityVersion, Scope, SkuId};

    use super::*;

    fn known(run_id: &str, replication_id: &str) -> RecoveryWindow {
        let scope = Scope {
            activity_id: ActivityId::parse("a1").unwrap(),
            sku_id: SkuId::parse("s1").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        };
        RecoveryWindow {
            bucket: scope.bucket(BucketId::ZERO),
            run_id: run_id.to_owned(),
            replication_id: replication_id.to_owned(),
            sighted_ms_ago: 0,
            opened_at_ms: None,
            open_for_ms: None,
            ends: None,
            reason: String::new(),
        }
    }

    fn seen(run_id: &str, replication_id: &str, took_over: bool) -> Server {
        Server {
            run_id: run_id.to_owned(),
            replication_id: replication_id.to_owned(),
            took_over,
            is_primary: true,
        }
    }

    #[test]
    fn a_server_is_known_by_its_history_and_not_by_its_process() {
        let known = |run_id, history| known(run_id, history);
        let cases = [
            (known("r1", "h1"), seen("r1", "h1", true), Sight::Same),
            // Its first replica has come.
            (known("r1", "h1"), seen("r1", "h2", false), Sight::Renamed),
            // Demoted and promoted again.
            (known("r1", "h1"), seen("r1", "h2", true), Sight::Other),
            // Started again; promoted.
            (known("r1", "h1"), seen("r2", "h2", false), Sight::Other),
            (known("r1", "h1"), seen("r2", "h2", true), Sight::Other),
            // On record from before histories were noted.
            (known("r1", ""), seen("r1", "h1", true), Sight::Renamed),
            (known("r1", ""), seen("r2", "h1", false), Sight::Other),
        ];
        for (known, seen, expected) in cases {
            assert_eq!(Sight::of(&known, &seen), expected, "{known:?} {seen:?}");
        }
    }
}
