//! Quantities, versions, buckets and times as types with their ranges.

use std::fmt;
use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// The most units one call may ask for; the activity's own limit is lower or equal.
pub const QUANTITY_MAX: u32 = 1_000_000;

/// The most buckets of one version: far above any measured need, low enough to walk in one pass.
pub const BUCKET_COUNT_MAX: u32 = 4_096;

/// The largest number that Lua's doubles and Redis' integers both hold exactly.
pub const EXACT_INTEGER_MAX: u64 = (1 << 53) - 1;

/// A number outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be {min} to {max}, is {found}")]
pub struct NumberError {
    /// Smallest allowed value.
    pub min: u64,
    /// Largest allowed value.
    pub max: u64,
    /// The value found.
    pub found: u64,
}

const fn in_range(found: u64, min: u64, max: u64) -> Result<u64, NumberError> {
    if found < min || found > max {
        Err(NumberError { min, max, found })
    } else {
        Ok(found)
    }
}

/// Units of one reservation or order: 1 to [`QUANTITY_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Quantity(u32);

impl Quantity {
    /// A single unit.
    pub const ONE: Self = Self(1);

    /// Checks the range.
    ///
    /// # Errors
    /// [`NumberError`] outside 1 to [`QUANTITY_MAX`].
    pub fn new(units: u32) -> Result<Self, NumberError> {
        in_range(u64::from(units), 1, u64::from(QUANTITY_MAX))?;
        Ok(Self(units))
    }

    /// The units.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// One edition of an activity's configuration and stock; a new namespace of keys. At least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct ActivityVersion(u64);

impl ActivityVersion {
    /// Checks the range.
    ///
    /// # Errors
    /// [`NumberError`] at 0 or above 2^53 − 1 (what Lua holds exactly).
    pub fn new(version: u64) -> Result<Self, NumberError> {
        Ok(Self(in_range(version, 1, EXACT_INTEGER_MAX)?))
    }

    /// The version number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// How many buckets an activity version's stock is split into: 1 to [`BUCKET_COUNT_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct BucketCount(u32);

impl BucketCount {
    /// All stock in one slot.
    pub const ONE: Self = Self(1);

    /// Checks the range.
    ///
    /// # Errors
    /// [`NumberError`] outside 1 to [`BUCKET_COUNT_MAX`].
    pub fn new(count: u32) -> Result<Self, NumberError> {
        in_range(u64::from(count), 1, u64::from(BUCKET_COUNT_MAX))?;
        Ok(Self(count))
    }

    /// The number of buckets.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Every bucket in order.
    pub fn buckets(self) -> impl Iterator<Item = BucketId> {
        (0..self.0).map(BucketId)
    }

    /// The units that a bucket gets of `total`: an even share, the remainder one each to the first.
    #[must_use]
    pub fn share(self, total: u64, bucket: BucketId) -> u64 {
        let count = u64::from(self.0);
        total / count + u64::from(u64::from(bucket.get()) < total % count)
    }
}

/// One bucket, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct BucketId(u32);

impl BucketId {
    /// The bucket whose meta every front reads.
    pub const ZERO: Self = Self(0);

    /// Checks the range.
    ///
    /// # Errors
    /// [`NumberError`] at or above [`BUCKET_COUNT_MAX`].
    pub fn new(bucket: u32) -> Result<Self, NumberError> {
        in_range(u64::from(bucket), 0, u64::from(BUCKET_COUNT_MAX - 1))?;
        Ok(Self(bucket))
    }

    /// The bucket's number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

macro_rules! number_conversions {
    ($($name:ident: $inner:ty),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl TryFrom<$inner> for $name {
            type Error = NumberError;
            fn try_from(value: $inner) -> Result<Self, NumberError> {
                Self::new(value)
            }
        }

        impl From<$name> for $inner {
            fn from(value: $name) -> Self {
                value.0
            }
        }
    )*};
}

number_conversions!(Quantity: u32, ActivityVersion: u64, BucketCount: u32, BucketId: u32);

/// Milliseconds since the Unix epoch, as Redis `TIME` tells them.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TimestampMs(i64);

impl TimestampMs {
    /// Wraps a count of milliseconds.
    #[must_use]
    pub const fn new(ms: i64) -> Self {
        Self(ms)
    }

    /// The count of milliseconds.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for TimestampMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Add<i64> for TimestampMs {
    type Output = Self;
    fn add(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

impl Sub for TimestampMs {
    type Output = i64;
    fn sub(self, other: Self) -> i64 {
        self.0.saturating_sub(other.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ten_thousand_over_thirty_two_is_sixteen_of_each() {
        let count = BucketCount::new(32).unwrap();
        let shares: Vec<u64> = count.buckets().map(|b| count.share(10_000, b)).collect();
        assert_eq!(shares.iter().filter(|s| **s == 313).count(), 16);
        assert_eq!(shares.iter().filter(|s| **s == 312).count(), 16);
        assert!(shares.windows(2).all(|pair| pair[0] >= pair[1]));
    }

    proptest! {
        #[test]
        fn shares_add_up_and_differ_by_at_most_one(total in 0u64..1_000_000, n in 1u32..=BUCKET_COUNT_MAX) {
            let count = BucketCount::new(n).unwrap();
            let shares: Vec<u64> = count.buckets().map(|b| count.share(total, b)).collect();
            prop_assert_eq!(shares.iter().sum::<u64>(), total);
            let spread = shares.iter().max().unwrap() - shares.iter().min().unwrap();
            prop_assert!(spread <= 1);
        }
    }

    #[test]
    fn ranges_are_closed_at_both_ends() {
        assert!(Quantity::new(0).is_err());
        assert!(Quantity::new(QUANTITY_MAX).is_ok());
        assert!(Quantity::new(QUANTITY_MAX + 1).is_err());
        assert!(ActivityVersion::new(0).is_err());
        assert!(ActivityVersion::new(EXACT_INTEGER_MAX + 1).is_err());
        assert!(BucketCount::new(BUCKET_COUNT_MAX + 1).is_err());
        assert!(BucketId::new(BUCKET_COUNT_MAX).is_err());
    }
}
