//! A batch of messages, sorted into what can be decided and what cannot, and split when it fails.

use std::collections::BTreeMap;

use seckill_message_bus::{DecodeError, IncomingMessage, decode_order_request};
use seckill_state_machine::{BucketScope, OrderRequest};

/// An order request together with the message that brought it, which is kept whole in case it must
/// be parked.
#[derive(Debug)]
pub struct Work {
    /// What it asks for.
    pub request: OrderRequest,
    /// What arrived.
    pub message: IncomingMessage,
}

/// A message that says nothing this version understands.
#[derive(Debug)]
pub struct Undecodable {
    /// What arrived.
    pub message: IncomingMessage,
    /// What is wrong with it.
    pub error: DecodeError,
}

/// Decodes every message of a batch, in order.
#[must_use]
pub fn sort(batch: Vec<IncomingMessage>) -> (Vec<Work>, Vec<Undecodable>) {
    let mut good = Vec::with_capacity(batch.len());
    let mut bad = Vec::new();
    for message in batch {
        match decode_order_request(&message) {
            Ok(request) => good.push(Work { request, message }),
            Err(error) => bad.push(Undecodable { message, error }),
        }
    }
    (good, bad)
}

/// Splits a batch by the stock row that each request needs. The order within a bucket stays, so
/// that the first of two requests of one user is still decided first.
#[must_use]
pub fn by_bucket(batch: Vec<Work>) -> Vec<Vec<Work>> {
    let mut groups: BTreeMap<BucketScope, Vec<Work>> = BTreeMap::new();
    for work in batch {
        groups
            .entry(work.request.bucket.clone())
            .or_default()
            .push(work);
    }
    groups.into_values().collect()
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use seckill_state_machine::{
        ActivityId, ActivityVersion, BucketId, Quantity, RequestId, ReservationId, Scope, SkuId,
        TimestampMs, UserId,
    };

    use super::*;

    /// A bucket by its number.
    pub fn bucket(id: u32) -> BucketScope {
        let scope = Scope {
            activity_id: ActivityId::parse("a1").unwrap(),
            sku_id: SkuId::parse("s1").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        };
        scope.bucket(BucketId::new(id).unwrap())
    }

    fn message() -> IncomingMessage {
        IncomingMessage {
            message_id: None,
            topic: "seckill-order-request".to_owned(),
            queue_id: 0,
            queue_offset: 0,
            broker_message_id: String::new(),
            body: Bytes::new(),
            properties: BTreeMap::new(),
            reconsume_times: 0,
            born_at_ms: 0,
        }
    }

    /// A request for a bucket, whose reservation id repeats a letter.
    pub fn work(bucket_id: u32, letter: char) -> Work {
        Work {
            request: OrderRequest {
                reservation_id: ReservationId::parse(letter.to_string().repeat(26)).unwrap(),
                request_id: RequestId::parse("q1").unwrap(),
                user_id: UserId::parse("u1").unwrap(),
                bucket: bucket(bucket_id),
                quantity: Quantity::ONE,
                reserved_at_ms: TimestampMs::new(1),
                traceparent: None,
            },
            message: message(),
        }
    }

    #[test]
    fn splitting_by_bucket_keeps_the_order_within_each() {
        let batch = vec![work(1, 'a'), work(0, 'b'), work(1, 'c'), work(0, 'd')];
        let split: Vec<Vec<String>> = by_bucket(batch)
            .iter()
            .map(|group| {
                group
                    .iter()
                    .map(|work| work.request.reservation_id.as_str()[..1].to_owned())
                    .collect()
            })
            .collect();
        assert_eq!(split, [["b", "d"], ["a", "c"]]);
    }

    #[test]
    fn a_body_that_says_nothing_is_sorted_out_and_kept_whole() {
        let (good, bad) = sort(vec![message()]);
        assert!(good.is_empty());
        assert_eq!(bad[0].message, message());
    }
}
