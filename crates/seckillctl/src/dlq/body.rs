//! A message's body for people: decoded where it can be, else its first bytes.
//!
//! A decoded body shows its buyer as a hash. What cannot be decoded may hold anything, also a user id;
//! it is shown as numbers alone, and not much of it.

use std::fmt::Write as _;

use seckill_message_bus::{IncomingMessage, Topic, decode_order_event, decode_order_request};
use seckill_state_machine::{OrderEvent, OrderEventKind, OrderRequest};
use seckill_telemetry::user_id_hash;
use serde::Serialize;

/// Bytes that are shown of a body that cannot be decoded: 16 lines of 16.
const DUMP_BYTES_MAX: usize = 256;

/// Bytes of one line.
const DUMP_LINE: usize = 16;

/// A body.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// That of an order request.
    OrderRequest(Fields),
    /// That of an order event.
    OrderEvent(EventFields),
    /// One that this program does not understand.
    Undecodable {
        /// Why.
        error: String,
        /// Its size.
        bytes: usize,
        /// Its first bytes in hexadecimal, a line of 16 each.
        first: Vec<String>,
    },
}

/// What requests and events have in common.
#[derive(Debug, Serialize)]
pub struct Fields {
    reservation_id: String,
    request_id: String,
    user_id_hash: String,
    bucket: String,
    quantity: u32,
    at_ms: i64,
    traceparent: Option<String>,
}

/// An event.
#[derive(Debug, Serialize)]
pub struct EventFields {
    kind: &'static str,
    order_id: Option<String>,
    reason: Option<&'static str>,
    #[serde(flatten)]
    fields: Fields,
}

impl Body {
    /// Decodes a body by the topic that it was first sent to.
    #[must_use]
    pub fn of(message: &IncomingMessage) -> Self {
        let decoded = match message.origin() {
            Some(Topic::OrderEvent) => {
                decode_order_event(message).map(|event| Self::OrderEvent((&event).into()))
            }
            _ => decode_order_request(message).map(|body| Self::OrderRequest((&body).into())),
        };
        decoded.unwrap_or_else(|error| Self::Undecodable {
            error: error.to_string(),
            bytes: message.body.len(),
            first: dump(&message.body),
        })
    }

    /// The body in lines.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::OrderRequest(fields) => format!("  order request\n{}", fields.lines()),
            Self::OrderEvent(event) => {
                let order = crate::output::or_none(event.order_id.as_ref());
                let reason = event.reason.unwrap_or(crate::output::NONE);
                format!(
                    "  order event {}, order {order}, reason {reason}\n{}",
                    event.kind,
                    event.fields.lines()
                )
            }
            Self::Undecodable {
                error,
                bytes,
                first,
            } => {
                let shown = (*bytes).min(DUMP_BYTES_MAX);
                format!(
                    "  {error}\n  the first {shown} of {bytes} bytes:\n  {}",
                    first.join("\n  ")
                )
            }
        }
    }
}

impl Fields {
    fn lines(&self) -> String {
        format!(
            "  reservation {}, request {}\n  user {}, bucket {}, quantity {}\n  at {} (ms), trace {}",
            self.reservation_id,
            self.request_id,
            self.user_id_hash,
            self.bucket,
            self.quantity,
            self.at_ms,
            crate::output::or_none(self.traceparent.as_ref())
        )
    }
}

impl From<&OrderRequest> for Fields {
    fn from(request: &OrderRequest) -> Self {
        Self {
            reservation_id: request.reservation_id.to_string(),
            request_id: request.request_id.to_string(),
            user_id_hash: user_id_hash(&request.user_id),
            bucket: request.bucket.to_string(),
            quantity: request.quantity.get(),
            at_ms: request.reserved_at_ms.get(),
            traceparent: request.traceparent.as_ref().map(ToString::to_string),
        }
    }
}

impl From<&OrderEvent> for EventFields {
    fn from(event: &OrderEvent) -> Self {
        let (kind, order_id, reason) = match &event.kind {
            OrderEventKind::OrderCreated { order_id } => ("ORDER_CREATED", Some(order_id), None),
            OrderEventKind::Rejected { reason } => ("REJECTED", None, Some(reason.as_str())),
            OrderEventKind::OrderCancelled { order_id } => {
                ("ORDER_CANCELLED", Some(order_id), None)
            }
        };
        Self {
            kind,
            order_id: order_id.map(ToString::to_string),
            reason,
            fields: Fields {
                reservation_id: event.reservation_id.to_string(),
                request_id: event.request_id.to_string(),
                user_id_hash: user_id_hash(&event.user_id),
                bucket: event.bucket.to_string(),
                quantity: event.quantity.get(),
                at_ms: event.occurred_at_ms.get(),
                traceparent: event.traceparent.as_ref().map(ToString::to_string),
            },
        }
    }
}

fn dump(bytes: &[u8]) -> Vec<String> {
    bytes
        .get(..DUMP_BYTES_MAX)
        .unwrap_or(bytes)
        .chunks(DUMP_LINE)
        .enumerate()
        .map(|(index, line)| {
            let mut text = format!("{:04x} ", index * DUMP_LINE);
            for byte in line {
                let _ = write!(text, " {byte:02x}");
            }
            text
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_bounded_and_shows_no_text() {
        let lines = dump(b"alice and bob");
        assert_eq!(lines, ["0000  61 6c 69 63 65 20 61 6e 64 20 62 6f 62"]);
        assert_eq!(dump(&[0; 100_000]).len(), DUMP_BYTES_MAX / DUMP_LINE);
        assert_eq!(dump(&[]), [""; 0]);
    }
}
