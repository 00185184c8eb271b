//! Order requests as columns, for statements that take a whole batch at once.

use seckill_state_machine::{BucketScope, OrderRequest};
use time::OffsetDateTime;

use crate::rows::{informative_time, version};

/// The columns by which decisions, tasks and events repeat their order request.
pub(crate) struct Columns<'a> {
    pub reservation_id: Vec<&'a str>,
    pub message_id: Vec<String>,
    pub request_id: Vec<&'a str>,
    pub user_id: Vec<&'a str>,
    pub activity_id: Vec<&'a str>,
    pub sku_id: Vec<&'a str>,
    pub version: Vec<i64>,
    pub bucket_id: Vec<i64>,
    pub quantity: Vec<i64>,
    pub reserved_at: Vec<OffsetDateTime>,
    pub traceparent: Vec<Option<&'a str>>,
}

impl<'a> Columns<'a> {
    /// Turns rows into columns, in the given order.
    pub(crate) fn of(requests: &[&'a OrderRequest]) -> Self {
        let rows = || requests.iter().copied();
        Self {
            reservation_id: rows().map(|r| r.reservation_id.as_str()).collect(),
            message_id: rows().map(|r| r.message_id().into()).collect(),
            request_id: rows().map(|r| r.request_id.as_str()).collect(),
            user_id: rows().map(|r| r.user_id.as_str()).collect(),
            activity_id: rows()
                .map(|r| r.bucket.scope.activity_id.as_str())
                .collect(),
            sku_id: rows().map(|r| r.bucket.scope.sku_id.as_str()).collect(),
            version: rows().map(|r| version(&r.bucket.scope)).collect(),
            bucket_id: rows()
                .map(|r| i64::from(r.bucket.bucket_id.get()))
                .collect(),
            quantity: rows().map(|r| i64::from(r.quantity.get())).collect(),
            reserved_at: rows().map(|r| informative_time(r.reserved_at_ms)).collect(),
            traceparent: rows()
                .map(|r| r.traceparent.as_ref().map(|t| t.as_str()))
                .collect(),
        }
    }
}

/// Buckets, one array a column of their key.
pub(crate) struct BucketColumns<'a> {
    pub activity_id: Vec<&'a str>,
    pub sku_id: Vec<&'a str>,
    pub version: Vec<i64>,
    pub bucket_id: Vec<i64>,
}

impl<'a> BucketColumns<'a> {
    /// Turns keys into columns, in the given order.
    pub(crate) fn of(buckets: impl Iterator<Item = &'a BucketScope> + Clone) -> Self {
        let scopes = || buckets.clone().map(|bucket| &bucket.scope);
        Self {
            activity_id: scopes().map(|scope| scope.activity_id.as_str()).collect(),
            sku_id: scopes().map(|scope| scope.sku_id.as_str()).collect(),
            version: scopes().map(version).collect(),
            bucket_id: buckets
                .clone()
                .map(|bucket| i64::from(bucket.bucket_id.get()))
                .collect(),
        }
    }
}
