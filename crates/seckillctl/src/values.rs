//! Parsers for the values of the commands' own settings.

use seckill_state_machine::{ActivityVersion, BucketCount, Quantity};

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| "must be a whole number".to_owned())
}

/// An activity version.
///
/// # Errors
/// Says the range.
pub fn version(text: &str) -> Result<ActivityVersion, String> {
    ActivityVersion::new(number(text)?).map_err(|error| error.to_string())
}

/// A number of buckets.
///
/// # Errors
/// Says the range.
pub fn buckets(text: &str) -> Result<BucketCount, String> {
    BucketCount::new(number(text)?).map_err(|error| error.to_string())
}

/// Units of one call.
///
/// # Errors
/// Says the range.
pub fn quantity(text: &str) -> Result<Quantity, String> {
    Quantity::new(number(text)?).map_err(|error| error.to_string())
}

/// Part of a hundred.
///
/// # Errors
/// Says the range.
pub fn percent(text: &str) -> Result<u32, String> {
    let found: u32 = number(text)?;
    if found <= 100 {
        Ok(found)
    } else {
        Err("must be 0 to 100".to_owned())
    }
}

/// Why somebody changes something, or who does: kept for later readers, so it says something and
/// stays short.
///
/// # Errors
/// Says the form.
pub fn remark(text: &str) -> Result<String, String> {
    const BYTES_MAX: usize = 200;
    let text = text.trim();
    let is_plain = !text.chars().any(char::is_control);
    if text.is_empty() || text.len() > BYTES_MAX || !is_plain {
        return Err(format!("must be 1 to {BYTES_MAX} bytes of plain text"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_their_range_are_refused() {
        assert!(version("0").is_err() && version("x").is_err() && version("7").is_ok());
        assert!(buckets("0").is_err() && buckets("4096").is_ok());
        assert!(quantity("0").is_err() && quantity("1").is_ok());
        assert!(percent("101").is_err() && percent("100").is_ok());
        assert!(remark(" ").is_err() && remark("a\nb").is_err() && remark("stock moved").is_ok());
    }
}
