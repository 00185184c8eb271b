//! Parked messages as operators see them: listed, looked at, replayed, discarded.
//!
//! A letter is `OPEN` until an operator replays or discards it. Neither touches the compensation task
//! of the reservation inside: whether that becomes an order or is released is decided where it always
//! is. A replay that fails comes back by being parked again; so whoever marks one as replayed says how
//! often it had been parked when it was sent, and a letter that came back meanwhile stays open.

use std::collections::BTreeMap;
use std::str::FromStr;

use seckill_state_machine::{BucketScope, ReservationId, Scope, TimestampMs};
use tokio_postgres::Row;

use crate::parking::DeadLetter;
use crate::rows::{
    ScopeFilter, bucket, get, number, parse, parse_opt, time_ms, time_ms_opt, to_time,
};
use crate::{Error, Store};

/// Most letters of one page.
const PAGE_MAX: i64 = 1_000;

/// Where a parked message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LetterStatus {
    /// Nobody has done anything about it, or a replay failed.
    Open,
    /// It was sent again.
    Replayed,
    /// An operator has given it up.
    Discarded,
}

impl LetterStatus {
    /// Every status.
    pub const ALL: [Self; 3] = [Self::Open, Self::Replayed, Self::Discarded];

    /// The word that PostgreSQL stores.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::Replayed => "REPLAYED",
            Self::Discarded => "DISCARDED",
        }
    }
}

/// A word that names no status of a letter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown status of a letter")]
pub struct UnknownLetterStatus;

impl FromStr for LetterStatus {
    type Err = UnknownLetterStatus;
    fn from_str(text: &str) -> Result<Self, UnknownLetterStatus> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str() == text)
            .ok_or(UnknownLetterStatus)
    }
}

/// What an operator last did about a letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterAction {
    /// When.
    pub at_ms: TimestampMs,
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// What came of it, in a word.
    pub outcome: String,
}

/// A message that was kept, without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedLetter {
    /// Its number, by which operators name it.
    pub id: i64,
    /// The topic it was read from.
    pub topic: String,
    /// The consumer group that gave up.
    pub consumer_group: String,
    /// The message id that its sender gave, if it could be read.
    pub message_key: Option<String>,
    /// Bytes of its body.
    pub body_bytes: u64,
    /// A word for the kind of failure.
    pub reason: String,
    /// What went wrong, for a person.
    pub error: String,
    /// Deliveries before it was given up.
    pub attempts: u32,
    /// Where it belongs, if its properties told.
    pub bucket: Option<BucketScope>,
    /// The reservation inside, if it could be decoded.
    pub reservation_id: Option<ReservationId>,
    /// When it was first parked.
    pub parked_at_ms: TimestampMs,
    /// When it was last parked.
    pub last_parked_at_ms: TimestampMs,
    /// How often it was parked.
    pub times_parked: u32,
    /// Where it stands.
    pub status: LetterStatus,
    /// What was last done about it.
    pub action: Option<LetterAction>,
}

/// A message that was kept, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptLetter {
    /// Where it stands.
    pub parked: ParkedLetter,
    /// The message; `request` is empty, decode the body.
    pub letter: DeadLetter,
}

/// Which parked messages to list. Everything that is left empty lets all pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LetterFilter {
    /// These numbers.
    pub ids: Option<Vec<i64>>,
    /// Parked for this reason.
    pub reason: Option<String>,
    /// Of this topic.
    pub topic: Option<String>,
    /// Of this consumer group.
    pub group: Option<String>,
    /// Of this version.
    pub scope: Option<Scope>,
    /// About this reservation.
    pub reservation: Option<ReservationId>,
    /// With this status.
    pub status: Option<LetterStatus>,
    /// Last parked at this instant or later.
    pub parked_after: Option<TimestampMs>,
    /// Last parked before this instant.
    pub parked_before: Option<TimestampMs>,
    /// After this number, for paging.
    pub after_id: Option<i64>,
    /// Most letters of the answer; a page is 1,000.
    pub limit: Option<i64>,
}

macro_rules! letter_columns {
    () => {
        "letter_id, topic, consumer_group, message_key, octet_length(body)::bigint AS body_bytes,
        reason, error, attempts, activity_id, sku_id, version, bucket_id, reservation_id, parked_at,
        last_parked_at, times_parked, status, acted_at, acted_by, acted_reason, outcome"
    };
}

const LETTERS: &str = concat!(
    "-- letters
    SELECT ",
    letter_columns!(),
    " FROM dead_letter
    WHERE letter_id > $11
        AND ($1::bigint[] IS NULL OR letter_id = ANY($1))
        AND ($2::text IS NULL OR reason = $2)
        AND ($3::text IS NULL OR topic = $3)
        AND ($4::text IS NULL OR consumer_group = $4)
        AND ($5::text IS NULL OR (activity_id = $5 AND sku_id = $6 AND version = $7))
        AND ($8::text IS NULL OR reservation_id = $8)
        AND ($9::text IS NULL OR status = $9)
        AND ($10::timestamptz IS NULL OR last_parked_at >= $10)
        AND ($12::timestamptz IS NULL OR last_parked_at < $12)
    ORDER BY letter_id
    LIMIT $13"
);

const LETTER: &str = concat!(
    "-- letter
    SELECT ",
    letter_columns!(),
    ", broker_message_id, queue_id, queue_offset, born_at, body,
        properties::text AS properties_text
    FROM dead_letter WHERE letter_id = $1"
);

fn parked(row: &Row) -> Result<ParkedLetter, Error> {
    let bucket = match get::<Option<&str>>(row, "activity_id")? {
        Some(_) => Some(bucket(row)?),
        None => None,
    };
    Ok(ParkedLetter {
        id: get(row, "letter_id")?,
        topic: get(row, "topic")?,
        consumer_group: get(row, "consumer_group")?,
        message_key: get(row, "message_key")?,
        body_bytes: number(row, "body_bytes")?,
        reason: get(row, "reason")?,
        error: get(row, "error")?,
        attempts: number(row, "attempts")?,
        bucket,
        reservation_id: parse_opt(row, "reservation_id")?,
        parked_at_ms: time_ms(row, "parked_at")?,
        last_parked_at_ms: time_ms(row, "last_parked_at")?,
        times_parked: number(row, "times_parked")?,
        status: parse(row, "status")?,
        action: last_action(row)?,
    })
}

fn last_action(row: &Row) -> Result<Option<LetterAction>, Error> {
    let Some(at_ms) = time_ms_opt(row, "acted_at")? else {
        return Ok(None);
    };
    Ok(Some(LetterAction {
        at_ms,
        actor: get(row, "acted_by")?,
        reason: get(row, "acted_reason")?,
        outcome: get(row, "outcome")?,
    }))
}

fn kept(row: &Row) -> Result<KeptLetter, Error> {
    let parked = parked(row)?;
    let properties: BTreeMap<String, String> =
        serde_json::from_str(get(row, "properties_text")?)
            .map_err(|error| Error::stored("properties", error))?;
    let letter = DeadLetter {
        topic: parked.topic.clone(),
        consumer_group: parked.consumer_group.clone(),
        message_key: parked.message_key.clone(),
        broker_message_id: get(row, "broker_message_id")?,
        queue_id: number(row, "queue_id")?,
        queue_offset: get(row, "queue_offset")?,
        born_at_ms: time_ms_opt(row, "born_at")?,
        body: get(row, "body")?,
        properties,
        reason: parked.reason.clone(),
        error: parked.error.clone(),
        attempts: parked.attempts,
        bucket: parked.bucket.clone(),
        request: None,
    };
    Ok(KeptLetter { parked, letter })
}

impl Store {
    /// Parked messages by number, without their bodies; at most 1,000 a page.
    ///
    /// # Errors
    /// As every read.
    pub async fn letters(&self, filter: &LetterFilter) -> Result<Vec<ParkedLetter>, Error> {
        let time = |field, at: Option<TimestampMs>| at.map(|at| to_time(field, at)).transpose();
        let scope = ScopeFilter::from(filter.scope.as_ref());
        let rows = self
            .read(
                "letters",
                LETTERS,
                &[
                    /* ids */ &filter.ids,
                    /* reason */ &filter.reason,
                    /* topic */ &filter.topic,
                    /* group */ &filter.group,
                    /* activity_id */ &scope.activity_id,
                    /* sku_id */ &scope.sku_id,
                    /* version */ &scope.version,
                    /* reservation */
                    &filter.reservation.as_ref().map(ReservationId::as_str),
                    /* status */ &filter.status.map(LetterStatus::as_str),
                    /* parked_after */ &time("parked_after", filter.parked_after)?,
                    /* after_id */ &filter.after_id.unwrap_or(0),
                    /* parked_before */ &time("parked_before", filter.parked_before)?,
                    /* limit */ &filter.limit.unwrap_or(PAGE_MAX).clamp(0, PAGE_MAX),
                ],
            )
            .await?;
        rows.iter().map(parked).collect()
    }

    /// One parked message, whole.
    ///
    /// # Errors
    /// As every read.
    pub async fn letter(&self, id: i64) -> Result<Option<KeptLetter>, Error> {
        let rows = self.read("letter", LETTER, &[/* letter_id */ &id]).await?;
        rows.first().map(kept).transpose()
    }

    /// Notes that a letter was sent again. `times_parked` is what the caller read before sending:
    /// `false`, and no change, when the letter came back since then or was discarded.
    ///
    /// # Errors
    /// `Invalid` without a named actor; else as every write.
    pub async fn mark_replayed(
        &self,
        id: i64,
        times_parked: u32,
        actor: &str,
        reason: &str,
        outcome: &str,
    ) -> Result<bool, Error> {
        must_be_named(actor)?;
        let touched = self
            .run_tx("mark_replayed", async |session| {
                session
                    .execute(
                        "-- mark_replayed
                        UPDATE dead_letter
                        SET status = 'REPLAYED', acted_at = now(), acted_by = $3,
                            acted_reason = $4, outcome = $5, replayed_at = now(), replayed_by = $3
                        WHERE letter_id = $1 AND times_parked = $2 AND status <> 'DISCARDED'",
                        &[
                            /* letter_id */ &id,
                            /* times_parked */ &i64::from(times_parked),
                            /* acted_by */ &actor,
                            /* acted_reason */ &reason,
                            /* outcome */ &outcome,
                        ],
                    )
                    .await
            })
            .await?;
        Ok(touched == 1)
    }

    /// Gives an open letter up; says whether this call did, or one before it by the same actor for the
    /// same reason whose answer may have been lost. It stays on record, and the reservation inside keeps
    /// its task.
    ///
    /// # Errors
    /// `Invalid` without a named actor; else as every write.
    pub async fn discard(&self, id: i64, actor: &str, reason: &str) -> Result<bool, Error> {
        must_be_named(actor)?;
        let touched = self
            .run_tx("discard", async |session| {
                session
                    .execute(
                        "-- discard
                        UPDATE dead_letter
                        SET status = 'DISCARDED', acted_by = $2, acted_reason = $3,
                            acted_at = CASE WHEN status = 'OPEN' THEN now() ELSE acted_at END,
                            outcome = 'discarded'
                        WHERE letter_id = $1 AND (
                            status = 'OPEN'
                            OR (status = 'DISCARDED' AND acted_by = $2 AND acted_reason = $3)
                        )",
                        &[
                            /* letter_id */ &id, /* acted_by */ &actor,
                            /* acted_reason */ &reason,
                        ],
                    )
                    .await
            })
            .await?;
        Ok(touched == 1)
    }
}

fn must_be_named(actor: &str) -> Result<(), Error> {
    if actor.is_empty() {
        return Err(Error::invalid("actor", "must be named"));
    }
    Ok(())
}
