//! Bodies of arrived messages to domain values.
//!
//! A body is data from outside. Whatever it holds, decoding ends with a value or with a
//! [`DecodeError`] that names what is wrong; the caller parks the message and goes on.

use std::str::FromStr;

use bytes::Bytes;
use prost::Message;
use seckill_proto::events::v1 as pb;
use seckill_proto::{Violation, Violations};
use seckill_state_machine::{
    ActivityId, ActivityVersion, BucketId, BucketScope, MessageId, OrderEvent, OrderRequest,
    ReservationId, SCHEMA_VERSION, Scope, SkuId,
};

use crate::IncomingMessage;
use crate::message::property;

/// The largest body that is decoded. The largest valid one has six ids of at most 128 bytes, a trace
/// of 55 and numbers, below 1 KiB; the rest is room for fields that a newer sender may add.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// Why a message cannot be understood. Repeating changes nothing; it is to be parked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There is no body.
    #[error("the body is empty")]
    Empty,
    /// The body is larger than [`BODY_BYTES_MAX`].
    #[error("the body has {bytes} bytes, more than {BODY_BYTES_MAX}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The bytes are not a body of this kind.
    #[error("the body is malformed: {0}")]
    Malformed(String),
    /// A schema that this version does not know; a newer consumer may.
    #[error("the body has schema version {found}, known is {SCHEMA_VERSION}")]
    UnknownSchema {
        /// The version found; 0 when the body has none.
        found: u32,
    },
    /// Fields are wrong.
    #[error("fields are wrong: {}", join(.0))]
    Invalid(Vec<Violation>),
}

fn join(violations: &[Violation]) -> String {
    let texts: Vec<String> = violations
        .iter()
        .map(|violation| format!("{} {}", violation.field, violation.problem))
        .collect();
    texts.join("; ")
}

impl DecodeError {
    /// A word for the kind of mistake, for metrics and the dead letter's reason.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Empty => "EMPTY_BODY",
            Self::TooLarge { .. } => "BODY_TOO_LARGE",
            Self::Malformed(_) => "MALFORMED_BODY",
            Self::UnknownSchema { .. } => "UNKNOWN_SCHEMA",
            Self::Invalid(_) => "INVALID_FIELDS",
        }
    }
}

/// Decodes an order request and checks that its envelope names the same message.
///
/// # Errors
/// [`DecodeError`] names every wrong field.
pub fn decode_order_request(message: &IncomingMessage) -> Result<OrderRequest, DecodeError> {
    let body: pb::OrderRequest =
        decode_body(&message.body, |body: &pb::OrderRequest| body.schema_version)?;
    let inner_id = body.message_id.clone();
    let decoded = OrderRequest::try_from(body);
    let mut violations = Vec::new();
    if let Some(outer_id) = message.property(property::MESSAGE_ID)
        && outer_id != inner_id
    {
        violations.push(Violation {
            field: "message_id",
            problem: "is not the one of the message's envelope".to_owned(),
        });
    }
    finish(decoded, violations)
}

/// Decodes an order event.
///
/// # Errors
/// [`DecodeError`] names every wrong field.
pub fn decode_order_event(message: &IncomingMessage) -> Result<OrderEvent, DecodeError> {
    let body: pb::OrderEvent =
        decode_body(&message.body, |body: &pb::OrderEvent| body.schema_version)?;
    finish(OrderEvent::try_from(body), Vec::new())
}

/// Where a message belongs by its properties alone, for one whose body cannot be read.
#[must_use]
pub fn placed_scope(message: &IncomingMessage) -> Option<BucketScope> {
    let version = number::<u64>(message, property::ACTIVITY_VERSION)?;
    let bucket = number::<u32>(message, property::BUCKET_ID)?;
    Some(BucketScope {
        scope: Scope {
            activity_id: ActivityId::parse(message.property(property::ACTIVITY_ID)?).ok()?,
            sku_id: SkuId::parse(message.property(property::SKU_ID)?).ok()?,
            version: ActivityVersion::new(version).ok()?,
        },
        bucket_id: BucketId::new(bucket).ok()?,
    })
}

/// The reservation of an order request by its message id alone, for one whose body cannot be read.
#[must_use]
pub fn placed_reservation(message: &IncomingMessage) -> Option<ReservationId> {
    let message_id = MessageId::parse(message.message_id.as_deref()?).ok()?;
    Some(message_id.reservation_id())
}

fn number<T: FromStr>(message: &IncomingMessage, name: &str) -> Option<T> {
    message.property(name)?.parse().ok()
}

/// The schema is judged before the fields: an unknown version may use them differently.
fn decode_body<B: Message + Default>(
    bytes: &Bytes,
    schema_of: impl FnOnce(&B) -> u32,
) -> Result<B, DecodeError> {
    if bytes.is_empty() {
        return Err(DecodeError::Empty);
    }
    if bytes.len() > BODY_BYTES_MAX {
        return Err(DecodeError::TooLarge { bytes: bytes.len() });
    }
    let body =
        B::decode(bytes.clone()).map_err(|error| DecodeError::Malformed(error.to_string()))?;
    let found = schema_of(&body);
    if found == SCHEMA_VERSION {
        Ok(body)
    } else {
        Err(DecodeError::UnknownSchema { found })
    }
}

fn finish<T>(
    decoded: Result<T, Violations>,
    mut of_envelope: Vec<Violation>,
) -> Result<T, DecodeError> {
    match decoded {
        Ok(value) if of_envelope.is_empty() => Ok(value),
        Ok(_) => Err(DecodeError::Invalid(of_envelope)),
        Err(violations) => {
            let mut all = violations.into_vec();
            all.append(&mut of_envelope);
            Err(DecodeError::Invalid(all))
        }
    }
}

#[cfg(test)]
mod tests;
