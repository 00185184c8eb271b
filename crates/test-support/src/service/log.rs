//! What in a service's log fails a test.

use serde_json::Value;

/// Lines that tell of a panic, and errors of our own code that no text allows.
///
/// Clients of other projects call things errors that a service handles, such as a lost connection.
pub(super) fn complaints(log: &str, allowed: &[String]) -> Vec<String> {
    log.lines()
        .filter(|line| is_panic(line) || (is_error(line) && !is_allowed(line, allowed)))
        .map(str::to_owned)
        .collect()
}

fn is_panic(line: &str) -> bool {
    line.contains("panicked at")
}

fn is_allowed(line: &str, allowed: &[String]) -> bool {
    allowed.iter().any(|text| line.contains(text.as_str()))
}

fn is_error(line: &str) -> bool {
    match serde_json::from_str::<Value>(line) {
        Ok(entry) => {
            let target = entry["target"].as_str().unwrap_or("seckill");
            entry["level"] == "ERROR" && is_ours(target)
        }
        Err(_) => line.contains(" ERROR seckill"),
    }
}

/// Executables are named after their service, libraries carry the project's prefix.
fn is_ours(target: &str) -> bool {
    const EXECUTABLES: [&str; 5] = [
        "reservation_front",
        "outbox_scanner",
        "order_consumer",
        "compensation_worker",
        "reconciler",
    ];
    let root = target.split("::").next().unwrap_or(target);
    root.starts_with("seckill") || EXECUTABLES.contains(&root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_and_own_errors_are_complaints() {
        let log = concat!(
            r#"{"level":"ERROR","target":"seckill_order_consumer::run","message":"broken"}"#,
            "\n",
            r#"{"level":"ERROR","target":"reconciler","message":"bin"}"#,
            "\n",
            r#"{"level":"ERROR","target":"rocketmq_transport","message":"foreign"}"#,
            "\n",
            r#"{"level":"WARN","target":"seckill_front","message":"ERROR in a text"}"#,
            "\n",
            "2026-01-01T00:00:00Z ERROR seckill_front: as text\n",
            "thread 'main' panicked at src/main.rs:1:1:\n",
        );
        let found = complaints(log, &[]);
        assert_eq!(found.len(), 4, "{found:#?}");
        let found = complaints(log, &["broken".to_owned(), "bin".to_owned()]);
        assert_eq!(found.len(), 2, "{found:#?}");
        let found = complaints(log, &[String::new()]);
        assert_eq!(found.len(), 1, "a panic is never allowed: {found:#?}");
    }
}
