//! Message bodies to and from domain values.
//!
//! A body is data from outside: every field is checked, all violations are returned together, and
//! nothing here panics on any content.

use seckill_state_machine::{
    ActivityId, ActivityVersion, BucketId, BucketScope, MessageId, OrderEvent, OrderEventKind,
    OrderId, OrderRequest, Quantity, RejectReason, RequestId, ReservationId, SCHEMA_VERSION, Scope,
    SkuId, TimestampMs, Traceparent, UserId,
};

use crate::events::v1 as pb;
use crate::{Collector, Violations};

impl From<&OrderRequest> for pb::OrderRequest {
    fn from(request: &OrderRequest) -> Self {
        let scope = &request.bucket.scope;
        Self {
            schema_version: SCHEMA_VERSION,
            reservation_id: request.reservation_id.to_string(),
            message_id: request.message_id().to_string(),
            request_id: request.request_id.to_string(),
            activity_id: scope.activity_id.to_string(),
            sku_id: scope.sku_id.to_string(),
            user_id: request.user_id.to_string(),
            activity_version: scope.version.get(),
            bucket_id: request.bucket.bucket_id.get(),
            quantity: request.quantity.get(),
            reserved_at_ms: request.reserved_at_ms.get(),
            traceparent: traceparent_text(request.traceparent.as_ref()),
        }
    }
}

impl TryFrom<pb::OrderRequest> for OrderRequest {
    type Error = Violations;

    fn try_from(body: pb::OrderRequest) -> Result<Self, Violations> {
        let mut fields = Collector::default();
        schema_version(&mut fields, body.schema_version);
        let reservation_id =
            fields.keep("reservation_id", ReservationId::parse(body.reservation_id));
        let message_id = fields.keep("message_id", MessageId::parse(body.message_id));
        if let (Some(reservation_id), Some(message_id)) = (&reservation_id, &message_id)
            && message_id.reservation_id() != *reservation_id
        {
            fields.note("message_id", "is not that of reservation_id");
        }
        let request_id = fields.keep("request_id", RequestId::parse(body.request_id));
        let activity_id = fields.keep("activity_id", ActivityId::parse(body.activity_id));
        let sku_id = fields.keep("sku_id", SkuId::parse(body.sku_id));
        let user_id = fields.keep("user_id", UserId::parse(body.user_id));
        let version = version(&mut fields, body.activity_version);
        let bucket_id = bucket_id(&mut fields, body.bucket_id);
        let quantity = quantity(&mut fields, body.quantity);
        let reserved_at_ms = time(&mut fields, "reserved_at_ms", body.reserved_at_ms);
        let traceparent = Traceparent::parse(&body.traceparent).ok();
        let request = (|| {
            Some(Self {
                reservation_id: reservation_id?,
                request_id: request_id?,
                user_id: user_id?,
                bucket: bucket(activity_id?, sku_id?, version?, bucket_id?),
                quantity: quantity?,
                reserved_at_ms: reserved_at_ms?,
                traceparent,
            })
        })();
        fields.finish("reservation_id", request)
    }
}

impl From<&OrderEvent> for pb::OrderEvent {
    fn from(event: &OrderEvent) -> Self {
        let scope = &event.bucket.scope;
        let outcome = match &event.kind {
            OrderEventKind::OrderCreated { order_id } => {
                pb::order_event::Outcome::OrderCreated(pb::OrderCreated {
                    order_id: order_id.to_string(),
                })
            }
            OrderEventKind::Rejected { reason } => {
                pb::order_event::Outcome::OrderRejected(pb::OrderRejected {
                    reason: reason.to_string(),
                })
            }
            OrderEventKind::OrderCancelled { order_id } => {
                pb::order_event::Outcome::OrderCancelled(pb::OrderCancelled {
                    order_id: order_id.to_string(),
                })
            }
        };
        Self {
            schema_version: SCHEMA_VERSION,
            reservation_id: event.reservation_id.to_string(),
            request_id: event.request_id.to_string(),
            activity_id: scope.activity_id.to_string(),
            sku_id: scope.sku_id.to_string(),
            user_id: event.user_id.to_string(),
            activity_version: scope.version.get(),
            bucket_id: event.bucket.bucket_id.get(),
            quantity: event.quantity.get(),
            occurred_at_ms: event.occurred_at_ms.get(),
            traceparent: traceparent_text(event.traceparent.as_ref()),
            outcome: Some(outcome),
        }
    }
}

impl TryFrom<pb::OrderEvent> for OrderEvent {
    type Error = Violations;

    fn try_from(body: pb::OrderEvent) -> Result<Self, Violations> {
        let mut fields = Collector::default();
        schema_version(&mut fields, body.schema_version);
        let reservation_id =
            fields.keep("reservation_id", ReservationId::parse(body.reservation_id));
        let request_id = fields.keep("request_id", RequestId::parse(body.request_id));
        let activity_id = fields.keep("activity_id", ActivityId::parse(body.activity_id));
        let sku_id = fields.keep("sku_id", SkuId::parse(body.sku_id));
        let user_id = fields.keep("user_id", UserId::parse(body.user_id));
        let version = version(&mut fields, body.activity_version);
        let bucket_id = bucket_id(&mut fields, body.bucket_id);
        let quantity = quantity(&mut fields, body.quantity);
        let occurred_at_ms = time(&mut fields, "occurred_at_ms", body.occurred_at_ms);
        let traceparent = Traceparent::parse(&body.traceparent).ok();
        let kind = outcome(&mut fields, body.outcome);
        let event = (|| {
            Some(Self {
                reservation_id: reservation_id?,
                request_id: request_id?,
                user_id: user_id?,
                bucket: bucket(activity_id?, sku_id?, version?, bucket_id?),
                quantity: quantity?,
                kind: kind?,
                occurred_at_ms: occurred_at_ms?,
                traceparent,
            })
        })();
        fields.finish("reservation_id", event)
    }
}

fn outcome(
    fields: &mut Collector,
    outcome: Option<pb::order_event::Outcome>,
) -> Option<OrderEventKind> {
    match outcome {
        Some(pb::order_event::Outcome::OrderCreated(created)) => fields
            .keep("order_created.order_id", OrderId::parse(created.order_id))
            .map(|order_id| OrderEventKind::OrderCreated { order_id }),
        Some(pb::order_event::Outcome::OrderRejected(rejected)) => fields
            .keep(
                "order_rejected.reason",
                rejected.reason.parse::<RejectReason>(),
            )
            .map(|reason| OrderEventKind::Rejected { reason }),
        Some(pb::order_event::Outcome::OrderCancelled(cancelled)) => fields
            .keep(
                "order_cancelled.order_id",
                OrderId::parse(cancelled.order_id),
            )
            .map(|order_id| OrderEventKind::OrderCancelled { order_id }),
        None => {
            fields.note("outcome", "must be given");
            None
        }
    }
}

fn schema_version(fields: &mut Collector, found: u32) {
    if found != SCHEMA_VERSION {
        fields.note(
            "schema_version",
            format_args!("must be {SCHEMA_VERSION}, is {found}"),
        );
    }
}

fn version(fields: &mut Collector, found: u64) -> Option<ActivityVersion> {
    fields.keep("activity_version", ActivityVersion::new(found))
}

fn bucket_id(fields: &mut Collector, found: u32) -> Option<BucketId> {
    fields.keep("bucket_id", BucketId::new(found))
}

fn quantity(fields: &mut Collector, found: u32) -> Option<Quantity> {
    fields.keep("quantity", Quantity::new(found))
}

fn time(fields: &mut Collector, field: &'static str, found: i64) -> Option<TimestampMs> {
    if found <= 0 {
        fields.note(field, "must be after the Unix epoch");
        return None;
    }
    Some(TimestampMs::new(found))
}

const fn bucket(
    activity_id: ActivityId,
    sku_id: SkuId,
    version: ActivityVersion,
    bucket_id: BucketId,
) -> BucketScope {
    BucketScope {
        scope: Scope {
            activity_id,
            sku_id,
            version,
        },
        bucket_id,
    }
}

/// The trace travels as text; a broken one on the way in is dropped, for a purchase must not be
/// parked because of its trace.
fn traceparent_text(traceparent: Option<&Traceparent>) -> String {
    traceparent.map_or_else(String::new, |t| t.as_str().to_owned())
}
