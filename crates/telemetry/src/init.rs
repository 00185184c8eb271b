//! Installs the subscriber: JSON for machines, text for a person at a terminal.

use std::io::{IsTerminal, stderr};
use std::str::FromStr;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, registry};

use crate::json::JsonLines;
use crate::{Error, panics};

/// What is logged when `RUST_LOG` says nothing. The clients of Redis, PostgreSQL and gRPC repeat
/// what the services log themselves, with more words.
const FILTER_DEFAULT: &str = "info,fred=warn,h2=warn,hyper=warn,tower=warn,tokio_postgres=warn";

/// The bus client logs every expected failure as an error, message bodies included; what matters
/// of it is logged by the services. A filter that names it gets it back.
const FILTER_BUS_CLIENT: &str = "rocketmq=off";

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// JSON.
    Json,
    /// Text.
    Text,
}

/// A word that names no log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be auto, json or text")]
pub struct UnknownFormat;

impl FromStr for LogFormat {
    type Err = UnknownFormat;
    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        match text {
            "auto" => Ok(Self::Auto),
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            _ => Err(UnknownFormat),
        }
    }
}

/// Checks `RUST_LOG` before anything relies on it.
///
/// # Errors
/// [`Error::Filter`] names the setting and what is wrong.
pub fn check_filter() -> Result<(), Error> {
    filter().map(|_| ())
}

fn filter() -> Result<EnvFilter, Error> {
    let asked = std::env::var("RUST_LOG").unwrap_or_default();
    let mut directives = match asked.trim() {
        "" => FILTER_DEFAULT.to_owned(),
        asked => asked.to_owned(),
    };
    if !directives.contains("rocketmq") {
        directives.push(',');
        directives.push_str(FILTER_BUS_CLIENT);
    }
    EnvFilter::try_new(&directives).map_err(|error| Error::Filter(error.to_string()))
}

/// Sets up logging for this process, once; a second call does nothing. A wrong `RUST_LOG` falls back
/// to the default here, since services refuse to start on it ([`check_filter`]).
pub fn init(service: &str, format: LogFormat) {
    let filter = filter().unwrap_or_else(|_| EnvFilter::new(FILTER_DEFAULT));
    let json = match format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !stderr().is_terminal(),
    };
    let layer = if json {
        JsonLines::new(service, stderr).boxed()
    } else {
        fmt::layer().with_writer(stderr).boxed()
    };
    let installed = registry().with(layer.with_filter(filter)).try_init();
    if installed.is_ok() {
        panics::log_panics();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_words() {
        assert_eq!("json".parse(), Ok(LogFormat::Json));
        assert_eq!("yaml".parse::<LogFormat>(), Err(UnknownFormat));
    }

    #[test]
    fn the_default_filter_is_valid() {
        assert!(EnvFilter::try_new(format!("{FILTER_DEFAULT},{FILTER_BUS_CLIENT}")).is_ok());
    }
}
