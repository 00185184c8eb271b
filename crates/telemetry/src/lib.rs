//! Structured logging and what may appear in it.
//!
//! One line is one JSON object on stderr, with the fields that operators search by (`request_id`,
//! `reservation_id`, `message_id`, `activity_id`, `sku_id`, `user_id_hash`, `activity_version`,
//! `bucket_id`, `redis_slot`, `lua_code`, `reservation_status`, `latency_ms`, `retry_count`,
//! `trace_id`). A raw user id never goes into a log: [`user_id_hash`] stands for it (I12).
//!
//! **Invariant:** a line is bounded, whatever a caller or a broken server sent.

mod error;
mod init;
mod json;
mod panics;

use data_encoding::HEXLOWER;
use seckill_state_machine::UserId;
use sha2::{Digest, Sha256};

pub use error::Error;
pub use init::{LogFormat, UnknownFormat, check_filter, init};
pub use json::{FIELD_BYTES_MAX, FIELDS_MAX, clip};

/// Hex digits of a hashed user id: 64 bits, enough to tell a million users apart in one search.
const USER_HASH_HEX: usize = 16;

/// What stands for a user in logs, spans and metrics: the same for the same user, in every service.
#[must_use]
pub fn user_id_hash(user_id: &UserId) -> String {
    let mut hasher = Sha256::new();
    // The prefix keeps the value from matching hashes that other systems make of the same id.
    hasher.update(b"seckill-user\0");
    hasher.update(user_id.as_str().as_bytes());
    let mut text = HEXLOWER.encode(&hasher.finalize());
    text.truncate(USER_HASH_HEX);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hashed_user_is_stable_and_hides_the_user() {
        let hash = |text: &str| user_id_hash(&UserId::parse(text).unwrap());
        assert_eq!(hash("alice"), hash("alice"));
        assert_ne!(hash("alice"), hash("bob"));
        assert_eq!(hash("alice").len(), USER_HASH_HEX);
        assert!(!hash("alice").contains("alice"));
    }
}
