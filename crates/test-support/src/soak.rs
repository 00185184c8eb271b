//! Faults at full length: a case that names minutes is scaled to seconds in an ordinary run, and takes
//! the time that it names in a soak (`make soak`).

/// Set, to anything, while the tests run at full length.
const SWITCH: &str = "SECKILL_SOAK";

/// Whether this run takes the time that the cases name.
#[must_use]
pub fn at_full_length() -> bool {
    std::env::var_os(SWITCH).is_some()
}

/// The scaled value in an ordinary run, the one that the case names in a soak.
#[must_use]
pub fn at_length<T>(scaled: T, full: T) -> T {
    if at_full_length() { full } else { scaled }
}
