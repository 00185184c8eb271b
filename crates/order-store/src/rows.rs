//! Between columns and domain values.
//!
//! What is read is checked again: a value that no newtype accepts is an error that names its column,
//! never a panic and never a silent default.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use seckill_state_machine::{
    ActivityVersion, BucketId, BucketScope, OrderId, OrderRequest, Quantity, Scope, TimestampMs,
    Traceparent,
};
use time::OffsetDateTime;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql};
use uuid::Uuid;

use crate::Error;

/// Nanoseconds in a millisecond.
const NANOS_PER_MS: i128 = 1_000_000;

/// What stands for a NUL character, which PostgreSQL's text cannot hold.
const NUL_SYMBOL: &str = "\u{2400}";

/// A text from outside as PostgreSQL can hold it. Whoever has to keep it must never fail at its
/// contents.
pub(crate) fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        Cow::Owned(text.replace('\0', NUL_SYMBOL))
    } else {
        Cow::Borrowed(text)
    }
}

/// Reads a column as its SQL type.
pub(crate) fn get<'r, T: FromSql<'r>>(row: &'r Row, column: &'static str) -> Result<T, Error> {
    row.try_get(column)
        .map_err(|error| Error::stored(column, error))
}

/// Reads a text column as a domain value.
pub(crate) fn parse<T>(row: &Row, column: &'static str) -> Result<T, Error>
where
    T: FromStr<Err: Display>,
{
    get::<&str>(row, column)?
        .parse()
        .map_err(|error| Error::stored(column, error))
}

/// Reads a nullable text column as a domain value.
pub(crate) fn parse_opt<T>(row: &Row, column: &'static str) -> Result<Option<T>, Error>
where
    T: FromStr<Err: Display>,
{
    get::<Option<&str>>(row, column)?
        .map(str::parse)
        .transpose()
        .map_err(|error| Error::stored(column, error))
}

/// Reads a `bigint` column as a narrower or unsigned number.
pub(crate) fn number<T>(row: &Row, column: &'static str) -> Result<T, Error>
where
    T: TryFrom<i64, Error: Display>,
{
    T::try_from(get::<i64>(row, column)?).map_err(|error| Error::stored(column, error))
}

/// Reads a `bigint` column as a domain number that is made from a `u32`.
pub(crate) fn small<T>(row: &Row, column: &'static str) -> Result<T, Error>
where
    T: TryFrom<u32, Error: Display>,
{
    T::try_from(number::<u32>(row, column)?).map_err(|error| Error::stored(column, error))
}

/// Reads a `timestamptz` column.
pub(crate) fn time_ms(row: &Row, column: &'static str) -> Result<TimestampMs, Error> {
    to_ms(get(row, column)?, column)
}

fn to_ms(time: OffsetDateTime, column: &'static str) -> Result<TimestampMs, Error> {
    let ms = time.unix_timestamp_nanos().div_euclid(NANOS_PER_MS);
    i64::try_from(ms)
        .map(TimestampMs::new)
        .map_err(|error| Error::stored(column, error))
}

/// Reads a nullable `timestamptz` column.
pub(crate) fn time_ms_opt(row: &Row, column: &'static str) -> Result<Option<TimestampMs>, Error> {
    get::<Option<OffsetDateTime>>(row, column)?
        .map(|time| to_ms(time, column))
        .transpose()
}

/// A time as PostgreSQL takes it.
pub(crate) fn to_time(field: &'static str, at: TimestampMs) -> Result<OffsetDateTime, Error> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.get()) * NANOS_PER_MS)
        .map_err(|error| Error::invalid(field, error))
}

/// A time that is only kept for people. One that no calendar holds must not make its message
/// undecidable, so it becomes the epoch.
pub(crate) fn informative_time(at: TimestampMs) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.get()) * NANOS_PER_MS)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// A duration as the milliseconds that statements add to the clock.
pub(crate) fn millis(field: &'static str, duration: Duration) -> Result<i64, Error> {
    i64::try_from(duration.as_millis()).map_err(|error| Error::invalid(field, error))
}

/// A version as a `bigint`. The domain keeps it below 2^53, so it always fits.
pub(crate) fn version(scope: &Scope) -> i64 {
    scope.version.get().cast_signed()
}

/// A stored unsigned count as a `bigint`.
pub(crate) fn count(field: &'static str, value: u64) -> Result<i64, Error> {
    i64::try_from(value).map_err(|error| Error::invalid(field, error))
}

/// Reads `activity_id`, `sku_id` and `version`.
pub(crate) fn scope(row: &Row) -> Result<Scope, Error> {
    Ok(Scope {
        activity_id: parse(row, "activity_id")?,
        sku_id: parse(row, "sku_id")?,
        version: ActivityVersion::new(number(row, "version")?)
            .map_err(|error| Error::stored("version", error))?,
    })
}

/// Reads a scope and `bucket_id`.
pub(crate) fn bucket(row: &Row) -> Result<BucketScope, Error> {
    Ok(scope(row)?.bucket(bucket_id(row)?))
}

/// Reads `bucket_id`.
pub(crate) fn bucket_id(row: &Row) -> Result<BucketId, Error> {
    small(row, "bucket_id")
}

/// Reads the columns by which a decision or a task repeats its order request.
pub(crate) fn request(row: &Row) -> Result<OrderRequest, Error> {
    Ok(OrderRequest {
        reservation_id: parse(row, "reservation_id")?,
        request_id: parse(row, "request_id")?,
        user_id: parse(row, "user_id")?,
        bucket: bucket(row)?,
        quantity: small::<Quantity>(row, "quantity")?,
        reserved_at_ms: time_ms(row, "reserved_at")?,
        traceparent: parse_opt::<Traceparent>(row, "traceparent")?,
    })
}

/// Reads a nullable order id.
pub(crate) fn order_id_opt(row: &Row) -> Result<Option<OrderId>, Error> {
    get::<Option<Uuid>>(row, "order_id")?
        .map(order_id)
        .transpose()
}

/// An order id from the key that PostgreSQL made.
pub(crate) fn order_id(key: Uuid) -> Result<OrderId, Error> {
    OrderId::parse(key.hyphenated().to_string()).map_err(|error| Error::stored("order_id", error))
}

/// A scope as three parameters.
pub(crate) struct ScopeKey<'a> {
    activity_id: &'a str,
    sku_id: &'a str,
    version: i64,
}

impl<'a> ScopeKey<'a> {
    /// The key of a scope.
    pub(crate) fn of(scope: &'a Scope) -> Self {
        Self {
            activity_id: scope.activity_id.as_str(),
            sku_id: scope.sku_id.as_str(),
            version: version(scope),
        }
    }

    /// `$1` to `$3`.
    pub(crate) fn params(&self) -> [&(dyn ToSql + Sync); 3] {
        [&self.activity_id, &self.sku_id, &self.version]
    }
}

/// Optional scope of a filter, as three nullable parameters.
pub(crate) struct ScopeFilter<'a> {
    /// The activity.
    pub activity_id: Option<&'a str>,
    /// The SKU.
    pub sku_id: Option<&'a str>,
    /// The version.
    pub version: Option<i64>,
}

impl<'a> From<Option<&'a Scope>> for ScopeFilter<'a> {
    fn from(scope: Option<&'a Scope>) -> Self {
        Self {
            activity_id: scope.map(|s| s.activity_id.as_str()),
            sku_id: scope.map(|s| s.sku_id.as_str()),
            version: scope.map(version),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_round_trip_to_the_millisecond() {
        for ms in [0, 1, -1, 999, 1_700_000_000_123, -1_700_000_000_123] {
            let time = to_time("t", TimestampMs::new(ms)).unwrap();
            assert_eq!(to_ms(time, "t").unwrap(), TimestampMs::new(ms));
        }
        assert!(to_time("t", TimestampMs::new(i64::MAX)).is_err());
    }
}
