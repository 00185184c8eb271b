//! How long a call may take: the caller's deadline or the front's own budget, whichever is sooner.

use std::time::Duration;

use tokio::time::Instant;

/// The header in which gRPC carries the caller's time limit.
pub(crate) const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The answer leaves this much before the caller's deadline, so that the caller gets the answer and
/// not a bare time-out, which both gRPC sides report as `CANCELLED`. Covers a round trip inside a
/// data centre and a scheduler under load; an answer of Redis takes a few milliseconds, so hardly any
/// call needs the last tenth of its time.
const MARGIN_MAX: Duration = Duration::from_millis(50);

/// Digits that the gRPC specification allows in a time limit.
const TIMEOUT_DIGITS_MAX: usize = 8;

/// When a call's answer is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallDeadline(Instant);

impl CallDeadline {
    /// The deadline of a call that has just arrived with this `grpc-timeout`.
    pub(crate) fn of(header: Option<&str>, own_budget: Duration) -> Self {
        Self(Instant::now() + budget(header.and_then(parse), own_budget))
    }

    pub(crate) const fn instant(self) -> Instant {
        self.0
    }

    pub(crate) fn has_passed(self) -> bool {
        Instant::now() >= self.0
    }
}

fn budget(caller: Option<Duration>, own: Duration) -> Duration {
    caller.map_or(own, |limit| {
        let margin = (limit / 10).min(MARGIN_MAX);
        (limit - margin).min(own)
    })
}

/// Reads `grpc-timeout`: up to eight digits and a unit. A malformed one counts as none, as with every
/// gRPC server.
fn parse(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back()?;
    let digits = &text[..text.len() - unit.len_utf8()];
    let sound = (1..=TIMEOUT_DIGITS_MAX).contains(&digits.len())
        && digits.bytes().all(|byte| byte.is_ascii_digit());
    let value: u64 = sound.then(|| digits.parse().ok()).flatten()?;
    Some(match unit {
        'H' => Duration::from_secs(value * 3_600),
        'M' => Duration::from_secs(value * 60),
        'S' => Duration::from_secs(value),
        'm' => Duration::from_millis(value),
        'u' => Duration::from_micros(value),
        'n' => Duration::from_nanos(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Duration = Duration::from_millis(1_500);

    #[test]
    fn time_limits_are_read_as_the_specification_says() {
        assert_eq!(parse("500m"), Some(Duration::from_millis(500)));
        assert_eq!(parse("2S"), Some(Duration::from_secs(2)));
        assert_eq!(parse("1H"), Some(Duration::from_secs(3_600)));
        assert_eq!(
            parse("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3_600))
        );
        for wrong in ["", "m", "5", "5x", "123456789m", "-5m", "5.0m", "5é", " 5m"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_sooner_of_both_limits_counts_and_the_answer_leaves_before_it() {
        let millis = |ms| Some(Duration::from_millis(ms));
        assert_eq!(budget(None, OWN), OWN);
        assert_eq!(budget(millis(10_000), OWN), OWN);
        assert_eq!(budget(millis(300), OWN), Duration::from_millis(270));
        assert_eq!(budget(millis(10), OWN), Duration::from_millis(9));
        assert_eq!(budget(millis(0), OWN), Duration::ZERO);
    }
}
