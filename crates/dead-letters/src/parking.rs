//! One message to one row of `dead_letter`.
//!
//! A crash before the row is committed leaves the message, which comes again; a crash after it leaves
//! row and message, and parking it again changes nothing.

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{Error as RedisError, ErrorKind, Redis, ReservationRecord};
use seckill_message_bus::{
    DecodeError, Group, IncomingMessage, Topic, decode_order_request, placed_reservation,
    placed_scope,
};
use seckill_order_store::{DeadLetter, Error, Store};
use seckill_state_machine::{BucketScope, OrderRequest, TimestampMs, Traceparent};

/// Why a message is parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Its body says nothing that this version understands.
    Undecodable(DecodeError),
    /// It names a stock row that PostgreSQL does not have.
    UnknownBucket,
    /// It failed as often as was configured, at last with this error.
    AttemptsExhausted(String),
    /// The broker gave up delivering it.
    RedeliveriesExhausted,
}

impl Reason {
    /// The word in the row.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Undecodable(_) => "undecodable",
            Self::UnknownBucket => "unknown_bucket",
            Self::AttemptsExhausted(_) => "attempts_exhausted",
            Self::RedeliveriesExhausted => "redeliveries_exhausted",
        }
    }

    /// What went wrong, for a person.
    #[must_use]
    pub fn explanation(&self) -> String {
        match self {
            Self::Undecodable(error) => error.to_string(),
            Self::UnknownBucket => "there is no stock row for its bucket".to_owned(),
            Self::AttemptsExhausted(error) => error.clone(),
            Self::RedeliveriesExhausted => "the broker moved it to the dead letters".to_owned(),
        }
    }
}

/// Parks the messages of one consumer group.
#[derive(Clone)]
pub struct Parker {
    store: Store,
    redis: Redis,
    group: Group,
}

impl Parker {
    /// Parks for a group.
    #[must_use]
    pub const fn new(store: Store, redis: Redis, group: Group) -> Self {
        Self {
            store,
            redis,
            group,
        }
    }

    /// Parks a message and says whether it is safe now. `false` means that it must come again.
    pub async fn park(&self, message: &IncomingMessage, reason: &Reason) -> bool {
        let Ok(request) = self.request(message).await else {
            return false;
        };
        let letter = self.letter(message, reason, request);
        let parked = self.store.park(&letter).await;
        log(&letter, parked.as_ref().err());
        parked.is_ok()
    }

    fn letter(
        &self,
        message: &IncomingMessage,
        reason: &Reason,
        request: Option<OrderRequest>,
    ) -> DeadLetter {
        DeadLetter {
            topic: message.origin_topic().to_owned(),
            consumer_group: self.group.name().to_owned(),
            message_key: message.message_id.clone(),
            broker_message_id: message.broker_message_id.clone(),
            queue_id: message.queue_id,
            queue_offset: message.queue_offset,
            born_at_ms: Some(TimestampMs::new(message.born_at_ms)),
            body: message.body.to_vec(),
            properties: message.properties.clone(),
            reason: reason.word().to_owned(),
            error: reason.explanation(),
            attempts: message.reconsume_times.saturating_add(1),
            bucket: bucket(message, request.as_ref()),
            request,
        }
    }

    /// The request that the message is about. An event is about a request that is decided already.
    async fn request(&self, message: &IncomingMessage) -> Result<Option<OrderRequest>, NotNow> {
        if message.origin() == Some(Topic::OrderEvent) {
            return Ok(None);
        }
        match decode_order_request(message) {
            Ok(request) => Ok(Some(request)),
            Err(_) => self.request_from_redis(message).await,
        }
    }

    /// The request behind a body that cannot be read, from the reservation that its envelope names.
    /// If Redis has lost it, the message is parked without one, and so it is when what Redis holds
    /// cannot be read, which no repeat would cure; the reconciler finds such reservations. While
    /// Redis is away the message must come again: parked without its request, it would leave the
    /// reservation without a task.
    async fn request_from_redis(
        &self,
        message: &IncomingMessage,
    ) -> Result<Option<OrderRequest>, NotNow> {
        let place = placed_scope(message).zip(placed_reservation(message));
        let Some((bucket, reservation_id)) = place else {
            return Ok(None);
        };
        let found = self
            .redis
            .reservation(&BucketKeys::new(&bucket), &reservation_id)
            .await;
        if let Err(error) = &found {
            tracing::warn!(
                %reservation_id,
                %error,
                "the reservation of an unreadable message could not be looked up"
            );
        }
        request_found(found)
    }
}

/// Whether there is a request cannot be told now.
#[derive(Debug, PartialEq, Eq)]
struct NotNow;

fn request_found(
    found: Result<Option<ReservationRecord>, RedisError>,
) -> Result<Option<OrderRequest>, NotNow> {
    match found {
        Ok(record) => Ok(record.map(|record| record.order_request())),
        Err(error) if error.kind() == ErrorKind::Broken => Ok(None),
        Err(_) => Err(NotNow),
    }
}

/// Where the message belongs: by its body if that can be read, else by its envelope.
fn bucket(message: &IncomingMessage, request: Option<&OrderRequest>) -> Option<BucketScope> {
    let by_body = request.map(|request| request.bucket.clone());
    by_body.or_else(|| placed_scope(message))
}

fn log(letter: &DeadLetter, failure: Option<&Error>) {
    let request = letter.request.as_ref();
    let reservation_id = request.map(|request| request.reservation_id.as_str());
    let traceparent = request.and_then(|request| request.traceparent.as_ref());
    let trace_id = traceparent.map(Traceparent::trace_id);
    match failure {
        None => tracing::error!(
            reason = letter.reason,
            error = letter.error,
            topic = letter.topic,
            message_id = letter.message_key,
            broker_message_id = letter.broker_message_id,
            reservation_id,
            trace_id,
            bytes = letter.body.len(),
            "parked a message that cannot be processed"
        ),
        Some(failure) => tracing::warn!(
            reason = letter.reason,
            message_id = letter.message_key,
            broker_message_id = letter.broker_message_id,
            error = %failure,
            cause = failure.cause().map(tracing::field::display),
            "a message could not be parked and will come again"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_means_that_there_is_no_request() {
        let damaged = RedisError::Malformed {
            what: "reservation",
            reason: "quantity is missing".to_owned(),
        };
        assert_eq!(request_found(Ok(None)), Ok(None));
        assert_eq!(request_found(Err(damaged)), Ok(None));
        let (call, reason) = ("hgetall", String::new());
        for away in [
            RedisError::OutcomeUnknown {
                call,
                reason: reason.clone(),
            },
            RedisError::Refused { call, reason },
            RedisError::NotConnected(String::new()),
            RedisError::Overloaded { limit: 1 },
        ] {
            assert_eq!(request_found(Err(away)), Err(NotNow));
        }
    }
}
