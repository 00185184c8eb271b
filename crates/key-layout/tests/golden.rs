//! Hash tag, slot, shard, bucket and ids against vectors that were computed without this crate
//! (Python's `hmac`, `base64` and a textbook FNV-1a and CRC-16). A difference means that stored
//! data would no longer be found: never "fix" the data.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use seckill_key_layout::{BucketKeys, HmacSecrets, bucket_of_user, request_shard};
use seckill_state_machine::{
    ActivityId, ActivityVersion, BucketCount, MessageId, Quantity, RequestId, Scope, SkuId, UserId,
};
use serde_json::Value;

fn text<'a>(vector: &'a Value, field: &str) -> &'a str {
    vector[field].as_str().unwrap()
}

fn number(vector: &Value, field: &str) -> u64 {
    vector[field].as_u64().unwrap()
}

fn small(vector: &Value, field: &str) -> u32 {
    u32::try_from(number(vector, field)).unwrap()
}

#[test]
fn derived_values_match_the_independent_vectors() {
    let data: Value = serde_json::from_str(include_str!("data/golden.json")).unwrap();
    let secrets: HmacSecrets = text(&data, "secrets").parse().unwrap();
    let vectors = data["vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 7);
    for vector in vectors {
        let scope = Scope {
            activity_id: ActivityId::parse(text(vector, "activity_id")).unwrap(),
            sku_id: SkuId::parse(text(vector, "sku_id")).unwrap(),
            version: ActivityVersion::new(number(vector, "version")).unwrap(),
        };
        let user_id = UserId::parse(text(vector, "user_id")).unwrap();
        let request_id = RequestId::parse(text(vector, "request_id")).unwrap();
        let quantity = Quantity::new(small(vector, "quantity")).unwrap();
        let reservation_id = secrets
            .reservation_id(
                small(vector, "secret_version"),
                &scope,
                &user_id,
                &request_id,
                quantity,
            )
            .unwrap();
        assert_eq!(reservation_id.as_str(), text(vector, "reservation_id"));
        assert_eq!(
            MessageId::of(&reservation_id).as_str(),
            text(vector, "message_id")
        );
        assert_eq!(request_shard(&request_id), small(vector, "shard"));
        let buckets = BucketCount::new(small(vector, "bucket_count")).unwrap();
        let bucket_id = bucket_of_user(&scope, &user_id, buckets);
        assert_eq!(bucket_id.get(), small(vector, "bucket_id"));
        let keys = BucketKeys::new(&scope.bucket(bucket_id));
        assert_eq!(keys.tag(), text(vector, "tag"));
        assert_eq!(u64::from(keys.slot()), number(vector, "slot"));
    }
}
