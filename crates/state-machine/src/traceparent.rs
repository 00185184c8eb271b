//! The W3C `traceparent`, checked once at the edge and carried opaque from there on.

use std::fmt;
use std::str::FromStr;

/// A valid `traceparent` of version 00.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Traceparent(String);

/// The text is no usable `traceparent`. A caller with a broken one gets a new trace, not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a valid traceparent")]
pub struct TraceparentError;

/// Lengths of the dash-separated parts: version, trace id, span id, flags.
const PARTS: [usize; 4] = [2, 32, 16, 2];

impl Traceparent {
    /// Checks a header value: version `00`, lower-case hex, neither id all zero.
    ///
    /// # Errors
    /// [`TraceparentError`] otherwise.
    pub fn parse(text: &str) -> Result<Self, TraceparentError> {
        let parts: Vec<&str> = text.split('-').collect();
        let shaped = parts.len() == PARTS.len()
            && parts.iter().zip(PARTS).all(|(part, len)| {
                part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            });
        let zero = |part: &str| part.bytes().all(|b| b == b'0');
        if !shaped || parts[0] != "00" || zero(parts[1]) || zero(parts[2]) {
            return Err(TraceparentError);
        }
        Ok(Self(text.to_owned()))
    }

    /// Builds one from its ids, sampled.
    ///
    /// # Errors
    /// [`TraceparentError`] when an id is zero.
    pub fn from_ids(trace_id: u128, span_id: u64) -> Result<Self, TraceparentError> {
        Self::parse(&format!("00-{trace_id:032x}-{span_id:016x}-01"))
    }

    /// The header value.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 32 hex digits of the trace id.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        &self.0[3..35]
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Traceparent {
    type Err = TraceparentError;
    fn from_str(text: &str) -> Result<Self, TraceparentError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_valid_one_is_kept_as_it_is() {
        let parsed = Traceparent::parse(GOOD).unwrap();
        assert_eq!(parsed.as_str(), GOOD);
        assert_eq!(parsed.trace_id(), "0af7651916cd43dd8448eb211c80319c");
    }

    #[test]
    fn malformed_ones_are_refused() {
        let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
        for bad in [
            "",
            &zero_trace,
            &zero_span,
            &GOOD.replacen("00", "ff", 1),
            &GOOD.to_uppercase(),
            &format!("{GOOD}-x"),
            &GOOD[..50],
            &format!("{GOOD}, {GOOD}"),
            "00-zz",
        ] {
            assert_eq!(Traceparent::parse(bad), Err(TraceparentError), "{bad}");
        }
    }
}
