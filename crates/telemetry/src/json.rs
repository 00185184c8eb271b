//! The JSON form of a log line, with every part of it bounded.

use std::fmt::{Debug, Write as _};
use std::io::Write as _;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// The longest value of a field, in bytes. With [`FIELDS_MAX`] fields a line stays below 128 KiB
/// before escaping, which is what log collectors take in one piece.
pub const FIELD_BYTES_MAX: usize = 4_000;

/// The most fields of a line; further ones are dropped.
pub const FIELDS_MAX: usize = 32;

/// Cuts a text to a length, at a character's border, and says so.
#[must_use]
pub fn clip(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = (0..=bytes_max)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    format!("{}… ({} bytes)", &text[..end], text.len())
}

/// Writes one JSON object per event.
pub(crate) struct JsonLines<W> {
    service: String,
    writer: W,
}

impl<W> JsonLines<W> {
    pub(crate) fn new(service: &str, writer: W) -> Self {
        Self {
            service: service.to_owned(),
            writer,
        }
    }
}

/// The fields of a span, kept with it until the events inside it are written.
struct SpanFields(Map<String, Value>);

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        if self.0.len() < FIELDS_MAX {
            self.0.insert(field.name().to_owned(), value);
        }
    }
}

/// Takes in at most a bounded part of what a `Debug` implementation writes, so that a huge value is
/// never built in memory just to be cut.
struct Clipped {
    text: String,
    left: usize,
}

impl std::fmt::Write for Clipped {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let kept = part.len().min(self.left);
        let end = (0..=kept)
            .rev()
            .find(|at| part.is_char_boundary(*at))
            .unwrap_or(0);
        self.text.push_str(&part[..end]);
        self.left -= end;
        if end < part.len() {
            self.text.push('…');
            self.left = 0;
            return Err(std::fmt::Error);
        }
        Ok(())
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut clipped = Clipped {
            text: String::new(),
            left: FIELD_BYTES_MAX,
        };
        // The only error is that the text was cut.
        let _ = write!(clipped, "{value:?}");
        self.put(field, Value::String(clipped.text));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::String(clip(value, FIELD_BYTES_MAX)));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::Bool(value));
    }
}

fn timestamp() -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

impl<S, W> Layer<S> for JsonLines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = ctx.span(id) {
            span.extensions_mut().insert(SpanFields(fields.0));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        let mut extensions = span.extensions_mut();
        if let Some(kept) = extensions.get_mut::<SpanFields>() {
            let mut fields = Fields(std::mem::take(&mut kept.0));
            values.record(&mut fields);
            kept.0 = fields.0;
        }
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in ctx
            .event_scope(event)
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            if let Some(kept) = span.extensions().get::<SpanFields>() {
                fields.0.extend(kept.0.clone());
            }
        }
        event.record(&mut fields);
        let metadata = event.metadata();
        let mut line = Map::new();
        line.insert("timestamp".to_owned(), Value::String(timestamp()));
        line.insert("level".to_owned(), Value::from(metadata.level().as_str()));
        line.insert("service".to_owned(), Value::from(self.service.as_str()));
        line.insert("target".to_owned(), Value::from(metadata.target()));
        line.extend(fields.0);
        if let Ok(mut text) = serde_json::to_vec(&line) {
            text.push(b'\n');
            // A log that cannot be written cannot be reported either.
            let _ = self.writer.make_writer().write_all(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn lines(work: impl FnOnce()) -> Vec<Value> {
        let memory = Memory::default();
        let writer = memory.clone();
        let layer = JsonLines::new("front", move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
        let bytes = memory.0.lock().unwrap().clone();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn a_line_carries_message_fields_and_those_of_its_spans() {
        let lines = lines(|| {
            let span = tracing::info_span!(
                "reserve",
                request_id = "q1",
                lua_code = tracing::field::Empty
            );
            let _entered = span.enter();
            span.record("lua_code", 15);
            tracing::info!(latency_ms = 3, ok = true, "refused");
        });
        assert_eq!(lines.len(), 1);
        let line = &lines[0];
        assert_eq!(line["message"], "refused");
        assert_eq!(line["service"], "front");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["request_id"], "q1");
        assert_eq!(line["lua_code"], 15);
        assert_eq!(line["latency_ms"], 3);
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn hostile_values_neither_break_a_line_nor_grow_it() {
        let huge = "é\n\"".repeat(1_000_000);
        let lines = lines(|| tracing::warn!(value = huge.as_str(), shown = ?huge, "{huge}"));
        assert_eq!(lines.len(), 1);
        assert!(lines[0].to_string().len() < 10 * FIELD_BYTES_MAX);
        assert!(lines[0]["value"].as_str().unwrap().contains("bytes)"));
    }

    #[test]
    fn clipping_keeps_characters_whole() {
        assert_eq!(clip("short", 10), "short");
        assert_eq!(clip("ééé", 3), "é… (6 bytes)");
    }
}
