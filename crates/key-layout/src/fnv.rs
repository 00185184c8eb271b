//! FNV-1a, the hash that fixes a request's shard and a user's bucket.
//!
//! The function is part of the stored layout: changing it would move users to other buckets. It is
//! ten lines, so it stands here and not in a dependency.

const OFFSET_32: u32 = 0x811c_9dc5;
const PRIME_32: u32 = 0x0100_0193;
const OFFSET_64: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME_64: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a of 32 bits.
#[must_use]
pub fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(OFFSET_32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(PRIME_32)
    })
}

/// FNV-1a of 64 bits, over parts joined by NUL.
#[must_use]
pub fn fnv1a_64(parts: &[&str]) -> u64 {
    let mut hash = OFFSET_64;
    for (index, part) in parts.iter().enumerate() {
        let separator: &[u8] = if index == 0 { b"" } else { b"\0" };
        for byte in separator.iter().chain(part.as_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME_64);
        }
    }
    hash
}
