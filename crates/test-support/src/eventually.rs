//! Awaiting a condition instead of sleeping.

use std::fmt::Display;
use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

/// The pause before the second look. Most conditions of these tests hold within a few milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// The longest pause: 20 looks a second cost little, and add at most 50 ms to a test.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Repeats a probe until it succeeds and returns its value.
///
/// The probe's error says what is still missing; the last one is in the panic that ends the test when
/// the deadline passes. A probe that hangs counts as one that fails.
///
/// # Panics
///
/// When the probe has not succeeded within `deadline`.
#[track_caller]
pub fn eventually<T, E, F>(deadline: Duration, what: &str, mut probe: F) -> impl Future<Output = T>
where
    E: Display,
    F: AsyncFnMut() -> Result<T, E>,
{
    let caller = Location::caller();
    async move {
        let end = Instant::now() + deadline;
        let mut pause = FIRST_PAUSE;
        let mut last = String::from("the first probe did not return");
        loop {
            match timeout_at(end, probe()).await {
                Ok(Ok(value)) => return value,
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => panic!("{what}: not within {deadline:?} ({caller}): {last}"),
            }
            let next = Instant::now() + pause;
            assert!(
                next < end,
                "{what}: not within {deadline:?} ({caller}): {last}"
            );
            sleep_until(next).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_the_first_success() {
        let mut looks = 0;
        let value = eventually(Duration::from_secs(5), "the third look", async || {
            looks += 1;
            if looks == 3 {
                Ok(looks)
            } else {
                Err("too early")
            }
        })
        .await;
        assert_eq!(value, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "a thing that never happens: not within 20ms")]
    async fn names_what_did_not_happen() {
        eventually(
            Duration::from_millis(20),
            "a thing that never happens",
            async || Err::<(), _>("still not there"),
        )
        .await;
    }

    #[tokio::test]
    #[should_panic(expected = "the first probe did not return")]
    async fn a_probe_that_hangs_fails() {
        eventually(Duration::from_millis(20), "an answer", async || {
            std::future::pending::<Result<(), String>>().await
        })
        .await;
    }
}
