//! I12, and panics: what no log may hold.

use seckill_integration_tests::HMAC_SECRETS;

use crate::load::USER_PREFIX;
use crate::replicas::Replicas;

/// Lines that are quoted of each log; the log itself is kept.
const QUOTED_MAX: usize = 3;

pub(super) fn leaks(replicas: &Replicas) -> Vec<String> {
    let mut found = Vec::new();
    for (name, path) in replicas.logs() {
        let text = std::fs::read(path).unwrap_or_default();
        found.extend(leaks_of(name, &String::from_utf8_lossy(&text)));
    }
    found
}

fn leaks_of(name: &str, text: &str) -> Vec<String> {
    let secret = HMAC_SECRETS.split(':').nth(1).unwrap_or(HMAC_SECRETS);
    let mut found = Vec::new();
    for (what, needle) in [
        ("I12 a user's id", USER_PREFIX),
        ("I12 a secret", secret),
        ("a panic", "panicked at"),
    ] {
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(needle)).collect();
        if !lines.is_empty() {
            let quoted = lines[..lines.len().min(QUOTED_MAX)].join("\n");
            found.push(format!(
                "{what} in {} lines of {name}:\n{quoted}",
                lines.len()
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_not_be_logged_is_found() {
        assert!(leaks_of("front-1", "user_id_hash=abc\n").is_empty());
        let text = format!("user {USER_PREFIX}1\nkey {HMAC_SECRETS}\nthread panicked at x\n");
        assert_eq!(leaks_of("front-1", &text).len(), 3);
    }
}
