//! A panic is a log line like any other, so that whoever collects logs sees it.

use std::panic::PanicHookInfo;

/// Replaces the default hook, which writes text that no JSON reader understands.
pub(crate) fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string);
        tracing::error!(
            "panicked at {}: {}",
            place.as_deref().unwrap_or("an unknown place"),
            message(info)
        );
    }));
}

fn message<'a>(info: &'a PanicHookInfo<'_>) -> &'a str {
    info.payload_as_str().unwrap_or("no message")
}
