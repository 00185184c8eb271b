//! Parsers for the values of settings: typed, with their range, before anything uses them.

use std::time::Duration;

/// The longest duration a setting may have: a day, far above any timer here, and far below where
/// sums of durations could overflow.
pub const MILLIS_MAX: u64 = 86_400_000;

fn number(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let found: u64 = text
        .parse()
        .map_err(|_| format!("must be a whole number from {min} to {max}"))?;
    if (min..=max).contains(&found) {
        Ok(found)
    } else {
        Err(format!("must be from {min} to {max}"))
    }
}

/// A duration in milliseconds, 1 to a day: for timers and time limits, where 0 would mean "never
/// wait" or "at once".
///
/// # Errors
/// Says the range.
pub fn positive_millis(text: &str) -> Result<Duration, String> {
    number(text, 1, MILLIS_MAX).map(Duration::from_millis)
}

/// A duration in milliseconds, 0 to a day.
///
/// # Errors
/// Says the range.
pub fn millis(text: &str) -> Result<Duration, String> {
    number(text, 0, MILLIS_MAX).map(Duration::from_millis)
}

/// A duration in milliseconds, `MIN` to `MAX`.
///
/// # Errors
/// Says the range.
pub fn millis_between<const MIN: u64, const MAX: u64>(text: &str) -> Result<Duration, String> {
    number(text, MIN, MAX).map(Duration::from_millis)
}

/// A count from 1 to `MAX`: sizes of pools, queues and batches.
///
/// # Errors
/// Says the range.
pub fn count<const MAX: u64>(text: &str) -> Result<usize, String> {
    let found = number(text, 1, MAX)?;
    usize::try_from(found).map_err(|_| format!("must be from 1 to {MAX}"))
}

/// A URL with one of the given schemes and something after it. The server's own parser checks the
/// rest; this makes the commonest slip, a bare `host:port`, say what is wrong.
fn url_of(text: &str, schemes: &[&str]) -> Result<String, String> {
    let rest = text
        .split_once("://")
        .filter(|(scheme, _)| schemes.contains(scheme));
    match rest {
        Some((_, rest)) if !rest.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("must begin with {}://", schemes.join(":// or "))),
    }
}

/// A Redis URL: one server or, by its scheme, a Cluster.
///
/// # Errors
/// Says the schemes.
pub fn redis_url(text: &str) -> Result<secrecy::SecretString, String> {
    const SCHEMES: [&str; 6] = [
        "redis",
        "rediss",
        "redis-cluster",
        "rediss-cluster",
        "valkey",
        "valkey-cluster",
    ];
    url_of(text, &SCHEMES).map(Into::into)
}

/// A PostgreSQL URL.
///
/// # Errors
/// Says the schemes.
pub fn postgres_url(text: &str) -> Result<secrecy::SecretString, String> {
    url_of(text, &["postgres", "postgresql"]).map(Into::into)
}

/// One or more `host:port`, separated by `;`, as the bus client reads them.
///
/// # Errors
/// Says the form.
pub fn name_servers(text: &str) -> Result<String, String> {
    let is_address = |part: &str| {
        part.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0)
        })
    };
    if text.split(';').all(|part| is_address(part.trim())) {
        Ok(text.to_owned())
    } else {
        Err("must be host:port, further ones after ';'".to_owned())
    }
}

/// A prefix for topics and groups: empty, or letters, digits, `_` and `-`.
///
/// # Errors
/// Says the form.
pub fn namespace(text: &str) -> Result<String, String> {
    /// Topic names may have 127 characters; the longest of ours, `%DLQ%` and all, has fewer than 40.
    const LEN_MAX: usize = 64;
    let fits = text.len() <= LEN_MAX
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if fits {
        Ok(text.to_owned())
    } else {
        Err("may hold only letters, digits, '_' and '-', at most 64".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_their_range_are_refused() {
        assert_eq!(positive_millis("40"), Ok(Duration::from_millis(40)));
        for wrong in ["0", "-1", "", "1.5", "86400001", "ten"] {
            assert!(positive_millis(wrong).is_err(), "{wrong}");
        }
        assert_eq!(millis("0"), Ok(Duration::ZERO));
        assert_eq!(count::<8>("8"), Ok(8));
        assert!(count::<8>("0").is_err());
        assert!(count::<8>("9").is_err());
    }

    #[test]
    fn addresses_have_their_form() {
        assert!(redis_url("redis://127.0.0.1:6379").is_ok());
        assert!(redis_url("127.0.0.1:6379").is_err());
        assert!(redis_url("redis://").is_err());
        assert!(postgres_url("postgres://u:p@h/d").is_ok());
        assert!(postgres_url("mysql://u:p@h/d").is_err());
        assert!(name_servers("127.0.0.1:9876;host-2:9876").is_ok());
        for wrong in ["", "host", "host:0", ":9876", "a:1;"] {
            assert!(name_servers(wrong).is_err(), "{wrong}");
        }
        assert!(namespace("").is_ok());
        assert!(namespace("t%").is_err());
    }
}
