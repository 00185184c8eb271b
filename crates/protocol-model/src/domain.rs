//! The model's numbers as the domain values that production's functions take.

use seckill_state_machine::{
    ActivityId, ActivityVersion, BucketId, BucketScope, OrderRequest, Quantity, RequestId,
    ReservationId, Scope, SkuId, TimestampMs, UserId,
};

use crate::Config;

/// The order requests of a configuration.
#[derive(Debug)]
pub struct Domain {
    /// The message of each request.
    pub messages: Vec<OrderRequest>,
}

impl Domain {
    /// Builds the values of a configuration.
    ///
    /// # Panics
    /// Never: every text below is a valid id.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "constants and small numbers, valid by construction"
    )]
    pub fn new(config: &Config) -> Self {
        let scope = Scope {
            activity_id: ActivityId::parse("a").expect("valid id"),
            sku_id: SkuId::parse("s").expect("valid id"),
            version: ActivityVersion::new(1).expect("in range"),
        };
        let messages = config.all_requests().map(|number| {
            let request = config.request(number);
            let letter = char::from(b'a' + config.reservation(number));
            OrderRequest {
                reservation_id: ReservationId::parse(letter.to_string().repeat(26))
                    .expect("valid id"),
                request_id: RequestId::parse(format!("q{}", config.request_id(number)))
                    .expect("valid id"),
                user_id: UserId::parse(format!("u{}", request.user)).expect("valid id"),
                bucket: BucketScope {
                    scope: scope.clone(),
                    bucket_id: BucketId::new(u32::from(request.bucket)).expect("in range"),
                },
                quantity: Quantity::new(u32::from(request.quantity)).expect("in range"),
                reserved_at_ms: TimestampMs::new(0),
                traceparent: None,
            }
        });
        Self {
            messages: messages.collect(),
        }
    }
}
