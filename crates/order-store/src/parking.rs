//! Messages that cannot be processed, kept whole.
//!
//! A consumer acknowledges such a message only because it is kept here. When the message names a
//! reservation that nobody has decided, its compensation task is opened in the same transaction:
//! otherwise a failover that forgets the reservation would leave nobody who remembers it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use seckill_state_machine::{BucketScope, OrderRequest, TimestampMs};

use crate::patience::PATIENCE_DEFAULT_MS;
use crate::pool::Session;
use crate::rows::{get, storable, to_time, version};
use crate::tasks::{self, Opening};
use crate::{Error, Store, TaskOrigin};

/// A message to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The topic it was read from.
    pub topic: String,
    /// The consumer group that gave up.
    pub consumer_group: String,
    /// The message id that its sender gave, if it can be read.
    pub message_key: Option<String>,
    /// The broker's own id.
    pub broker_message_id: String,
    /// The queue.
    pub queue_id: i32,
    /// The place in the queue.
    pub queue_offset: i64,
    /// When the sender made it.
    pub born_at_ms: Option<TimestampMs>,
    /// The body, whatever it is.
    pub body: Vec<u8>,
    /// All properties.
    pub properties: BTreeMap<String, String>,
    /// A lower-case word: `undecodable`, `unknown_bucket`, `attempts_exhausted` …
    pub reason: String,
    /// What went wrong, for a person. Never a user id.
    pub error: String,
    /// Deliveries so far.
    pub attempts: u32,
    /// Where it belongs, if its properties tell.
    pub bucket: Option<BucketScope>,
    /// The request inside, if it could be decoded: an undecided one gets a compensation task. For
    /// an undecodable body a caller may fill this in from the reservation that Redis still has. It
    /// is not stored: the body is.
    pub request: Option<OrderRequest>,
}

fn properties_json(properties: &BTreeMap<String, String>) -> Result<String, Error> {
    let storable: BTreeMap<Cow<'_, str>, Cow<'_, str>> = properties
        .iter()
        .map(|(key, value)| (storable(key), storable(value)))
        .collect();
    serde_json::to_string(&storable).map_err(|error| Error::invalid("properties", error))
}

/// Parked again, a letter keeps what was known of it and learns what was not. Its place is known whole
/// or not at all, on either side.
async fn keep(session: &Session, letter: &DeadLetter) -> Result<(), Error> {
    let born_at = letter
        .born_at_ms
        .and_then(|at| to_time("born_at_ms", at).ok());
    let place = letter.bucket.as_ref();
    let reservation_id = letter.request.as_ref().map(|r| r.reservation_id.as_str());
    session
        .execute(
            "-- park
            INSERT INTO dead_letter AS l (
                topic, consumer_group, message_key, broker_message_id, queue_id, queue_offset,
                born_at, body, properties, reason, error, attempts, activity_id, sku_id, version,
                bucket_id, reservation_id
            )
            VALUES (
                $1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb, $10, $11, $12, $13, $14, $15,
                $16, $17
            )
            ON CONFLICT (topic, left(coalesce(message_key, broker_message_id), 256), body_sha256)
            DO UPDATE
            SET times_parked = l.times_parked + 1, last_parked_at = now(),
                status = CASE WHEN l.status = 'REPLAYED' THEN 'OPEN' ELSE l.status END,
                reason = excluded.reason, error = excluded.error,
                attempts = greatest(l.attempts, excluded.attempts),
                activity_id = coalesce(l.activity_id, excluded.activity_id),
                sku_id = coalesce(l.sku_id, excluded.sku_id),
                version = coalesce(l.version, excluded.version),
                bucket_id = coalesce(l.bucket_id, excluded.bucket_id),
                reservation_id = coalesce(l.reservation_id, excluded.reservation_id)",
            &[
                &storable(&letter.topic),
                &storable(&letter.consumer_group),
                &letter.message_key.as_deref().map(storable),
                &storable(&letter.broker_message_id),
                &i64::from(letter.queue_id),
                &letter.queue_offset,
                &born_at,
                &letter.body,
                &properties_json(&letter.properties)?,
                &storable(&letter.reason),
                &storable(&letter.error),
                &i64::from(letter.attempts),
                &place.map(|b| b.scope.activity_id.as_str()),
                &place.map(|b| b.scope.sku_id.as_str()),
                &place.map(|b| version(&b.scope)),
                &place.map(|b| i64::from(b.bucket_id.get())),
                &reservation_id,
            ],
        )
        .await?;
    Ok(())
}

/// The patience of the request's activity, or `None` when the request is decided.
async fn patience(session: &Session, request: &OrderRequest) -> Result<Option<i64>, Error> {
    let scope = &request.bucket.scope;
    let rows = session
        .query(
            "-- patience
            SELECT
                EXISTS (SELECT FROM reservation_decision WHERE reservation_id = $1)
                OR EXISTS (
                    SELECT FROM reservation_decision_archive WHERE reservation_id = $1
                ) AS decided,
                (
                    SELECT patience_ms FROM activity
                    WHERE activity_id = $2 AND sku_id = $3 AND version = $4
                ) AS patience_ms",
            &[
                /* reservation_id */ &request.reservation_id.as_str(),
                /* activity_id */ &scope.activity_id.as_str(),
                /* sku_id */ &scope.sku_id.as_str(),
                /* version */ &version(scope),
            ],
        )
        .await?;
    let Some(row) = rows.first() else {
        return Ok(Some(PATIENCE_DEFAULT_MS));
    };
    let patience = get::<Option<i64>>(row, "patience_ms")?.unwrap_or(PATIENCE_DEFAULT_MS);
    Ok((!get::<bool>(row, "decided")?).then_some(patience))
}

impl Store {
    /// Keeps a message whole and, when it names an undecided reservation, opens its compensation
    /// task due after the activity's patience, in one transaction. Parking it again counts it, and
    /// opens it again when it had been replayed: the replay has failed. One that was discarded stays
    /// discarded, since nothing about it is new.
    ///
    /// # Errors
    /// As every write; then the message must not be acknowledged.
    pub async fn park(&self, letter: &DeadLetter) -> Result<(), Error> {
        self.run_tx("park", async |session| {
            keep(session, letter).await?;
            let Some(request) = &letter.request else {
                return Ok(());
            };
            if let Some(patience_ms) = patience(session, request).await? {
                let opening = Opening::unless_open(TaskOrigin::Parked, patience_ms, "park");
                tasks::open(session, &[request], &opening).await?;
            }
            Ok(())
        })
        .await
    }

    /// How many messages are parked.
    ///
    /// # Errors
    /// As every read.
    pub async fn dead_letter_count(&self) -> Result<u64, Error> {
        self.count(
            "dead_letter_count",
            "-- dead_letter_count
            SELECT count(*) AS n FROM dead_letter",
            &[],
        )
        .await
    }
}
