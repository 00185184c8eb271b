//! Every Redis key name, hash tag, request shard and bucket, and every derived id.
//!
//! Nothing else in the workspace builds a key. All keys of one bucket share one hash tag, so that a
//! script finds them in one slot; the scripts get them in `KEYS` and never compute one themselves.

mod fnv;
mod keys;
mod secrets;
mod slot;

pub use fnv::{fnv1a_32, fnv1a_64};
pub use keys::{
    BucketKeys, KeyKind, REQUEST_SHARDS, SOLDOUT_CHANNEL, bucket_of_user, current_version_key,
    request_shard,
};
pub use secrets::{HmacSecrets, SecretsError};
pub use slot::hash_slot;
